"""Rows in, results out: input files read and checked, result files whole or absent, pages."""
