"""Judge formats: how a judge's prompt is built, token by token, and how its output is read."""
