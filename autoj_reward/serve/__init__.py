"""Judge replicas on Ray Serve, and the client that asks them."""
