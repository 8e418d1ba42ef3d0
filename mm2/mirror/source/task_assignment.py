"""Assigns partitions to tasks: first as Java does, later by measured bytes per second. No I/O.

A new assignment stops and starts all tasks of the connector, so partitions keep their task where possible. New
partitions go to the task with the lowest load. Others move only if the highest load is clearly above what it would have
to be.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from mm2.copy.assignment import assign as assign_by_weight
from mm2.copy.assignment import costs
from mm2.kafka.structs import TopicPartition

Shares = list[list[TopicPartition]]

WORTH_RATIO: Final = 1.25
"""Partitions move only if the highest load exceeds this multiple of the highest load in the best assignment…"""
WORTH_BYTES_PER_S: Final = 1_000_000
"""…and exceeds it by this much; a low load is not worth a move."""
_WORTH_PARTITIONS: Final = 2
_GOOD_ENOUGH: Final = 1.05
_MOVES: Final = 200


def reassign(
    partitions: Sequence[TopicPartition],
    max_tasks: int,
    current: Sequence[Sequence[TopicPartition]],
    rates: Mapping[TopicPartition, float],
) -> Shares:
    """One share per task, at most ``max_tasks``, none empty; ``current`` are the current shares, none at first.

    ``rates`` are bytes per second where they are known; a partition without a rate counts as an average one. Without
    shares and rates, the result is the round-robin assignment of Java's connector.
    """
    weights = dict(zip(partitions, costs([rates.get(tp) for tp in partitions]), strict=True))
    count = min(max_tasks, len(partitions))
    best = _from_scratch(weights, count)
    shares = _kept(weights, current)
    if len(shares) != count:
        return _labelled(best, shares)
    loads = [_load(share, weights) for share in shares]
    assigned = {tp for share in shares for tp in share}
    for tp in sorted(weights.keys() - assigned, key=lambda tp: (-weights[tp], tp)):
        lightest = min(range(count), key=lambda index: (loads[index], index))
        shares[lightest].append(tp)
        loads[lightest] += weights[tp]
    if not all(shares):
        return _labelled(best, shares)
    lowest = max((_load(share, weights) for share in best), default=0.0)
    worth = WORTH_BYTES_PER_S if any(rates.get(tp) for tp in partitions) else _WORTH_PARTITIONS
    if max(loads, default=0.0) <= max(WORTH_RATIO * lowest, lowest + worth):
        return shares
    moved = _evened(shares, weights, _GOOD_ENOUGH * lowest)
    if max(_load(share, weights) for share in moved) <= WORTH_RATIO * lowest:
        return moved
    return _labelled(best, shares)


def _kept(weights: Mapping[TopicPartition, float], current: Sequence[Sequence[TopicPartition]]) -> Shares:
    """``current`` without partitions that no longer exist or that appear a second time."""
    left = set(weights)
    shares: Shares = []
    for share in current:
        shares.append([tp for tp in share if tp in left])
        left.difference_update(share)
    return shares


def _from_scratch(weights: Mapping[TopicPartition, float], count: int) -> Shares:
    partitions = list(weights)
    return [[partitions[index] for index in share] for share in assign_by_weight(list(weights.values()), count)]


def _labelled(shares: Shares, before: Shares) -> Shares:
    """The same shares, ordered so that most partitions keep their task number."""
    task_of = {tp: index for index, share in enumerate(before) for tp in share if index < len(shares)}
    common = Counter((index, task_of[tp]) for index, share in enumerate(shares) for tp in share if tp in task_of)
    labelled: list[list[TopicPartition] | None] = [None] * len(shares)
    left = set(range(len(shares)))
    for (index, task), _ in sorted(common.items(), key=lambda item: (-item[1], item[0])):
        if index in left and labelled[task] is None:
            labelled[task] = shares[index]
            left.discard(index)
    rest = iter(sorted(left))
    return [shares[next(rest)] if share is None else share for share in labelled]


def _evened(shares: Shares, weights: Mapping[TopicPartition, float], limit: float) -> Shares:
    """Make few moves, each from the highest to the lowest load, until the highest is at ``limit`` or no move helps."""
    shares = [list(share) for share in shares]
    loads = [_load(share, weights) for share in shares]
    for _ in range(_MOVES):
        heaviest = max(range(len(shares)), key=loads.__getitem__)
        lightest = min(range(len(shares)), key=loads.__getitem__)
        difference = loads[heaviest] - loads[lightest]
        movable = [tp for tp in shares[heaviest] if weights[tp] < difference]
        if loads[heaviest] <= limit or not movable or len(shares[heaviest]) == 1:
            break
        tp = min(movable, key=lambda tp: abs(weights[tp] - difference / 2))
        shares[heaviest].remove(tp)
        shares[lightest].append(tp)
        loads[heaviest] -= weights[tp]
        loads[lightest] += weights[tp]
    return shares


def _load(share: Sequence[TopicPartition], weights: Mapping[TopicPartition, float]) -> float:
    return sum(weights[tp] for tp in share)


def reassign_groups(
    groups: Sequence[Sequence[TopicPartition]],
    max_tasks: int,
    current: Sequence[Sequence[TopicPartition]],
    rates: Mapping[TopicPartition, float],
) -> Shares:
    """As `reassign`, with the partitions of each group in the same share."""
    group_of = {group[0]: group for group in groups}
    known = {group[0]: sum(rates.get(tp, 0.0) for tp in group) for group in groups if any(tp in rates for tp in group)}
    shares = reassign(list(group_of), max_tasks, [[tp for tp in share if tp in group_of] for share in current], known)
    return [[tp for first in share for tp in group_of[first]] for share in shares]


class TaskAssignment:
    """The current assignment. Thread-safe."""

    def __init__(
        self,
        stored: Callable[[], Shares],
        target_of: Callable[[TopicPartition], TopicPartition] = lambda partition: partition,
    ) -> None:
        """``stored`` returns the shares that the tasks have from a previous leader; it is called once. ``target_of`` is the
        target partition: what is copied to the same one gets the same task.
        """
        self._stored = stored
        self._target_of = target_of
        self._lock = threading.Lock()
        self._partitions: tuple[TopicPartition, ...] = ()
        self._max_tasks = 0
        self._shares: Shares | None = None
        self._rates: Mapping[TopicPartition, float] = {}

    @property
    def tasks(self) -> int:
        """The number of tasks; 0 before the first assignment."""
        return len(self._shares or ())

    def shares(self, partitions: tuple[TopicPartition, ...], max_tasks: int) -> Shares:
        """One share per task; the same until ``partitions`` or ``max_tasks`` change or `weigh` has moved partitions."""
        with self._lock:
            if self._shares is None or (partitions, max_tasks) != (self._partitions, self._max_tasks):
                current = self._stored() if self._shares is None else self._shares
                self._partitions, self._max_tasks = partitions, max_tasks
                self._shares = self._reassigned(current)
            return self._shares

    def weigh(self, rates: Mapping[TopicPartition, float]) -> int:
        """Take new measurements into account. Returns how many partitions have moved to another task."""
        with self._lock:
            self._rates = dict(rates)
            before = self._shares
            if before is None:
                return 0
            self._shares = after = self._reassigned(before)
            task_of = {tp: index for index, share in enumerate(before) for tp in share}
            return sum(task_of.get(tp) != index for index, share in enumerate(after) for tp in share)

    def _reassigned(self, current: Shares) -> Shares:
        groups: dict[TopicPartition, list[TopicPartition]] = {}
        for tp in self._partitions:
            groups.setdefault(self._target_of(tp), []).append(tp)
        return reassign_groups(list(groups.values()), self._max_tasks, current, self._rates)
