"""When an offset sync is due, and which syncs wait to be sent (spec mirrormaker §4.4). Pure.

The rule speaks of single acknowledged records. The copier acknowledges runs in which source and target offsets advance
together, so `OffsetSyncState.update_run` answers for a whole run at once, with the result that the record-level rule
would have had at its end: newer syncs of a partition replace older pending ones anyway.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from mm2.mirror.formats import OffsetSync


class OffsetPair(NamedTuple):
    """Offset of one record on the source and of its copy on the target."""

    upstream: int
    downstream: int


@dataclass(slots=True)
class OffsetSyncState:
    """State of one source partition. `lag_max` is `offset.lag.max`; 0 makes a sync due for every record."""

    lag_max: int
    previous_upstream: int = -1
    previous_downstream: int = -1
    last_sync_downstream: int = -1

    def update(self, upstream: int, downstream: int) -> bool:
        """Take note of one acknowledged record; True when it must be published as a sync."""
        due = (
            self.last_sync_downstream == -1  # first record of this task's life
            or downstream - (self.last_sync_downstream + 1) >= self.lag_max  # translation would be too stale
            or upstream - self.previous_upstream != 1  # hole or rewind upstream
            or downstream < self.previous_downstream  # target truncated or created again
        )
        if due:
            self.last_sync_downstream = downstream
        self.previous_upstream = upstream
        self.previous_downstream = downstream
        return due

    def update_run(self, upstream: int, downstream: int, count: int) -> OffsetPair | None:
        """Take note of `count` >= 1 records from (`upstream`, `downstream`) on, both offsets advancing by one each.

        The newest pair that is due, or None. Equal to calling `update` `count` times and keeping the last True.
        """
        newest = OffsetPair(upstream, downstream) if self.update(upstream, downstream) else None
        last = downstream + count - 1
        step = max(self.lag_max, 0) + 1
        if last - self.last_sync_downstream >= step:
            self.last_sync_downstream += (last - self.last_sync_downstream) // step * step
            newest = OffsetPair(upstream + self.last_sync_downstream - downstream, self.last_sync_downstream)
        self.previous_upstream = upstream + count - 1
        self.previous_downstream = last
        return newest


@dataclass(slots=True)
class OffsetSyncQueue:
    """Syncs of one task: those due (`pending`, in order of first need) and the newest position of quiet partitions.

    Kafka's OffsetSyncWriter: a newer sync of a partition replaces the waiting one in place; `release_delayed`, called
    at every offset commit, makes the last position of partitions that went quiet known too (KAFKA-15906).
    """

    lag_max: int
    _states: dict[tuple[str, int], OffsetSyncState] = field(default_factory=dict)
    _pending: dict[tuple[str, int], OffsetPair] = field(default_factory=dict)
    _delayed: dict[tuple[str, int], OffsetPair] = field(default_factory=dict)

    def acked(self, topic: str, partition: int, upstream: int, downstream: int, count: int = 1) -> None:
        """A run of `count` records of the source partition is on the target, first at (`upstream`, `downstream`)."""
        key = (topic, partition)
        state = self._states.get(key)
        if state is None:
            state = self._states[key] = OffsetSyncState(self.lag_max)
        due = state.update_run(upstream, downstream, count)
        last = OffsetPair(upstream + count - 1, downstream + count - 1)
        if due is not None:
            self._pending[key] = due
            self._delayed.pop(key, None)
        if due != last:
            self._delayed[key] = last

    def release_delayed(self) -> None:
        self._pending.update(self._delayed)
        self._delayed.clear()

    def take(self, limit: int) -> list[OffsetSync]:
        """Remove and return the oldest at most `limit` pending syncs."""
        keys = list(self._pending)[: max(limit, 0)]
        return [OffsetSync(*key, *self._pending.pop(key)) for key in keys]

    def __len__(self) -> int:
        return len(self._pending)
