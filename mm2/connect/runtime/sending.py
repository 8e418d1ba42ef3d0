"""Asynchronous sending of records to Kafka, like Java's KafkaProducer.

Each partition has one batch in flight; records sent meanwhile wait and form the next batch. So records of a partition
stay in order without idempotence, as with Connect's ``max.in.flight.requests.per.connection=1``.
"""

from __future__ import annotations

import contextvars
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Self

import structlog
from kafka.protocol.metadata import MetadataRequest

from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.producer.producer import Producer, RecordMetadata, Written
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition

log = structlog.get_logger(__name__)

#: Called once for each record, on the sender's thread: with its metadata, or with the failure.
OnSent = Callable[[RecordMetadata | None, KafkaFailure | None], None]

_POLL_S: Final = 0.2
#: Errors for which a broker rejects a whole batch because of a single record.
_OF_ONE: Final = {ErrorCode.MESSAGE_TOO_LARGE, ErrorCode.INVALID_RECORD, ErrorCode.INVALID_TIMESTAMP}
_RECORD_BYTES: Final = 70  # more than the overhead of a record


@dataclass(frozen=True)
class SenderSettings:
    """Settings of Java's producer; milliseconds and bytes. The default of ``batch_bytes`` is larger than Java's."""

    max_request_bytes: int = 1_048_576
    buffer_bytes: int = 33_554_432
    max_block_ms: int = 2**63 - 1
    delivery_timeout_ms: int = 2**31 - 1
    batch_bytes: int = 524_288
    retries: int = 2**31 - 1
    ignores_keys: bool = False

    @classmethod
    def of(cls, props: Mapping[str, str]) -> Self:
        """From Java-style producer properties."""

        def number(key: str, default: int) -> int:
            text = str(props.get(key, "")).strip()
            return int(text) if text else default

        return cls(
            number("max.request.size", 1_048_576),
            number("buffer.memory", 33_554_432),
            number("max.block.ms", 2**63 - 1),
            number("delivery.timeout.ms", 2**31 - 1),
            number("batch.size", 524_288),
            number("retries", 2**31 - 1),
            str(props.get("partitioner.ignore.keys", "")).strip().lower() == "true",
        )


@dataclass(frozen=True, slots=True)
class Sent:
    """The location of records that were sent together."""

    written: Sequence[Written]
    #: Their range in ``written``.
    places: slice

    def metadata(self) -> list[RecordMetadata]:
        """Metadata of each record."""
        return list(itertools.chain.from_iterable(batch.metadata() for batch in self.written))[self.places]


@dataclass(slots=True)
class Outgoing:
    """A record in flight. ``partition`` None: by the key's hash; records without a key alternate between partitions."""

    topic: str
    partition: int | None
    record: Record
    on_settled: OnSettled
    #: Data for ``on_settled``.
    about: Any = None
    size: int = 0
    due_s: float = 0.0


#: Called on the sender's thread with records that share this callback and were sent together, in order: with their
#: location, or with the failure.
OnSettled = Callable[[Sequence[Outgoing], Sent | None, KafkaFailure | None], None]


@dataclass(slots=True)
class _Queue:
    items: deque[Outgoing] = field(default_factory=deque)
    failures: int = 0
    retry_at_s: float = 0.0
    #: Maximum size of a batch; reduced after a batch was too large for the topic.
    batch_bytes: int = 0
    #: The number of next records that are sent alone, since the broker has rejected one of them.
    alone: int = 0


