"""The lanes of each copy job, which follow the number of slots of the Spark cluster.

A new division is only a target. What each lane copies next follows from what all lanes hold and are prepared for (`next_partitions`),
and is computed again whenever that changes, so a lost micro-batch needs no special treatment.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

import structlog

from mm2.copy.driver.lanes.division import (
    JobSize,
    LaneState,
    divide,
    groups_of,
    lane_counts,
    most_lanes,
    next_partitions,
)
from mm2.copy.driver.lanes.lane import Lane, MovedPartition
from mm2.copy.driver.lanes.slots import Slots
from mm2.copy.spec import CopySpec
from mm2.copy.tally import Tally
from mm2.kafka.structs import TopicPartition

#: How long slots and jobs are unchanged before partitions move, because executors register one after another.
STABLE_S: Final = 3.0
_POLL_S: Final = 0.5
#: One lane saturates one and a half brokers, so where brokers run on the same machine, more lanes only compete with them.
LOCAL_LANES: Final = (os.cpu_count() or 1) // 2


class DivisionCause(StrEnum):
    """Why partitions move to other lanes."""

    SLOTS = "slots"
    JOBS = "jobs"


@dataclass(slots=True)
class LaneCounts:
    """Counts of lanes that have ended."""

    tally: Tally = field(default_factory=Tally)
    batches: int = 0
    lost: int = 0

    def add(self, lane: Lane) -> None:
        """A lane has ended."""
        status = lane.status
        self.tally.merge(lane.tally())
        self.batches += status.batch
        self.lost += status.lost


class JobLanes:
    """The lanes of one job. Thread-safe. ``make(index, spec, holds, on_moved)`` makes a lane, ``lock`` is that of all its lanes.

    ``spec`` has the limits of the job, which are divided among its lanes.
    """

    def __init__(
        self,
        spec: CopySpec,
        make: Callable[[int, CopySpec, bool, Callable[[list[MovedPartition]], None]], Lane],
        lock: threading.RLock,
    ) -> None:
        self._spec = spec
        self._make = make
        self._lock = lock
        self._groups = groups_of(spec.partitions)
        self._parts = {part.source: part for part in spec.partitions}
        self._indexes: dict[Lane, int] = {}
        self._division: dict[Lane, list[TopicPartition]] = {}  # groups by lane; those that end have none
        self._targets: dict[TopicPartition, Lane] = {}
        self._ending_first: set[Lane] = set()
        self.all: tuple[Lane, ...] = ()
        self.ended = LaneCounts()
        self.moves = 0
        self.is_moving = False
        self.failure = ""  # why there are no lanes, or not all
        self._is_closed = False
        self._log = structlog.get_logger(__name__).bind(flow=spec.flow, task=f"{spec.connector}-{spec.task_id}")

    def size(self, slots: int | None) -> JobSize:
        """How many lanes it may have on a cluster with so many slots, and how much there is to divide."""
        return JobSize(len(self._groups), most_lanes(self._spec, None if slots is not None else LOCAL_LANES))

    @property
    def count(self) -> int:
        """The number of lanes, without those that are ending."""
        return len(self._division)

    def start(self, count: int) -> None:
        """Start the first lanes, which divide all partitions. If that fails, `failure` is the reason."""
        with self._lock:
            if self._is_closed:
                return
            try:
                for groups in divide([], count, list(self._groups)):
                    self._add(groups, 1 / count, holds=True)
                for lane in self.all:
                    lane.start()
            except Exception as error:  # noqa: BLE001  (the balancer cannot handle it)
                self.failure = f"{type(error).__name__}: {error}"

    def divide(self, count: int, cause: DivisionCause, slots: int | None) -> None:
        """Divide the partitions among so many lanes, with as few moves as possible. They move while copying continues."""
        with self._lock:
            if self._is_closed:
                return
            # Lanes that copy continue rather than those that wait for a slot.
            lanes = sorted(self._division, key=lambda lane: (lane.is_waiting, -len(self._division[lane])))
            before = dict(self._targets)
            shares = divide([self._division[lane] for lane in lanes], count)
            new = [self._add(groups, 1.0, holds=False) for groups in shares[len(lanes) :]]
            for lane, groups in zip(lanes, shares, strict=False):
                if groups:
                    self._assign(lane, groups)
                else:
                    del self._division[lane]
            moves = sum(self._targets[tp] is not lane for tp, lane in before.items())
            self.moves += moves
            self.is_moving = True
            self._share_limits()
            self._log.info(
                "partitions move to other lanes",
                cause=str(cause),
                slots=slots,
                lanes=count,
                lanes_before=len(lanes),
                partitions=moves,
            )
            for lane in new:
                lane.start()

    def follow(self, missing: int) -> int:
        """Let what the lanes copy next follow the division. Returns how many of the ``missing`` slots do not become free by this."""
        with self._lock:
            if self._is_closed:
                return missing
            for lane in [lane for lane in self.all if lane not in self._division and lane.join(0) and not lane.failure]:
                self.ended.add(lane)
                self.all = tuple(other for other in self.all if other is not lane)
                self._ending_first.discard(lane)
                del self._indexes[lane]
                self._share_limits()
            for lane in self._ends_next():
                if missing <= 0 and not lane.is_waiting and lane not in self._ending_first:
                    break
                self._ending_first.add(lane)
                missing -= 1
            place = {lane: index for index, lane in enumerate(self.all)}
            states = [LaneState(lane.sources, lane.prepared, lane in self._ending_first) for lane in self.all]
            wanted = next_partitions(states, {tp: place[lane] for tp, lane in self._targets.items()})
            for lane, sources in zip(self.all, wanted, strict=True):
                if sources != {part.source for part in lane.partitions}:
                    lane.copy_next(tuple(part for tp, part in self._parts.items() if tp in sources))
            held = {tp: lane for lane in self.all for tp in lane.sources}
            self.is_moving = len(self.all) > self.count or held != self._targets
        return max(0, missing)

    def move_all(self) -> None:
        """Continue all lanes on other executors, as soon as there are slots."""
        for lane in self.all:
            lane.move()

    def limit(self, spec: CopySpec) -> None:
        """The limits of the job have changed."""
        with self._lock:
            self._spec = spec
            self._share_limits()

    def close(self) -> None:
        """Request the stop of all lanes; no others start."""
        with self._lock:
            self._is_closed = True
            self.is_moving = False
        for lane in self.all:
            lane.signal_stop()

    def _ends_next(self) -> Sequence[Lane]:
        """The lanes that end, in the order in which they may do so before their partitions are taken over."""
        ending = [lane for lane in self.all if lane not in self._division]
        return sorted(ending, key=lambda lane: (lane not in self._ending_first, not lane.is_waiting))

    def _add(self, groups: list[TopicPartition], share: float, *, holds: bool) -> Lane:
        index = next(index for index in range(len(self.all) + 1) if index not in self._indexes.values())
        partitions = tuple(part for group in groups for part in self._groups[group])
        lane = self._make(index, self._spec.with_partitions(partitions).limited_to(share), holds, self._moved)
        self._indexes[lane] = index
        self.all += (lane,)
        self._assign(lane, groups)
        return lane

    def _assign(self, lane: Lane, groups: list[TopicPartition]) -> None:
        self._division[lane] = groups
        self._targets.update((part.source, lane) for group in groups for part in self._groups[group])

    def _moved(self, moved: list[MovedPartition]) -> None:
        """A lane has given these partitions away."""
        by_lane: dict[Lane, list[MovedPartition]] = {}
        for one in moved:
            by_lane.setdefault(self._targets[one.part.source], []).append(one)
        for lane, given in by_lane.items():
            lane.accept(given)

    def _share_limits(self) -> None:
        spec = self._spec.limited_to(1 / max(1, len(self.all)))
        for lane in self.all:
            lane.throttle(spec.throttle, spec.throttle_topics)


class Balancer:
    """Divides the slots of a cluster among the jobs of the process, in a thread of its own. ``jobs`` returns the lanes of those that are open."""

    def __init__(self, slots: Slots, jobs: Callable[[], Sequence[JobLanes]], stable_s: float = STABLE_S) -> None:
        self._slots = slots
        self._jobs = jobs
        self._stable_s = stable_s
        self._changed = threading.Event()
        self._stopped = False
        self._seen: tuple[object, ...] = ()
        self._since = time.monotonic()
        self._applied: tuple[int | None, frozenset[JobLanes]] = (None, frozenset())
        self._cause = DivisionCause.SLOTS
        self._thread = threading.Thread(target=self._run, name="lane-balancer", daemon=True)
        self._log = structlog.get_logger(__name__)

    def start(self) -> None:
        """Start the thread. Idempotent."""
        if self._thread.ident is None:
            self._thread.start()

    def stop(self) -> None:
        """Stop; the lanes stay as they are."""
        self._stopped = True
        self._changed.set()

    def wake(self) -> None:
        """Slots, jobs or lanes have changed."""
        self._changed.set()

    def _run(self) -> None:
        while not self._stopped:
            self._changed.clear()
            try:
                is_settled = self.balance(time.monotonic())
            except Exception:  # noqa: BLE001  (the lanes continue as they are)
                self._log.exception("lanes could not be balanced")
                is_settled = False
            self._changed.wait(None if is_settled else _POLL_S)

    def balance(self, now_s: float) -> bool:
        """One step; returns whether nothing remains to be done until something changes."""
        jobs, slots = list(self._jobs()), self._slots.count
        state = (slots, *jobs)
        if state != self._seen:
            self._seen, self._since = state, now_s
        missing = self._slots.missing
        for job in jobs:
            if job.is_moving:
                missing = job.follow(missing)
        if slots == 0 or not jobs:
            return not any(job.is_moving for job in jobs)
        counts = dict(zip(jobs, lane_counts(slots, [job.size(slots) for job in jobs]), strict=True))
        free = len(jobs) if slots is None else slots - 1 - sum(len(job.all) for job in jobs)
        for job in jobs:
            if not job.all:
                # Lanes of other jobs may still have its slots.
                count = counts[job] if slots is None else max(1, min(counts[job], free))
                job.start(count)
                free -= count
        is_stable = now_s - self._since >= self._stable_s
        is_divided = self._divide(counts, slots, free) if is_stable else False
        return is_divided and not any(job.is_moving for job in jobs)

    def _divide(self, counts: dict[JobLanes, int], slots: int | None, free: int) -> bool:
        """Change the numbers of lanes; False while some wait until others have ended."""
        applied = slots, frozenset(counts)
        if applied != self._applied:
            slots_before, jobs_before = self._applied
            self._cause = DivisionCause.SLOTS if jobs_before == applied[1] else DivisionCause.JOBS
            self._applied = applied
            if slots_before is not None and slots is not None and slots < slots_before:
                # An executor that is being decommissioned has no slots any more, and continues its tasks until they end.
                for job in counts:
                    job.move_all()
        is_divided = True
        for job, count in sorted(counts.items(), key=lambda item: item[1] - item[0].count):
            more = count - job.count
            if not job.count:
                continue  # it is being stopped
            if more > max(0, free):
                is_divided = False
            elif more:
                job.divide(count, self._cause, slots)
                free -= max(0, more)
        return is_divided
