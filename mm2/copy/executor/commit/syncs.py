"""Offset syncs, by the rule of MirrorMaker's ``OffsetSyncWriter`` with a batch in place of a record.

A sync is due for the first batch, after a gap or a rewind, after a lower target offset, and when the last sync is
``lag_max`` offsets behind. Other batches wait for the next commit. A sync names the last record of its batch, so it
never covers records that are not on the target. The first batch, and one after a rewind, also get a sync for their
first record. Without it, group offsets inside that batch could not be translated.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from mm2.copy.executor.partition.outbox import Outbox, outgoing_of
from mm2.copy.executor.producing.sink import Sink
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition


def sync_record(source: TopicPartition, upstream: int, downstream: int) -> Record:
    """An offset sync: STRING topic, INT32 partition -> INT64 upstream, INT64 downstream (Kafka's ``OffsetSync``)."""
    name = source.topic.encode()
    key = struct.pack(">h", len(name)) + name + struct.pack(">i", source.partition)
    return Record(key, struct.pack(">qq", upstream, downstream))


@dataclass(slots=True)
class _SyncState:
    previous_up: int = -1
    previous_down: int = -1
    last_sync_down: int = -1


class Syncs:
    """Writes offset syncs to partition 0 of the syncs topic. Newer ones replace those still waiting, as in MM2."""

    def __init__(self, sink: Sink, topic: str, lag_max: int) -> None:
        self._sink = sink
        self._outbox = sink.outbox(TopicPartition(topic, 0), idempotent=False)
        self._lag_max = lag_max
        self._states: dict[TopicPartition, _SyncState] = {}
        self._pending: dict[TopicPartition, tuple[int, int]] = {}
        self._delayed: dict[TopicPartition, tuple[int, int]] = {}
        self._starts: dict[TopicPartition, tuple[int, int]] = {}  # sent before the pending sync of the same partition

    def acked(self, source: TopicPartition, first_up: int, last_up: int, first_down: int, count: int) -> None:
        """A batch of ``count`` records from source offsets ``first_up``..``last_up`` is on the target from
        ``first_down`` on.
        """
        if first_down < 0:
            return
        state = self._states.setdefault(source, _SyncState())
        last_down = first_down + count - 1
        dense = last_up - first_up + 1 == count
        # Not with holes: the first record may be after first_up, and a group before it would skip it.
        if dense and (state.last_sync_down == -1 or first_up <= state.previous_up):
            self._starts[source] = (first_up, first_down)
        due = (
            state.last_sync_down == -1
            or last_down - (state.last_sync_down + 1) >= self._lag_max
            or first_up - state.previous_up != 1
            or not dense
            or first_down < state.previous_down
        )
        state.previous_up, state.previous_down = last_up, last_down
        if due:
            state.last_sync_down = last_down
            self._pending[source] = (last_up, last_down)
            self._delayed.pop(source, None)
            self._fire()
        else:
            self._delayed[source] = (last_up, last_down)

    def commit(self) -> None:
        """Send syncs that were not due, so that the last sync of an idle partition is not delayed."""
        for source, pair in self._delayed.items():
            self._pending[source] = pair
            self._states[source].last_sync_down = pair[1]
        self._delayed.clear()
        self._fire()

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self._pending and not self._delayed and self._outbox.idle

    @property
    def outbox(self) -> Outbox:
        """For its errors."""
        return self._outbox

    def _fire(self) -> None:
        if not self._pending or not self._outbox.idle:
            return
        records = []
        for source, pair in self._pending.items():
            start = self._starts.pop(source, pair)
            records += [sync_record(source, up, down) for up, down in dict.fromkeys((start, pair))]
        self._pending.clear()
        self._sink.put(self._outbox, outgoing_of(records, self._fire))
