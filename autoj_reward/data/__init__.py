"""Data that judges are trained and measured on: preferences, graded outputs, critiques."""
