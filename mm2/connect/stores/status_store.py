"""Statuses, their records in the status topic, the status store's interface, and the store of standalone workers.

Java's StatusBackingStore and MemoryStatusBackingStore.
"""

from __future__ import annotations

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.stores import internal_json
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.kafka.readers.log import RecordWarnings, in_log

log = structlog.get_logger(__name__)

CONNECTOR_PREFIX = "status-connector-"
TASK_PREFIX = "status-task-"
TOPIC_PREFIX = "status-topic-"
_TOPIC_SEPARATOR = ":connector-"


class State(StrEnum):
    """States of connectors and tasks; DESTROYED is never stored, its record is a tombstone."""

    UNASSIGNED = "UNASSIGNED"
    RUNNING = "RUNNING"
    PAUSED = "PAUSED"
    FAILED = "FAILED"
    DESTROYED = "DESTROYED"
    RESTARTING = "RESTARTING"
    STOPPED = "STOPPED"


@dataclass(frozen=True)
class Status:
    """Status of a connector (``id`` is a name) or of a task (``id`` is a ConnectorTaskId)."""

    id: str | ConnectorTaskId
    state: State
    worker_id: str
    #: Generation of the group in which the worker wrote this.
    generation: int
    trace: str | None = None
    version: str | None = None

    @property
    def key(self) -> str:
        """Key of its record."""
        if isinstance(self.id, ConnectorTaskId):
            return f"{TASK_PREFIX}{self.id.connector}-{self.id.task}"
        return CONNECTOR_PREFIX + self.id

    def encode(self) -> bytes | None:
        """Value of its record; DESTROYED is a tombstone.

        An exception may quote a record with half a surrogate pair, which JSON cannot contain: "?" replaces it.
        """
        if self.state is State.DESTROYED:
            return None
        return internal_json.encode(
            {
                "state": self.state.value,
                "trace": None if self.trace is None else self.trace.encode("utf-8", "replace").decode(),
                "worker_id": self.worker_id,
                "generation": self.generation,
                "version": self.version,
            }
        )


@dataclass(frozen=True)
class TopicStatus:
    """A topic that a connector's tasks have used (KIP-558)."""

    topic: str
    connector: str
    task: int
    discover_timestamp_ms: int

    @property
    def key(self) -> str:
        """Key of its record."""
        return topic_key(self.topic, self.connector)

    def encode(self) -> bytes | None:
        """Value of its record."""
        return internal_json.encode(
            {
                "topic": {
                    "name": self.topic,
                    "connector": self.connector,
                    "task": self.task,
                    "discoverTimestamp": self.discover_timestamp_ms,
                }
            }
        )


def topic_key(topic: str, connector: str) -> str:
    """Key of a topic status; a topic's name cannot contain the colon that ends it."""
    return f"{TOPIC_PREFIX}{topic}{_TOPIC_SEPARATOR}{connector}"


V = TypeVar("V")


@dataclass
class StatusEntry(Generic[V]):
    """Cached value of one key, with the number of writes that this worker has started for it."""

    value: V | None = None
    sequence: int = 0
    deleted: bool = False

    def allows(self, status: Status) -> bool:
        """The rule of safe writes: do not overwrite the status of a different worker with a later generation."""
        current = self.value
        if not isinstance(current, Status):
            return True
        return current.worker_id == status.worker_id or current.generation <= status.generation


@dataclass
class _StatusTables:
    connectors: dict[str, StatusEntry[Status]] = field(default_factory=dict)
    tasks: dict[ConnectorTaskId, StatusEntry[Status]] = field(default_factory=dict)
    topics: dict[str, dict[str, TopicStatus]] = field(default_factory=dict)


