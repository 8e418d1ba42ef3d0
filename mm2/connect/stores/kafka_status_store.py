"""The status topic (KafkaStatusBackingStore)."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

import structlog

from mm2.connect.stores.internal_topic import InternalLog, InternalTopic
from mm2.connect.stores.status_store import Status, StatusEntry, StatusStore, TopicStatus, topic_key
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure

log = structlog.get_logger(__name__)

_BATCH = 200
_ATTEMPT_S = 5.0


@dataclass(frozen=True)
class _Write:
    key: str
    value: bytes | None
    # None for topic statuses, which are always written.
    status: Status | None
    entry: StatusEntry[Status] | None
    sequence: int
    safe: bool


class KafkaStatusStore(StatusStore):
    """Reads are served from memory. Writes are queued for the store's own thread, so they never block a task."""

    def __init__(self, cluster: Cluster, topic: InternalTopic, *, start_timeout_s: float) -> None:
        super().__init__()
        self._log = InternalLog(
            cluster,
            topic,
            on_record=lambda record: self.apply(record.key, record.value),
            start_timeout_s=start_timeout_s,
        )
        self._queue: deque[_Write] = deque()
        self._news = threading.Condition()
        self._sending = False
        self._generation = -1
        self._sender: threading.Thread | None = None

    def start(self) -> None:
        """Create or check the topic and read all of it. Raises ConnectError or KafkaFailure."""
        self._log.start()
        self._sender = threading.Thread(target=self._send_queued, name=f"status-{self._log.name}", daemon=True)
        self._sender.start()

    def stop(self, timeout_s: float = 5.0) -> None:
        """Send queued statuses for up to ``timeout_s``, then stop."""
        if self._sender is not None:
            self.flush(timeout_s)
        self._log.stop_writing()
        with self._news:
            self._news.notify_all()
        if self._sender is not None:
            self._sender.join(timeout_s)
        self._log.stop()

    def put(self, status: Status) -> None:
        """Write a status regardless of the topic's content."""
        self._put(status, safe=False)

    def put_safe(self, status: Status) -> None:
        """Write a status unless another worker has written a newer one: for failures and shutdowns."""
        self._put(status, safe=True)

    def put_topic(self, status: TopicStatus) -> None:
        """Record that a connector uses a topic."""
        self._enqueue(_Write(status.key, status.encode(), None, None, 0, safe=False))

    def delete_topic(self, connector: str, topic: str) -> None:
        """Remove the record that a connector uses a topic."""
        self._enqueue(_Write(topic_key(topic, connector), None, None, None, 0, safe=False))

    def flush(self, timeout_s: float) -> bool:
        """Wait until all queued statuses are written; False after ``timeout_s``."""
        with self._news:
            return self._news.wait_for(lambda: not self._queue and not self._sending, timeout_s)

    def _put(self, status: Status, *, safe: bool) -> None:
        with self.lock:
            self._generation = status.generation
            entry = self.entry(status.id)
            if safe and not entry.allows(status):
                return
            entry.sequence += 1
            write = _Write(status.key, status.encode(), status, entry, entry.sequence, safe)
        self._enqueue(write)

    def _enqueue(self, write: _Write) -> None:
        with self._news:
            self._queue.append(write)
            self._news.notify_all()

    def _send_queued(self) -> None:
        backoff = Backoff(100, 5_000)
        for failures in itertools.count():
            again = self._send_until_failure()
            if not again or self._log.stopping.wait(backoff.delay_s(min(failures, 6))):
                return
            is_read = self._is_read()
            with self._news:
                self._queue.extendleft(
                    reversed([write for write in again if self._still_wanted(write, is_read=is_read)])
                )

    def _send_until_failure(self) -> list[_Write]:
        """Send batches until one fails. Returns its writes to retry, or none when the store stops."""
        while True:
            with self._news:
                self._sending = False
                self._news.notify_all()
                self._news.wait_for(lambda: self._queue or self._log.stopping.is_set())
                if self._log.stopping.is_set():
                    return []
                batch = [self._queue.popleft() for _ in range(min(_BATCH, len(self._queue)))]
                self._sending = True
            again = self._send(batch)
            if again:
                return again

    def _send(self, batch: Sequence[_Write]) -> list[_Write]:
        """Send the writes once; returns those to retry."""
        try:
            self._log.send_all([(write.key.encode("utf-8"), write.value) for write in batch], timeout_s=_ATTEMPT_S)
        except KafkaFailure as failure:
            if failure.is_final and len(batch) > 1:
                # A single status, such as one with a very long trace, must not prevent writing the others.
                return [write for one in batch for write in self._send([one])]
            log.warning(
                "statuses not written",
                topic=self._log.name,
                cluster=self._log.cluster.name,
                count=len(batch),
                retry=not failure.is_final,
                reason=str(failure),
            )
            return [] if failure.is_final else list(batch)
        return []

    def _is_read(self) -> bool:
        """Whether the statuses of other workers are known."""
        try:
            self._log.read_to_end(_ATTEMPT_S)
        except KafkaFailure:
            return False
        return True

    def _still_wanted(self, write: _Write, *, is_read: bool) -> bool:
        """Whether to retry a write: nothing newer replaces it.

        After a rebalance another worker may have written a newer status. If the topic cannot be read, this is assumed, as in
        Java; otherwise work that stays on its worker would keep a wrong status.
        """
        if write.status is None or write.entry is None:
            return True
        with self.lock:
            if write.entry.deleted or write.entry.sequence != write.sequence:
                return False
            is_current = write.status.generation == self._generation
            if is_current and not write.safe:
                return True
            return (is_current or is_read) and write.entry.allows(write.status)
