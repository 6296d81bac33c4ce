"""What a reward service stands: load, bad input, and the death of each of its processes."""
