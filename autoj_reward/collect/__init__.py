"""From preferences to a judge's training data: sources -> intake -> teacher -> training rows."""
