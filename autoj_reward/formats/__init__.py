"""Judge formats: what a judge is shown, token by token, and how its answer is read."""
