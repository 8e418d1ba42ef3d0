"""What connectors and their tasks implement, and what the runtime provides to them.

Corresponds to org.apache.kafka.connect.connector, .source and .sink.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from concurrent.futures import Future
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

from mm2.connect.data.record import SinkRecord, SourceRecord
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigDef
    from mm2.kafka.producer.producer import RecordMetadata

UNDEFINED_VERSION: Final = "undefined"
"""The version of a plugin that reports none; REST does not show it."""


class ConnectorContext(Protocol):
    """What a running connector may request from the runtime. Thread-safe."""

    @property
    def group_id(self) -> str:
        """``group.id`` of the worker; "" in standalone mode."""

    @property
    def worker_topics(self) -> frozenset[str]:
        """The topics in which the worker keeps configurations, offsets and statuses; none in standalone mode."""

    def request_task_reconfiguration(self) -> None:
        """Request another call of ``task_configs``; tasks restart only if the result has changed."""

    def stored_task_configs(self) -> list[dict[str, str]]:
        """The task configs published last, by any worker; empty when there are none."""

    def raise_error(self, exc: Exception) -> None:
        """Fail the connector (state FAILED, the exception as trace) until it is restarted; its tasks keep running."""


class Connector(ABC):
    """Divides the work into task configurations; does not copy data itself."""

    context: ConnectorContext

    @abstractmethod
    def version(self) -> str:
        """Version shown in statuses and plugin lists."""

    def initialize(self, ctx: ConnectorContext) -> None:
        """Called once, before :meth:`start`."""
        self.context = ctx

    @abstractmethod
    def start(self, props: dict[str, str]) -> None:
        """Start with the connector's configuration, provider references resolved. Raising fails the connector."""

    @abstractmethod
    def stop(self) -> None:
        """Stop and release all resources. A stopped instance is not started again."""

    @abstractmethod
    def task_class(self) -> type[Task]:
        """The class of this connector's tasks."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """One map per task, at most ``max_tasks`` of them. The result must be equal as long as nothing has changed."""

    @abstractmethod
    def config(self) -> ConfigDef:
        """The definition of the connector's configuration."""

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        """All errors in ``props`` as (key, message) pairs; empty when the connector can be started."""
        return [(name, message) for name, messages in self.config().validate(dict(props)) for message in messages]


class Task(ABC):
    """One unit of a connector's work, run by its own thread."""

    @abstractmethod
    def version(self) -> str:
        """Version shown in statuses."""

    @abstractmethod
    def start(self, props: dict[str, str]) -> None:
        """Start with this task's configuration. Raising fails the task."""

    @abstractmethod
    def stop(self) -> None:
        """Make ``poll`` return soon, and release the task's resources.

        Called exactly once after ``start`` was called. Java calls it on the task's own thread after the last ``poll``.
        Here, if ``poll`` is in progress, the thread that stops the task calls it, so that a blocking ``poll`` can end
        early. Anything that must not happen during ``poll`` belongs after its return.
        """


class SourceConnector(Connector):
    """A connector whose tasks import data into Kafka."""

    def exactly_once_support(self, props: Mapping[str, str]) -> bool | None:
        """Whether exactly-once works with this configuration; None if unknown (KIP-618)."""
        return None

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        """Whether ``transaction.boundary=connector`` is possible (KIP-618)."""
        return False

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Sequence[tuple[dict[str, Any], dict[str, Any] | None]]
    ) -> bool:
        """Check the offsets that a user requests (None removes one) before they are stored (KIP-875).

        True: checked; False: this connector has no check. Raise to reject the request.
        """
        return False


class OffsetReader(Protocol):
    """A task's view of the offsets its connector has committed."""

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """The last committed offset of each partition, in the order of ``partitions``; None where there is none.

        Reads the offsets topic to its end first, so the result includes the last commit of the previous task instance.
        Raises ConnectError when the topic cannot be read (never returns an empty result instead).
        """


