"""Definitions of keys: types, validators, and how definitions are shown."""
