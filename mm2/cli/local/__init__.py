"""Verbs of `mm2` that only concern this machine."""
