"""Reports of records that failed: the worker's log, the dead letter queue, and reports by sink tasks.

Java's LogReporter, DeadLetterQueueReporter and WorkerErrantRecordReporter (KIP-298, KIP-610).
"""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future, InvalidStateError, wait
from dataclasses import dataclass
from typing import Final, Generic, Self, TypeVar

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.connect.api import ConnectError, SinkRecord, SourceRecord
from mm2.connect.runtime.counters import ErrorCounters
from mm2.connect.runtime.sending import RecordSender
from mm2.connect.runtime.tolerance import (
    ProcessingContext,
    ProcessingStage,
    RetryWithToleranceOperator,
    java_name,
    stack_trace,
)
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer.producer import RecordMetadata
from mm2.kafka.records.record import Headers, Record
from mm2.kafka.structs import NewTopic, TopicPartition

log = structlog.get_logger(__name__)


class PendingReports:
    """Reports by the partition that a record was consumed from. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[TopicPartition, deque[Future[None]]] = {}

    def add(self, partition: TopicPartition, report: Future[None]) -> None:
        """Add a report."""
        with self._lock:
            queue = self._futures.setdefault(partition, deque())
            # Dead letters are written in order, so few completed ones remain in the list.
            while queue and queue[0].done():
                queue.popleft()
            queue.append(report)

    def wait_for(self, partitions: Collection[TopicPartition], timeout_s: float) -> frozenset[TopicPartition]:
        """Wait for all reports of these partitions; returns those still incomplete after ``timeout_s``."""
        with self._lock:
            wanted = [future for tp in partitions for future in self._futures.get(tp, ())]
        wait(wanted, timeout_s)
        with self._lock:
            held_up = frozenset(tp for tp in partitions if not all(f.done() for f in self._futures.get(tp, ())))
            for tp in partitions:
                if tp not in held_up:
                    self._futures.pop(tp, None)
        return held_up

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the reports of partitions that were revoked."""
        with self._lock:
            for tp in partitions:
                self._futures.pop(tp, None)


T = TypeVar("T")


class LogReporter(Generic[T]):
    """``coordinates`` describes a record's location; None: do not log it. Keys and values are never logged."""

    def __init__(
        self,
        task_id: ConnectorTaskId,
        counters: ErrorCounters,
        coordinates: Callable[[T], dict[str, object]] | None,
    ) -> None:
        self._task_id = task_id
        self._counters = counters
        self._coordinates = coordinates

    def report(self, context: ProcessingContext[T]) -> Future[None] | None:
        where = {} if self._coordinates is None else self._coordinates(context.original)
        log.error(
            "Error encountered in task",
            task_id=str(self._task_id),
            stage=str(context.stage),
            executing_class=context.executing_class,
            exc_info=context.error,
            **where,
        )
        self._counters.errors_logged += 1
        return None

    def close(self) -> None:
        return

    def abandon(self) -> None:
        return


def of_source_record(record: SourceRecord) -> dict[str, object]:
    """The origin and the target of a record."""
    return {
        "source_partition": record.source_partition,
        "source_offset": record.source_offset,
        "topic": record.topic,
        "partition": record.partition,
        "timestamp": record.timestamp,
    }


def of_consumer_record(record: ConsumerRecord) -> dict[str, object]:
    """The location of a consumed record."""
    return {
        "topic": record.topic_partition.topic,
        "partition": record.topic_partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.is_log_append_time else "CreateTime",
    }


_PREFIX: Final = "__connect.errors."
_PARTITIONS: Final = 1
_CLOSE_S: Final = 30.0


@dataclass(frozen=True)
class DeadLetterQueue:
    """Settings of a connector's dead letter queue."""

    topic: str
    replication_factor: int
    context_headers: bool

    @classmethod
    def of(cls, config: AbstractConfig) -> Self | None:
        """The settings of a sink connector, None when it has no dead letter queue."""
        topic = config.str("errors.deadletterqueue.topic.name").strip()
        if not topic:
            return None
        return cls(
            topic,
            config.int("errors.deadletterqueue.topic.replication.factor"),
            config.bool("errors.deadletterqueue.context.headers.enable"),
        )

    def create(self, admin: Admin) -> None:
        """Create the topic unless it exists. Raises ConnectError."""
        found = admin.describe_topics([self.topic])[self.topic]
        if not isinstance(found, KafkaFailure):
            return
        missing = isinstance(found, BrokerFailure) and found.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        outcome: KafkaFailure | None = found
        if missing:
            log.info("creating the topic of the dead letter queue", topic=self.topic)
            wanted = NewTopic(self.topic, _PARTITIONS, self.replication_factor)
            outcome = admin.create_topics([wanted])[self.topic]
        exists = isinstance(outcome, BrokerFailure) and outcome.code == ErrorCode.TOPIC_ALREADY_EXISTS
        if outcome is not None and not exists:
            raise ConnectError(
                f"Could not initialize the dead letter queue with topic {self.topic} and "
                f"errors.deadletterqueue.topic.replication.factor={self.replication_factor}: {outcome}"
            ) from outcome


