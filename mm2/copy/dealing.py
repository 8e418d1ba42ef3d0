"""Dealing weighted things out to parties, so that the heaviest share is light. Pure.

Longest processing time first (Graham 1969): the heaviest first, each to whoever has the least. Its heaviest share is
at most 4/3 of the best there is. With equal weights it is round robin.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from typing import Final

_FLOOR: Final = 0.02
"""What a partition costs for being there, as a share of the average one: else all idle ones would go to one party."""


def deal(weights: Sequence[float | None], parties: int) -> list[list[int]]:
    """Indexes of ``weights`` in ``parties`` shares (as many as there are things, if these are fewer), none empty.

    None = unknown. The indexes of a share ascend.
    """
    known = costs(weights)
    shares: list[list[int]] = [[] for _ in range(min(parties, len(weights)))]
    loads = [(0.0, party) for party in range(len(shares))]
    for index in sorted(range(len(known)), key=lambda index: -known[index]):
        load, party = loads[0]
        shares[party].append(index)
        heapq.heapreplace(loads, (load + known[index], party))
    return [sorted(share) for share in shares]


def costs(weights: Sequence[float | None]) -> list[float]:
    """Every weight as a positive number: an unknown one counts as the average of the known, an idle one a little."""
    usable = [None if weight is None or not math.isfinite(weight) else max(0.0, weight) for weight in weights]
    known = [weight for weight in usable if weight is not None]
    average = sum(known) / len(known) if known else 0.0
    if average <= 0:
        return [1.0] * len(weights)
    return [(average if weight is None else weight) + _FLOOR * average for weight in usable]
