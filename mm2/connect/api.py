"""What a connector author implements: Kafka Connect's plugin API (org.apache.kafka.connect.{connector,source}).

Threads: a connector's methods run on its ``connector-thread-<name>``, one at a time. A task's methods run on its
``task-thread-<connector>-<n>``, with two exceptions: :meth:`SourceTask.commit` is called by the offset committer, and
:meth:`Task.stop` may be called from the herder's threads **while** ``poll`` runs (see there).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigDef
    from mm2.kafka.producer import RecordMetadata


class ConnectError(Exception):
    """Something in the Connect runtime or in a plugin went wrong; final for the connector or task that sees it."""


class RetriableError(ConnectError):
    """A failure that may pass by itself: the runtime logs it, waits and calls again instead of failing the task."""


class ConnectorContext(Protocol):
    """What a running connector may ask of the runtime. Safe to call from any thread."""

    def request_task_reconfiguration(self) -> None:
        """Have ``task_configs`` called again soon; tasks restart only if the answer differs from the stored one."""

    def stored_task_configs(self) -> list[dict[str, str]]:
        """The task configs that were published last, by whichever worker; empty when there are none."""

    def raise_error(self, exc: Exception) -> None:
        """Fail the connector (state FAILED, the exception as trace); its tasks keep running."""


class Connector(ABC):
    """Decides what has to be done and cuts it into task configurations; does not move data itself."""

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
        """Stop and release everything. A stopped instance is not started again."""

    @abstractmethod
    def task_class(self) -> type[Task]:
        """The class of this connector's tasks."""

    @abstractmethod
    def task_configs(self, max_tasks: int) -> list[dict[str, str]]:
        """One map per task, at most ``max_tasks`` of them. Must be the same again when nothing has changed."""

    @abstractmethod
    def config(self) -> ConfigDef:
        """The definition of the configuration this connector reads."""

    def validate(self, props: Mapping[str, str]) -> list[tuple[str, str]]:
        """Everything wrong with ``props`` as (key, message) pairs; empty when it can be started."""
        return [(name, message) for name, messages in self.config().validate(dict(props)) for message in messages]


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
    #: ``report(detail)`` publishes JSON-able details of the task for status pages; the last call wins. Any thread.
    report: Callable[[dict[str, Any]], None] = field(default=_ignore_detail, repr=False)
    #: With exactly-once, for tasks that produce by themselves: to be called after each InitProducerId and before
    #: anything is read or written with its outcome. Returns when the task still belongs to this worker and its
    #: connector has no newer task configs, and raises ConnectError otherwise: then the id has to be given up, because
    #: its rightful owner has been fenced. Waits for the end of a rebalance under way. Not on the herder's thread.
    confirm_ownership: Callable[[], None] = field(default=_always_owner, repr=False)


class Task(ABC):
    """One unit of a connector's work, run by a thread of its own."""

    @abstractmethod
    def version(self) -> str:
        """Version shown in statuses."""

    @abstractmethod
    def start(self, props: dict[str, str]) -> None:
        """Start with this task's configuration. Raising fails the task."""

    @abstractmethod
    def stop(self) -> None:
        """Make ``poll`` return soon, and give up what the task holds.

        Called exactly once after ``start`` was called. Unlike in Java, which calls it on the task's own thread after
        the last ``poll``, it is called from the thread that stops the task when ``poll`` is in progress, so that a
        blocking ``poll`` can end early. What must not happen under a running ``poll`` belongs behind its return.
        """


@dataclass(frozen=True)
class SourceRecord:
    """A record to be written to Kafka (org.apache.kafka.connect.source.SourceRecord), schemaless."""

    #: Where it comes from and how far that source has been read with it; string keys, primitive values.
    source_partition: dict[str, Any]
    source_offset: dict[str, Any]
    topic: str
    #: None: chosen by the key's hash as Java's default partitioner does.
    partition: int | None
    key: Any
    value: Any
    headers: tuple[tuple[str, Any], ...] = ()
    #: Milliseconds since the epoch; None: the time of producing.
    timestamp: int | None = None
    #: Always None for now: records are schemaless. Reserved so that schemas can be added beside the values.
    key_schema: None = None
    value_schema: None = None


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
