"""To the target: Produce and marker requests, and what follows from their outcomes."""
