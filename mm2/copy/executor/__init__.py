"""The executor's side of one micro-batch: read from the source, write to the target, commit, report."""
