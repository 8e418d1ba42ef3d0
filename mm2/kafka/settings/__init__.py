"""Settings of a client, read from Java-style keys."""