class DeadLetterQueueReporter:
    """Writes records as consumed, with headers that describe the error. ``cluster`` is closed with it.

    ``hide`` removes the values of config providers from a text about the task.
    """

    def __init__(
        self,
        task_id: ConnectorTaskId,
        queue: DeadLetterQueue,
        sender: RecordSender,
        counters: ErrorCounters,
        cluster: Cluster,
        hide: Callable[[str], str],
    ) -> None:
        self._hide = hide
        self._task_id = task_id
        self._queue = queue
        self._sender = sender
        self._counters = counters
        self._cluster = cluster

    def report(self, context: ProcessingContext[ConsumerRecord]) -> Future[None] | None:
        """Queue the record; completes when it is written, or when writing has failed and was logged."""
        self._counters.dead_letter_requests += 1
        original = context.original
        headers = original.headers
        if self._queue.context_headers:
            headers = (*headers, *context_headers(context, self._task_id, self._hide))
        timestamp = None if original.timestamp < 0 else original.timestamp
        done: Future[None] = Future()

        def on_sent(_metadata: RecordMetadata | None, failure: KafkaFailure | None) -> None:
            if failure is not None:
                self._failed(failure)
            with contextlib.suppress(InvalidStateError):
                done.set_result(None)

        try:
            self._sender.send(
                self._queue.topic, None, Record(original.key, original.value, headers, timestamp), on_sent
            )
        except KafkaFailure as failure:
            self._failed(failure)
            return None
        return done

    def close(self) -> None:
        self._sender.close(_CLOSE_S)
        self._cluster.close()

    def abandon(self) -> None:
        self._sender.close(0.0)
        self._cluster.close()

    def _failed(self, failure: KafkaFailure) -> None:
        log.error("Could not produce message to dead letter queue", topic=self._queue.topic, reason=str(failure))
        self._counters.dead_letter_failures += 1


def context_headers(
    context: ProcessingContext[ConsumerRecord], task_id: ConnectorTaskId, hide: Callable[[str], str]
) -> Headers:
    """Headers with the error, its stage and the record's origin, in Java's order and with Java's names."""
    original, error = context.original, context.error
    texts = {
        "topic": original.topic_partition.topic,
        "partition": str(original.topic_partition.partition),
        "offset": str(original.offset),
        "connector.name": task_id.connector,
        "task.id": str(task_id.task),
        "stage": str(context.stage),
        "class.name": context.executing_class,
    }
    if error is not None:
        texts |= {
            "exception.class.name": java_name(error),
            "exception.message": hide(str(error)),
            "exception.stacktrace": hide(stack_trace(error)),
        }
    # As in Java, "?" replaces half a surrogate pair, which an error may quote from a record.
    return tuple((_PREFIX + name, text.encode("utf-8", "replace")) for name, text in texts.items())


_SINK_TASK: Final = "org.apache.kafka.connect.sink.SinkTask"


class WorkerErrantRecordReporter:
    """``original`` returns the consumed record; ``rebuild`` creates one for a record that the task has made itself.

    Reports are added to ``pending`` until they are complete.
    """

    def __init__(
        self,
        operator: RetryWithToleranceOperator[ConsumerRecord],
        *,
        original: Callable[[SinkRecord], ConsumerRecord | None],
        rebuild: Callable[[SinkRecord], ConsumerRecord],
        pending: PendingReports,
    ) -> None:
        self._operator = operator
        self._original = original
        self._rebuild = rebuild
        self._pending_reports = pending
        self._lock = threading.Lock()
        self._first_error: BaseException | None = None

    def report(self, record: SinkRecord, error: BaseException) -> Future[None]:
        """See `mm2.connect.api.ErrantRecordReporter`."""
        read = self._original(record) or self._rebuild(record)
        with self._lock:
            self._first_error = self._first_error or error
        future = self._operator.execute_failed(ProcessingContext(read), ProcessingStage.TASK_PUT, _SINK_TASK, error)
        if not future.done():
            self._pending_reports.add(read.topic_partition, future)
        return future

    def raise_error(self) -> None:
        """Raises ConnectError when a reported error is not tolerated, even if the task has ignored the exception."""
        if self._first_error is not None and not self._operator.within_tolerance_limits:
            raise ConnectError("Tolerance exceeded in error handler") from self._first_error
