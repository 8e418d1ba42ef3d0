"""Find out who wrote a position in Connect's offsets topic, from the records themselves (rule C4 of
docs/explanation/copy-sessions.md).

After a takeover without a clean hand-off, a micro-batch reads the records that were written after the offset up to
which its predecessor knew the topic.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import Final, NamedTuple

import structlog

from mm2.codec import json_bytes
from mm2.copy.progress.session import POSITION_HEADER, CopyId, PositionHeader, Seen, WrittenPosition
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure, value_of
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.readers.log import in_log
from mm2.kafka.readers.reader import read_partition
from mm2.kafka.records.record import Record
from mm2.kafka.structs import EARLIEST, LATEST, TopicInfo, TopicPartition

log = structlog.get_logger("mm2.copy.written_positions")

_ANY_COPY: Final = CopyId()


def offset_key(connector: str, source_alias: str, source: TopicPartition) -> bytes:
    """Key of a position in Connect's offsets topic; Java looks it up by its bytes (``OffsetUtils``,
    ``MirrorUtils.wrapPartition``).
    """
    key = {"cluster": source_alias, "partition": source.partition, "topic": source.topic}
    return json_bytes([connector, key])


def offset_value(position: int) -> bytes:
    """Value of a position: the last offset that was copied."""
    return b'{"offset":%d}' % (position - 1)


class PositionRecord(NamedTuple):
    """A record of an offsets topic: its offset, its value, and its header if a copy session wrote it."""

    offset: int
    value: bytes | None
    header: PositionHeader | None = None


def summarize_writers(
    records: Collection[PositionRecord], copy_id: CopyId = _ANY_COPY, place: str = ""
) -> WrittenPosition:
    """Summarize the records of one key, for the connector ``copy_id``.

    Connectors of two Connect groups that use one offsets topic may have the same name, and then the same keys. What the other one
    has copied is not the position of this one.
    """
    own: PositionHeader | None = None
    foreign: PositionRecord | None = None
    other_topic = ""
    is_own_last = False
    for record in records:
        other_topic = ""
        header = record.header
        is_own_last = header is not None and not header.copy_id.is_other(copy_id)
        if header is not None and not is_own_last:
            other_topic = header.remote_topic
        elif header is None or header.session is None:
            foreign = record  # no session explains one that was written in a transaction
        elif own is None or header.lease >= own.lease:
            own = header
    positions = frozenset(_position(record.value) for record in records)
    value, at = (None, -1) if foreign is None else (_position(foreign.value), foreign.offset)
    return WrittenPosition(own, value, at, positions, place, other_topic, is_own_last)


def read_written_positions(
    cluster: Cluster, topic: str, seen: Mapping[bytes, int], copy_id: CopyId
) -> dict[bytes, WrittenPosition]:
    """Who wrote the positions of these keys of an offsets topic, from these offsets on. Raises KafkaFailure.

    Records of open and aborted transactions are ignored.
    """
    metadata = cluster.metadata([topic])
    if topic in metadata.errors:
        raise metadata.errors[topic]
    info = metadata.topics[topic]
    keys_of: dict[int, set[bytes]] = defaultdict(set)
    for key in seen:
        keys_of[partition_for(key, len(info.partitions))].add(key)
    partitions = [TopicPartition(topic, partition) for partition in keys_of]
    admin = Admin(cluster)
    starts = _offsets(admin, partitions, EARLIEST)
    ends = _offsets(admin, partitions, LATEST)
    found: dict[bytes, list[PositionRecord]] = {key: [] for key in seen}
    for tp in partitions:
        keys = keys_of[tp.partition]
        start = max(starts[tp], min(seen[key] for key in keys))
        records = read_partition(cluster, info, tp.partition, start=start, end=ends[tp], read_committed=True)
        for record in records:
            if record.key in keys and record.offset >= seen[record.key]:
                found[record.key].append(PositionRecord(record.offset, record.value, _header(record)))
    count = len(info.partitions)
    return {
        key: summarize_writers(rows, copy_id, _place(info, partition_for(key, count))) for key, rows in found.items()
    }


def offsets_ends(cluster: Cluster, topic: str, keys: Collection[bytes]) -> dict[bytes, Seen]:
    """End offsets of the partitions of an offsets topic that contain these keys, without partitions for which
    authorization is missing. Raises KafkaFailure.

    Call it before the positions are read. Records that are written in between lie after the end offset and are
    examined the next time.
    """
    metadata = cluster.metadata([topic])
    if topic in metadata.errors:
        raise metadata.errors[topic]
    info = metadata.topics[topic]
    count = len(info.partitions)
    partitions = {key: TopicPartition(topic, partition_for(key, count)) for key in keys}
    answers = Admin(cluster).list_offsets(dict.fromkeys(partitions.values(), LATEST))
    found = {}
    for key, partition in partitions.items():
        answer = answers[partition]
        if not isinstance(answer, KafkaFailure):
            found[key] = Seen(answer.offset, _place(info, partition.partition))
        elif answer.is_final:
            log.info("end offset of the offsets topic unknown", partition=str(partition), error=str(answer))
        else:
            raise answer
    return found


def _place(info: TopicInfo, partition: int) -> str:
    """See `Seen`. Brokers before 2.8 have no topic ids."""
    return f"{info.topic_id or info.name}/{partition}"


def _offsets(admin: Admin, partitions: Collection[TopicPartition], when: int) -> dict[TopicPartition, int]:
    """Raises KafkaFailure."""
    answers = admin.list_offsets(dict.fromkeys(partitions, when), "read_committed")
    return {tp: value_of(answer).offset for tp, answer in answers.items()}


def _header(record: Record) -> PositionHeader | None:
    for name, value in record.headers:
        if name == POSITION_HEADER and value is not None:
            try:
                return PositionHeader.from_bytes(value)
            except ValueError as error:
                log.warning("position header is not readable", header=in_log(value), error=in_log(repr(error)))
    return None


def _position(value: bytes | None) -> int | None:
    if not value:
        return None
    try:
        return int(json.loads(value)["offset"]) + 1
    except (ValueError, KeyError, TypeError):
        return None
