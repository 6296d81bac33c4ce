"""One judge input in, one judgement out."""
