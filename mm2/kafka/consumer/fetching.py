"""Read-ahead of a consumer's partitions: one thread with a `FetchReader`.

As in Java's fetcher, at most one answer per partition is buffered; the next one is requested while its records are
being returned. Responses for a position that has changed since the request are dropped.
"""

from __future__ import annotations

import contextvars
import socket
import threading
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Final

import structlog

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure, failures_in
from mm2.kafka.readers.fetch_reader import FetchReader, FetchReaderLimits
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.record import Fields, decode_batch_as
from mm2.kafka.records.visibility import VisibleBatches, end_of
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.fetch import Fetched

log = structlog.get_logger(__name__)

_IDLE_S: Final = 1.0
_NO_TIMESTAMP: Final = -1
_QUIET_FAILURES: Final = 3
#: These errors mean that a topic has been deleted, or deleted and recreated.
_GONE: Final = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ErrorCode.UNKNOWN_TOPIC_ID,
    ErrorCode.INCONSISTENT_TOPIC_ID,
}


@dataclass(slots=True)
class _PartitionState:
    """State of one partition. The consumer's condition guards all fields but the last four."""

    #: Next offset to fetch; None: unknown, see `Fetcher.without_position`.
    fetch: int | None = None
    last_epoch: int = -1
    #: The position and epoch of the request in flight; its answer is dropped if they have changed since.
    requested: tuple[int, int] | None = None
    paused: bool = False
    chunks: deque[Fetched] = field(default_factory=deque)
    #: Whether the offset to fetch does not exist. What was fetched before is returned, then the position is reset.
    out_of_range: bool = False
    #: Where the log was truncated; `Fetcher.take` reads again from there.
    truncated: int | None = None

    # Accessed by the consumer's user only.
    #: Next offset to return.
    position: int | None = None
    batches: VisibleBatches | None = None
    ready: list[ConsumerRecord] = field(default_factory=list)
    ready_at: int = 0

    @property
    def has_more(self) -> bool:
        return self.ready_at < len(self.ready) or self.batches is not None or bool(self.chunks)


