"""Reads the timestamp of the oldest record that is not on the target, where the history of end offsets is too short.

No Kafka API returns the timestamp at an offset, so the batch that contains it is fetched: one request for each
partition. If a request contains several partitions, a broker returns a batch larger than the limit only for the first.
A poll is bounded in number, bytes and time, and a result is valid for all offsets of its batch. Only the header is
read. Its base timestamp is that of the batch's first record, so the reported age is too high by at most the time span
of one batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, UnsupportedVersion
from mm2.kafka.fetch_reader import FetchReader, FetchReaderLimits
from mm2.kafka.records.batch import DELETE_HORIZON, LOG_APPEND_TIME, iter_batches
from mm2.kafka.records.record import decode_batch
from mm2.kafka.structs import Metadata, TopicPartition

#: Reads in one poll.
LOOKS: Final = 32
_BYTES: Final = 4 << 20
_SECONDS: Final = 1.0
_LIMITS: Final = FetchReaderLimits(max_wait_ms=0, max_bytes=4096, partition_bytes=4096, incremental=False)
_FORWARD_MS: Final = 3_600_000
_METADATA_AGE_S: Final = 30.0


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
        self._reader = FetchReader(cluster, timeout_s=timeout_s)

    def read(self, wanted: Iterable[tuple[TopicPartition, int]]) -> dict[TopicPartition, BatchTimestamp]:
        """The timestamps at these offsets, in order, within the limits of a poll.

        A partition that cannot be read now is left out. Raises KafkaFailure if the cluster does not answer.
        """
        some = list(wanted)[:LOOKS]
        if not some:
            return {}
        metadata = self._cluster.metadata({tp.topic for tp, _ in some}, max_age_s=_METADATA_AGE_S)
        found: dict[TopicPartition, BatchTimestamp] = {}
        deadline, most = time.monotonic() + _SECONDS, self._reader.bytes_received + _BYTES
        for tp, offset in some:
            if time.monotonic() > deadline or self._reader.bytes_received > most:
                break
            stamp = self._read(metadata, tp, offset)
            if stamp is not None:
                found[tp] = stamp
        return found

    def close(self) -> None:
        """Disconnect; a read in progress fails."""
        self._reader.abort()

    def _read(self, metadata: Metadata, tp: TopicPartition, offset: int) -> BatchTimestamp | None:
        self._reader.send({tp: offset}, _LIMITS, metadata=metadata)
        while self._reader.has_results:
            answer = self._reader.receive(self._timeout_s).get(tp)
            if isinstance(answer, BrokerFailure) and not isinstance(answer, UnsupportedVersion):
                return None
            if isinstance(answer, KafkaFailure):
                raise answer
            if answer is not None:
                return _stamp(answer.records, offset)
        return None


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
