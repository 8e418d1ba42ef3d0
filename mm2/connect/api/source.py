"""What a source connector implements, and what the runtime provides to it (org.apache.kafka.connect.source)."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from mm2.connect.api.connector import Connector, Task
from mm2.connect.data.record import SourceRecord

if TYPE_CHECKING:
    from mm2.kafka.producer import RecordMetadata


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


def _ignore_detail(_detail: dict[str, Any]) -> None:
    return


def _always_owner() -> None:
    return


class TransactionContext(Protocol):
    """Lets a source task define its transaction boundaries (KIP-618). Call it on the task's thread, from ``poll``."""

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """Commit after this poll's records; with ``record``, which that poll must return, right after it."""

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """Discard this poll's records and the open transaction; with ``record``, up to and including it.

        The offsets of the discarded records are still committed.
        """


@dataclass(frozen=True)
class SourceTaskContext:
    """Passed to :meth:`SourceTask.initialize`."""

    connector: str
    task_id: int
    #: The task's configuration, provider references resolved.
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
