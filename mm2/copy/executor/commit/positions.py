"""Commits: the ledger's entry of a partition, then MM2's position in Connect's offsets topic (see
`mm2.copy.progress.session`).

Both contain the acknowledged prefix, never more. A partition writes both before its next commit begins. At most one
batch per partition of either topic is in flight.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch, outgoing_of
from mm2.copy.progress.ledger import chunk_record, chunk_tombstone, entry_record
from mm2.copy.progress.segments import SegmentChunk
from mm2.copy.progress.session import POSITION_HEADER, Lease, LedgerEntry, PositionHeader, Seen
from mm2.copy.progress.written_positions import offset_key, offset_value
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition

#: Size at which a batch of the ledger ends. The default of `message.max.bytes` is one megabyte.
_BATCH_BYTES: Final = 512 << 10
_UNSEEN: Final = Seen()
#: Time after an own position during which earlier records still count as unread. A user's position may be among them, because offsets
#: of a connector can be changed as soon as its stop is requested, while its tasks still commit.
SEEN_AFTER_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Commit:
    """A partition's entry without ``previous``, and the chunks of its trail that changed."""

    entry: LedgerEntry
    chunks: tuple[SegmentChunk, ...] = ()
    forgotten: tuple[int, ...] = ()


#: Called when records are acknowledged, with the offset after them (-1: unknown).
Written = Callable[[int], None]


class PendingRecords:
    """Records for the partitions of one topic. Records that are added while a batch is in flight are sent together in
    the next one.
    """

    def __init__(self, outbox_of: Callable[[int], Outbox], put: Callable[[Outbox, OutgoingBatch], None]) -> None:
        self._outbox_of = outbox_of
        self._put = put
        self.then: Callable[[], None] = lambda: None  # called after each batch
        self._outboxes: dict[int, Outbox] = {}
        self._waiting: dict[int, list[tuple[list[Record], Written]]] = {}

    def add(self, partition: int, records: list[Record], written: Written) -> None:
        """Write records to a partition of the topic; ``written`` is called when they are acknowledged."""
        self._waiting.setdefault(partition, []).append((records, written))

    def flush(self) -> None:
        """Send waiting records where nothing is in flight."""
        for partition in list(self._waiting):
            self._flush(partition)

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self._waiting and all(outbox.idle for outbox in self._outboxes.values())

    @property
    def outboxes(self) -> list[Outbox]:
        """The open outboxes, for their errors."""
        return list(self._outboxes.values())

    def give_up(self) -> None:
        """Complete all records that wait or are in flight as if they were written: the topic rejects them."""
        waiting, self._waiting = self._waiting, {}
        for outbox in self._outboxes.values():
            outgoing_batches = [*outbox.sent, *outbox.queue]
            outbox.queue.clear()
            for outgoing in outgoing_batches:
                acked, outgoing.acked = outgoing.acked, _ignore_ack  # a response may still arrive
                acked(-1)
        for rows in waiting.values():
            for _, written in rows:
                written(-1)

    def outbox(self, partition: int) -> Outbox:
        """The outbox of a partition."""
        found = self._outboxes.get(partition)
        if found is None:
            found = self._outboxes[partition] = self._outbox_of(partition)
        return found

    def _flush(self, partition: int) -> None:
        if not self.outbox(partition).idle:
            return
        waiting = self._waiting.pop(partition, [])
        records: list[Record] = []
        callbacks: list[Written] = []
        size = 0
        for index, (rows, written) in enumerate(waiting):
            if size > _BATCH_BYTES:
                self._waiting[partition] = waiting[index:]
                break
            records += rows
            callbacks.append(written)
            size += sum(len(row.key or b"") + len(row.value or b"") for row in rows)
        if not callbacks:
            return

        def written_all(base_offset: int) -> None:
            for written in callbacks:
                written(base_offset + len(records) if base_offset >= 0 else -1)
            self.then()
            self._flush(partition)

        if records:
            outgoing = outgoing_of(records, lambda: None)
            outgoing.acked = written_all
            self._put(self.outbox(partition), outgoing)
        else:
            written_all(-1)


def _ignore_ack(_base_offset: int) -> None:
    pass


