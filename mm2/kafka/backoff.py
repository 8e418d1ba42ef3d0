"""How long to wait: exponential back-off, and token buckets."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Backoff:
    """Exponential back-off with 20 % jitter, as `org.apache.kafka.common.utils.ExponentialBackoff` (KIP-580).

    The delay starts at `initial_ms` and doubles with each failed attempt up to `max_ms`; both in milliseconds.
    """

    initial_ms: int
    max_ms: int

    def delay_s(self, attempt: int) -> float:
        """Seconds to wait after failed attempt number `attempt` (from 0)."""
        ceiling = max(self.initial_ms, self.max_ms)
        delay_ms = min(float(ceiling), self.initial_ms * 2.0 ** min(attempt, 32))
        return delay_ms * random.uniform(0.8, 1.2) / 1000


_HASTY: Final = Backoff(1, 1_000)
_FREE: Final = 8


@dataclass(slots=True)
class HastyAnswers:
    """Answers of a broker to Fetch requests that bring nothing, and come before it has waited as requested.

    A broker sends a few of them, for example after an election. One that sends nothing else would be asked without end.
    """

    count: int = 0

    def pause_s(self, *, is_hasty: bool) -> float:
        """Seconds to wait before the next request, after this answer."""
        self.count = self.count + 1 if is_hasty else 0
        return _HASTY.delay_s(self.count - _FREE) if self.count >= _FREE else 0.0


@dataclass(slots=True)
class TokenBucket:
    """Tokens that are added at ``rate`` (above 0) a second, up to ``size``; full at first. A consumer may subtract more than
    there are. Times in seconds of one monotonic clock.
    """

    rate: float
    size: float
    tokens: float = field(init=False)
    filled_s: float = 0.0

    def __post_init__(self) -> None:
        self.tokens = self.size

    def fill(self, now_s: float) -> None:
        """Add the tokens since the last call."""
        self.tokens = min(self.size, self.tokens + (now_s - self.filled_s) * self.rate)
        self.filled_s = now_s

    def wait_s(self, now_s: float, wanted: float = 0.0) -> float:
        """Seconds until there are so many; fills the bucket."""
        self.fill(now_s)
        return max(0.0, (wanted - self.tokens) / self.rate)
