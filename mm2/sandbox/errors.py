"""What can go wrong while a sandbox is set up: one sentence for the user."""


class SandboxError(Exception):
    """A sandbox could not be set up or died; the message is one sentence that names what to do."""