class Fetcher:
    """Fetch thread and buffers of a consumer.

    ``changed`` is the consumer's condition; the consumer's user holds it when calling any method but `take` and
    `close`. ``on_gone`` is called when a topic seems to have been deleted.
    """

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, changed: threading.Condition, *, on_gone: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._changed = changed
        self._on_gone = on_gone
        self._partitions: dict[TopicPartition, _PartitionState] = {}
        self.failure: KafkaFailure | None = None
        self._stopping = False
        self._turn = 0
        client = cluster.settings
        self._reader = FetchReader(
            cluster,
            backoff=Backoff(client.retry_backoff_ms, client.retry_backoff_max_ms),
            timeout_s=(client.request_timeout_ms + settings.fetch_max_wait_ms) / 1000,
        )
        self._limits = FetchReaderLimits(
            settings.fetch_max_wait_ms,
            settings.fetch_max_bytes,
            settings.max_partition_fetch_bytes,
            settings.fetch_min_bytes,
            read_committed=settings.read_committed,
        )
        self._failures = 0
        self._log = log.bind(group=settings.group_id, cluster=cluster.name)
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._wake_write.setblocking(False)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=lambda: context.run(self._run), name=f"consumer-fetcher-{settings.client.client_id}", daemon=True
        )

    # -- called by the consumer's user

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def assign(self, partitions: Iterable[TopicPartition]) -> None:
        """Read exactly these partitions; those already assigned keep their position."""
        self._partitions = {tp: self._partitions.get(tp) or _PartitionState() for tp in sorted(partitions)}
        self._wake()

    @property
    def assigned(self) -> frozenset[TopicPartition]:
        """The partitions that are read."""
        return frozenset(self._partitions)

    def without_position(self) -> dict[TopicPartition, bool]:
        """Partitions that cannot be read before `seek`; True: because the offset of their position does not exist."""
        return {
            tp: state.out_of_range
            for tp, state in self._partitions.items()
            if state.fetch is None and not state.has_more
        }

    def seek(self, tp: TopicPartition, offset: int) -> None:
        """Set the position and drop what was read ahead."""
        state = self._partitions[tp]
        state.fetch = state.position = offset
        self._empty(state)
        self._wake()

    def position(self, tp: TopicPartition) -> int | None:
        """Next offset to return, None when it is not known yet."""
        return self._partitions[tp].position

    def pause(self, partitions: Iterable[TopicPartition], *, paused: bool) -> None:
        """Pause or resume partitions; what was read ahead is kept."""
        for tp in partitions:
            self._partitions[tp].paused = paused
        self._wake()

    @property
    def paused(self) -> frozenset[TopicPartition]:
        """The partitions that are paused."""
        return frozenset(tp for tp, state in self._partitions.items() if state.paused)

    @property
    def is_ready(self) -> bool:
        """Whether `take` may have records."""
        return any(
            state.truncated is not None or (state.has_more and not state.paused) for state in self._partitions.values()
        )

    def take(self, limit: int) -> list[ConsumerRecord]:
        """Up to ``limit`` records in order within each partition. Raises CorruptBatch."""
        with self._changed:
            for tp, state in self._partitions.items():
                if state.truncated is not None:
                    self.seek(tp, min(state.position or 0, state.truncated))
            states = [(tp, state) for tp, state in self._partitions.items() if not state.paused and state.has_more]
            self._turn += 1
        taken: list[ConsumerRecord] = []
        first = self._turn % len(states) if states else 0
        for tp, state in (*states[first:], *states[:first]):
            while len(taken) < limit and self._next_batch(tp, state):
                stop = min(len(state.ready), state.ready_at + limit - len(taken))
                taken += state.ready[state.ready_at : stop]
                state.ready_at = stop
                state.position = state.ready[stop - 1].offset + 1
        return taken

    def close(self) -> None:
        """Stop the thread; the owner has closed the cluster's connections before."""
        with self._changed:
            self._stopping = True
            self._wake()
        if self._thread.is_alive():
            self._thread.join(5)

    def _next_batch(self, tp: TopicPartition, state: _PartitionState) -> bool:
        """Fill ``state.ready`` if records are available. Returns whether it has any."""
        while state.ready_at >= len(state.ready):
            if state.batches is None:
                with self._changed:
                    if not state.chunks:
                        return False
                    chunk = state.chunks.popleft()
                    self._wake()
                aborted = chunk.aborted if self._settings.read_committed else None
                state.batches = VisibleBatches(
                    chunk.records, state.position or 0, aborted=aborted, check_crcs=self._settings.check_crcs
                )
            view = next(state.batches, None)
            if view is None:
                state.position, state.batches = state.batches.position, None
                continue
            records, position = self._records(tp, view), state.position or 0
            if records and records[0].offset < position:
                records = [record for record in records if record.offset >= position]
            state.ready, state.ready_at = records, 0
        return True

    def _records(self, tp: TopicPartition, view: BatchView) -> list[ConsumerRecord]:
        try:
            return _records(tp, view, self._cluster.settings.decompression_max_bytes)
        except CorruptBatch as error:
            raise type(error)(f"{tp} of cluster {self._cluster.name}: {error}") from error

    @staticmethod
    def _empty(state: _PartitionState) -> None:
        state.requested = None
        state.out_of_range = False
        state.truncated = None
        state.last_epoch = -1
        state.chunks.clear()
        state.batches = None
        state.ready, state.ready_at = [], 0

    def _wake(self) -> None:
        """Wake the thread, so that it checks all partitions."""
        try:
            self._wake_write.send(b"\0")
        except (BlockingIOError, OSError):
            return  # an earlier wake-up is still pending, or the thread has ended

    # -- called by the thread

    def _run(self) -> None:
        try:
            while not self._has_ended():
                self._round()
        except KafkaFailure as failure:
            self._fail(failure)
        except Exception as error:  # noqa: BLE001 - raised by the user's next poll
            self._log.exception("fetcher thread failed")
            self._fail(KafkaFailure(f"Fetching for group {self._settings.group_id} failed: {error!r}"))
        finally:
            self._reader.close()
            with self._changed:
                self._wake_read.close()
                self._wake_write.close()

    def _has_ended(self) -> bool:
        return self._stopping or self._cluster.closed or self.failure is not None

    def _round(self) -> None:
        in_flight = self._reader.in_flight
        with self._changed:
            offsets: dict[TopicPartition, int] = {}
            epochs: dict[TopicPartition, int] = {}
            for tp, state in self._partitions.items():
                if (
                    state.fetch is None
                    or state.truncated is not None
                    or state.paused
                    or state.chunks
                    or tp in in_flight
                ):
                    continue
                state.requested = offsets[tp], epochs[tp] = state.fetch, state.last_epoch
        self._reader.send(offsets, self._limits, last_epochs=epochs)
        answers = self._reader.receive(_IDLE_S, wake=self._wake_read)
        if not answers:
            return
        failed = list(failures_in(answers).values())
        self._failures = self._failures + 1 if len(failed) == len(answers) else 0
        if failed:
            level = self._log.debug if self._failures <= _QUIET_FAILURES else self._log.warning
            level("fetching failed", partitions=len(failed), reason=str(failed[0]))
        with self._changed:
            for tp, answer in answers.items():
                self._take_in(tp, answer)
            self._changed.notify_all()

    def _take_in(self, tp: TopicPartition, answer: Fetched | KafkaFailure) -> None:
        state = self._partitions.get(tp)
        if state is None or state.fetch is None or state.requested != (state.fetch, state.last_epoch):
            return
        if isinstance(answer, KafkaFailure):
            code = answer.code if isinstance(answer, BrokerFailure) else None
            if code == ErrorCode.OFFSET_OUT_OF_RANGE:
                self._log.info("offset out of range", partition=str(tp), offset=state.fetch)
                state.fetch = state.requested = None
                state.out_of_range = True
            elif not answer.retriable and code != ErrorCode.UNKNOWN_SERVER_ERROR:  # as FetchCollector of Java
                self._fail(answer)
            elif code in _GONE:
                self._on_gone()
        elif answer.diverging is not None:
            end = answer.diverging[1]
            self._log.warning("the log was truncated before the position", partition=str(tp), offset=end)
            state.requested = None
            state.truncated = end
        elif len(answer.records):
            after, epoch = end_of(answer.records)
            if after is not None:
                state.fetch, state.last_epoch = after, epoch
                state.chunks.append(answer)

    def _fail(self, failure: KafkaFailure) -> None:
        with self._changed:
            if not self._stopping:
                self.failure = failure
            self._changed.notify_all()


def _records(tp: TopicPartition, view: BatchView, limit: int) -> list[ConsumerRecord]:
    log_append_time = view.header is not None and view.header.is_log_append_time

    def record(fields: Fields) -> ConsumerRecord:
        key, value, headers, timestamp, offset = fields
        at = _NO_TIMESTAMP if timestamp is None else timestamp
        return ConsumerRecord(tp, offset, key, value, headers, at, log_append_time)

    return decode_batch_as(record, view, limit)
