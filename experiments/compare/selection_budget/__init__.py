"""Selection at a part of the tokens: every way to ask a judge for less, on the same candidates."""
