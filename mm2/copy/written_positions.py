"""Who wrote a position in Connect's offsets topic, read from the records themselves (rule C4 of docs/design/copy-sessions.md).

A micro-batch that takes over without a clean hand-over reads what was written since the holder before knew the topic's end.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection, Mapping
from typing import NamedTuple

import structlog

from mm2.copy.session import POSITION_HEADER, PositionHeader, WrittenPosition
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.partitioner import partition_for
from mm2.kafka.reader import read_partition
from mm2.kafka.records.record import Record
from mm2.kafka.structs import EARLIEST, LATEST, TopicPartition

log = structlog.get_logger(__name__)


class PositionRecord(NamedTuple):
    """A record of an offsets topic: its offset there, its value, and its header if a copy session wrote it."""

    offset: int
    value: bytes | None
    header: PositionHeader | None = None


def who_wrote(records: Collection[PositionRecord]) -> WrittenPosition:
    """Sum up the records of one key."""
    own: PositionHeader | None = None
    foreign: PositionRecord | None = None
    for record in records:
        if record.header is None:
            foreign = record
        elif own is None or record.header.lease >= own.lease:
            own = record.header
    positions = frozenset(_position(record.value) for record in records)
    if foreign is None:
        return WrittenPosition(own, positions=positions)
    return WrittenPosition(own, _position(foreign.value), foreign.offset, positions)


def read_written_positions(cluster: Cluster, topic: str, seen: Mapping[bytes, int]) -> dict[bytes, WrittenPosition]:
    """Who wrote the positions of these keys of an offsets topic at and behind these offsets. Raises KafkaFailure.

    Those of open and aborted transactions do not count.
    """
    metadata = cluster.metadata([topic])
    if topic in metadata.errors:
        raise metadata.errors[topic]
    info = metadata.topics[topic]
    keys_of: dict[int, set[bytes]] = defaultdict(set)
    for key in seen:
        keys_of[partition_for(key, len(info.partitions))].add(key)
    partitions = [TopicPartition(topic, place) for place in keys_of]
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
    return {key: who_wrote(rows) for key, rows in found.items()}


def offsets_ends(cluster: Cluster, topic: str, keys: Collection[bytes]) -> dict[bytes, int]:
    """Where the partitions of an offsets topic end that hold these keys; without those that may not be asked. Raises KafkaFailure.

    To be asked before the positions are read: what lands in between then lies behind it, and is looked at the next time.
    """
    metadata = cluster.metadata([topic])
    if topic in metadata.errors:
        raise metadata.errors[topic]
    count = len(metadata.topics[topic].partitions)
    places = {key: TopicPartition(topic, partition_for(key, count)) for key in keys}
    answers = Admin(cluster).list_offsets(dict.fromkeys(places.values(), LATEST))
    found = {}
    for key, place in places.items():
        answer = answers[place]
        if not isinstance(answer, KafkaFailure):
            found[key] = answer.offset
        elif answer.is_final:
            log.info("the end of the offsets topic is not known", partition=str(place), error=str(answer))
        else:
            raise answer
    return found


def _offsets(admin: Admin, partitions: Collection[TopicPartition], when: int) -> dict[TopicPartition, int]:
    """Raises KafkaFailure."""
    found = {}
    for tp, answer in admin.list_offsets(dict.fromkeys(partitions, when), "read_committed").items():
        if isinstance(answer, KafkaFailure):
            raise answer
        found[tp] = answer.offset
    return found


def _header(record: Record) -> PositionHeader | None:
    for name, value in record.headers:
        if name == POSITION_HEADER and value is not None:
            try:
                return PositionHeader.from_bytes(value)
            except (ValueError, KeyError, TypeError) as error:
                log.warning("unreadable header of a position", header=repr(value[:200]), error=repr(error))
    return None


def _position(value: bytes | None) -> int | None:
    if not value:
        return None
    try:
        return int(json.loads(value)["offset"]) + 1
    except (ValueError, KeyError, TypeError):
        return None
