"""Which offsets may be committed: the acknowledged prefix of each source partition (SubmittedRecords of Connect)."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass
from typing import Any

from mm2.connect.api import SourceRecord
from mm2.connect.stores import internal_json

_PartitionKey = frozenset[tuple[str, Any]]


@dataclass
class Submitted:
    """A record on its way to Kafka."""

    record: SourceRecord
    acked: bool = False


class SubmittedRecords:
    """Keeps records per source partition in order until they are acknowledged. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._queues: dict[_PartitionKey, deque[Submitted]] = {}

    def submit(self, record: SourceRecord) -> Submitted:
        """Note that a record is being sent. Raises ConnectError when its partition or offset is not a flat map."""
        internal_json.require_flat("partition", record.source_partition)
        internal_json.require_flat("offset", record.source_offset)
        submitted = Submitted(record)
        with self._lock:
            self._queues.setdefault(frozenset(record.source_partition.items()), deque()).append(submitted)
        return submitted

    def ack(self, submitted: Submitted) -> None:
        """Note that it has arrived."""
        with self._lock:
            submitted.acked = True

    def take_committable(self) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Remove every acknowledged prefix; one (partition, newest offset) pair for each partition that had one."""
        taken = []
        with self._lock:
            for key, queue in list(self._queues.items()):
                last: Submitted | None = None
                while queue and queue[0].acked:
                    last = queue.popleft()
                if last is not None:
                    taken.append((last.record.source_partition, last.record.source_offset))
                if not queue:
                    del self._queues[key]
        return taken
