"""Offsets that may be committed: the acknowledged prefix of each source partition (SubmittedRecords of Connect)."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mm2.connect.api import SourceRecord
from mm2.connect.stores import internal_json

PartitionKey = frozenset[tuple[str, Any]] | None
#: A source partition and its newest offset.
Committable = tuple[dict[str, Any] | None, dict[str, Any] | None]


def key_of(partition: Mapping[str, Any] | None) -> PartitionKey:
    """A hashable key for a source partition."""
    return None if partition is None else frozenset(partition.items())


@dataclass(slots=True)
class Submitted:
    """A record in flight."""

    record: SourceRecord
    acked: bool = False


class SubmittedRecords:
    """Records in flight per source partition, in order, until they are acknowledged. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._arrived = threading.Condition(self._lock)
        self._unacked = 0
        self._queues: dict[PartitionKey, deque[Submitted]] = {}

    def submit(self, record: SourceRecord) -> Submitted:
        """Add a record that is about to be sent. Raises ConnectError when its partition or offset is not a flat map."""
        internal_json.require_flat("partition", record.source_partition)
        internal_json.require_flat("offset", record.source_offset)
        submitted = Submitted(record)
        with self._lock:
            self._queues.setdefault(key_of(record.source_partition), deque()).append(submitted)
            self._unacked += 1
        return submitted

    def submit_all(self, submitted: Sequence[Submitted]) -> None:
        """Like `submit`, for records whose partitions and offsets are known to be flat maps."""
        with self._lock:
            partition, queue = None, None
            for one in submitted:
                if queue is None or one.record.source_partition != partition:
                    partition = one.record.source_partition
                    queue = self._queues.setdefault(key_of(partition), deque())
                queue.append(one)
            self._unacked += len(submitted)

    def ack(self, *submitted: Submitted) -> None:
        """Mark records as acknowledged."""
        with self._lock:
            for one in submitted:
                if not one.acked:
                    one.acked = True
                    self._unacked -= 1
            self._arrived.notify_all()

    def drop(self, submitted: Submitted) -> None:
        """Remove the last record of its partition, which was not sent."""
        with self._lock:
            key = key_of(submitted.record.source_partition)
            queue = self._queues.get(key)
            if queue and queue[-1] is submitted:
                queue.pop()
                self._unacked -= not submitted.acked
                if not queue:
                    del self._queues[key]
                self._arrived.notify_all()

    def await_all(self, timeout_s: float) -> bool:
        """Wait until all records are acknowledged; False after ``timeout_s``."""
        with self._lock:
            return self._arrived.wait_for(lambda: self._unacked == 0, timeout_s)

    def take_committable(self) -> list[Committable]:
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
