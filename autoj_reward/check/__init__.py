"""Checks of a judge before a training: what it rewards by mistake, and how far to trust it."""
