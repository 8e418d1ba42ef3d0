"""Exponential back-off."""

from __future__ import annotations

import random
from dataclasses import dataclass


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
