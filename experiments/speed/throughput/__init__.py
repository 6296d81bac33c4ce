"""Wall time of judging: the engine's limit, and the ways to reach it."""
