"""Items of a list that are two things with a colon between them."""

from __future__ import annotations


def split_pair(text: str) -> list[str]:
    """The parts between colons; empty ones at the end are none, as Java's String.split has it."""
    parts = text.split(":")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts
