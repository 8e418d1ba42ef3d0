"""MM2's positions in Connect's offsets topic: what is on the target (the acknowledged prefix), never more."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Iterable

from mm2.copy.executor.outbox import Outbox, parcel_of
from mm2.copy.executor.sink import Sink
from mm2.kafka.partitioner import partition_for
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition


def offset_key(connector: str, source_alias: str, source: TopicPartition) -> bytes:
    """Key of a position in Connect's offsets topic; Java looks it up by its bytes (spec mirrormaker §2.5)."""
    place = {"cluster": source_alias, "partition": source.partition, "topic": source.topic}
    return json.dumps([connector, place], separators=(",", ":"), ensure_ascii=False).encode()


def offset_value(position: int) -> bytes:
    """Value of a position: the last offset that is done, resume at the next."""
    return b'{"offset":%d}' % (position - 1)


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
