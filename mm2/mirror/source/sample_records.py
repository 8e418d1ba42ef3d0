"""Runs the transformations and converters of a flow on sample records of its source, to see which of them would fail.

Samples are the oldest and the newest batch of partitions: the oldest ones are copied first, and the newest ones are like those
that follow.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import Final

from mm2.copy.changes import SKIPPED, ChangeDelayed, ChangeFailed, RecordChanges, record_changes
from mm2.copy.spec import ChangesSpec, PartitionSpec
from mm2.kafka.admin import Admin
from mm2.kafka.errors import CorruptBatch, KafkaFailure
from mm2.kafka.readers.fetch_reader import FetchReader, FetchReaderLimits
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.records.visibility import VisibleBatches
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition

#: Partitions from which samples are read, and records of each batch.
_PARTITIONS: Final = 200
_RECORDS: Final = 20
_SECONDS: Final = 10.0
_ANSWER_S: Final = 3.0
_LIMITS: Final = FetchReaderLimits(max_wait_ms=0, max_bytes=8 << 20, partition_bytes=1 << 20, incremental=False)


@dataclass
class SampleResults:
    """``records`` were tried. Of those that stop a partition, ``failed`` has the partitions by setting and ``examples`` the first
    error; ``skipped`` would be left out, because errors.tolerance is all.
    """

    records: int = 0
    skipped: int = 0
    partitions: set[TopicPartition] = field(default_factory=set)
    failed: dict[str, set[TopicPartition]] = field(default_factory=dict)
    examples: dict[str, str] = field(default_factory=dict)


def try_samples(
    admin: Admin, spec: ChangesSpec, topics: Mapping[str, int], part_of: Callable[[TopicPartition], PartitionSpec]
) -> SampleResults:
    """Try samples of these topics, with their numbers of partitions. Raises KafkaFailure, and what the classes raise when created."""
    found = SampleResults()
    changes = record_changes(replace(spec, settings={**spec.settings, "errors.log.enable": "false"}))
    with closing(changes):
        for tp, record in _samples(admin, _chosen(topics)):
            found.records += 1
            found.partitions.add(tp)
            _try(changes, part_of(tp), record, found)
    return found


def _try(changes: RecordChanges, part: PartitionSpec, record: Record, found: SampleResults) -> None:
    try:
        found.skipped += changes.apply(part, record) == SKIPPED
    except ChangeDelayed:
        pass  # a RetriableError may end
    except ChangeFailed as failure:
        found.failed.setdefault(failure.key, set()).add(part.source)
        found.examples.setdefault(failure.key, str(failure))


def _chosen(topics: Mapping[str, int]) -> list[TopicPartition]:
    """The first partition of each topic, then the second ones, and so on."""
    numbers = range(max(topics.values(), default=0))
    each = (TopicPartition(topic, number) for number in numbers for topic in sorted(topics) if number < topics[topic])
    return list(itertools.islice(each, _PARTITIONS))


def _samples(admin: Admin, partitions: list[TopicPartition]) -> Iterator[tuple[TopicPartition, Record]]:
    until_s = time.monotonic() + _SECONDS
    starts = admin.list_offsets(dict.fromkeys(partitions, EARLIEST))
    ends = admin.list_offsets(dict.fromkeys(partitions, LATEST))
    oldest: dict[TopicPartition, int] = {}
    newest: dict[TopicPartition, int] = {}
    for tp in partitions:
        start, end = starts[tp], ends[tp]
        if isinstance(start, OffsetInfo) and isinstance(end, OffsetInfo) and start.offset < end.offset:
            oldest[tp], newest[tp] = start.offset, end.offset - 1
    metadata = admin.cluster.metadata({tp.topic for tp in oldest})
    reader = FetchReader(admin.cluster, timeout_s=_ANSWER_S)
    try:
        for wanted in (oldest, {tp: offset for tp, offset in newest.items() if offset != oldest[tp]}):
            left = dict(wanted)
            while left and time.monotonic() < until_s:
                before = len(left)
                reader.send(left, _LIMITS, metadata=metadata)
                while reader.has_results:
                    for tp, answer in reader.receive(_ANSWER_S).items():
                        if tp not in left or (not isinstance(answer, KafkaFailure) and not answer.records):
                            continue
                        offset = left.pop(tp)
                        if not isinstance(answer, KafkaFailure):
                            for record in _records(answer.records, offset):
                                yield tp, record
                if len(left) == before:
                    break
    finally:
        reader.abort()


def _records(records: memoryview, offset: int) -> list[Record]:
    """The first visible records, of transactions that were aborted, too: an error in them would be found as well."""
    found: list[Record] = []
    try:
        for view in VisibleBatches(records, offset, aborted=None):
            found += [record for record in decode_batch(view) if record.offset >= offset]
            if len(found) >= _RECORDS:
                break
    except CorruptBatch:
        pass  # the copier reports it
    return found[:_RECORDS]