class Positions:
    """Writes commits.

    ``partitions`` are those of the offsets topic. ``ledger`` None: there is no ledger. In exactly-once mode the
    offsets are part of the transaction and only the ledger is written here. ``seen_after_s``: see `SEEN_AFTER_S`.
    """

    def __init__(
        self,
        offsets: PendingRecords | None,
        ledger: PendingRecords | None,
        *,
        partitions: int,
        connector: str,
        source_alias: str,
        seen_after_s: float = SEEN_AFTER_S,
    ) -> None:
        self._offsets = offsets
        self._ledger = ledger
        self._partitions = partitions
        self._connector = connector
        self._source_alias = source_alias
        self._keys: dict[TopicPartition, tuple[bytes, int]] = {}
        self._under_way: set[TopicPartition] = set()
        if ledger is not None and offsets is not None:
            ledger.then = offsets.flush
        self._leases: dict[TopicPartition, Lease] = {}
        self._seen: dict[TopicPartition, Seen] = {}  # see `PositionHeader`
        self._seen_after_s = seen_after_s
        # The offset after an acknowledged position, and when it was acknowledged.
        self._acked: dict[TopicPartition, tuple[int, float]] = {}
        self._entered: set[TopicPartition] = (
            set()
        )  # partitions whose entry, with a lease of this executor, is in the ledger
        self.committed: dict[TopicPartition, int | None] = {}
        self._previous: dict[TopicPartition, int | None] = {}  # the committed position in the ledger

    def start_at(
        self, source: TopicPartition, position: int | None, lease: Lease, *, seen: Seen = _UNSEEN, entered: bool = False
    ) -> None:
        """Start with the position in Connect's offsets topic (the next source offset, None for none) and the lease of
        the takeover.

        ``seen`` is what is known of that topic's partition. ``entered`` is set after a clean hand-off, when the predecessor's
        entry needs no confirmation.
        """
        self.committed[source] = position
        self._leases[source] = lease
        self._seen[source] = seen
        if entered:
            self._entered.add(source)

    def seen(self, source: TopicPartition) -> Seen:
        """What is known of the partition of the offsets topic."""
        return self._seen.get(source, _UNSEEN)

    def is_entered(self, source: TopicPartition) -> bool:
        """Whether the ledger has an entry of this partition in its current session, which no late write can replace
        (rule C7).
        """
        return source in self._entered

    def partition(self, source: TopicPartition) -> int:
        """The partition of the offsets topic for the position of a source partition."""
        return self._key(source)[1]

    def lease(self, source: TopicPartition) -> Lease:
        """The lease of the newest commit."""
        return self._leases.get(source, Lease())

    def is_settled(self, source: TopicPartition, *, ending: bool = False) -> bool:
        """Whether the ledger knows the position in the offsets topic as the last one. Otherwise a user who sets it
        back to the previous position, or removes the first one, would look like a crash between the two writes.

        When the micro-batch is ``ending``, it is enough that the ledger knows of any position.
        """
        now = self.committed.get(source)
        recorded = self._previous.get(source, now)
        return recorded == now or (ending and recorded is not None)

    def busy(self, source: TopicPartition) -> bool:
        """Whether a commit of this partition is in flight."""
        return source in self._under_way

    def commit(self, commit: Commit, committed: Callable[[LedgerEntry], None]) -> None:
        """Write a partition's commit, then call ``committed``; not while one is `busy`. `flush` sends it."""
        source = commit.entry.source
        lease = self._leases[source] = self.lease(source).following()
        entry = commit.entry.replace(previous=self.committed.get(source), lease=lease, seen=self.seen(source))
        self._previous[entry.source] = entry.previous
        self._under_way.add(entry.source)
        if self._ledger is None:
            self._to_offsets(entry, committed)
            return
        records = [chunk_record(entry.source, chunk, lease) for chunk in commit.chunks]
        records += [chunk_tombstone(entry.source, number) for number in commit.forgotten]
        records.append(entry_record(entry))

        def written(_end: int) -> None:
            self._entered.add(source)
            self._to_offsets(entry, committed)

        self._ledger.add(0, records, written)

    def put_condition(self, entry: LedgerEntry) -> None:
        """Write the entry of a partition that stopped before copying began, with its condition, and no position; not while it is
        `busy`. Any later entry replaces one of a partition that has had none.
        """
        source = entry.source
        if not entry.is_unbegun:
            lease = self._leases[source] = self.lease(source).following()
            entry = entry.replace(lease=lease)
        if self._ledger is not None:
            self._under_way.add(source)
            self._ledger.add(0, [entry_record(entry)], lambda _end: self._under_way.discard(source))

    def flush(self) -> None:
        """Send the pending commits."""
        if self._ledger is not None:
            self._ledger.flush()
        if self._offsets is not None:
            self._offsets.flush()

    def without_ledger(self) -> None:
        """Continue without a ledger."""
        ledger, self._ledger = self._ledger, None
        if ledger is not None:
            ledger.give_up()
            self.flush()

    @property
    def idle(self) -> bool:
        """Whether all commits are acknowledged."""
        return not self._under_way

    @property
    def outboxes(self) -> list[Outbox]:
        """The open outboxes, for their errors."""
        return [outbox for stage in (self._ledger, self._offsets) if stage is not None for outbox in stage.outboxes]

    def offset_record(
        self, source: TopicPartition, position: int, header: PositionHeader | None = None
    ) -> tuple[int, Record]:
        """The partition of the offsets topic for a position, and its record."""
        key, partition = self._key(source)
        headers = () if header is None else ((POSITION_HEADER, header.to_bytes()),)
        return partition, Record(key, offset_value(position), headers)

    def _to_offsets(self, entry: LedgerEntry, committed: Callable[[LedgerEntry], None]) -> None:
        source, position = entry.source, entry.mark.source

        def finish() -> None:
            self._under_way.discard(source)
            committed(entry)

        if self._offsets is None or position <= 0 or self.committed.get(source) == position:
            finish()
            return
        header = None if entry.session is None else PositionHeader.of(entry)
        partition, record = self.offset_record(source, position, header)

        def written(end: int) -> None:
            self.committed[source] = position
            self._record_seen(source, end)
            finish()

        self._offsets.add(partition, [record], written)

    def _record_seen(self, source: TopicPartition, end: int) -> None:
        """An own position is before this offset."""
        now = time.monotonic()
        known, since = self._acked.setdefault(source, (end, now))
        if now - since >= self._seen_after_s:
            seen = self.seen(source)
            self._seen[source] = seen._replace(offset=max(seen.offset, known))
            self._acked[source] = end, now

    def _key(self, source: TopicPartition) -> tuple[bytes, int]:
        found = self._keys.get(source)
        if found is None:
            key = offset_key(self._connector, self._source_alias, source)
            found = self._keys[source] = (key, partition_for(key, self._partitions))
        return found
