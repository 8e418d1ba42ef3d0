"""What a sink connector implements, and what the runtime provides to it (org.apache.kafka.connect.sink)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from typing import Protocol

from mm2.connect.api.connector import Connector, Task
from mm2.connect.data.record import SinkRecord
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition


class SinkConnector(Connector):
    """A connector whose tasks export data from Kafka."""

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        """Apply requested offsets (None removes one) before the consumer group's offsets change (KIP-875).

        A connector that keeps offsets in its own system changes them here. True: applied; False: the connector keeps no
        offsets of its own. Raise to reject the request.
        """
        return False


class ErrantRecordReporter(Protocol):
    """Accepts records that a task could not deliver (KIP-610)."""

    def report(self, record: SinkRecord, error: BaseException) -> Future[None]:
        """Log the record and write it to the dead letter queue, as configured by ``errors.*``.

        The future completes when the record is written. Until then, no offset at or after the record is committed.
        Raises ConnectError if the error is not tolerated (``errors.tolerance=none``).
        """


class SinkTaskContext(Protocol):
    """What a sink task may request from the runtime, on its own thread (SinkTaskContext of Java)."""

    def configs(self) -> Mapping[str, str]:
        """The task's configuration; provider references are resolved again on each call."""

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Seek these partitions to these offsets after the current call into the task.

        For tasks that keep offsets in their own system; typically called from ``open``.
        """

    def timeout(self, timeout_ms: int) -> None:
        """How long to wait before the next retry of ``put`` after a RetriableError; applies once."""

    def assignment(self) -> AbstractSet[TopicPartition]:
        """The partitions that are currently assigned to the task."""

    def pause(self, *partitions: TopicPartition) -> None:
        """Pause these partitions. Raises IllegalWorkerStateError for a partition that is not assigned."""

    def resume(self, *partitions: TopicPartition) -> None:
        """Resume these partitions. Raises IllegalWorkerStateError for a partition that is not assigned."""

    def request_commit(self) -> None:
        """Request an offset commit without waiting for the interval."""

    def errant_record_reporter(self) -> ErrantRecordReporter | None:
        """The reporter of undeliverable records; None without a dead letter queue and without logging."""


class SinkTask(Task):
    """A task that exports data from Kafka. All its methods run on its own thread."""

    context: SinkTaskContext

    def initialize(self, ctx: SinkTaskContext) -> None:
        """Called once, before ``start``."""
        self.context = ctx

    @abstractmethod
    def put(self, records: Collection[SinkRecord]) -> None:
        """Take the next records (possibly none), in order within each partition; may only buffer them.

        On RetriableError the same records are delivered again; any other exception fails the task.
        """

    def flush(self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Deliver all records passed to ``put``; ``current_offsets`` are the positions after the last records."""
        return

    def pre_commit(
        self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The offsets that may be committed; empty for none. By default, flushes and returns ``current_offsets``."""
        self.flush(current_offsets)
        return current_offsets

    def open(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions have been assigned to the task; called before their first record."""
        return

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions have been revoked from the task; called after their last commit, and before ``stop``."""
        return
