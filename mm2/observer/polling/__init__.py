"""Periodic requests to both clusters, each kind on its own thread."""
