"""Records that only one cluster has, or that differ: uncopied, foreign, of other logs, divergent."""
