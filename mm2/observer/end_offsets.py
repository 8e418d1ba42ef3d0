"""When a partition's end passed which offset, so that the age of a backlog is known without reading it. Pure."""

from __future__ import annotations

from typing import Final

#: Ends kept for one partition; beyond that every second one is forgotten, and an age is known a little less exactly.
_KEPT: Final = 64


class EndOffsetHistory:
    """Ends of one partition as they were seen. Times are seconds of the steady clock."""

    __slots__ = ("_ends", "_times")

    def __init__(self) -> None:
        self._times: list[float] = []
        self._ends: list[int] = []

    @property
    def end(self) -> int | None:
        """The newest; None before the first."""
        return self._ends[-1] if self._ends else None

    @property
    def at_s(self) -> float:
        """When the newest end was first seen."""
        return self._times[-1] if self._times else 0.0

    def see(self, at_s: float, end: int) -> None:
        """The end was at least there at that time. One that went back was cut off: what was known is about other records."""
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
        """When the end was first seen behind ``position``, so the record there is at least that old.

        None when that was before the first look, or when nothing is there yet. Positions only go on: what lies before one is
        forgotten.
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
