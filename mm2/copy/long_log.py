"""A topic that is read completely, however long that takes.

Several tasks of a process read the same ledger at the same time, and a ledger of thousands of partitions has minutes of entries that are
not compacted yet. A limit for the whole time would end every attempt before the end of the topic, so copying would never begin.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping

from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import TimeoutFailure
from mm2.kafka.log import KafkaBasedLog, LogRecord


class LongLog:
    """A `KafkaBasedLog`, for reading only, whose `start` fails when it reads nothing for its time limit."""

    def __init__(
        self,
        cluster: Cluster,
        topic: str,
        *,
        on_record: Callable[[LogRecord], None],
        partitions: Iterable[int] | None = None,
        begin: Mapping[int, int] | None = None,
    ) -> None:
        read = None if partitions is None else tuple(partitions)

        def new(first: Mapping[int, int] | None) -> KafkaBasedLog:
            return KafkaBasedLog(cluster, topic, on_record=on_record, partitions=read, begin=first)

        self._new = new
        self._log = new(begin)
        self._lock = threading.Lock()
        self._is_stopped = False

    @property
    def positions(self) -> dict[int, int]:
        """The next offset to be read, by partition."""
        return self._log.positions

    def start(self, timeout_s: float) -> None:
        """Read the topic to its end; tailing continues in the background.

        Raises KafkaFailure, also when the topic does not exist, and when no record was read for ``timeout_s``.
        """
        while True:
            try:
                self._log.start(timeout_s)
            except TimeoutFailure:
                progress = self._log.progress
                with self._lock:
                    if self._is_stopped or progress is None or not progress.read:
                        raise
                    self._log = self._new(self._log.positions)
            else:
                return

    def read_to_end(self, timeout_s: float) -> None:
        """Wait until everything written before this call has been read. Raises KafkaFailure."""
        self._log.read_to_end(timeout_s)

    def stop(self) -> None:
        """Stop reading, and end a `start` in progress."""
        with self._lock:
            self._is_stopped = True
            log = self._log
        log.stop()
