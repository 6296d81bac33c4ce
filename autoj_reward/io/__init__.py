"""Input and output: validated input rows, atomic result files, HTTP requests, charts and markup."""
