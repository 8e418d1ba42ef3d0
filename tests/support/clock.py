"""A clock that only the test advances."""

from __future__ import annotations


class Clock:
    """Returns monotonic seconds."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s
