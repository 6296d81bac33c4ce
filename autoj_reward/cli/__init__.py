"""The `autoj` command: a module for each of its commands."""
