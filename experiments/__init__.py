"""Measurements and recipes: each one a command, each figure with the machine it came from."""
