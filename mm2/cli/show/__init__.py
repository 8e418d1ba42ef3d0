"""Verbs of `mm2` that show or check something."""
