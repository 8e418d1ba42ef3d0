"""The runtime of a worker: connectors and tasks, each on its own thread."""
