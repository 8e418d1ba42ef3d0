"""The executor's side of one micro-batch: its start, its connections, its lease, and its reports."""