@dataclass(frozen=True)
class WorkerView:
    """What a task may know of the worker it runs on. Contains secrets: do not log."""

    #: The worker's configuration, provider references resolved.
    worker_props: Mapping[str, str] = field(repr=False)
    group_id: str
    offset_storage_topic: str
    #: Exactly what the worker passes to this task's producer, with Java's keys, bootstrap servers and security
    #: included; with exactly-once support also ``enable.idempotence`` and ``transactional.id``.
    producer_props: Mapping[str, str] = field(repr=False)
    #: Records and their offsets are written in one transaction (KIP-618).
    exactly_once: bool
    #: ``<group.id>-<connector>-<task>`` with exactly-once, else None.
    transactional_id: str | None = None
    #: What ends a transaction: "poll" or "interval"; used with exactly-once support only, as is the next field.
    transaction_boundary: str = "poll"
    transaction_interval_ms: int = 60_000


class TransactionContext(Protocol):
    """Lets a source task define its transaction boundaries (KIP-618). Call it on the task's thread, from ``poll``."""

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """Commit after this poll's records; with ``record``, which that poll must return, right after it."""

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """Discard this poll's records and the open transaction; with ``record``, up to and including it.

        The offsets of the discarded records are still committed.
        """


def _ignore_detail(_detail: dict[str, Any]) -> None:
    return


def _always_owner() -> None:
    return


@dataclass(frozen=True)
class SourceTaskContext:
    """Passed to :meth:`SourceTask.initialize`."""

    connector: str
    task_id: int
    #: The task's configuration. References to config providers are resolved at each access.
    configs: Mapping[str, str] = field(repr=False)
    offset_reader: OffsetReader
    worker: WorkerView
    #: Process-wide objects that the embedding program passed to the Worker, by name.
    resources: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    #: With exactly-once and ``transaction.boundary=connector`` only, else None.
    transaction_context: TransactionContext | None = None
    #: ``report(detail)`` publishes JSON-able details of the task for status pages; the last call wins. Any thread.
    report: Callable[[dict[str, Any]], None] = field(default=_ignore_detail, repr=False)
    #: With exactly-once support, for tasks that produce by themselves: call it after each InitProducerId, before
    #: reading or writing anything that depends on it. Returns if the task is still assigned to this worker and its
    #: connector has no newer task configs. Raises ConnectError otherwise; the task must then stop using the
    #: transactional id, because it has fenced the producer of the current owner. Waits until a rebalance in progress
    #: has completed. Not for the herder's thread.
    confirm_ownership: Callable[[], None] = field(default=_always_owner, repr=False)
    #: How many tasks the connector has, this one included; when the number changes, a new context is created.
    task_count: int = 1


class SourceTask(Task):
    """A task that imports data into Kafka."""

    #: True: the task writes its data and offsets without the runtime, and ``poll`` always returns None. With
    #: exactly-once support the runtime then fences older tasks before ``start`` but leaves the transactional id to the
    #: task: see `SourceTaskContext.confirm_ownership`.
    produces_by_itself: ClassVar[bool] = False

    context: SourceTaskContext

    def initialize(self, ctx: SourceTaskContext) -> None:
        """Called once, before ``start``."""
        self.context = ctx

    @abstractmethod
    def poll(self) -> list[SourceRecord] | None:
        """The next records, or None when there are none at present.

        May block, but not indefinitely; a task that copies its data by other means may always return None. A
        RetriableError is logged and followed by another poll; any other exception fails the task. With exactly-once
        support and the boundary "interval" a transaction stays open during the poll, so a poll should take much less
        than ``transaction.timeout.ms``.
        """

    def pause(self) -> None:
        """Called when the connector is paused and ``poll`` is suspended, for tasks that copy data by themselves.

        On the task's thread, as is `resume`.
        """
        return

    def resume(self) -> None:
        """Called when the connector is resumed, before the next ``poll``."""
        return

    def commit(self) -> None:
        """Called after each commit of offsets (with exactly-once, of a transaction). Exceptions are only logged."""
        return

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        """Called when a record was acknowledged; with exactly-once support, when its transaction was committed.

        ``metadata`` is None when the record was filtered. Exceptions are only logged.
        """
        return


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
