"""The producer of the control plane: small writes, acknowledged before the call returns.

Internal topics, heartbeats and checkpoints use it; bulk copying does not. As Connect's producers, it uses acks=all and
one request in flight per partition. It is not idempotent, as theirs are not: a retry after a lost answer may write a
record twice, which is harmless in keyed, compacted topics.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from kafka.protocol.producer import ProduceRequest

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.answer_checks import only
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import TopicPartition

_T = TypeVar("_T")
_MAX_VERSION = 12  # version 13 names topics by id


@dataclass(frozen=True, slots=True)
class RecordMetadata:
    """Location of a written record. ``offset`` -1 with acks=0; ``timestamp`` in ms as stored."""

    topic: str
    partition: int
    offset: int
    timestamp: int


@dataclass(frozen=True, slots=True)
class Written:
    """A written batch. ``base_offset`` -1: not known; ``append_time_ms`` -1: none."""

    partition: TopicPartition
    records: Sequence[Record]
    base_offset: int
    append_time_ms: int

    def metadata(self) -> list[RecordMetadata]:
        """Metadata of each record."""
        topic, partition = self.partition
        return [
            RecordMetadata(
                topic,
                partition,
                self.base_offset + place if self.base_offset >= 0 else -1,
                self.append_time_ms if self.append_time_ms >= 0 else record.timestamp or -1,
            )
            for place, record in enumerate(self.records)
        ]


@dataclass(slots=True)
class Chunk:
    """Records for one partition in one batch, with their indexes in the caller's list."""

    partition: TopicPartition
    records: list[Record]
    places: list[int]

    def halves(self) -> tuple[Chunk, Chunk]:
        """The first and the second half."""
        middle = len(self.records) // 2
        return (
            Chunk(self.partition, self.records[:middle], self.places[:middle]),
            Chunk(self.partition, self.records[middle:], self.places[middle:]),
        )


def is_too_large(failure: KafkaFailure, chunk: Chunk) -> bool:
    """Whether a batch was rejected as too large and can still be split."""
    too_large = isinstance(failure, BrokerFailure) and failure.code == ErrorCode.MESSAGE_TOO_LARGE
    return too_large and len(chunk.records) > 1


