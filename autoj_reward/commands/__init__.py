"""What `autoj` runs: a module a command."""
