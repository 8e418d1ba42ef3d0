"""Limits guesses of passwords: per user name and address, per name, per address, and for all together.

An address identifies no client, but nearly all guesses come from addresses that the users of the names do not have.
"""

from __future__ import annotations

import math
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mm2.connect.rest.access.roles import TooManyFailures

_MOST_BUCKETS: Final = 3_000
_MOST_BURSTS: Final = 2


@dataclass(frozen=True)
class Allowance:
    """``burst`` failures at once, then one in ``period_s``."""

    burst: int
    period_s: float


#: Of one name at one address.
PER_CLIENT: Final = Allowance(5, 10.0)
#: Of one name at all addresses: one attacker cannot use it up, so it does not exclude the user at another address.
PER_NAME: Final = Allowance(20, 2.5)
#: Of one address, for all names. Less than `ALL`, also with the attempts that are verified at the same time.
PER_ADDRESS: Final = Allowance(15, 5.0)
ALL: Final = Allowance(50, 0.5)

#: A name and an address; None: all of them.
_Key = tuple[str | None, str | None]


class FailureThrottle:
    """Counts failures as token buckets; one failure is forgotten after each period. Not thread-safe.

    Memory is bounded: the names and addresses that failed least recently are forgotten. The limit for all covers that.
    """

    def __init__(
        self,
        per_client: Allowance = PER_CLIENT,
        everything: Allowance = ALL,
        now_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._per_client = per_client
        self._now_s = now_s
        self._buckets: OrderedDict[_Key, _Bucket] = OrderedDict()
        self._all = _Bucket(everything, now_s())

    def check(self, name: str, address: str = "") -> None:
        """Call before credentials are verified. Raises TooManyFailures."""
        now_s = self._now_s()
        found = [self._all, *(self._buckets[key] for key in self._allowances(name, address) if key in self._buckets)]
        wait_s = max(bucket.wait_s(now_s) for bucket in found)
        if wait_s > 0:
            raise TooManyFailures(math.ceil(wait_s), name)

    def failed(self, name: str, address: str = "") -> None:
        """Count a failure."""
        now_s = self._now_s()
        for key, allowance in self._allowances(name, address).items():
            bucket = self._buckets.pop(key, None) or _Bucket(allowance, now_s)
            self._buckets[key] = bucket
            bucket.add(now_s)
        while len(self._buckets) > _MOST_BUCKETS:
            self._buckets.popitem(last=False)
        self._all.add(now_s)

    def succeeded(self, name: str, address: str = "") -> None:
        """Forget the failures of a name at an address; not those of the address, whose client may guess other names."""
        self._buckets.pop((name, address), None)

    def _allowances(self, name: str, address: str) -> dict[_Key, Allowance]:
        return {(name, address): self._per_client, (name, None): PER_NAME, (None, address): PER_ADDRESS}


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