class RecordSender:
    """Sends records in batches; `send`, `flush` and `close` belong to one thread.

    ``transactional``: the producer retries by itself, and after its first failure nothing more is written. Nothing is
    written either when ``is_ours()`` is false: another worker may then write the same records.
    """

    def __init__(
        self,
        cluster: Cluster,
        producer: Producer,
        settings: SenderSettings,
        *,
        name: str,
        transactional: bool = False,
        is_ours: Callable[[], bool] = lambda: True,
    ) -> None:
        self._cluster = cluster
        self._producer = producer
        self._settings = settings
        self._transactional = transactional
        self._is_ours = is_ours
        self._batch_bytes = min(settings.max_request_bytes // 2, settings.batch_bytes)
        self._changed = threading.Condition()
        self._queues: dict[TopicPartition, _Queue] = {}
        self._pending = 0
        self._bytes = 0
        self._closed = False
        self._failure: KafkaFailure | None = None
        self._counts: dict[str, tuple[int, float]] = {}
        self._count_age_s = cluster.settings.metadata_max_age_ms / 1000
        #: Records without a key go to one partition, until there is a batch of them or nothing left to send.
        self._keyless = 0
        self._keyless_bytes = 0
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)
        context = contextvars.copy_context()
        self._thread = threading.Thread(target=lambda: context.run(self._run), name=name, daemon=True)
        self._started = False

    @property
    def pending(self) -> int:
        """The number of records in flight."""
        return self._pending

    @property
    def failure(self) -> KafkaFailure | None:
        """The last failure for which a record was given up."""
        return self._failure

    def send(
        self,
        topic: str,
        partition: int | None,
        record: Record,
        on_sent: OnSent,
        *,
        give_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Queue one record; waits while the buffer is full or the topic is missing.

        The limits are max.block.ms and ``give_up()``. ``partition`` None: by the key's hash; records without a key
        alternate between partitions. Raises KafkaFailure, retriable or not; ``on_sent`` is not called then.
        """
        item = Outgoing(topic, partition, record, _each(on_sent), size=size_of(record))
        if item.size > self._settings.max_request_bytes:
            raise BrokerFailure.of(
                ErrorCode.MESSAGE_TOO_LARGE,
                f"the record has {item.size} bytes, more than max.request.size, which is "
                f"{self._settings.max_request_bytes}",
                subject=f"Topic {topic}",
            )
        blocked_from_s = time.monotonic()
        count = self._partition_count(topic, blocked_from_s, give_up)
        if partition is not None and partition >= count:
            raise BrokerFailure.of(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"there is no partition {partition}, the topic has {count}",
                subject=f"Topic {topic}",
            )
        with self._changed:
            while self._bytes and self._bytes + item.size > self._settings.buffer_bytes:
                self._check_block(blocked_from_s, give_up, "there is no room in the buffer")
                self._changed.wait(_POLL_S)
            if self._closed:
                raise DisconnectedFailure("The producer is closed.")
            if not self._enqueue((item,)):
                raise DisconnectedFailure(
                    f"The record for topic {topic} could not be queued."
                )  # cannot happen; the record would be lost

    def send_at_once(self, outgoing: Sequence[Outgoing]) -> int:
        """Queue the first records that need no waiting, with ``size`` set; returns how many.

        Use `send` for the next one: it waits, or raises the error.
        """
        with self._changed:
            return 0 if self._closed else self._enqueue(outgoing)

    def is_ready(self, topic: str) -> bool:
        """Whether the topic's number of partitions is known, so that a record need not wait for it."""
        known = self._counts.get(topic)
        return known is not None and known[1] > time.monotonic() - self._count_age_s

    @property
    def room_bytes(self) -> int:
        """Free bytes in the buffer."""
        return self._settings.buffer_bytes - self._bytes

    def _enqueue(self, outgoing: Sequence[Outgoing]) -> int:
        """See `send_at_once`; hold the condition."""
        due_s = time.monotonic() + self._settings.delivery_timeout_ms / 1000
        now_ms = int(time.time() * 1000)
        most, room = self._settings.max_request_bytes, self._settings.buffer_bytes
        topic, placed, count = "", -1, 0
        queued = 0
        for item in outgoing:
            record, partition = item.record, item.partition
            if item.topic != topic:
                if item.topic not in self._counts:
                    break
                topic, placed = item.topic, -1
                count = self._counts[topic][0]
            keyless = partition is None and (record.key is None or self._settings.ignores_keys)
            if partition is None:
                partition = self._keyless % count if keyless else partition_for(record.key or b"", count)
            if partition >= count or item.size > most or (self._bytes and self._bytes + item.size > room):
                break
            if partition != placed:
                queue = self._queue(TopicPartition(topic, partition))
                placed = partition
            if record.timestamp is None:
                item.record = Record(record.key, record.value, record.headers, now_ms)
            item.due_s = due_s
            queue.items.append(item)
            self._bytes += item.size
            queued += 1
            if keyless:
                self._keyless_bytes += item.size
                if self._keyless_bytes >= self._batch_bytes:
                    self._next_keyless()
        if queued:
            if not self._started:
                self._started = True
                self._thread.start()
            if not self._pending:
                self._changed.notify_all()
            self._pending += queued
        return queued

    def _next_keyless(self) -> None:
        self._keyless, self._keyless_bytes = self._keyless + 1, 0

    def _queue(self, tp: TopicPartition) -> _Queue:
        queue = self._queues.get(tp)
        if queue is None:
            queue = self._queues[tp] = _Queue(batch_bytes=self._batch_bytes)
        return queue

    def flush(self, timeout_s: float | None = None, *, give_up: Callable[[], bool] = lambda: False) -> bool:
        """Wait until no record is in flight; False on a timeout."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._changed:
            while self._pending:
                left = _POLL_S if deadline is None else min(_POLL_S, deadline - time.monotonic())
                if left <= 0 or give_up():
                    return False
                self._changed.wait(left)
            return True

    def close(self, timeout_s: float) -> None:
        """Send the remaining records for up to ``timeout_s``, then give the rest up. Any thread."""
        if timeout_s > 0 and threading.current_thread() is not self._thread:
            self.flush(timeout_s, give_up=lambda: self._closed)
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._producer.close()

    # -- topics

    def _partition_count(self, topic: str, blocked_from_s: float, give_up: Callable[[], bool]) -> int:
        known = self._counts.get(topic)
        if known is not None and known[1] > blocked_from_s - self._count_age_s:
            return known[0]
        failures = 0
        while True:
            try:
                count = self._ask_for(topic)
            except KafkaFailure as failure:
                gone = isinstance(failure, BrokerFailure) and failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                if not self._may_pass(failure) and not gone:
                    raise
                if failures == 0:
                    log.warning("topic cannot be written to yet", topic=topic, reason=str(failure))
                self._check_block(blocked_from_s, give_up, str(failure))
                with self._changed:
                    self._changed.wait(self._backoff.delay_s(failures))
                failures += 1
                continue
            self._counts[topic] = (count, time.monotonic())
            return count

    def _may_pass(self, failure: KafkaFailure) -> bool:
        """Whether to retry: after a first success also when a certificate or password is rejected.

        Such an error may be fixed while the task waits. Before the first success it is reported at once.
        """
        return failure.retriable or (bool(self._counts) and not failure.is_final)

    def _ask_for(self, topic: str) -> int:
        """Number of partitions; the request creates a missing topic if the brokers are configured to do so."""
        metadata = self._cluster.metadata([topic], max_age_s=self._count_age_s)
        info = metadata.topics.get(topic)
        if info is not None and info.partitions:
            return len(info.partitions)
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        self._cluster.send(None, MetadataRequest(topics=[wanted], allow_auto_topic_creation=True, min_version=4))
        self._cluster.invalidate(topic)
        raise metadata.errors.get(topic) or BrokerFailure.of(
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject=f"Topic {topic} of cluster {self._cluster.name}"
        )

    def _check_block(self, blocked_from_s: float, give_up: Callable[[], bool], why: str) -> None:
        if self._closed:
            raise DisconnectedFailure("The producer is closed.")
        if give_up() or (time.monotonic() - blocked_from_s) * 1000 > self._settings.max_block_ms:
            raise TimeoutFailure(f"A record could not be sent in time: {why}")

    # -- the sender's thread

    def _run(self) -> None:
        while True:
            with self._changed:
                taken = self._take()
                while taken is None:
                    if self._closed:
                        break
                    self._changed.wait(self._wait_s())
                    taken = self._take()
            if taken is None:
                self._abandon()
                return
            self._write(*taken)

    def _wait_s(self) -> float:
        now = time.monotonic()
        return max(0.001, min([1.0, *(q.retry_at_s - now for q in self._queues.values() if q.items)]))

    def _take(self) -> tuple[TopicPartition, list[Outgoing]] | None:
        """The next batch of a partition that is not in back-off; hold the condition."""
        now = time.monotonic()
        for tp, queue in self._queues.items():
            if not queue.items or queue.retry_at_s > now or self._closed:
                continue
            taken = [queue.items.popleft()]
            size = taken[0].size
            queue.alone -= bool(queue.alone)
            while queue.items and not queue.alone and size + queue.items[0].size <= queue.batch_bytes:
                taken.append(queue.items.popleft())
                size += taken[-1].size
            # Move the partition to the end, so that each has its turn.
            self._queues[tp] = self._queues.pop(tp)
            return tp, taken
        if self._keyless_bytes:
            self._next_keyless()
        return None

    def _write(self, tp: TopicPartition, items: list[Outgoing]) -> None:
        records = [item.record for item in items]
        if not self._is_ours():
            given_up = DisconnectedFailure(
                f"Records for {tp} were not written, because the task may run on another worker."
            )
            self._settle(items, None, given_up)
            return
        try:
            written = self._producer.write(
                tp,
                records,
                timeout_s=None if self._transactional else 0.0,
                # A single record that is too large must not fail the other records of its batch.
                split=self._transactional,
            )
        except KafkaFailure as failure:
            self._refused(tp, items, failure)
            return
        except Exception as error:
            log.exception("sender failed", partition=str(tp))
            self._settle(items, None, KafkaFailure(f"Records for {tp} could not be written: {error!r}"))
            return
        with self._changed:
            self._queues[tp].failures = 0
        self._settle(items, written, None)

    def _refused(self, tp: TopicPartition, items: list[Outgoing], failure: KafkaFailure) -> None:
        code = failure.code if isinstance(failure, BrokerFailure) else None
        may_pass = self._may_pass(failure) or code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        if code in _OF_ONE and len(items) > 1 and not self._transactional:
            # The other records of the batch are retried.
            with self._changed:
                queue = self._queues[tp]
                queue.items.extendleft(reversed(items))
                if code == ErrorCode.MESSAGE_TOO_LARGE:
                    queue.batch_bytes = sum(item.size for item in items) // 2
                else:
                    queue.alone = len(items)
            return
        now = time.monotonic()
        queue = self._queues[tp]
        given_up = items[0].due_s <= now or queue.failures >= self._settings.retries
        if self._transactional or not may_pass or given_up or self._closed:
            self._settle(items, None, failure)
            return
        with self._changed:
            if queue.failures in {0, 10}:
                log.warning("records cannot be written, retrying", partition=str(tp), reason=str(failure))
            queue.items.extendleft(reversed(items))
            queue.retry_at_s = now + self._backoff.delay_s(queue.failures)
            queue.failures += 1

    def _settle(self, items: list[Outgoing], written: Sequence[Written] | None, failure: KafkaFailure | None) -> None:
        first = 0
        # Failed records are reported one by one, so that an exception in one callback does not affect the others.
        groups = itertools.groupby(items, lambda item: item.on_settled if written is not None else id(item))
        for _, group in groups:
            together = list(group)
            on_settled = together[0].on_settled
            places = slice(first, first + len(together))
            try:
                on_settled(together, None if written is None else Sent(written, places), failure)
            except Exception:
                log.exception("callback of a sent record failed")
            first = places.stop
        with self._changed:
            if failure is not None:
                self._failure = failure
            self._pending -= len(items)
            self._bytes -= sum(item.size for item in items)
            self._changed.notify_all()

    def _abandon(self) -> None:
        with self._changed:
            rest = [item for queue in self._queues.values() for item in queue.items]
            self._queues.clear()
        if rest:
            failure = DisconnectedFailure("The producer was closed before these records were written.")
            self._settle(rest, None, failure)


def size_of(record: Record) -> int:
    """A record's size in the buffer, and its maximum size in a request."""
    size = _RECORD_BYTES + len(record.key or b"") + len(record.value or b"")
    if record.headers:
        size += sum(16 + len(name) * 4 + len(value or b"") for name, value in record.headers)
    return size


def _each(on_sent: OnSent) -> OnSettled:
    def settled(items: Sequence[Outgoing], sent: Sent | None, failure: KafkaFailure | None) -> None:
        if sent is None:
            for _ in items:
                on_sent(None, failure)
        else:
            for metadata in sent.metadata():
                on_sent(metadata, failure)

    return settled
