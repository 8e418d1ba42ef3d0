"""Compare a topic with its replica, record by record: key, value, headers in order, timestamp, partition, order.

Both topics are read in parallel, partition by partition, so that memory does not depend on the size of the topic.
Offsets are not compared: a replica may have other offsets than its source.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import value_of
from mm2.kafka.readers.reader import read_partition
from mm2.kafka.records.record import Record
from mm2.kafka.structs import EARLIEST, LATEST, TopicInfo, TopicPartition

_SHOWN_BYTES = 60


@dataclass(frozen=True)
class FirstDifference:
    """The first difference of a partition. `source` and `target` show the two records, shortened."""

    partition: int
    index: int
    """Number of records before it in the partition; -1 when the partition itself is missing."""
    what: str
    source: str
    target: str

    def __str__(self) -> str:
        place = f"partition {self.partition}" + (f", record {self.index}" if self.index >= 0 else "")
        return f"{place}: {self.what} is {self.source} on the source and {self.target} on the target"


@dataclass(frozen=True)
class TopicComparison:
    """`records` and `payload_bytes` (keys and values) count what was equal before the first difference."""

    source_topic: str
    target_topic: str
    partitions: int
    records: int
    payload_bytes: int
    difference: FirstDifference | None

    @property
    def equal(self) -> bool:
        return self.difference is None


def compare_topics(source: Cluster, target: Cluster, source_topic: str, target_topic: str) -> TopicComparison:
    """Compare both topics up to their current end offsets. Raises KafkaFailure when one of them cannot be read."""
    left, right = _describe(source, source_topic), _describe(target, target_topic)
    left_range, right_range = _ranges(source, left), _ranges(target, right)
    records = payload_bytes = 0
    difference: FirstDifference | None = None
    for partition in sorted(left_range.keys() | right_range.keys()):
        if partition not in left_range or partition not in right_range:
            there = ("there", "not there") if partition in left_range else ("not there", "there")
            difference = FirstDifference(partition, -1, "the partition", *there)
            break
        pairs = zip_longest(
            _read(source, left, partition, left_range[partition]),
            _read(target, right, partition, right_range[partition]),
        )
        for index, (ours, theirs) in enumerate(pairs):
            difference = differ(partition, index, ours, theirs)
            if difference is not None:
                break
            records += 1
            payload_bytes += len(ours.key or b"") + len(ours.value or b"") if ours else 0
        if difference is not None:
            break
    return TopicComparison(source_topic, target_topic, len(left_range), records, payload_bytes, difference)


def differ(partition: int, index: int, source: Record | None, target: Record | None) -> FirstDifference | None:
    """The difference of two records that should be equal; None means that the partition has no more records."""
    if source is None or target is None:
        shown = [
            "missing" if record is None else f"offset {record.offset}, key {_shown(record.key)}"
            for record in (source, target)
        ]
        return None if source is target else FirstDifference(partition, index, "the record", *shown)
    for what in ("key", "value", "headers", "timestamp"):
        ours, theirs = getattr(source, what), getattr(target, what)
        if ours != theirs:
            return FirstDifference(partition, index, f"the {what}", _shown(ours), _shown(theirs))
    return None


def _describe(cluster: Cluster, topic: str) -> TopicInfo:
    return value_of(Admin(cluster).describe_topics([topic])[topic])


def _ranges(cluster: Cluster, topic: TopicInfo) -> dict[int, tuple[int, int]]:
    """First and end offset of each partition."""
    admin = Admin(cluster)
    partitions = [TopicPartition(topic.name, index) for index in topic.partitions]
    found = [admin.list_offsets(dict.fromkeys(partitions, when)) for when in (EARLIEST, LATEST)]
    return {tp.partition: (value_of(found[0][tp]).offset, value_of(found[1][tp]).offset) for tp in partitions}


def _read(cluster: Cluster, topic: TopicInfo, partition: int, offsets: tuple[int, int]) -> Iterator[Record]:
    return read_partition(cluster, topic, partition, start=offsets[0], end=offsets[1])


def _shown(value: object) -> str:
    if isinstance(value, bytes) and len(value) > _SHOWN_BYTES:
        return f"{value[:_SHOWN_BYTES]!r}… ({len(value)} bytes)"
    return repr(value)
