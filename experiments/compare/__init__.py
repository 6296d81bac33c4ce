"""Judges, scalar models and baselines on the same rows."""
