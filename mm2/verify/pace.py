"""Limits the bytes per second that are read from both sides together."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from mm2.kafka.backoff import TokenBucket

_MOST_BYTES: Final = 8 << 20
_LEAST_BYTES: Final = 64 << 10
_SLEEP_S: Final = 0.5


class RateLimit:
    """A rate limit; ``rate`` 0: none. Unused rate does not accumulate: the limit protects other users of the network."""

    def __init__(self, rate: float, on_wait: Callable[[], None] = lambda: None) -> None:
        self._bucket = TokenBucket(rate, size=0, filled_s=time.monotonic()) if rate else None
        self._on_wait = on_wait

    @property
    def piece(self) -> int:
        """The number of bytes to request at a time."""
        return _MOST_BYTES if self._bucket is None else int(min(_MOST_BYTES, max(_LEAST_BYTES, self._bucket.rate / 4)))

    def came(self, size: int) -> None:
        """Count bytes that were read."""
        if self._bucket is not None:
            self._bucket.fill(time.monotonic())
            self._bucket.tokens -= size

    def wait(self) -> None:
        """Wait until more may be requested, and report progress meanwhile."""
        while self._bucket is not None and (left := self._bucket.wait_s(time.monotonic())) > 0:
            time.sleep(min(left, _SLEEP_S))
            self._on_wait()
