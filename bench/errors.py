"""What can go wrong in a bench: one sentence for the user."""


class BenchFailed(Exception):
    """The benchmark cannot continue; the message contains the reason."""
