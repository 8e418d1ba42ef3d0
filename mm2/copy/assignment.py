"""Assigns weighted items to a number of shares so that the largest load is small. Pure.

Longest processing time first (Graham 1969): items in descending order of weight, each to the share with the smallest
load. The largest load is at most 4/3 of the optimum. Equal weights are assigned round-robin.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

_FLOOR: Final = 0.02
"""Cost of an idle item, as a fraction of the average. Without it all idle items would get the same share."""


def assign(weights: Sequence[float | None], shares_count: int) -> list[list[int]]:
    """Assign the indexes of ``weights`` to at most ``shares_count`` non-empty shares. The indexes of a share ascend.

    A weight of None is unknown.
    """
    known = costs(weights)
    shares: list[list[int]] = [[] for _ in range(min(shares_count, len(weights)))]
    loads = [(0.0, share) for share in range(len(shares))]
    for index in sorted(range(len(known)), key=lambda index: -known[index]):
        load, share = loads[0]
        shares[share].append(index)
        heapq.heapreplace(loads, (load + known[index], share))
    return [sorted(share) for share in shares]


def costs(weights: Sequence[float | None]) -> list[float]:
    """Every weight as a positive number. An unknown weight counts as the average of the known ones."""
    usable = [None if weight is None or not math.isfinite(weight) else max(0.0, weight) for weight in weights]
    known = [weight for weight in usable if weight is not None]
    average = sum(known) / len(known) if known else 0.0
    if average <= 0:
        return [1.0] * len(weights)
    return [(average if weight is None else weight) + _FLOOR * average for weight in usable]
