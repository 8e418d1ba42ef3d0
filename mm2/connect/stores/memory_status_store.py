"""Statuses of a standalone worker, not persistent (MemoryStatusBackingStore of Java)."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TypeVar

from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.stores.status_store import StatusStore
from mm2.connect.stores.statuses import State, Status, TopicStatus

K = TypeVar("K")


class MemoryStatusStore(StatusStore):
    """The last write is always valid: there is one worker and one generation."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connectors: dict[str, Status] = {}
        self._tasks: dict[ConnectorTaskId, Status] = {}
        self._topics: dict[str, dict[str, TopicStatus]] = {}

    def start(self) -> None:
        return

    def stop(self, timeout_s: float = 5.0) -> None:
        return

    def put(self, status: Status) -> None:
        with self._lock:
            if isinstance(status.id, ConnectorTaskId):
                _store(self._tasks, status.id, status)
            else:
                _store(self._connectors, status.id, status)

    def put_safe(self, status: Status) -> None:
        self.put(status)

    def put_topic(self, status: TopicStatus) -> None:
        with self._lock:
            self._topics.setdefault(status.connector, {})[status.topic] = status

    def delete_topic(self, connector: str, topic: str) -> None:
        with self._lock:
            self._topics.get(connector, {}).pop(topic, None)

    def flush(self, timeout_s: float) -> bool:
        return True

    def connector(self, name: str) -> Status | None:
        with self._lock:
            return self._connectors.get(name)

    def task(self, task: ConnectorTaskId) -> Status | None:
        with self._lock:
            return self._tasks.get(task)

    def tasks(self, connector: str) -> list[Status]:
        with self._lock:
            return [status for task, status in sorted(self._tasks.items()) if task.connector == connector]

    def connectors(self) -> set[str]:
        with self._lock:
            return {*self._connectors, *(task.connector for task in self._tasks)}

    def topics(self, connector: str) -> Mapping[str, TopicStatus]:
        with self._lock:
            return dict(self._topics.get(connector, {}))

    def topic(self, connector: str, topic: str) -> TopicStatus | None:
        with self._lock:
            return self._topics.get(connector, {}).get(topic)

    def connectors_with_topics(self) -> set[str]:
        with self._lock:
            return {connector for connector, topics in self._topics.items() if topics}


def _store(table: dict[K, Status], key: K, status: Status) -> None:
    if status.state is State.DESTROYED:
        table.pop(key, None)
    else:
        table[key] = status
