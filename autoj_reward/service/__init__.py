"""HTTP API of a judge."""
