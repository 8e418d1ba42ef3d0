"""Limits the bytes per second that are read, for a flow and for single topics (``copy.throttle.bytes.per.sec``).
Pure.

Token buckets with one token per byte, filled at the given rate. A bucket holds the tokens of one second, at least
`_LEAST_SIZE`. A fetch needs a bucket that is not empty; received bytes are subtracted, even below zero. Partitions
that are far behind may only use the upper half of a bucket. So partitions near the end, which need little, always
find tokens, and a backfill gets the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from mm2.kafka.backoff import TokenBucket

_LEAST_ROOM: Final = 1024
_RESERVED: Final = 0.5
_LEAST_SIZE: Final = 4 * _LEAST_ROOM


class Throttle:
    """Rates of 0 mean no limit."""

    def __init__(self, rate: float = 0, topics: Mapping[str, float] | None = None) -> None:
        self._flow: TokenBucket | None = None
        self._topics: dict[str, TokenBucket] = {}
        self.set(rate, topics or {})

    def set(self, rate: float, topics: Mapping[str, float]) -> None:
        """Change the rates. A bucket whose rate stays the same keeps its tokens."""
        if rate <= 0:
            self._flow = None
        elif self._flow is None or self._flow.rate != rate:
            self._flow = _bucket(rate)
        kept = {name: bucket for name, bucket in self._topics.items() if topics.get(name) == bucket.rate}
        self._topics = {name: kept.get(name) or _bucket(limit) for name, limit in topics.items() if limit > 0}

    @property
    def active(self) -> bool:
        """Whether there is a limit."""
        return self._flow is not None or bool(self._topics)

    def room(self, topic: str, now_s: float, *, behind: bool) -> tuple[float, float]:
        """Bytes of a topic that may be requested now, and how long to wait (s) when there are none."""
        room, wait_s = float("inf"), 0.0
        for bucket in (self._flow, self._topics.get(topic)):
            if bucket is not None:
                reserved = _reserved(bucket, behind=behind)
                wait_s = max(wait_s, bucket.wait_s(now_s, _LEAST_ROOM + reserved))
                room = min(room, bucket.tokens - reserved)
        return (room, 0.0) if room >= _LEAST_ROOM else (0.0, wait_s)

    def flow_room(self, *, behind: bool) -> float:
        """Bytes of all topics together, at the time of the last `room`."""
        return float("inf") if self._flow is None else self._flow.tokens - _reserved(self._flow, behind=behind)

    def consume(self, topic: str, size: int) -> None:
        """Subtract received bytes of a topic."""
        for bucket in (self._flow, self._topics.get(topic)):
            if bucket is not None:
                bucket.tokens -= size


def _bucket(rate: float) -> TokenBucket:
    return TokenBucket(rate, max(rate, _LEAST_SIZE))


def _reserved(bucket: TokenBucket, *, behind: bool) -> float:
    return bucket.size * _RESERVED if behind else 0.0
