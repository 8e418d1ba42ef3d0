"""Answers to Metadata v1 to v13, decoded into the structures of `mm2.kafka.structs` at once.

Otherwise there are two objects for each partition of the cluster, several times a minute.
"""

from __future__ import annotations

import struct
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from kafka.protocol.metadata import MetadataRequest

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.structs import Broker, PartitionInfo, TopicInfo, topic_id_text
from mm2.kafka.wire.primitives import Reader

API_KEY: Final[int] = MetadataRequest.API_KEY
FLEXIBLE_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 10
_OPERATIONS_FROM: Final = 8  # of topics
_CLUSTER_OPERATIONS: Final = range(8, 11)
_LEADER_EPOCHS_FROM: Final = 7
_OFFLINE_REPLICAS_FROM: Final = 5
_ERROR_FROM: Final = 13

_PARTITION: Final = struct.Struct(">hiii")  # error, index, leader, leader epoch
_PARTITION_WITHOUT_EPOCH: Final = struct.Struct(">hii")
_NOT_REPORTED: Final = -(1 << 31)


@dataclass(frozen=True, slots=True)
class TopicAnswer:
    """One topic. ``operations``: numbers of the authorized operations as bits; see `authorized_operations`."""

    error_code: int
    info: TopicInfo
    operations: int = _NOT_REPORTED

    @property
    def name(self) -> str:
        return self.info.name

    @property
    def authorized_operations(self) -> set[int] | None:
        """Numbers of the authorized operations; None if the broker did not report them."""
        if self.operations == _NOT_REPORTED:
            return None
        return {number for number in range(31) if self.operations >> number & 1}


@dataclass(frozen=True, slots=True)
class MetadataAnswer:
    """An answer of one version. ``cluster_id`` is None, and ``controller_id`` -1, if the broker does not know it."""

    version: int
    brokers: tuple[Broker, ...]
    cluster_id: str | None
    controller_id: int
    topics: tuple[TopicAnswer, ...]
    error_code: int = 0


class KnownTopics:
    """The topics of the newest answer about many topics, each with its bytes.

    Most topics do not change from one answer to the next, and to compare their bytes takes a fifth of the time to decode them.
    """

    def __init__(self) -> None:
        self._version = -1
        self._topics: dict[str, tuple[bytes, TopicAnswer]] = {}

    def find(self, version: int, name: str | None, data: bytes, at: int) -> tuple[int, TopicAnswer] | None:
        """The topic whose bytes begin at ``at``, and where they end; None if it is not known, or has changed."""
        known = self._topics.get(name) if name is not None and version == self._version else None
        if known is None or not data.startswith(known[0], at):
            return None
        return at + len(known[0]), known[1]

    def remember(self, version: int, topics: dict[str, tuple[bytes, TopicAnswer]]) -> None:
        """Keep the topics of an answer. One about few topics does not replace the others."""
        if 2 * len(topics) > len(self._topics) or version != self._version:
            self._version, self._topics = version, topics


def decode(frame: memoryview, version: int, known: KnownTopics | None = None) -> MetadataAnswer:
    """Decode an answer without its header. Raises struct.error, IndexError, ValueError or CorruptBatch for anything else.

    ``known`` has topics of earlier answers, and gets those of this one.
    """
    data = bytes(frame)
    reader = Reader(memoryview(data))
    compact = version >= FLEXIBLE_FROM
    if version >= 3:
        reader.int32()  # throttle time
    brokers = tuple(_broker(reader, compact=compact) for _ in range(_count(reader, compact=compact)))
    cluster_id = reader.string(compact=compact) if version >= 2 else None
    controller_id = reader.int32()
    partitions = _partitions_reader(data, version)
    known = known or KnownTopics()
    topics = []
    slices: dict[str, tuple[bytes, TopicAnswer]] = {}
    for _ in range(_count(reader, compact=compact)):
        at = reader.at
        topic = _topic(reader, version, partitions, data, known)
        topics.append(topic)
        slices[topic.name] = (data[at : reader.at], topic)
    known.remember(version, slices)
    if version in _CLUSTER_OPERATIONS:
        reader.int32()
    error_code = reader.int16() if version >= _ERROR_FROM else 0
    if compact:
        reader.tags()
    return MetadataAnswer(version, brokers, cluster_id, controller_id, tuple(topics), error_code)


def _broker(reader: Reader, *, compact: bool) -> Broker:
    node_id, host, port = reader.int32(), reader.string(compact=compact), reader.int32()
    rack = reader.string(compact=compact)
    if compact:
        reader.tags()
    return Broker(node_id, _not_null(host), port, rack)


def _topic(
    reader: Reader,
    version: int,
    partitions: Callable[[Reader], dict[int, PartitionInfo]],
    data: bytes,
    known: KnownTopics,
) -> TopicAnswer:
    compact, at = version >= FLEXIBLE_FROM, reader.at
    error_code = reader.int16()
    name = reader.string(compact=compact)
    if (same := known.find(version, name, data, at)) is not None:
        reader.at, topic = same
        return topic
    topic_id = topic_id_text(uuid.UUID(bytes=bytes(reader.bytes_view(16)))) if version >= _TOPIC_IDS_FROM else ""
    (internal,) = reader.bytes_view(1)
    found = partitions(reader)
    operations = reader.int32() if version >= _OPERATIONS_FROM else _NOT_REPORTED
    if compact:
        reader.tags()
    return TopicAnswer(error_code, TopicInfo(_not_null(name), topic_id, bool(internal), found), operations)


def _partitions_reader(data: bytes, version: int) -> Callable[[Reader], dict[int, PartitionInfo]]:
    """A function that reads the partitions of one topic. Equal lists of nodes become one tuple."""
    compact = version >= FLEXIBLE_FROM
    known: dict[bytes, tuple[int, ...]] = {}
    size = len(data)

    def nodes(at: int) -> tuple[tuple[int, ...], int]:
        if compact and 0 < data[at] < 0x80:
            count = data[at] - 1
            at += 1
        else:
            reader = Reader(memoryview(data), at)
            count, at = _count(reader, compact=compact), reader.at
        end = at + 4 * count
        if end > size:
            raise IndexError(end)
        found = known.get(raw := data[at:end])
        if found is None:
            found = known[raw] = struct.unpack(f">{count}i", raw)
        return found, end

    def read(reader: Reader) -> dict[int, PartitionInfo]:
        found: dict[int, PartitionInfo] = {}
        count = _count(reader, compact=compact)
        at = reader.at
        epoch = -1
        offline: tuple[int, ...] = ()
        for _ in range(count):
            if version >= _LEADER_EPOCHS_FROM:
                _, index, leader, epoch = _PARTITION.unpack_from(data, at)
                at += _PARTITION.size
            else:
                _, index, leader = _PARTITION_WITHOUT_EPOCH.unpack_from(data, at)
                at += _PARTITION_WITHOUT_EPOCH.size
            replicas, at = nodes(at)
            isr, at = nodes(at)
            if version >= _OFFLINE_REPLICAS_FROM:
                offline, at = nodes(at)
            if compact:
                if data[at]:
                    reader.at = at
                    reader.tags()
                    at = reader.at
                else:
                    at += 1
            found[index] = PartitionInfo(leader, epoch, replicas, isr, offline)
        reader.at = at
        return dict(sorted(found.items()))

    return read


def _count(reader: Reader, *, compact: bool) -> int:
    count = reader.length(compact=compact)
    if count < 0:
        message = "an array is null"
        raise CorruptBatch(message)
    return count


def _not_null(text: str | None) -> str:
    if text is None:
        message = "a string is null"
        raise CorruptBatch(message)
    return text
