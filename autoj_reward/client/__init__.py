"""Client of a judge for jobs and trainers: concurrency limits, retries, coalescing, recording."""
