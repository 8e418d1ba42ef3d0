"""The dedicated process: it starts flows, applies changes of its file, and adopts positions of Connect workers."""
