"""Where workers say what their connectors and tasks are doing (org.apache.kafka.connect.storage.StatusBackingStore)."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping

from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.stores.statuses import Status, TopicStatus


class StatusStore(ABC):
    """Latest status of connectors, tasks and the topics they use. Thread-safe; no call blocks except those that say so."""

    @abstractmethod
    def start(self) -> None:
        """Load what there is. Raises ConnectError or KafkaFailure."""

    @abstractmethod
    def stop(self, timeout_s: float = 5.0) -> None:
        """Write what is queued for up to ``timeout_s``, then end."""

    @abstractmethod
    def put(self, status: Status) -> None:
        """Store a status whatever there is already; DESTROYED removes it."""

    @abstractmethod
    def put_safe(self, status: Status) -> None:
        """Store a status unless another worker has said something newer: for failures and farewells."""

    @abstractmethod
    def put_topic(self, status: TopicStatus) -> None:
        """Note that a connector uses a topic."""

    @abstractmethod
    def delete_topic(self, connector: str, topic: str) -> None:
        """Forget that a connector uses a topic."""

    @abstractmethod
    def flush(self, timeout_s: float) -> bool:
        """Wait until everything queued is written; False when it is not after ``timeout_s``."""

    @abstractmethod
    def connector(self, name: str) -> Status | None:
        """Latest status of a connector."""

    @abstractmethod
    def task(self, task: ConnectorTaskId) -> Status | None:
        """Latest status of a task."""

    @abstractmethod
    def tasks(self, connector: str) -> list[Status]:
        """Statuses of all tasks of a connector, in order."""

    @abstractmethod
    def connectors(self) -> set[str]:
        """Connectors that have a status, of their own or of a task."""

    @abstractmethod
    def topics(self, connector: str) -> Mapping[str, TopicStatus]:
        """Topics a connector has been seen to use."""

    @abstractmethod
    def topic(self, connector: str, topic: str) -> TopicStatus | None:
        """One of :meth:`topics`."""

    @abstractmethod
    def connectors_with_topics(self) -> set[str]:
        """Connectors that have been seen to use a topic."""


def now_ms() -> int:
    """Milliseconds since the epoch."""
    return int(time.time() * 1000)
