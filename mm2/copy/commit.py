"""What a copier writes besides data: MM2's positions in Connect's offsets topic, and offset syncs.

Positions say what is on the target (the acknowledged prefix), never more. Syncs follow MM2's rule (spec §4.4) with a
batch in place of a record: due are the first batch, one after a gap or a rewind, one after a step back on the target,
and one that leaves the last sync ``lag_max`` behind; what is not due waits for the next commit. A sync names the last
record of its batch, so it never promises more than is there; the first batch, and one after a rewind, also gives its
first record, without which groups that have not got beyond that batch could not be translated at all.
"""

from __future__ import annotations

import functools
import json
import struct
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from mm2.copy.sink import Outbox, Parcel, Sink
from mm2.kafka.partitioner import partition_for
from mm2.kafka.records.batch import read_header
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import TopicPartition


def offset_key(connector: str, source_alias: str, source: TopicPartition) -> bytes:
    """Key of a position in Connect's offsets topic; Java looks it up by its bytes (spec mirrormaker §2.5)."""
    place = {"cluster": source_alias, "partition": source.partition, "topic": source.topic}
    return json.dumps([connector, place], separators=(",", ":"), ensure_ascii=False).encode()


def offset_value(position: int) -> bytes:
    """Value of a position: the last offset that is done, resume at the next."""
    return b'{"offset":%d}' % (position - 1)


def sync_record(source: TopicPartition, upstream: int, downstream: int) -> Record:
    """An offset sync: STRING topic, INT32 partition -> INT64 upstream, INT64 downstream (spec mirrormaker §2.3)."""
    name = source.topic.encode()
    key = struct.pack(">h", len(name)) + name + struct.pack(">i", source.partition)
    return Record(key, struct.pack(">qq", upstream, downstream))


def parcel_of(records: list[Record], acked: Callable[[], None]) -> Parcel:
    """One batch of records for an outbox without idempotence."""
    batch = encode_batch(records)
    return Parcel(memoryview(batch), read_header(batch), lambda _: acked())


class Positions:
    """Writes positions of acknowledged records; at most one batch per offsets partition is under way.

    ``on_committed(source, mark)`` follows each position that is in, with what `commit` was given beside it.
    """

    def __init__(
        self,
        sink: Sink,
        topic: str,
        partitions: int,
        connector: str,
        source_alias: str,
        on_committed: Callable[[TopicPartition, int], None] = lambda _source, _mark: None,
    ) -> None:
        self._sink = sink
        self._connector = connector
        self._source_alias = source_alias
        self._partitions = partitions
        self._outboxes: dict[int, Outbox] = {}
        self._topic = topic
        self._on_committed = on_committed
        self._keys: dict[TopicPartition, tuple[bytes, int]] = {}
        self._written: dict[TopicPartition, int] = {}
        self.committed: dict[TopicPartition, int] = {}

    def start_at(self, source: TopicPartition, position: int) -> None:
        """What is there already need not be written again."""
        self._written[source] = self.committed[source] = position

    def commit(self, positions: Iterable[tuple[TopicPartition, int, int]]) -> None:
        """Write the positions (next offset to do) that changed; each comes with a mark for ``on_committed``."""
        batches: dict[int, list[tuple[TopicPartition, int, int, Record]]] = {}
        for source, position, mark in positions:
            if position <= 0 or self._written.get(source) == position:
                continue
            key, place = self._key(source)
            if not self._outbox(place).idle:
                continue
            batches.setdefault(place, []).append((source, position, mark, Record(key, offset_value(position))))
        for place, rows in batches.items():
            for source, position, _, _ in rows:
                self._written[source] = position
            done = [(source, position, mark) for source, position, mark, _ in rows]
            parcel = parcel_of([row[3] for row in rows], functools.partial(self._acked, done))
            self._sink.put(self._outbox(place), parcel)

    @property
    def idle(self) -> bool:
        """All that was written is acknowledged."""
        return all(outbox.idle for outbox in self._outboxes.values())

    @property
    def outboxes(self) -> list[Outbox]:
        """Those in use, for their complaints."""
        return list(self._outboxes.values())

    def _acked(self, done: list[tuple[TopicPartition, int, int]]) -> None:
        for source, position, mark in done:
            self.committed[source] = position
            self._on_committed(source, mark)

    def _key(self, source: TopicPartition) -> tuple[bytes, int]:
        found = self._keys.get(source)
        if found is None:
            key = offset_key(self._connector, self._source_alias, source)
            found = self._keys[source] = (key, partition_for(key, self._partitions))
        return found

    def _outbox(self, place: int) -> Outbox:
        if place not in self._outboxes:
            self._outboxes[place] = self._sink.outbox(TopicPartition(self._topic, place), idempotent=False)
        return self._outboxes[place]


@dataclass(slots=True)
class _SyncState:
    previous_up: int = -1
    previous_down: int = -1
    last_sync_down: int = -1


class Syncs:
    """Emits offset syncs to partition 0 of the syncs topic; newer ones replace those still waiting, as in MM2."""

    def __init__(self, sink: Sink, topic: str, lag_max: int) -> None:
        self._sink = sink
        self._outbox = sink.outbox(TopicPartition(topic, 0), idempotent=False)
        self._lag_max = lag_max
        self._states: dict[TopicPartition, _SyncState] = {}
        self._pending: dict[TopicPartition, tuple[int, int]] = {}
        self._delayed: dict[TopicPartition, tuple[int, int]] = {}
        self._starts: dict[TopicPartition, tuple[int, int]] = {}  # go out before the pending sync of the same partition

    def acked(self, source: TopicPartition, first_up: int, last_up: int, first_down: int, count: int) -> None:
        """A batch of ``count`` records from upstream ``first_up``..``last_up`` went to ``first_down`` and on."""
        if first_down < 0:
            return
        state = self._states.setdefault(source, _SyncState())
        last_down = first_down + count - 1
        dense = last_up - first_up + 1 == count
        # Not with holes: the first record may lie behind first_up, and a group before it would be taken past it.
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
        """Send what was not due, so that a quiet partition's last sync is never late for long."""
        for source, pair in self._delayed.items():
            self._pending[source] = pair
            self._states[source].last_sync_down = pair[1]
        self._delayed.clear()
        self._fire()

    @property
    def idle(self) -> bool:
        """Nothing waits and nothing is under way."""
        return not self._pending and not self._delayed and self._outbox.idle

    @property
    def outbox(self) -> Outbox:
        """For its complaints."""
        return self._outbox

    def _fire(self) -> None:
        if not self._pending or not self._outbox.idle:
            return
        records = []
        for source, pair in self._pending.items():
            start = self._starts.pop(source, pair)
            records += [sync_record(source, up, down) for up, down in dict.fromkeys((start, pair))]
        self._pending.clear()
        self._sink.put(self._outbox, parcel_of(records, self._fire))
