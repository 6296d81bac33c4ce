"""Rewards compared on the same candidates."""
