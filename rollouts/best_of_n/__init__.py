"""Best-of-N: N responses a query, judged, one chosen."""
