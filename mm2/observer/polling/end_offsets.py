"""Keeps when a partition's log end offset passed which offset: the age of a backlog is known without reading it.

Pure.
"""

from __future__ import annotations

from typing import Final

#: Entries kept for one partition. Beyond that, every second one is dropped, which makes ages slightly less exact.
_KEPT: Final = 64


class EndOffsetHistory:
    """Observed end offsets of one partition. Times are seconds of a monotonic clock."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []

    @property
    def end(self) -> int | None:
        """The newest end offset; None before the first."""
        return self._ends[-1] if self._ends else None

    @property
    def at_s(self) -> float:
        """When the newest end offset was first seen."""
        return self._times[-1] if self._times else 0.0

    def see(self, at_s: float, end: int) -> None:
        """Record that the end offset was at least ``end`` at that time.

        If it decreased, the log was truncated, and the history is discarded.
        """
        ends = self._ends
        if ends and end == ends[-1]:
            return
        if ends and end < ends[-1]:
            self._times.clear()
            ends.clear()
        self._times.append(at_s)
        ends.append(end)
        if len(ends) > _KEPT:
            del self._times[1:-1:2], ends[1:-1:2]

    def passed(self, position: int) -> float | None:
        """When the end offset was first seen beyond ``position``: the record at ``position`` is at least that old.

        None if that was before the first observation, or if there is no such record yet. Positions only increase:
        entries before ``position`` are dropped.
        """
        ends, times = self._ends, self._times
        done = 0
        while done + 1 < len(ends) and ends[done + 1] <= position:
            done += 1
        if done:
            del ends[:done], times[:done]
        if not ends or ends[0] > position or len(ends) == 1:
            return None
        return times[1]
