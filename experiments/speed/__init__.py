"""Speed of judging, and where the time goes."""
