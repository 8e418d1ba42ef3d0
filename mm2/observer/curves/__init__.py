"""Values of the last day, and of more time from a Prometheus."""
