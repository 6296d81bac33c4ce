"""Fault tests: the service and jobs under load, kills and attacks, and a judge under attack."""
