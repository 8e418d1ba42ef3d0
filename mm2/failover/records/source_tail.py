"""Counts the records that a reachable source has after those on the target.

Not every offset of the source has a record to be copied: there are transaction markers, aborted transactions and holes of compaction.
Where the flow changes or drops records, the number of records on the target does not show their source offsets either. So the source is read from the ledger's position on, and its records are changed again, by the code of
`mm2 verify`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mm2.config.configdef import ConfigException
from mm2.connect.errors import ConnectError
from mm2.copy.changes import ChangedBatch, ChangeFailed
from mm2.copy.spec import ChangesSpec, PartitionSpec
from mm2.failover.evidence import PartitionEvidence, SourceTail
from mm2.failover.sides import SOURCE_NAME, Sides
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.kafka.records.record import decode_batch
from mm2.kafka.records.visibility import last_offset
from mm2.kafka.structs import LATEST, OffsetInfo, TopicPartition
from mm2.mirror.common.clients import ClientKind, Side
from mm2.mirror.source.record_changes import changes_spec
from mm2.verify.changes import RepeatedChanges
from mm2.verify.pace import RateLimit
from mm2.verify.reading import RangeReader

#: Time for all partitions together. The rest is reported as a maximum, since a failover must not wait for it.
COUNT_S: Final = 20.0
_BUFFER_BYTES: Final = 32 << 20


class _NotCounted(Exception):
    """Counting ends here; the message is the reason."""


def source_tails(
    sides: Sides, partitions: Sequence[PartitionEvidence], digests: Mapping[TopicPartition, str]
) -> dict[TopicPartition, SourceTail]:
    """What the source has after the records on the target. The ends of the partitions are known.

    ``digests`` are those of the changes by which the ``unmarked`` records were copied. Failures are notes in the results.
    """
    if not partitions or sides.source is None:
        return {}
    try:
        changes = changes_spec(sides.config.source_connector, sides.config.worker, connector=SOURCE_NAME, task=0)
        if changes is None and any(digests[one.source] for one in partitions if one.unmarked):
            raise _NotCounted("the configuration does not have the transformations of the copied records")
        if changes is not None and changes.not_repeatable:
            raise _NotCounted(changes.not_repeatable)
        ends = _ends(sides, partitions)
        with sides.client(Side.SOURCE, ClientKind.CONSUMER) as cluster:
            counter = _Counter(cluster, changes, sides.selection.named_if_routed, read_committed=sides.reads_committed)
            try:
                return {
                    one.source: counter.count(one, ends[one.source], digests.get(one.source, "")) for one in partitions
                }
            finally:
                counter.close()
    except (_NotCounted, ConfigException, ConnectError, KafkaFailure) as failure:
        return {one.source: SourceTail(one.copied, 0, 0, one.copied, f"not counted: {failure}") for one in partitions}


def _ends(sides: Sides, partitions: Sequence[PartitionEvidence]) -> dict[TopicPartition, int]:
    """The offsets up to which the flow reads: at most those of the evidence, and the last stable offsets."""
    ends = {one.source: one.end or 0 for one in partitions}
    if sides.reads_committed and sides.source is not None:
        stable = sides.source.list_offsets(dict.fromkeys(ends, LATEST), "read_committed")
        for tp, answer in stable.items():
            if isinstance(answer, OffsetInfo):
                ends[tp] = min(ends[tp], answer.offset)
    return ends


@dataclass(slots=True)
class _Progress:
    """What was counted in one partition up to source offset ``at``; ```unmarked``` records are still to be passed."""

    at: int
    unmarked: int
    first: int
    missing: int = 0
    dropped: int = 0

    def add(self, batch: ChangedBatch) -> None:
        """Count the next records, of which the first ones may be on the target."""
        there = min(self.unmarked, len(batch.records))
        if there:
            self.unmarked -= there
            self.first = batch.records[there - 1].offset + 1
            self.dropped = 0
        self.missing += len(batch.records) - there
        self.dropped += sum(max(0, one.after - max(one.first, self.first)) for one in batch.dropped)
        self.at = batch.after


class _Counter:
    """Counts partition after partition. Use it in one thread. ``named`` has the topic of `PartitionSpec.named`."""

    def __init__(
        self, cluster: Cluster, changes: ChangesSpec | None, named: Callable[[str], str], *, read_committed: bool
    ) -> None:
        self._cluster = cluster
        self._named = named
        self._read_committed = read_committed
        self._until_s = time.monotonic() + COUNT_S
        self._digest = "" if changes is None else changes.digest
        self._changes = None if changes is None else RepeatedChanges(changes, COUNT_S, self._check_time)
        self._buffers = BufferPool(_BUFFER_BYTES)

    def close(self) -> None:
        """Close the transformations and converters."""
        if self._changes is not None:
            self._changes.close()

    def count(self, one: PartitionEvidence, after: int, digest: str) -> SourceTail:
        """Count a partition up to source offset ``after``; ``digest`` as in `source_tails`."""
        progress, note = _Progress(one.copied, one.unmarked, one.copied), ""
        try:
            if one.unmarked and digest != self._digest:
                raise _NotCounted("the transformations or converters were changed since the last copied records")
            self._read(one, after, progress)
            if progress.unmarked:
                raise _NotCounted(f"{progress.unmarked} records on the target were not found on the source")
        except (_NotCounted, ChangeFailed, KafkaFailure) as failure:
            note = f"not counted completely: {failure}"
        if progress.unmarked:  # which records are on the target is unknown
            return SourceTail(one.copied, 0, 0, one.copied, note)
        return SourceTail(progress.first, progress.missing, progress.dropped, progress.at, note)

    def _read(self, one: PartitionEvidence, after: int, progress: _Progress) -> None:
        part = PartitionSpec(one.topic, one.partition, one.remote_topic, self._named(one.topic))
        change = _unchanged if self._changes is None else self._changes.of(part)
        reader = RangeReader(
            self._cluster,
            self._buffers,
            one.source,
            one.copied,
            after,
            read_committed=self._read_committed,
            pace=RateLimit(0),
            patience_s=COUNT_S,
            on_response=self._check_time,
        )
        try:
            while (view := reader.read()) is not None:
                if progress.unmarked:
                    _check_whole(view, progress.at)
                progress.add(change(view, progress.at, min(last_offset(view) + 1, after)))
            progress.at = max(progress.at, after)
        finally:
            reader.close()

    def _check_time(self) -> None:
        if time.monotonic() > self._until_s:
            raise _NotCounted(f"it takes longer than {COUNT_S:.0f} s")


def _unchanged(view: BatchView, first: int, after: int) -> ChangedBatch:
    """The records of a flow that copies them as they are."""
    records = decode_batch(view, DECOMPRESSION_MAX_BYTES)
    return ChangedBatch(after, [one for one in records if first <= one.offset < after])


def _check_whole(view: BatchView, at: int) -> None:
    """Raise _NotCounted at a hole: the source may not have every record any more that was copied."""
    header = view.header
    if view.base_offset > at or (header is not None and not header.is_dense):
        raise _NotCounted(f"the source has no records at some offsets after {at}")
