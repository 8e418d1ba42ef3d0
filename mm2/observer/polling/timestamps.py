"""Reads the timestamp of the oldest record that is not on the target, where the history of end offsets is too short.

No Kafka API returns the timestamp at an offset, so the batch that contains it is fetched. A broker returns a batch that is
larger than the limit of a partition only for the first partition of a request, so the others are requested again. A poll is
bounded in number, bytes and time, and a result is valid for all offsets of its batch. Only the header is read. Its base
timestamp is that of the batch's first record, so the reported age is too high by at most the time span of one batch.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import CorruptBatch, KafkaFailure, UnsupportedVersion
from mm2.kafka.readers.fetch_reader import FetchReader, FetchReaderLimits
from mm2.kafka.records.batch import DELETE_HORIZON, LOG_APPEND_TIME, iter_batches
from mm2.kafka.records.record import decode_batch
from mm2.kafka.structs import TopicPartition

#: Partitions read in one poll.
LOOKS: Final = 256
_BYTES: Final = 4 << 20
_SECONDS: Final = 1.0
_REQUEST_BYTES: Final = 1 << 20
_LIMITS: Final = FetchReaderLimits(max_wait_ms=0, max_bytes=_REQUEST_BYTES, partition_bytes=4096, incremental=False)
_FORWARD_MS: Final = 3_600_000
_METADATA_AGE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class BatchTimestamp:
    """The timestamp (ms since the epoch) of the batch with offsets ``first`` to ``last``; None without a valid one. ``record_bytes``: the
    average size of its records, None if it is not known.
    """

    first: int
    last: int
    timestamp_ms: int | None
    record_bytes: float | None = None

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

        A partition that cannot be read now is left out, also if its leader cannot be reached. Raises KafkaFailure for an error that
        concerns all partitions.
        """
        left = dict(list(wanted)[:LOOKS])
        if not left:
            return {}
        metadata = self._cluster.metadata({tp.topic for tp in left}, max_age_s=_METADATA_AGE_S)
        found: dict[TopicPartition, BatchTimestamp] = {}
        deadline, most = time.monotonic() + _SECONDS, self._reader.bytes_received + _BYTES
        while left and time.monotonic() <= deadline and self._reader.bytes_received <= most:
            before = len(left)
            self._reader.send(left, _LIMITS, metadata=metadata)
            while self._reader.has_results:
                for tp, answer in self._reader.receive(self._timeout_s).items():
                    if tp not in left:
                        continue  # requested by a read that has failed
                    if isinstance(answer, UnsupportedVersion):
                        raise answer
                    if isinstance(answer, KafkaFailure):
                        del left[tp]
                    elif answer.records:
                        stamp = _stamp(answer.records, left.pop(tp))
                        if stamp is not None:
                            found[tp] = stamp
            if len(left) == before:
                break  # what is left has no records at these offsets
        return found

    def close(self) -> None:
        """Disconnect; a read in progress fails."""
        self._reader.abort()


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
                size = len(view.data) / header.records_count if header.records_count > 0 else None
                return BatchTimestamp(
                    min(offset, header.base_offset), header.last_offset, believable(first, now_ms), size
                )
    except CorruptBatch:
        pass  # the copier reports it
    return None
