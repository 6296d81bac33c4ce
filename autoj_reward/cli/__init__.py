"""The `autoj` command: its table of commands, and the commands by subject."""
