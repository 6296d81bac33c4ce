"""How fast judgements come, and what the time goes into."""
