"""A topic as a shared log: read completely at start, then tailed by one thread (Kafka Connect's KafkaBasedLog).

Whole record sets are read through a fetch session and decoded batch by batch. The position, not the last record,
decides whether the end is reached, so that a transaction marker at the end does not block a reader.

Each request contains the leader epoch of the last batch. A log that was truncated before the position and has grown beyond
it since then is therefore detected (KIP-595), from brokers 2.7 on.
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import structlog

from mm2.kafka.admin import Admin
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, TimeoutFailure, value_of
from mm2.kafka.producer.producer import Producer, RecordMetadata
from mm2.kafka.readers.fetch_reader import FetchReader, FetchReaderLimits
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.records.visibility import VisibleBatches
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition
from mm2.kafka.wire.fetch import Fetched

_MAX_WAIT_MS = 2000
_MAX_WAIT_OF_SEVERAL_MS = 500
# A process that rejoins its group reads about six logs again at once, and its memory keeps that peak for its lifetime.
# With answers of 4 MB, memory grew by 30 MB in an hour with one fault per minute.
_FETCH_BYTES = 8 << 20
_PARTITION_BYTES = 1 << 20
_KEPT_BUFFER_BYTES = 1 << 16
_QUIET_FAILURES = 3
_LOGGED_EVERY = 64
_SHOWN_CHARACTERS = 200
_SHOWN_RECORDS = 50
_SHOWN_EVERY = 1_000


def in_log(value: object) -> str:
    """A key or value that was read from a topic, or an error that may quote it, for a log line: clients may write megabytes."""
    text = value if isinstance(value, str) else repr(value[:_SHOWN_CHARACTERS] if isinstance(value, bytes) else value)
    size = len(value) if isinstance(value, bytes) else len(text)
    return text if size <= _SHOWN_CHARACTERS else f"{text[:_SHOWN_CHARACTERS]}… ({size:,} in total)"


class RecordWarnings:
    """Warnings about records that one reader of a topic cannot use: the first, then each thousandth. A client may write millions."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._count = 0

    def warning(self, event: str, **fields: object) -> None:
        """Log a warning, unless there were many. ``records`` is then their number."""
        self._count += 1
        if self._count <= _SHOWN_RECORDS:
            self._logger.warning(event, **fields)
        elif self._count % _SHOWN_EVERY == 0:
            self._logger.warning(event, **fields, records=self._count)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One record of the log; timestamps in ms."""

    partition: int
    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None


@dataclass(frozen=True, slots=True)
class LogProgress:
    """Progress of the initial read in offsets, some of which compaction may have left without a record."""

    read: int
    total: int

    @property
    def is_complete(self) -> bool:
        """Whether the initial read is complete."""
        return self.read >= self.total


#: Receives the batches of one partition from a Fetch answer: the partition, its visible batches in order, and the
#: offset before which records of the first batch have been delivered already. The batches are views, valid until it
#: returns.
OnBatches = Callable[[int, Sequence[BatchView], int], None]


class KafkaBasedLog:
    """Reader, and optionally writer, of one topic.

    ``on_record`` runs on the log's thread, in order within a partition. An exception from it is logged and not fatal.
    ``on_batches`` replaces it for callers that process whole batches: if it raises, reading stops until the same
    batches are accepted.

    ``partitions`` None = all partitions that the topic has at start. ``begin`` gives the first offset to read of some
    partitions; the others are read from their log start offset. ``read_committed`` hides open and aborted transactions;
    reading to the end then waits for open ones, as Java does. ``if_deleted``: what an operator has to do if the topic is deleted
    while it is read.
    """

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        on_record: Callable[[LogRecord], None] | None = None,
        on_batches: OnBatches | None = None,
        producer: Producer | None = None,
        read_committed: bool = False,
        partitions: Iterable[int] | None = None,
        begin: Mapping[int, int] | None = None,
        if_deleted: str = "",
    ) -> None:
        self._cluster = cluster
        self._if_deleted = if_deleted
        self._admin = Admin(cluster)
        self._topic = topic
        if (on_record is None) == (on_batches is None):
            message = "a log needs either on_record or on_batches"
            raise ValueError(message)
        self._on_record = on_record
        self._on_batches = on_batches
        self._limit = cluster.settings.decompression_max_bytes
        self._producer = producer
        self._read_committed = read_committed
        self._wanted = None if partitions is None else sorted(partitions)
        self._begin = dict(begin or {})
        self._positions: dict[TopicPartition, int] = {}
        #: The leader epoch of the batch before each position.
        self._epochs: dict[TopicPartition, int] = {}
        self._topic_id = ""
        # The offset where reading began, and the end offset at that time.
        self._stretch: dict[TopicPartition, tuple[int, int]] | None = None
        self._moved = threading.Condition()
        self._stopping = threading.Event()
        self._thread: threading.Thread | None = None
        self._reader = FetchReader(cluster)
        self._buffer = bytearray(_KEPT_BUFFER_BYTES)
        self._failure: Exception | None = None
        self._has_read = False  # the brokers have answered one request for records
        self._log = structlog.get_logger("mm2.kafka.log").bind(topic=topic, cluster=cluster.name)

    @property
    def partitions(self) -> int:
        """Number of partitions that are read."""
        return len(self._positions)

    @property
    def positions(self) -> dict[int, int]:
        """The next offset to read, by partition."""
        return {tp.partition: offset for tp, offset in self._positions.items()}

    @property
    def progress(self) -> LogProgress | None:
        """Progress of the initial read; None before the end offsets are known."""
        stretch = self._stretch
        if stretch is None:
            return None
        read = sum(min(max(self._positions[tp], first), end) - first for tp, (first, end) in stretch.items())
        return LogProgress(read, sum(end - first for first, end in stretch.values()))

    def start(self, timeout_s: float, *, to_stable: bool = False) -> None:
        """Read the log to its end and return; tailing continues in the background. ``to_stable`` as for `read_to_end`.

        Raises KafkaFailure when the topic does not exist, when its offsets cannot be requested within ``timeout_s``, when it
        may not be read, even if it is empty, or when nothing is read for ``timeout_s``. The whole read may take longer: with a limit for all of it, a topic that grows would once be
        too long for every attempt.
        """
        deadline = time.monotonic() + timeout_s
        first = self._retried(deadline, self._first_offsets)
        self._positions.update(first)
        ends = self._ends(deadline, to_stable=to_stable)
        self._stretch = {tp: (offset, max(offset, ends[tp])) for tp, offset in first.items()}
        self._thread = threading.Thread(target=self._run, name=f"log-{self._topic}", daemon=True)
        self._thread.start()
        try:
            self._reach(ends, timeout_s)
        except KafkaFailure:
            self.stop()
            raise

    def read_to_end(self, timeout_s: float, *, to_stable: bool = False) -> None:
        """Wait until every record written before this call has been delivered. Raises KafkaFailure when that fails, at once
        when the topic may not be read.

        ``to_stable``: read only to the last stable offset, that is, to the first open transaction.
        """
        deadline = time.monotonic() + timeout_s
        self._reach(self._ends(deadline, to_stable=to_stable), timeout_s, deadline)

    def _ends(self, deadline: float, *, to_stable: bool) -> dict[TopicPartition, int]:
        isolation = "read_committed" if to_stable else "read_uncommitted"
        return self._retried(deadline, lambda: self._offsets(LATEST, isolation))

    def _reach(self, ends: Mapping[TopicPartition, int], timeout_s: float, deadline: float | None = None) -> None:
        """Wait until these offsets are read: until the deadline, or without one for as long as ``timeout_s`` makes progress."""
        least, until = math.inf, deadline or 0.0
        with self._moved:
            while (
                behind := sum(max(0, end - self._positions.get(tp, 0)) for tp, end in ends.items())
            ) or not self._has_read:
                if isinstance(self._failure, BrokerFailure) and self._failure.is_denied:
                    raise self._failure
                if deadline is None and behind < least:
                    least, until = behind, time.monotonic() + timeout_s
                left = until - time.monotonic()
                if left <= 0 or self._stopping.is_set():
                    limit = f": nothing arrived in {timeout_s:.1f} s" if deadline is None else f" in {timeout_s:.1f} s"
                    why = f"; the last failure was: {self._failure}" if self._failure else ""
                    message = (
                        f"topic {self._topic} of cluster {self._cluster.name} was not read to its end{limit}, "
                        f"{behind} offsets are left{why}"
                    )
                    raise TimeoutFailure(message)
                self._moved.wait(left)

    def send(self, key: bytes | None, value: bytes | None, *, timeout_s: float | None = None) -> RecordMetadata:
        """Write one record to the partition of its key."""
        return self.send_all([(key, value)], timeout_s=timeout_s)[0]

    def send_all(
        self, records: Iterable[tuple[bytes | None, bytes | None]], *, timeout_s: float | None = None
    ) -> list[RecordMetadata]:
        """Write records in order; those of one partition share a batch."""
        if self._producer is None:
            message = f"the log of topic {self._topic} was opened for reading only"
            raise ValueError(message)
        batch = [Record(key, value) for key, value in records]
        return self._producer.send(self._topic, batch, timeout_s=timeout_s)

    def stop(self) -> None:
        """Stop the thread without waiting for outstanding answers."""
        self._stopping.set()
        self._reader.abort()
        with self._moved:
            self._moved.notify_all()
        thread = self._thread
        # No ident: stopped while it was being started.
        if thread is not None and thread is not threading.current_thread() and thread.ident is not None:
            thread.join(timeout=5)

    def _retried(self, deadline: float, call: Callable[[], dict[TopicPartition, int]]) -> dict[TopicPartition, int]:
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, self._cluster.settings.retry_backoff_max_ms)
        failures = 0
        while True:
            try:
                return call()
            except KafkaFailure as error:
                wait = backoff.delay_s(failures)
                failures += 1
                fatal = not error.retriable
                if fatal or time.monotonic() + wait > deadline or self._stopping.wait(wait):
                    raise

    def _first_offsets(self) -> dict[TopicPartition, int]:
        metadata = self._cluster.metadata([self._topic])
        info = metadata.topics.get(self._topic)
        if info is None or not info.partitions:
            subject = f"topic {self._topic} of cluster {self._cluster.name}"
            raise metadata.errors.get(self._topic) or BrokerFailure.of(3, subject=subject)
        self._topic_id = info.topic_id
        indexes = sorted(info.partitions) if self._wanted is None else self._wanted
        self._positions = dict.fromkeys((TopicPartition(self._topic, index) for index in indexes), 0)
        return {tp: max(first, self._begin.get(tp.partition, 0)) for tp, first in self._offsets(EARLIEST).items()}

    def _offsets(self, when: int, isolation: str = "read_uncommitted") -> dict[TopicPartition, int]:
        found: Mapping[TopicPartition, OffsetInfo | KafkaFailure] = self._admin.list_offsets(
            dict.fromkeys(self._positions, when), isolation
        )
        return {tp: value_of(result).offset for tp, result in found.items()}

    def _run(self) -> None:
        backoff = Backoff(self._cluster.settings.retry_backoff_ms, self._cluster.settings.retry_backoff_max_ms)
        failures = 0
        try:
            while not self._stopping.is_set():
                try:
                    self._poll()
                    failures = 0
                    self._end_round(None)
                except Exception as error:  # noqa: BLE001  (the end of this thread would go unnoticed)
                    if self._stopping.is_set():
                        return
                    if not isinstance(error, KafkaFailure):
                        self._log.exception("internal error while reading")
                    is_new = str(error) != str(self._failure) or failures == _QUIET_FAILURES
                    self._end_round(error)
                    # A batch that cannot be read is tried again each second for as long as it exists.
                    is_loud = failures >= _QUIET_FAILURES and (is_new or failures % _LOGGED_EVERY == 0)
                    is_unknown = isinstance(error, BrokerFailure) and error.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                    action = {"action": self._if_deleted} if is_unknown and self._if_deleted else {}
                    (self._log.warning if is_loud else self._log.debug)("reading failed", error=str(error), **action)
                    self._reader.close()
                    self._buffer = bytearray(_KEPT_BUFFER_BYTES)  # the traceback may still refer to the previous one
                    self._cluster.invalidate(self._topic)
                    self._stopping.wait(backoff.delay_s(failures))
                    failures += 1
        finally:
            self._reader.close()

    def _poll(self) -> None:
        metadata = self._cluster.metadata([self._topic], max_age_s=300)
        info = metadata.topics.get(self._topic)
        if info is None:
            code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            raise metadata.errors.get(self._topic) or BrokerFailure.of(code, subject=f"topic {self._topic}")
        if self._topic_id and info.topic_id not in {"", self._topic_id}:
            # Offsets of the deleted topic are meaningless in the new one, even if it already has more records.
            self._log.warning("topic recreated, reading it from its start")
            self._positions.update(self._offsets(EARLIEST))
            self._epochs.clear()
        self._topic_id = info.topic_id or self._topic_id
        leaders = {partition.leader for tp in self._positions if (partition := info.partitions.get(tp.partition))}
        # Each round waits for all leaders: no response may be delayed for long. The first one shows whether the topic may be read.
        wait_ms = _MAX_WAIT_MS if len(leaders) < 2 else max(20, _MAX_WAIT_OF_SEVERAL_MS // len(leaders))
        wait_ms = wait_ms if self._has_read else 0
        limits = FetchReaderLimits(wait_ms, _FETCH_BYTES, _PARTITION_BYTES, read_committed=self._read_committed)
        self._reader.send(self._positions, limits, metadata=metadata, last_epochs=self._epochs)
        largest = self._receive()  # without a request in flight, this waits until one may be sent
        while self._reader.has_results:
            largest = max(largest, self._receive())
        if len(self._buffer) > _KEPT_BUFFER_BYTES and largest <= _KEPT_BUFFER_BYTES:
            self._buffer = bytearray(_KEPT_BUFFER_BYTES)  # only tailing from here on, which needs a small buffer

    def _end_round(self, failure: Exception | None) -> None:
        if failure is None and self._has_read:
            self._failure = None
            return
        with self._moved:
            self._failure = failure
            self._has_read = self._has_read or failure is None
            self._moved.notify_all()

    def _receive(self) -> int:
        """Deliver one response and return its size."""
        # A separate method: its frame holds all views into the buffer, so that the buffer can grow for the next answer.
        before = self._reader.bytes_received
        for tp, answer in self._reader.receive(_MAX_WAIT_MS / 1000, buffer=self._buffer).items():
            if isinstance(answer, KafkaFailure):
                self._take_failure(tp, answer)
            elif answer.diverging is not None:
                self._read_again(tp, "the log was truncated before the position, reading it from its start")
            else:
                self._take(answer)
        return self._reader.bytes_received - before

    def _take_failure(self, tp: TopicPartition, failure: KafkaFailure) -> None:
        if not isinstance(failure, BrokerFailure) or failure.code != ErrorCode.OFFSET_OUT_OF_RANGE:
            raise failure
        if self._epochs.pop(tp, -1) >= 0:
            return  # perhaps the leader only does not know the end of this epoch: it is asked for the offset alone
        self._read_again(tp, "position out of range, reading from the start")

    def _read_again(self, tp: TopicPartition, event: str) -> None:
        """Read a partition that was truncated, or whose records were deleted, from its log start offset.

        Not only from the point of truncation: keys whose last record was lost have an older one, and the offset of the last
        record, which members of a group compare, has to be the one that other readers see.
        """
        self._log.warning(event, partition=tp.partition)
        self._positions[tp] = max(0, self._offsets(EARLIEST)[tp])
        self._epochs.pop(tp, None)

    def _take(self, fetched: Fetched) -> None:
        tp = fetched.topic_partition
        first = self._positions[tp]
        visible = VisibleBatches(fetched.records, first, aborted=fetched.aborted if self._read_committed else None)
        if self._on_batches is None:
            self._deliver_all(tp, visible)
            return
        views: list[BatchView] = []
        failure: CorruptBatch | None = None
        try:
            views.extend(visible)
        except CorruptBatch as error:
            failure = error  # the batches before it are valid
        if views:
            self._on_batches(tp.partition, views, first)
        self._move(tp, visible.position, visible.leader_epoch)
        if failure is not None:
            raise failure

    def _deliver_all(self, tp: TopicPartition, visible: VisibleBatches) -> None:
        # One batch after another: only one is decompressed at a time, and when one fails, those before it are not
        # delivered again.
        position = self._positions[tp]
        for view in visible:
            for record in decode_batch(view, self._limit):
                if record.offset >= position:
                    self._deliver(tp.partition, record)
            position = visible.position
            self._move(tp, visible.position, visible.leader_epoch)
        self._move(tp, visible.position, visible.leader_epoch)

    def _move(self, tp: TopicPartition, position: int, leader_epoch: int) -> None:
        with self._moved:
            if position != self._positions[tp]:
                self._positions[tp], self._epochs[tp] = position, leader_epoch
            self._moved.notify_all()

    def _deliver(self, partition: int, record: Record) -> None:
        timestamp = -1 if record.timestamp is None else record.timestamp
        if self._on_record is None:
            raise AssertionError("checked by the constructor")
        try:
            self._on_record(LogRecord(partition, record.offset, timestamp, record.key, record.value))
        except Exception:  # noqa: BLE001  (one bad record must not stop the delivery of the others)
            self._log.exception("record could not be processed", partition=partition, offset=record.offset)
