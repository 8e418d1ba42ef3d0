"""The driver's view of one micro-batch: a Spark job whose only task talks to us over the progress channel."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, Protocol

import structlog

from mm2.copy import channel
from mm2.copy.ledger import Pause
from mm2.copy.spec import CopySpec, PartitionProgress
from mm2.copy.tally import Tally
from mm2.kafka.structs import TopicPartition

#: Clocks of two hosts do not run at exactly the same speed, and a request takes a moment from the check to the socket.
_LEASE_MARGIN_S: Final = 0.5


class ExecutorConnection(Protocol):
    """The way to a batch's executor. Neither call waits or fails: who reads from it sees its end, and says so."""

    def send(self, data: bytes) -> None:
        """Say something, some time soon."""

    def close(self) -> None:
        """Hang up now."""


class MicroBatch:
    """Waits, reports and the final word of one micro-batch. Thread-safe; ``on_news`` runs on the channel's thread."""

    def __init__(self, name: str, spec: CopySpec, on_news: Callable[[], None]) -> None:
        self.name = name
        self.id = secrets.token_hex(8)
        self.secret = secrets.token_hex(32)
        self.spec = spec
        self.ready = threading.Event()
        self.over = threading.Event()  # the final report is in, or there will be none
        self.granted = False
        self.dead = False  # the executor has certainly ended
        self.renewing = True
        self.claimed = threading.Event()
        # Where a successor goes on, by the final report: `Start` as JSON, which is for executors only.
        self.starts: dict[TopicPartition, list[Any]] = {}
        self.heard_at = time.monotonic()
        self.final = False
        self.waiting_for = ""
        self.failure = ""
        self.reason = ""  # of its end, in its own words
        self.latency_ms: list[int] = []
        self.tally: dict[str, Any] | None = None  # the newest, as it came: it is added up when somebody asks
        self.progress: dict[TopicPartition, PartitionProgress] = {}
        self.changes = 0  # of `progress`
        self.changed_at = time.monotonic()
        self._on_news = on_news
        self._log = structlog.get_logger("mm2.copy.executor").bind(
            flow=spec.flow, task=f"{spec.connector}-{spec.task_id}"
        )
        self._lock = threading.Lock()
        self._connection: ExecutorConnection | None = None

    @property
    def job_group(self) -> str:
        """What Spark's status API calls the job: flow, task, lane and batch, made unique."""
        return f"{self.name} ({self.id})"

    def counted(self) -> Tally:
        """What the executor has counted so far."""
        return Tally.from_json(self.tally)

    def attach(self, connection: ExecutorConnection) -> bool:
        """Take the executor's connection; False for a second one, which is another attempt of the same task."""
        with self._lock:
            if self._connection is not None or self.over.is_set():
                return False
            self._connection = connection
            return True

    def grant(self) -> None:
        """Give the lease: now it may take over what a predecessor had, and says so (`claimed`)."""
        self.granted = True
        self.heard_at = time.monotonic()
        self._send({"type": "lease"})

    def start(self, starts: Mapping[TopicPartition, list[Any]]) -> None:
        """Say where each partition begins (`Start` as JSON); only now is anything read or written."""
        rows = [[tp.topic, tp.partition, start] for tp, start in starts.items()]
        self.heard_at = time.monotonic()  # it had nothing to say while it waited for this
        self._send({"type": "start", "starts": rows})

    def throttle(self, rate: float, topics: Mapping[str, float]) -> None:
        """Other limits from now on."""
        self._send({"type": "throttle", "rate": rate, "topics": dict(topics)})

    def pause(self, pauses: Mapping[TopicPartition, Pause]) -> None:
        """These, and no others, are not to be read from now on."""
        rows = [[tp.topic, tp.partition, str(pause), pause.since_ms] for tp, pause in pauses.items()]
        self._send({"type": "pause", "partitions": rows})

    def stop(self, drain_s: float) -> None:
        """Ask for the end, with so much time for what is under way; `over` is set when it has come."""
        self._send({"type": "stop", "drain_s": drain_s})

    def received(self, message: dict[str, Any]) -> None:
        """One message of the executor."""
        kind = message["type"]
        self.heard_at = time.monotonic()
        if kind == "log":
            say = getattr(self._log, str(message["level"]), self._log.info)
            say(str(message["event"]), **message["fields"])
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
                progress = PartitionProgress.from_row(row)
                self.progress[progress.source] = progress
                self.changes += 1
                self.changed_at = self.heard_at
            self.latency_ms = message.get("latency_ms") or self.latency_ms
            self.tally = message.get("tally", self.tally)
            self.failure = message.get("failure", "")
        if kind == "final":
            self.reason = str(message.get("reason", ""))
            for topic, partition, row in message.get("starts", []):
                self.starts[TopicPartition(topic, partition)] = row
            self.final = True
            self.over.set()
        elif kind == "failed":
            self.failure = str(message["reason"])
            self.over.set()
        elif self.renewing:
            self._send({"type": "go"})
        self._on_news()

    @property
    def lease_ends_at(self) -> float:
        """When the executor has certainly stopped writing (monotonic time, s).

        Its lease counts from a message that was received before `heard_at`.
        """
        if not self.granted or self.final or self.dead:
            return 0.0
        return self.heard_at + channel.LEASE_TIMEOUT_S + _LEASE_MARGIN_S

    def ended(self, reason: str, *, dead: bool = False) -> None:
        """The job or its connection is over; without a final report its outcome is what was last reported. ``dead``: the
        executor's process has ended, and is not only unreachable."""
        self.dead = self.dead or dead
        if not self.over.is_set():
            self.failure = reason
        self.over.set()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()
        self._on_news()

    def _send(self, message: dict[str, Any]) -> None:
        with self._lock:
            if self._connection is not None:
                self._connection.send(channel.encode(message))
