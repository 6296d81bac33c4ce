"""What a caller asks about candidates: which is best, within which budget."""
