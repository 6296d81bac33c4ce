"""The `autoj` command line: the parser, and the commands grouped by subject."""
