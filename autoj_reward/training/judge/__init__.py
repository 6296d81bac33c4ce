"""Training of judges: recipe -> examples -> targets on token trees -> trainer."""
