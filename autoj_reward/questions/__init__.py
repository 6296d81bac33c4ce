"""Questions about responses: how good is one, which of two is better, which of N is best."""
