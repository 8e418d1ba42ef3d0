"""Herders: what decides what a worker runs (spec connect D), and what herders say to one another."""
