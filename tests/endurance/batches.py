"""Number of micro-batches, as the product logs it."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Any

EVENT = "Copied so far."


class BatchCount:
    """Sum of the tasks' counts, each of which starts at 0 with its task, with the time of each log line."""

    def __init__(self) -> None:
        self.total = 0
        self._latest: dict[str, int] = {}
        self._points: list[tuple[int, float]] = []

    def add_line(self, line: Mapping[str, Any], at_s: float) -> bool:
        """Add a log line; True when it reports new batches."""
        count = line.get("batches")
        if line.get("event") != EVENT or not isinstance(count, int):
            return False
        task = f"{line.get('flow')} {line.get('connector')} {line.get('task')}"
        before = self._latest.get(task, 0)
        new = count - before if count >= before else count
        self._latest[task] = count
        if not self._points:
            self._points.append((0, at_s))
        if new <= 0:
            return False
        self.total += new
        self._points.append((self.total, at_s))
        return True

    def time_s(self, batches: int) -> float:
        """Approximate time of that number of batches on the caller's clock, interpolated between the log lines.

        Raises IndexError before the first line.
        """
        index = bisect_left(self._points, (batches, 0.0))
        if index >= len(self._points):
            return self._points[-1][1]
        if index == 0:
            return self._points[0][1]
        (before, before_s), (after, after_s) = self._points[index - 1], self._points[index]
        return before_s + (after_s - before_s) * (batches - before) / (after - before)
