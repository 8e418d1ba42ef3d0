"""Reads the limits of remote topics that have rejected a record because of its size, for the reason of the partition.

A broker does not report its limit: the Produce response of MESSAGE_TOO_LARGE has no message (Kafka's ReplicaManager adds
one for invalid records only).
"""

from __future__ import annotations

import asyncio
from typing import Final

import structlog

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.partition.cursor import Cursor
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure, value_of

_READ_TIMEOUT_S: Final = 10.0


class SizeLimits:
    """Describes the config of a topic after each rejection, since it may have been changed; once at a time for each topic."""

    def __init__(self, tasks: BackgroundTasks, endpoints: Endpoints) -> None:
        self._tasks = tasks
        self._call = endpoints.call
        self._admin = Admin(endpoints.target_cluster)
        self._waiting: dict[tuple[str, str], set[Cursor]] = {}  # cursors by topic and key
        self._log = structlog.get_logger("mm2.copy.executor.size_limits")

    def find(self, cursor: Cursor) -> None:
        """Set `Conditions.size_limit` of a cursor for its record that is too large, when the target has answered."""
        record = cursor.conditions.too_large
        if record is None:
            return
        wanted = (record.topic, record.limit_key)
        if wanted in self._waiting:
            self._waiting[wanted].add(cursor)
            return
        self._waiting[wanted] = {cursor}
        self._tasks.spawn(self._read(*wanted))

    async def _read(self, topic: str, key: str) -> None:
        try:
            limit = await asyncio.wait_for(self._call(self._limit, topic, key), _READ_TIMEOUT_S)
        except (
            TimeoutError,
            KafkaFailure,
            ValueError,
            RuntimeError,
        ) as error:  # RuntimeError: the executor is shut down
            self._log.info("limit of a remote topic unknown", topic=topic, key=key, error=str(error))
            limit = None
        for cursor in self._waiting.pop((topic, key)):
            cursor.conditions.size_limit = limit

    def _limit(self, topic: str, key: str) -> int | None:
        """In bytes. Raises KafkaFailure."""
        entry = value_of(self._admin.describe_configs([topic], [key])[topic]).get(key)
        return None if entry is None or entry.value is None else int(entry.value)
