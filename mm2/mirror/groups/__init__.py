"""Consumer groups: what is read of them, translation of their offsets, checkpoints, commits on the target."""