class StatusFold:
    """Folds records of the status topic into tables. ``lock`` guards the entries that it returns."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._warnings = RecordWarnings(log)
        self._tables = _StatusTables()

    def entry(self, key: str | ConnectorTaskId) -> StatusEntry[Status]:
        """The entry of a connector or task, created when missing. Hold the lock."""
        if isinstance(key, ConnectorTaskId):
            return self._tables.tasks.setdefault(key, StatusEntry())
        return self._tables.connectors.setdefault(key, StatusEntry())

    def connector(self, name: str) -> Status | None:
        """Last status of a connector."""
        with self.lock:
            entry = self._tables.connectors.get(name)
            return None if entry is None else entry.value

    def task(self, task: ConnectorTaskId) -> Status | None:
        """Last status of a task."""
        with self.lock:
            entry = self._tables.tasks.get(task)
            return None if entry is None else entry.value

    def tasks(self, connector: str) -> list[Status]:
        """Statuses of all tasks of a connector, in order."""
        with self.lock:
            found = [e.value for t, e in self._tables.tasks.items() if t.connector == connector and e.value is not None]
        return sorted(found, key=lambda status: status.id)

    def connectors(self) -> set[str]:
        """Connectors with a status of their own or of a task."""
        with self.lock:
            own = {name for name, entry in self._tables.connectors.items() if entry.value is not None}
            return own | {task.connector for task, entry in self._tables.tasks.items() if entry.value is not None}

    def topics(self, connector: str) -> Mapping[str, TopicStatus]:
        """Topics that a connector has used."""
        with self.lock:
            return dict(self._tables.topics.get(connector, {}))

    def topic(self, connector: str, topic: str) -> TopicStatus | None:
        """The status of one topic of :meth:`topics`."""
        with self.lock:
            return self._tables.topics.get(connector, {}).get(topic)

    def connectors_with_topics(self) -> set[str]:
        """Connectors that have used a topic."""
        with self.lock:
            return {connector for connector, topics in self._tables.topics.items() if topics}

    def apply(self, key: bytes | None, value: bytes | None) -> None:
        """Apply one record; invalid records are logged and skipped."""
        try:
            name = (key or b"").decode("utf-8")
            parsed = internal_json.decode(value)
            if name.startswith(CONNECTOR_PREFIX):
                self._connector_record(name.removeprefix(CONNECTOR_PREFIX), parsed)
            elif name.startswith(TASK_PREFIX):
                self._task_record(name.removeprefix(TASK_PREFIX), parsed)
            elif name.startswith(TOPIC_PREFIX):
                self._topic_record(name.removeprefix(TOPIC_PREFIX), parsed)
            else:
                self._warnings.warning("status record with an unknown key", key=in_log(name))
        except (ConnectError, KeyError, ValueError, TypeError, AttributeError, OverflowError) as error:
            self._warnings.warning("status record cannot be read", key=in_log(key), reason=in_log(repr(error)))

    def _connector_record(self, connector: str, value: Any) -> None:
        with self.lock:
            if value is None:
                removed = self._tables.connectors.pop(connector, None)
                if removed is not None:
                    removed.deleted = True
                return
            self.entry(connector).value = _status(connector, value)

    def _task_record(self, rest: str, value: Any) -> None:
        connector, dash, number = rest.rpartition("-")
        if not dash:
            raise ValueError(f"{rest} does not name a task")
        task = ConnectorTaskId(connector, int(number))
        with self.lock:
            if value is None:
                removed = self._tables.tasks.pop(task, None)
                if removed is not None:
                    removed.deleted = True
                return
            status = _status(task, value)
            entry = self.entry(task)
            known = entry.value
            if (
                status.state is State.UNASSIGNED
                and known is not None
                and known.state is State.RUNNING
                and known.generation >= status.generation
            ):
                # The shutdown status of the former owner, which arrived after the new owner's start.
                return
            entry.value = status

    def _topic_record(self, rest: str, value: Any) -> None:
        topic, found, connector = rest.partition(_TOPIC_SEPARATOR)
        if not found or not topic or not connector:
            raise ValueError(f"{rest} does not name a topic and a connector")
        with self.lock:
            topics = self._tables.topics.setdefault(connector, {})
            if value is None:
                topics.pop(topic, None)
                return
            fields = value["topic"]
            topics[topic] = TopicStatus(
                str(fields["name"]), str(fields["connector"]), int(fields["task"]), int(fields["discoverTimestamp"])
            )


def _status(key: str | ConnectorTaskId, value: Any) -> Status:
    # Workers before 4.0 write no version.
    trace, version = (None if (text := value.get(name)) is None else _text(text) for name in ("trace", "version"))
    return Status(key, State(value["state"]), _text(value["worker_id"]), int(value["generation"]), trace, version)


def _text(value: Any) -> str:
    """A text that metrics and pages can contain, without half a surrogate pair."""
    return str(value).encode(errors="replace").decode()


class StatusStore(StatusFold, ABC):
    """Latest status of connectors, tasks and the topics they use. Thread-safe; only documented methods block."""

    @abstractmethod
    def start(self) -> None:
        """Load the stored statuses. Raises ConnectError or KafkaFailure."""

    @abstractmethod
    def stop(self, timeout_s: float = 5.0) -> None:
        """Write queued statuses for up to ``timeout_s``, then stop."""

    @abstractmethod
    def put(self, status: Status) -> None:
        """Store a status regardless of the existing one; DESTROYED removes it."""

    @abstractmethod
    def put_safe(self, status: Status) -> None:
        """Store a status unless another worker has written a newer one: for failures and shutdowns."""

    @abstractmethod
    def put_topic(self, status: TopicStatus) -> None:
        """Record that a connector uses a topic."""

    @abstractmethod
    def delete_topic(self, connector: str, topic: str) -> None:
        """Remove the record that a connector uses a topic."""

    @abstractmethod
    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued statuses are written; False after ``timeout_s``."""


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)


class MemoryStatusStore(StatusStore):
    """The last write is always valid: there is one worker and one generation."""

    def start(self) -> None:
        return

    def stop(self, timeout_s: float = 5.0) -> None:
        return

    def put(self, status: Status) -> None:
        with self.lock:
            if status.state is not State.DESTROYED:
                self.entry(status.id).value = status
            elif isinstance(status.id, ConnectorTaskId):
                self._tables.tasks.pop(status.id, None)
            else:
                self._tables.connectors.pop(status.id, None)

    def put_safe(self, status: Status) -> None:
        self.put(status)

    def put_topic(self, status: TopicStatus) -> None:
        with self.lock:
            self._tables.topics.setdefault(status.connector, {})[status.topic] = status

    def delete_topic(self, connector: str, topic: str) -> None:
        with self.lock:
            self._tables.topics.get(connector, {}).pop(topic, None)

    def flush(self, timeout_s: float) -> bool:
        return True
