"""Verbs of `mm2` that move applications between clusters."""
