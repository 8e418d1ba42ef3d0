"""Reports of failed records that are not complete yet.

Committing offsets after these records would lose them in a crash.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection
from concurrent.futures import Future, wait

from mm2.kafka.structs import TopicPartition


class ReportsUnderWay:
    """Reports by the partition that a record was consumed from. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._futures: dict[TopicPartition, deque[Future[None]]] = {}

    def add(self, partition: TopicPartition, report: Future[None]) -> None:
        """Add a report."""
        with self._lock:
            queue = self._futures.setdefault(partition, deque())
            # Dead letters are written in order, so few completed ones remain in the list.
            while queue and queue[0].done():
                queue.popleft()
            queue.append(report)

    def wait_for(self, partitions: Collection[TopicPartition], timeout_s: float) -> frozenset[TopicPartition]:
        """Wait for all reports of these partitions; returns those still incomplete after ``timeout_s``."""
        with self._lock:
            wanted = [future for tp in partitions for future in self._futures.get(tp, ())]
        wait(wanted, timeout_s)
        with self._lock:
            held_up = frozenset(tp for tp in partitions if not all(f.done() for f in self._futures.get(tp, ())))
            for tp in partitions:
                if tp not in held_up:
                    self._futures.pop(tp, None)
        return held_up

    def forget(self, partitions: Collection[TopicPartition]) -> None:
        """Drop the reports of partitions that were revoked."""
        with self._lock:
            for tp in partitions:
                self._futures.pop(tp, None)
