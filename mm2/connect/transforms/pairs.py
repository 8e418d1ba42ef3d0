"""Parsing of list items with colons."""

from __future__ import annotations


def split_pair(text: str) -> list[str]:
    """The parts between colons, without empty ones at the end, as in Java's String.split."""
    parts = text.split(":")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts
