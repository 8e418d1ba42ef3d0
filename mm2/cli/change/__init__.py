"""Verbs of `mm2` that change a running flow or its positions."""
