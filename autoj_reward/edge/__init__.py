"""A judge over HTTP."""
