"""What a source connector's author implements, and what the runtime gives to it (org.apache.kafka.connect.source; spec G.2)."""

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
    """A connector whose tasks bring data into Kafka."""

    def exactly_once_support(self, props: Mapping[str, str]) -> bool | None:
        """Whether exactly-once works with this configuration; None = not known (KIP-618)."""
        return None

    def can_define_transaction_boundaries(self, props: Mapping[str, str]) -> bool:
        """Whether ``transaction.boundary=connector`` is possible (KIP-618)."""
        return False

    def alter_offsets(
        self, props: Mapping[str, str], offsets: Sequence[tuple[dict[str, Any], dict[str, Any] | None]]
    ) -> bool:
        """Check offsets that a user wants to write (None = remove) before they are stored (KIP-875).

        True = checked, False = this connector has no check. Raise to refuse.
        """
        return False


class OffsetReader(Protocol):
    """A task's view of the offsets its connector has committed."""

    def offsets(self, partitions: Iterable[Mapping[str, Any]]) -> list[dict[str, Any] | None]:
        """The last committed offset of each partition, in the order asked; None where there is none.

        Reads the offsets topic to its end first, so it sees what a predecessor has just committed. Raises
        ConnectError when that is not possible (never an empty answer instead).
        """


@dataclass(frozen=True)
class WorkerView:
    """What a task may know of the worker it runs on. Contains secrets: not for logs."""

    #: The worker's configuration, provider references resolved.
    worker_props: Mapping[str, str] = field(repr=False)
    group_id: str
    offset_storage_topic: str
    #: Exactly what the worker gives to this task's producer, Java-style keys, bootstrap and security included; with
    #: exactly-once also ``enable.idempotence`` and ``transactional.id``.
    producer_props: Mapping[str, str] = field(repr=False)
    #: Records and their offsets are to be written in one transaction (KIP-618).
    exactly_once: bool
    #: ``<group.id>-<connector>-<task>`` with exactly-once, else None.
    transactional_id: str | None = None
    #: What ends a transaction: "poll" or "interval"; meaningful with exactly-once only, as is the next.
    transaction_boundary: str = "poll"
    transaction_interval_ms: int = 60_000


def _ignore_detail(_detail: dict[str, Any]) -> None:
    return


def _always_owner() -> None:
    return


class TransactionContext(Protocol):
    """How a source task says where its transactions end (KIP-618). To be called on the task's thread, from ``poll``."""

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """Commit after this poll's records; with ``record``, which that poll has to return, right behind it."""

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """Discard this poll's records and what is open; with ``record``, up to and with it. Their offsets count all the same."""


@dataclass(frozen=True)
class SourceTaskContext:
    """Handed to :meth:`SourceTask.initialize`."""

    connector: str
    task_id: int
    #: The task's configuration, provider references resolved.
    configs: Mapping[str, str] = field(repr=False)
    offset_reader: OffsetReader
    worker: WorkerView
    #: Process-wide things that the embedding program gave to the Worker, by name.
    resources: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}), repr=False)
    #: With exactly-once and ``transaction.boundary=connector`` only, else None.
    transaction_context: TransactionContext | None = None
    #: ``report(detail)`` publishes JSON-able details of the task for status pages; the last call wins. Any thread.
    report: Callable[[dict[str, Any]], None] = field(default=_ignore_detail, repr=False)
    #: With exactly-once, for tasks that produce by themselves: to be called after each InitProducerId and before
    #: anything is read or written with its outcome. Returns when the task still belongs to this worker and its
    #: connector has no newer task configs, and raises ConnectError otherwise: then the id has to be given up, because
    #: its rightful owner has been fenced. Waits for the end of a rebalance under way. Not on the herder's thread.
    confirm_ownership: Callable[[], None] = field(default=_always_owner, repr=False)
    #: How many tasks the connector has, this one included; another number of them means a new context.
    task_count: int = 1


class SourceTask(Task):
    """A task that brings data into Kafka."""

    #: True: it writes its data and offsets without the runtime, and ``poll`` returns None always. With exactly-once the
    #: runtime then fences older tasks before ``start`` but leaves the transactional id to the task: see
    #: `SourceTaskContext.confirm_ownership`.
    produces_by_itself: ClassVar[bool] = False

    context: SourceTaskContext

    def initialize(self, ctx: SourceTaskContext) -> None:
        """Called once, before ``start``."""
        self.context = ctx

    @abstractmethod
    def poll(self) -> list[SourceRecord] | None:
        """The next records, or None when there are none right now.

        May block, but not for ever; a task that moves its data by other means may return None always. RetriableError
        is logged and followed by another poll; any other exception fails the task. With exactly-once and the boundary
        "interval" a transaction stays open meanwhile, so a poll should take much less than ``transaction.timeout.ms``.
        """

    def pause(self) -> None:
        """Called when the connector is paused and no ``poll`` will come for a while: for tasks that go on by themselves.

        On the task's thread, as is `resume`.
        """
        return

    def resume(self) -> None:
        """Called when a pause is over, before the next ``poll``."""
        return

    def commit(self) -> None:
        """Called after each commit of offsets; with exactly-once, of a transaction. What it raises is only logged."""
        return

    def commit_record(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        """Called when a record was acknowledged, with exactly-once when its transaction was committed; ``metadata`` is
        None when it was filtered. What it raises is only logged."""
        return
