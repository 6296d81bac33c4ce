"""Judge and policy replicas on Ray Serve."""
