"""The offsets of a target partition that have been acknowledged to the copies of several source partitions. Pure."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

_RANGES_KEPT: Final = 1024


@dataclass(slots=True, eq=False)
class AcknowledgedRanges:
    """Ranges that touch are one, so there are few unless another program writes to the partition. The newest 1024 are kept."""

    _ranges: list[tuple[int, int]] = field(default_factory=list)  # in order, without overlaps

    def add(self, first: int, end: int) -> None:
        """The offsets ``first .. end-1`` have been acknowledged."""
        low = bisect_right(self._ranges, first, key=lambda one: one[0])
        if low and self._ranges[low - 1][1] >= first:
            low -= 1
        high = low
        while high < len(self._ranges) and self._ranges[high][0] <= end:
            first, end = min(first, self._ranges[high][0]), max(end, self._ranges[high][1])
            high += 1
        self._ranges[low:high] = [(first, end)]
        del self._ranges[:-_RANGES_KEPT]

    def count(self, first: int, end: int) -> int:
        """How many of the offsets ``first .. end-1`` have been acknowledged."""
        at = max(0, bisect_right(self._ranges, first, key=lambda one: one[0]) - 1)
        found = 0
        while at < len(self._ranges) and self._ranges[at][0] < end:
            found += max(0, min(end, self._ranges[at][1]) - max(first, self._ranges[at][0]))
            at += 1
        return found

    def explained_to(self, first: int) -> int:
        """The end of the acknowledged offsets from ``first`` on, up to the first one that is not."""
        at = bisect_right(self._ranges, first, key=lambda one: one[0]) - 1
        return max(first, self._ranges[at][1]) if at >= 0 else first
