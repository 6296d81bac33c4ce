"""What jobs and trainers hold: bounds, retries, coalesces, records."""
