"""Herders, which decide what a worker runs, and the communication between them."""
