"""Who wrote a position in Connect's offsets topic, read from the records themselves (rule C4 of docs/design/copy-sessions.md).

Only asked for when a position is not where the ledger left it: the whole partition of the offsets topic is read.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Collection
from typing import NamedTuple

import structlog

from mm2.copy.session import POSITION_HEADER, Lease, PositionHeader
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.partitioner import partition_for
from mm2.kafka.reader import read_partition
from mm2.kafka.records.record import Record
from mm2.kafka.structs import EARLIEST, LATEST, TopicPartition

log = structlog.get_logger(__name__)


class WrittenPosition(NamedTuple):
    """A position, next source offset (None: removed or none), and what it says of itself; no header: Java or a user wrote it."""

    position: int | None = None
    header: PositionHeader | None = None


def valid_positions(records: Collection[tuple[bytes | None, PositionHeader | None]]) -> WrittenPosition:
    """The position that counts after these records of one key, (value, header) in the order of the log.

    A record of a copy session with a smaller lease than one before it landed late and does not count, also when Java or a user
    has written in between.
    """
    newest, lease = WrittenPosition(), Lease()
    for value, header in records:
        if header is not None and header.lease < lease:
            continue
        if header is not None:
            lease = header.lease
        newest = WrittenPosition(_position(value), header)
    return newest


def read_written_positions(cluster: Cluster, topic: str, keys: Collection[bytes]) -> dict[bytes, WrittenPosition]:
    """The position that counts for each of these keys of an offsets topic. Raises KafkaFailure."""
    metadata = cluster.metadata([topic])
    if topic in metadata.errors:
        raise metadata.errors[topic]
    info = metadata.topics[topic]
    places: dict[int, set[bytes]] = defaultdict(set)
    for key in keys:
        places[partition_for(key, len(info.partitions))].add(key)
    partitions = [TopicPartition(topic, place) for place in places]
    admin = Admin(cluster)
    starts = _offsets(admin, partitions, EARLIEST)
    ends = _offsets(admin, partitions, LATEST)
    found: dict[bytes, list[tuple[bytes | None, PositionHeader | None]]] = {key: [] for key in keys}
    for tp in partitions:
        for record in read_partition(cluster, info, tp.partition, start=starts[tp], end=ends[tp]):
            if record.key in places[tp.partition]:
                found[record.key].append((record.value, _header(record)))
    return {key: valid_positions(rows) for key, rows in found.items()}


def _offsets(admin: Admin, partitions: Collection[TopicPartition], when: int) -> dict[TopicPartition, int]:
    """Raises KafkaFailure."""
    found = {}
    for tp, answer in admin.list_offsets(dict.fromkeys(partitions, when)).items():
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
