"""What can go wrong in a bench: one sentence for the user."""


class BenchFailed(Exception):
    """The bench cannot go on; the message says why."""
