"""Training of judges and of scalar reward models."""
