"""Interface of the status store (org.apache.kafka.connect.storage.StatusBackingStore)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping

from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.stores.statuses import Status, TopicStatus


class StatusStore(ABC):
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

    @abstractmethod
    def connector(self, name: str) -> Status | None:
        """Last status of a connector."""

    @abstractmethod
    def task(self, task: ConnectorTaskId) -> Status | None:
        """Last status of a task."""

    @abstractmethod
    def tasks(self, connector: str) -> list[Status]:
        """Statuses of all tasks of a connector, in order."""

    @abstractmethod
    def connectors(self) -> set[str]:
        """Connectors with a status of their own or of a task."""

    @abstractmethod
    def topics(self, connector: str) -> Mapping[str, TopicStatus]:
        """Topics that a connector has used."""

    @abstractmethod
    def topic(self, connector: str, topic: str) -> TopicStatus | None:
        """The status of one topic of :meth:`topics`."""

    @abstractmethod
    def connectors_with_topics(self) -> set[str]:
        """Connectors that have used a topic."""


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)
