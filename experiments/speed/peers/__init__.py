"""What asking an endpoint costs: this package beside other ways to ask for the same judgements."""
