"""Listeners, their limits, and the checks before a request reaches a resource."""
