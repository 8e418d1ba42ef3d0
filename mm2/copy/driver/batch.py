"""The driver's view of one micro-batch: a Spark job whose only task connects to the progress channel."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import structlog

from mm2.copy import channel
from mm2.copy.progress.ledger import Pause
from mm2.copy.spec import CopySpec, PartitionProgress
from mm2.copy.tally import Tally
from mm2.kafka.structs import TopicPartition

#: Clocks of two hosts do not run at exactly the same speed, and a request takes a moment from the check to the socket.
_LEASE_MARGIN_S: Final = 0.5


class ExecutorConnection(Protocol):
    """The connection to a batch's executor. Neither call blocks or fails; the reader of the connection detects its
    end.
    """

    def send(self, data: bytes) -> None:
        """Send bytes asynchronously."""

    def close(self) -> None:
        """Close the connection immediately."""


class MicroBatch:
    """State and messages of one micro-batch. Thread-safe; ``on_update`` is called on the channel's thread."""

    def __init__(self, name: str, spec: CopySpec, on_update: Callable[[], None]) -> None:
        self.name = name
        self.id = secrets.token_hex(8)
        self.secret = secrets.token_hex(32)
        self.spec = spec
        self.sources = frozenset(part.source for part in spec.partitions)
        self.ready = threading.Event()
        self.finished = threading.Event()  # the final report was received, or there will be none
        self.granted = False
        self.started: set[TopicPartition] = set()  # those with a start position: it copies no others
        self.begun: dict[TopicPartition, int] = {}  # these positions, where there was one
        self.copying_since_s: float | None = None  # wall clock
        self.dead = False  # the executor has certainly ended
        self.renewing = True
        self.claimed = threading.Event()
        # Where a successor continues, from the final report: `Start` as JSON, which only executors read.
        self.starts: dict[TopicPartition, list[Any]] = {}
        self.attempts: list[Any] = []  # to change records, which a successor continues; as received
        self.last_message_at = time.monotonic()
        self.final = False
        self.waiting_for = ""
        self.failure = ""
        self.reason = ""  # of its end, as reported by the executor
        self.latency_ms: list[int] = []
        self.tally: dict[str, Any] | None = None  # the newest, as received; it is added up on demand
        self.progress: dict[TopicPartition, PartitionProgress] = {}
        self.changes = 0  # of `progress`
        self.changed_at = time.monotonic()
        self._on_news = on_update
        self._log = structlog.get_logger("mm2.copy.executor").bind(
            flow=spec.flow, task=f"{spec.connector}-{spec.task_id}"
        )
        self._lock = threading.Lock()
        self._connection: ExecutorConnection | None = None

    @property
    def job_group(self) -> str:
        """Spark's job group: flow, task, lane and batch, made unique."""
        return f"{self.name} ({self.id})"

    def counted(self) -> Tally:
        """The executor's counts so far."""
        return Tally.received(self.tally)

    def attach(self, connection: ExecutorConnection) -> bool:
        """Set the executor's connection; False for a second one, which belongs to another attempt of the task."""
        with self._lock:
            if self._connection is not None or self.finished.is_set():
                return False
            self._connection = connection
            return True

    def grant(self) -> None:
        """Grant the lease. The executor then takes over from its predecessor and reports `claimed`."""
        self.granted = True
        self.last_message_at = time.monotonic()
        self._send({"type": "lease"})

    def start(self, starts: Mapping[TopicPartition, Any], attempts: list[Any]) -> None:
        """Send the start of each partition (`Start` as JSON), and the ``attempts`` of the batch before. The executor reads
        and writes nothing of a partition before.
        """
        rows = [[tp.topic, tp.partition, start] for tp, start in starts.items()]
        self.started |= starts.keys()
        self.begun.update((tp, start["position"]) for tp, start in starts.items() if start["position"] is not None)
        if self.copying_since_s is None:
            self.copying_since_s = time.time()
        self.last_message_at = time.monotonic()  # it sends nothing while it waits for this
        self._send({"type": "start", "starts": rows, "attempts": attempts})

    def throttle(self, rate: float, topics: Mapping[str, float]) -> None:
        """Change the limits."""
        self._send({"type": "throttle", "rate": rate, "topics": dict(topics)})

    def pause(self, pauses: Mapping[TopicPartition, Pause]) -> None:
        """Replace the set of paused partitions."""
        rows = [[tp.topic, tp.partition, str(pause), pause.since_ms] for tp, pause in pauses.items()]
        self._send({"type": "pause", "partitions": rows})

    def stop(self, drain_s: float) -> None:
        """Request the stop, with this time for requests in flight. `finished` is set when the batch has ended."""
        self._send({"type": "stop", "drain_s": drain_s})

    def received(self, message: dict[str, Any]) -> None:
        """Handle one message of the executor."""
        kind = message["type"]
        self.last_message_at = time.monotonic()
        if kind == "log":
            log_method = getattr(self._log, str(message["level"]), self._log.info)
            log_method(str(message["event"]), **message["fields"])
            return
        if kind == "ready":
            self.waiting_for = ""
            self.ready.set()
        elif kind == "claimed":
            self.waiting_for = ""
            self.claimed.set()
        elif kind == "waiting":
            self.waiting_for = str(message["reason"])
        if kind in ("progress", "final"):
            for row in message["partitions"]:
                progress = PartitionProgress(*row)
                self.progress[progress.source] = progress
                self.changes += 1
                self.changed_at = self.last_message_at
            self.latency_ms = message.get("latency_ms") or self.latency_ms
            self.tally = message.get("tally", self.tally)
            self.failure = message.get("failure", "")
        if kind == "final":
            self.reason = str(message.get("reason", ""))
            for topic, partition, row in message.get("starts", []):
                self.starts[TopicPartition(topic, partition)] = row
            self.attempts = message.get("attempts", [])
            self.final = True
            self.finished.set()
        elif kind == "failed":
            self.failure = str(message["reason"])
            self.finished.set()
        elif self.renewing:
            self._send({"type": "go"})
        self._on_news()

    @property
    def lease_ends_at(self) -> float:
        """When the executor has certainly stopped writing (monotonic time, s).

        Its lease counts from a message that was received before `last_message_at`.
        """
        if not self.granted or self.final or self.dead:
            return 0.0
        return self.last_message_at + channel.LEASE_TIMEOUT_S + _LEASE_MARGIN_S

    def ended(self, reason: str, *, dead: bool = False) -> None:
        """The job or its connection has ended. Without a final report the last progress report counts. ``dead``: the
        executor's process has ended and is not only unreachable.
        """
        self.dead = self.dead or dead
        if not self.finished.is_set():
            self.failure = reason
        self.finished.set()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._on_news()

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.send(channel.encode(message))
