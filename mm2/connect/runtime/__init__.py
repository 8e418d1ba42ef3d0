"""What runs in a worker: connectors and tasks, each on a thread of its own (spec connect G)."""
