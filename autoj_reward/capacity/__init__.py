"""Memory estimates: what an engine or a training takes of its GPUs (`autoj plan`)."""
