"""Capacity planning (`autoj plan`): memory, a judge's maximum rate, and devices for a load."""
