"""The snapshot as metrics and as JSON, sums over topics, and colours of states."""
