"""Errors of the sandbox."""


class SandboxError(Exception):
    """A sandbox could not be set up or died; the message is one sentence with a remedy."""
