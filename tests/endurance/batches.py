"""How many micro-batches there have been, as the product itself tells it in its log."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

EVENT = "Copied so far."


class BatchCount:
    """Adds up the tasks' own counts, each of which starts at 0 with its task, and knows when each was told."""

    def __init__(self) -> None:
        self.total = 0
        self._latest: dict[str, int] = {}
        self._points: list[tuple[int, float]] = []

    def hear(self, line: Mapping[str, Any], at_s: float) -> bool:
        """Takes a line of the log; True when it tells of new batches."""
        told = line.get("batches")
        if line.get("event") != EVENT or not isinstance(told, int):
            return False
        task = f"{line.get('flow')} {line.get('connector')} {line.get('task')}"
        before = self._latest.get(task, 0)
        new = told - before if told >= before else told
        self._latest[task] = told
        if not self._points:
            self._points.append((0, at_s))
        if new <= 0:
            return False
        self.total += new
        self._points.append((self.total, at_s))
        return True

    def time_s(self, batches: int) -> float:
        """About when there had been that many, on the caller's clock: on a straight line between what was told.

        Raises IndexError while nothing has been told.
        """
        index = bisect_left(self._points, (batches, 0.0))
        if index >= len(self._points):
            return self._points[-1][1]
        if index == 0:
            return self._points[0][1]
        (before, before_s), (after, after_s) = self._points[index - 1], self._points[index]
        return before_s + (after_s - before_s) * (batches - before) / (after - before)
