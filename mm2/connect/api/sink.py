"""What a sink connector's author implements, and what the runtime gives to it (org.apache.kafka.connect.sink; spec G.1)."""

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
    """A connector whose tasks take data out of Kafka."""

    def alter_offsets(self, props: Mapping[str, str], offsets: Mapping[TopicPartition, int | None]) -> bool:
        """Take over offsets that a user wants (None = remove), before those of the consumer group change (KIP-875).

        A connector that keeps offsets in its own system changes them here. True = done, False = this connector has
        nothing to do with it. Raise to refuse.
        """
        return False


class ErrantRecordReporter(Protocol):
    """Takes records that a task could not deliver (KIP-610)."""

    def report(self, record: SinkRecord, error: BaseException) -> Future[None]:
        """Have a record logged and written to the dead letter queue, as ``errors.*`` say.

        Done when it is written; raises what ``errors.tolerance=none`` makes of it. No offset at or behind the record is
        committed before that.
        """


class SinkTaskContext(Protocol):
    """What a sink task may ask of the runtime, on its own thread (org.apache.kafka.connect.sink.SinkTaskContext)."""

    def configs(self) -> Mapping[str, str]:
        """The task's configuration, provider references resolved anew at each call."""

    def offset(self, offsets: Mapping[TopicPartition, int]) -> None:
        """Go on reading these partitions at these offsets, after the present call into the task. For tasks that keep
        offsets in their own system; typically from ``open``."""

    def timeout(self, timeout_ms: int) -> None:
        """How long to wait before ``put`` is tried again after a RetriableError; once."""

    def assignment(self) -> AbstractSet[TopicPartition]:
        """The partitions that the task has at the moment."""

    def pause(self, *partitions: TopicPartition) -> None:
        """Read nothing from these for a while. Raises IllegalWorkerStateError for one that is not assigned."""

    def resume(self, *partitions: TopicPartition) -> None:
        """Read from these again. Raises IllegalWorkerStateError for one that is not assigned."""

    def request_commit(self) -> None:
        """Have offsets committed soon, without waiting for the interval."""

    def errant_record_reporter(self) -> ErrantRecordReporter | None:
        """Where to give records that cannot be delivered; None when neither a dead letter queue nor a log is configured."""


class SinkTask(Task):
    """A task that takes data out of Kafka. All its methods run on its own thread."""

    context: SinkTaskContext

    def initialize(self, ctx: SinkTaskContext) -> None:
        """Called once, before ``start``."""
        self.context = ctx

    @abstractmethod
    def put(self, records: Collection[SinkRecord]) -> None:
        """Take the next records, perhaps none, in order within each partition; may only buffer them.

        RetriableError: the same records come again; any other exception fails the task.
        """

    def flush(self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]) -> None:
        """Deliver all that ``put`` was given; ``current_offsets`` are those behind the last records."""
        return

    def pre_commit(
        self, current_offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> Mapping[TopicPartition, OffsetAndMetadata]:
        """The offsets that may be committed: flushes and answers ``current_offsets`` unless overridden; empty: none."""
        self.flush(current_offsets)
        return current_offsets

    def open(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are the task's from now on; called before their first record."""
        return

    def close(self, partitions: Collection[TopicPartition]) -> None:
        """These partitions are no longer the task's; called after their last commit, and before ``stop``."""
        return
