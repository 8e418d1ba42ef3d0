"""How many lanes each job has, and which partitions each of its lanes. Pure.

What is copied to the same target partition is one *group*, and always in one lane.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from mm2.copy.spec import CopySpec, PartitionSpec
from mm2.kafka.structs import TopicPartition

T = TypeVar("T", bound=Hashable)


@dataclass(frozen=True, slots=True)
class JobSize:
    """``groups`` is the number of groups of a job, ``most`` the largest number of its lanes."""

    groups: int
    most: int


def groups_of(partitions: Sequence[PartitionSpec]) -> dict[TopicPartition, tuple[PartitionSpec, ...]]:
    """The groups, by target partition."""
    found: dict[TopicPartition, list[PartitionSpec]] = {}
    for part in partitions:
        found.setdefault(part.target, []).append(part)
    return {target: tuple(group) for target, group in found.items()}


def most_lanes(spec: CopySpec, automatic: int | None) -> int:
    """How many lanes a job may have: ``copy.lanes``; 0 = ``automatic`` (None: no limit) with at least two groups each.

    A transaction has one producer, so with transactions there is one lane.
    """
    if spec.transactions is not None:
        return 1
    groups = len(groups_of(spec.partitions))
    wanted = spec.lanes or (groups // 2 if automatic is None else min(automatic, groups // 2))
    return max(1, min(wanted, groups))


def lane_counts(slots: int | None, jobs: Sequence[JobSize]) -> list[int]:
    """How many lanes each job has on a cluster with so many slots (None: no limit); at least one.

    One slot is for the lane that hands off. Each of the others goes to the job whose lanes have most groups (D'Hondt), so one slot
    more or less changes the number of one job.
    """
    if slots is None:
        return [job.most for job in jobs]
    counts = [1] * len(jobs)
    for _ in range(max(0, slots - 1 - len(jobs))):
        growing = [index for index, job in enumerate(jobs) if counts[index] < job.most]
        if not growing:
            break
        counts[max(growing, key=lambda index: jobs[index].groups / counts[index])] += 1
    return counts


def divide(current: Sequence[Sequence[T]], count: int, new: Sequence[T] = ()) -> list[list[T]]:
    """Divide the groups of the ``current`` lanes, and ``new`` ones, among ``count`` lanes whose sizes differ by one at most. As few
    as possible move.

    Returns the groups of each current lane, none for a lane that ends, then those of additional lanes. If there are more lanes
    than ``count``, the first ones continue.
    """
    kept = [list(lane) for lane in current[:count]]
    waiting = deque([*(group for lane in current[count:] for group in lane), *new])
    size, rest = divmod(sum(map(len, kept)) + len(waiting), count)
    additional: list[list[T]] = [[] for _ in range(count - len(kept))]
    # The largest lanes have one group more.
    largest = sorted(range(len(kept)), key=lambda index: -len(kept[index]))
    quotas = {index: size + (place < rest) for place, index in enumerate(largest)}
    for index, lane in enumerate(kept):
        if (quota := quotas[index]) < len(lane):
            # Evenly spaced ones stay: neighbours are often partitions of one topic.
            stay = {place * len(lane) // quota for place in range(quota)}
            waiting += [group for place, group in enumerate(lane) if place not in stay]
            kept[index] = [group for place, group in enumerate(lane) if place in stay]
    shares = [*kept, *additional]
    wanted = [
        *(quotas[index] for index in range(len(kept))),
        *(size + (len(kept) + at < rest) for at in range(len(additional))),
    ]
    while waiting:
        for index, share in enumerate(shares):
            if waiting and len(share) < wanted[index]:
                share.append(waiting.popleft())
    return [*shares[: len(kept)], *([] for _ in current[count:]), *shares[len(kept) :]]


@dataclass(frozen=True, slots=True)
class LaneState:
    """``held`` are the partitions of a lane: no other lane may copy them. ``prepared`` are those that its running micro-batch can
    copy, empty without one. ``ends_first``: it is to end before others take over its partitions.
    """

    held: Collection[TopicPartition]
    prepared: Collection[TopicPartition] = ()
    ends_first: bool = False


def next_partitions(lanes: Sequence[LaneState], targets: Mapping[TopicPartition, int]) -> list[set[TopicPartition]]:
    """What the next micro-batch of each lane copies, on the way to the division ``targets`` (indexes of lanes).

    A lane keeps a partition until the running micro-batch of the lane that gets it is prepared for it. So it is not copied only
    for the time of a hand-off.
    """
    found: list[set[TopicPartition]] = [set() for _ in lanes]
    for tp, target in targets.items():
        found[target].add(tp)
    for index, lane in enumerate(lanes):
        if not lane.ends_first:
            found[index] |= {tp for tp in lane.held if tp not in lanes[targets[tp]].prepared}
    return found
