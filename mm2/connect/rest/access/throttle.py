"""Limits guesses of passwords, per user name and for all names together."""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mm2.connect.rest.access.principal import TooManyFailures

_NAMES: Final = 1_000
_MOST_BURSTS: Final = 2


@dataclass(frozen=True)
class Allowance:
    """``burst`` failures at once, then one in ``period_s``."""

    burst: int
    period_s: float


PER_NAME: Final = Allowance(5, 10.0)
ALL_NAMES: Final = Allowance(50, 0.5)


class FailureThrottle:
    """Counts failures as token buckets; one failure is forgotten after each period. Not thread-safe.

    Memory is bounded: the names that failed least recently are forgotten. The limit for all names covers that.
    """

    def __init__(
        self,
        per_name: Allowance = PER_NAME,
        all_names: Allowance = ALL_NAMES,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_name = per_name
        self._now_s = now_s
        self._names: OrderedDict[str, _Bucket] = OrderedDict()
        self._all = _Bucket(all_names, now_s())

    def check(self, name: str) -> None:
        """Call before credentials are verified. Raises TooManyFailures."""
        now_s = self._now_s()
        own = self._names.get(name)
        wait_s = max(self._all.wait_s(now_s), 0.0 if own is None else own.wait_s(now_s))
        if wait_s > 0:
            raise TooManyFailures(math.ceil(wait_s), name)

    def failed(self, name: str) -> None:
        """Count a failure."""
        now_s = self._now_s()
        bucket = self._names.pop(name, None) or _Bucket(self._per_name, now_s)
        self._names[name] = bucket
        while len(self._names) > _NAMES:
            self._names.popitem(last=False)
        bucket.add(now_s)
        self._all.add(now_s)

    def succeeded(self, name: str) -> None:
        """Forget the failures of a name."""
        self._names.pop(name, None)


class _Bucket:
    def __init__(self, allowance: Allowance, now_s: float) -> None:
        self._allowance = allowance
        self._level = 0.0
        self._at_s = now_s

    def add(self, now_s: float) -> None:
        self._drain(now_s)
        # Above the burst: attempts that were being verified at the same time count, too.
        self._level = min(self._level + 1, _MOST_BURSTS * self._allowance.burst)

    def wait_s(self, now_s: float) -> float:
        self._drain(now_s)
        return max(0.0, (self._level - self._allowance.burst + 1) * self._allowance.period_s)

    def _drain(self, now_s: float) -> None:
        self._level = max(0.0, self._level - (now_s - self._at_s) / self._allowance.period_s)
        self._at_s = now_s
