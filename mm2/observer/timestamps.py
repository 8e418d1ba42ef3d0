"""Reads the timestamp of the oldest record that is not on the target, where the history of end offsets is too short.

No Kafka API returns the timestamp at an offset, so the batch that contains it is fetched: one request for each
partition. If a request contains several partitions, a broker returns a batch larger than the limit only for the first.
A poll is bounded in number, bytes and time, and a result is valid for all offsets of its batch. Only the header is
read. Its base timestamp is that of the batch's first record, so the reported age is too high by at most the time span
of one batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mm2.kafka.cluster import Cluster
from mm2.kafka.connection import Connection
from mm2.kafka.errors import CorruptBatch, KafkaFailure
from mm2.kafka.records.batch import DELETE_HORIZON, LOG_APPEND_TIME, iter_batches
from mm2.kafka.records.record import decode_batch
from mm2.kafka.structs import TopicInfo, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import FetchSession, Position

#: Reads in one poll.
LOOKS: Final = 32
_BYTES: Final = 4 << 20
_SECONDS: Final = 1.0
_FETCH_BYTES: Final = 4096
_FORWARD_MS: Final = 3_600_000
_METADATA_AGE_S: Final = 30.0
_NO_SESSION: Final = -1


@dataclass(frozen=True, slots=True)
class BatchTimestamp:
    """The timestamp (ms since the epoch) of the batch with offsets ``first`` to ``last``; None without a valid one."""

    first: int
    last: int
    timestamp_ms: int | None

    def holds(self, offset: int) -> bool:
        """Whether the offset is in the batch, or in the gap before it."""
        return self.first <= offset <= self.last


def believable(timestamp_ms: int, now_ms: int) -> int | None:
    """None for an invalid time: no timestamp, the epoch itself, or more than an hour in the future.

    All other values are accepted, however old: a topic may contain events of many years.
    """
    if timestamp_ms <= 0 or timestamp_ms > now_ms + _FORWARD_MS:
        return None
    return timestamp_ms


class BatchTimestampReader:
    """Reads timestamps from one cluster, on one thread."""

    def __init__(self, cluster: Cluster, timeout_s: float) -> None:
        self._cluster = cluster
        self._timeout_s = timeout_s
        self._connections: dict[int, Connection] = {}

    def read(self, wanted: Iterable[tuple[TopicPartition, int]]) -> dict[TopicPartition, BatchTimestamp]:
        """The timestamps at these offsets, in order, within the limits of a poll.

        A partition that cannot be read now is left out. Raises KafkaFailure if the cluster does not answer.
        """
        some = list(wanted)[:LOOKS]
        if not some:
            return {}
        metadata = self._cluster.metadata({tp.topic for tp, _ in some}, max_age_s=_METADATA_AGE_S)
        found: dict[TopicPartition, BatchTimestamp] = {}
        deadline, size = time.monotonic() + _SECONDS, 0
        for tp, offset in some:
            if time.monotonic() > deadline or size > _BYTES:
                break
            stamp, read = self._read(metadata.topics, tp, offset)
            size += read
            if stamp is not None:
                found[tp] = stamp
        return found

    def close(self) -> None:
        """Close the connections; a read in progress fails."""
        for connection in list(self._connections.values()):
            connection.abort()
        self._connections.clear()

    def _read(
        self, topics: Mapping[str, TopicInfo], tp: TopicPartition, offset: int
    ) -> tuple[BatchTimestamp | None, int]:
        info = topics.get(tp.topic)
        partition = None if info is None else info.partitions.get(tp.partition)
        if info is None or partition is None or partition.leader < 0:
            return None, 0
        try:
            connection = self._connections.get(partition.leader)
            if connection is None:
                connection = self._cluster.open_connection(partition.leader, timeout_s=self._timeout_s)
                self._connections[partition.leader] = connection
            connection.maybe_reauthenticate()
            version = connection.version_of(
                fetch.REQUEST, fetch.MAX_VERSION if info.topic_id else fetch.TOPIC_IDS_FROM - 1
            )
            # No fetch session, which would take memory on the broker: each request is for another partition.
            session = FetchSession(
                {tp.topic: topic_id_bytes(info.topic_id)} if info.topic_id else {}, epoch=_NO_SESSION
            )
            frame = session.request(
                version,
                connection.next_correlation_id(),
                connection.client_id,
                {tp: Position(offset, partition.leader_epoch, _FETCH_BYTES)},
                max_wait_ms=0,
                min_bytes=1,
                max_bytes=_FETCH_BYTES,
                read_committed=False,
            )
            connection.send_buffers([frame])
            answer = connection.receive_frame(bytearray(1 << 13), timeout_s=self._timeout_s)
            fetched = session.response(version, answer)
        except KafkaFailure:
            gone = self._connections.pop(partition.leader, None)
            if gone is not None:
                gone.close()
            self._cluster.invalidate(tp.topic)
            raise
        for one in fetched:
            if one.error_code:
                self._cluster.invalidate(tp.topic)
            else:
                return _stamp(one.records, offset), len(answer)
        return None, len(answer)


def _stamp(records: memoryview, offset: int) -> BatchTimestamp | None:
    now_ms = int(time.time() * 1000)
    try:
        for view in iter_batches(records):
            header = view.header
            if header is None:
                for record in decode_batch(view):
                    if record.offset >= offset:
                        return BatchTimestamp(offset, record.offset, believable(record.timestamp or -1, now_ms))
            elif header.last_offset >= offset:
                # With these attributes the base is not a record's timestamp: the deltas are void, or it is the delete
                # horizon.
                has_base = not header.attributes & (LOG_APPEND_TIME | DELETE_HORIZON)
                first = header.base_timestamp if has_base else header.max_timestamp
                return BatchTimestamp(min(offset, header.base_offset), header.last_offset, believable(first, now_ms))
    except CorruptBatch:
        pass  # the copier reports it
    return None