class Producer:
    """Blocking, thread-safe. ``acks`` -1, 1 or 0; ``codec`` as in ``compression.type``; sizes in bytes.

    ``level`` is the compression level of the codec, None: its default.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        acks: int = -1,
        codec: str = "none",
        level: int | None = None,
        max_request_bytes: int = 1_048_576,
        delivery_timeout_ms: int = 30_000,
    ) -> None:
        self._cluster = cluster
        self._acks = acks
        self._codec = codec
        self._level = level
        self._max_request_bytes = max_request_bytes
        self._delivery_timeout_ms = delivery_timeout_ms
        self._closed = threading.Event()
        self._round_robin = itertools.count()
        self._locks: dict[TopicPartition, threading.Lock] = {}
        self._locks_guard = threading.Lock()
        #: Batch size limit of topics that have rejected larger batches.
        self._most_bytes: dict[str, int] = {}

    def send(
        self,
        topic: str,
        records: Sequence[Record],
        partition: int | None = None,
        *,
        timeout_s: float | None = None,
        split: bool = True,
    ) -> list[RecordMetadata]:
        """Write ``records`` in order and wait for the acknowledgements.

        ``partition`` None: by murmur2 of each key, round-robin without a key. Retriable errors are retried until
        ``timeout_s`` (None: until `close`). ``split``: a batch that is too large for its topic is split, unless a
        single record is too large. Raises the last KafkaFailure; some of the records may have been written then.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        now = int(time.time() * 1000)
        stamped = [
            record if record.timestamp is not None else Record(record.key, record.value, record.headers, now)
            for record in records
        ]
        placed: list[tuple[TopicPartition, Record]] = []
        count = 0 if partition is not None else self._retry(deadline, lambda: self._partition_count(topic))
        for record in stamped:
            target = partition if partition is not None else self._partition(record.key, count)
            placed.append((TopicPartition(topic, target), record))
        results: list[RecordMetadata | None] = [None] * len(placed)
        chunks = self._chunks(placed, self._most_bytes.get(topic, self._max_request_bytes - 4096))
        for chunk, written in self._write_all(chunks, deadline, split=split):
            for place, metadata in zip(chunk.places, written.metadata(), strict=True):
                results[place] = metadata
        return [result for result in results if result is not None]

    def write(
        self, where: TopicPartition, records: Sequence[Record], *, timeout_s: float | None = None, split: bool = True
    ) -> list[Written]:
        """As `send`, for records that fit into one request and have timestamps. Returns the written batches."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        chunks = [Chunk(where, list(records), [])]
        if where.topic in self._most_bytes:
            chunks = self._chunks([(where, record) for record in records], self._most_bytes[where.topic])
        return [written for _, written in self._write_all(chunks, deadline, split=split)]

    def _write_all(
        self, wanted: Sequence[Chunk], deadline: float | None, *, split: bool
    ) -> Iterator[tuple[Chunk, Written]]:
        chunks = deque(wanted)
        while chunks:
            chunk = chunks.popleft()
            try:
                with self._turn(chunk.partition, deadline):
                    base_offset, append_time_ms = self._write(chunk, deadline)
            except BrokerFailure as failure:
                if not split or not is_too_large(failure, chunk):
                    raise
                # The topic's limit is lower than that of the request.
                self._most_bytes[chunk.partition.topic] = sum(map(_size_bound, chunk.records)) // 2
                chunks.extendleft(reversed(chunk.halves()))
                continue
            yield chunk, Written(chunk.partition, chunk.records, base_offset, append_time_ms)

    def close(self) -> None:
        """End waiting retries. Does not close the cluster."""
        self._closed.set()

    def _partition(self, key: bytes | None, count: int) -> int:
        return next(self._round_robin) % count if key is None else partition_for(key, count)

    def _partition_count(self, topic: str) -> int:
        metadata = self._cluster.metadata([topic], max_age_s=self._cluster.settings.metadata_max_age_ms / 1000)
        info = metadata.topics.get(topic)
        if info is None or not info.partitions:
            self._cluster.invalidate(topic)
            raise metadata.errors.get(topic) or BrokerFailure.of(3, subject=f"topic {topic}")
        return len(info.partitions)

    @contextlib.contextmanager
    def _turn(self, partition: TopicPartition, deadline: float | None) -> Iterator[None]:
        """One call at a time writes to a partition. Raises TimeoutFailure while another one takes longer than the deadline."""
        with self._locks_guard:
            lock = self._locks.setdefault(partition, threading.Lock())
        if not lock.acquire(timeout=-1 if deadline is None else max(0.0, deadline - time.monotonic())):
            raise TimeoutFailure(f"The records before those to {partition} were not written in time.")
        try:
            yield
        finally:
            lock.release()

    @staticmethod
    def _chunks(placed: Sequence[tuple[TopicPartition, Record]], limit: int) -> list[Chunk]:
        chunks: list[Chunk] = []
        open_chunks: dict[TopicPartition, tuple[Chunk, int]] = {}
        for place, (partition, record) in enumerate(placed):
            size = _size_bound(record)
            chunk, used = open_chunks.get(partition, (None, 0))
            if chunk is None or used + size > limit:
                chunk, used = Chunk(partition, [], []), 0
                chunks.append(chunk)
            chunk.records.append(record)
            chunk.places.append(place)
            open_chunks[partition] = (chunk, used + size)
        return chunks

    def _write(self, chunk: Chunk, deadline: float | None) -> tuple[int, int]:
        """Offset of the chunk's first record and the broker's timestamp; -1 for unknown values."""
        batch = bytes(encode_batch(chunk.records, codec=self._codec, level=self._level))
        return self._retry(deadline, lambda: self._produce(chunk.partition, batch))

    def _produce(
        self,
        where: TopicPartition,
        batch: bytes,
        *,
        transactional_id: str | None = None,
        min_version: int | None = None,
        max_version: int = _MAX_VERSION,
    ) -> tuple[int, int]:
        """Write one batch, without retries. Raises KafkaFailure; the batch may have been written nevertheless."""
        topic, partition = where
        data: Any = ProduceRequest.TopicProduceData
        request = ProduceRequest(
            transactional_id=transactional_id,
            acks=self._acks,
            timeout_ms=self._delivery_timeout_ms,
            topic_data=[data(name=topic, partition_data=[data.PartitionProduceData(index=partition, records=batch)])],
            min_version=min_version,
            max_version=max_version,
        )
        try:
            answer: Any = self._cluster.send(self._cluster.leader(topic, partition), request)
        except ConnectFailure:
            self._cluster.invalidate(topic)  # the partition may have a new leader
            raise
        if self._acks == 0:
            return -1, -1
        result = only(only(answer.responses, "topic").partition_responses, "partition")
        if result.error_code:
            failure = self._failure(
                result.error_code, getattr(result, "error_message", None), subject=f"writing to {where}"
            )
            if failure.stale_metadata:
                self._cluster.invalidate(topic)
            raise failure
        return int(result.base_offset), int(result.log_append_time_ms)

    def _failure(self, code: int, message: str | None, *, subject: str) -> BrokerFailure:
        return BrokerFailure.of(code, message, subject=subject, needed="WRITE")

    def _retry(self, deadline: float | None, attempt: Callable[[], _T]) -> _T:
        settings = self._cluster.settings
        backoff = Backoff(settings.retry_backoff_ms, settings.retry_backoff_max_ms)
        for failures in itertools.count():
            try:
                return attempt()
            except (BrokerFailure, ConnectFailure) as error:
                wait = backoff.delay_s(failures)
                late = deadline is not None and time.monotonic() + wait > deadline
                if not error.retriable or late or self._closed.wait(wait):
                    raise
        message = "the producer is closed"
        raise TimeoutFailure(message)


def _size_bound(record: Record) -> int:
    size = 64 + len(record.key or b"") + len(record.value or b"")
    return size + sum(16 + len(name) * 4 + len(value or b"") for name, value in record.headers)


def codec_and_acks(props: Mapping[str, str]) -> tuple[str, int]:
    """``compression.type`` and ``acks`` of Java-style producer properties."""
    acks = props.get("acks", "all").strip()
    return props.get("compression.type", "none").strip() or "none", -1 if acks == "all" else int(acks)


def compression_level(props: Mapping[str, str]) -> int | None:
    """``compression.<codec>.level`` of the configured codec (KIP-390); None: its default."""
    codec, _ = codec_and_acks(props)
    text = props.get(f"compression.{codec}.level", "").strip()
    return int(text) if text else None
