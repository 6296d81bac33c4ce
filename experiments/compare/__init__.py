"""Comparison of judges, scalar reward models and baselines on the same rows."""
