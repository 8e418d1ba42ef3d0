"""The dead letter queue of a sink connector (``errors.deadletterqueue.*``; DeadLetterQueueReporter of Connect, KIP-298)."""

from __future__ import annotations

import contextlib
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Final, Self

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.connect.api import ConnectError
from mm2.connect.runtime.counters import ErrorCounters
from mm2.connect.runtime.errors.java_names import java_name, stack_trace
from mm2.connect.runtime.errors.tolerance import ProcessingContext
from mm2.connect.runtime.sending import RecordSender
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer import RecordMetadata
from mm2.kafka.records.record import Headers, Record
from mm2.kafka.structs import NewTopic

log = structlog.get_logger(__name__)

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
    """Writes records as consumed, with headers that describe the error. ``cluster`` is closed with it."""

    def __init__(
        self,
        task_id: ConnectorTaskId,
        queue: DeadLetterQueue,
        sender: RecordSender,
        counters: ErrorCounters,
        cluster: Cluster,
    ) -> None:
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
            headers = (*headers, *context_headers(context, self._task_id))
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


def context_headers(context: ProcessingContext[ConsumerRecord], task_id: ConnectorTaskId) -> Headers:
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
            "exception.message": str(error),
            "exception.stacktrace": stack_trace(error),
        }
    return tuple((_PREFIX + name, text.encode("utf-8", "surrogateescape")) for name, text in texts.items())
