"""Limits the bytes per second that are read, for a flow and for single topics (``copy.throttle.bytes.per.sec``).
Pure.

Token buckets with one token per byte, filled at the given rate. A bucket holds the tokens of one second, at least
`_LEAST_SIZE`. A fetch needs a bucket that is not empty; received bytes are subtracted, even below zero. Partitions
that are far behind may only use the upper half of a bucket. So partitions near the end, which need little, always
find tokens, and a backfill gets the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

_LEAST_ROOM: Final = 1024
_RESERVED: Final = 0.5
_LEAST_SIZE: Final = 4 * _LEAST_ROOM


@dataclass(slots=True)
class Bucket:
    """``rate`` in bytes per second, above 0; times in seconds of one monotonic clock."""

    rate: float
    tokens: float = field(default=-1.0)
    filled_s: float = 0.0

    @property
    def size(self) -> float:
        """The maximum number of tokens."""
        return max(self.rate, _LEAST_SIZE)

    def fill(self, now_s: float) -> None:
        """Add the tokens since the last call."""
        if self.tokens == -1.0 and not self.filled_s:
            self.tokens = self.size
        else:
            self.tokens = min(self.size, self.tokens + (now_s - self.filled_s) * self.rate)
        self.filled_s = now_s

    def room(self, *, behind: bool) -> float:
        """Bytes that may be requested; 0 or less for none."""
        return self.tokens - (self.size * _RESERVED if behind else 0.0)

    def wait_s(self, *, behind: bool) -> float:
        """Seconds until there is room."""
        return max(0.0, (_LEAST_ROOM - self.room(behind=behind)) / self.rate)


class Throttle:
    """Rates of 0 mean no limit."""

    def __init__(self, rate: float = 0, topics: Mapping[str, float] | None = None) -> None:
        self._flow: Bucket | None = None
        self._topics: dict[str, Bucket] = {}
        self.set(rate, topics or {})

    def set(self, rate: float, topics: Mapping[str, float]) -> None:
        """Change the rates. A bucket whose rate stays the same keeps its tokens."""
        if rate <= 0:
            self._flow = None
        elif self._flow is None or self._flow.rate != rate:
            self._flow = Bucket(rate)
        kept = {name: bucket for name, bucket in self._topics.items() if topics.get(name) == bucket.rate}
        self._topics = {name: kept.get(name, Bucket(limit)) for name, limit in topics.items() if limit > 0}

    @property
    def active(self) -> bool:
        """Whether there is a limit."""
        return self._flow is not None or bool(self._topics)

    def room(self, topic: str, now_s: float, *, behind: bool) -> tuple[float, float]:
        """Bytes of a topic that may be requested now, and how long to wait (s) when there are none."""
        room, wait_s = float("inf"), 0.0
        for bucket in (self._flow, self._topics.get(topic)):
            if bucket is not None:
                bucket.fill(now_s)
                room = min(room, bucket.room(behind=behind))
                wait_s = max(wait_s, bucket.wait_s(behind=behind))
        return (room, 0.0) if room >= _LEAST_ROOM else (0.0, wait_s)

    def flow_room(self, *, behind: bool) -> float:
        """Bytes of all topics together, at the time of the last `room`."""
        return float("inf") if self._flow is None else self._flow.room(behind=behind)

    def consume(self, topic: str, size: int) -> None:
        """Subtract received bytes of a topic."""
        for bucket in (self._flow, self._topics.get(topic)):
            if bucket is not None:
                bucket.tokens -= size
