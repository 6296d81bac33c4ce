"""From what a judge says to an order among candidates."""
