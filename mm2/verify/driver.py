"""Runs the comparison of ranges as a Spark job.

Assigns ranges to tasks, and collects their results over the progress channel. Tasks that stop reporting are abandoned.
"""

from __future__ import annotations

import json
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any, Final

import structlog

from mm2.codec import decode
from mm2.copy import channel
from mm2.copy.driver.batch import ExecutorConnection
from mm2.copy.driver.identity import DriverIdentity
from mm2.copy.driver.jvm import SparkUnavailable, is_local
from mm2.copy.driver.server import ChannelServer
from mm2.copy.driver.settings import spark_props
from mm2.copy.driver.spark import Spark, failure_of
from mm2.copy.spec import Assignment
from mm2.verify.comparing.findings import Findings
from mm2.verify.comparing.spans import Span, SpanSet

log = structlog.get_logger(__name__)

_START_TIMEOUT_S: Final = 120.0
_POLL_S: Final = 0.25
_GRACE_S: Final = 60.0  # without a report, beyond the time limit of a broker
_CHANNEL_PORT_KEY: Final = "spark.mm2.channel.port"

#: The result of a range: the findings, or the error because of which it could not be compared.
RangeOutcome = Findings | str


class VerifyTask:
    """The driver's state of one Spark task, for `mm2.copy.driver.server.ChannelServer`. Thread-safe."""

    def __init__(self, name: str, spans: SpanSet, on_outcome: Callable[[int, RangeOutcome], None]) -> None:
        self.name = name
        self.id = secrets.token_hex(8)
        self.secret = secrets.token_hex(32)
        self.spec = spans
        self.finished = threading.Event()
        self.started = False
        self.last_message_at = time.monotonic()
        self.bytes = 0
        self.error = ""
        self._on_outcome = on_outcome
        self._lock = threading.Lock()
        self._connection: ExecutorConnection | None = None

    def attach(self, connection: ExecutorConnection) -> bool:
        """Accept the executor's connection; False for a second one, from another attempt of the same task."""
        with self._lock:
            if self._connection is not None or self.finished.is_set():
                return False
            self._connection = connection
            self.last_message_at = time.monotonic()
            self.started = True
            return True

    def received(self, message: dict[str, Any]) -> None:
        """Handle a message from the executor."""
        self.last_message_at = time.monotonic()
        if message["type"] == "progress":
            self.bytes += int(message["bytes"])
        elif message["type"] == "range":
            found = message.get("findings")
            self._on_outcome(
                int(message["number"]), str(message["error"]) if found is None else decode(Findings, found)
            )
        elif message["type"] == "final":
            self.finished.set()

    def ended(self, reason: str, *, dead: bool = False) -> None:
        """Handle the end of the connection or of the Spark job."""
        if not self.finished.is_set():
            self.error = reason
        self.finished.set()
        with self._lock:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()


class Verifier:
    """A separate Spark context with ``parallel`` concurrent tasks. ``user_props`` are the user's ``spark.*`` keys.

    Running tasks are abandoned when ``stopping`` is set. Not for use in a process that copies: PySpark supports one
    context per process.
    """

    def __init__(
        self, user_props: Mapping[str, str], parallel: int, *, stopping: threading.Event | None = None
    ) -> None:
        self.parallel = parallel
        self._stopping = stopping or threading.Event()
        # A slot for each task, and one for an abandoned task that Spark has not killed yet.
        self._props = spark_props({"spark.master": f"local[{parallel + 1}]", **user_props})
        self._spark = Spark(self._props, attempts=1)
        self._server: ChannelServer | None = None
        self._host = "127.0.0.1"
        self._spark.start()

    def compare(
        self,
        spans: Sequence[Span],
        job: SpanSet,
        on_progress: Callable[[int, int], None] = lambda _bytes, _ranges: None,
    ) -> list[RangeOutcome]:
        """The result of each range. ``job`` has the common settings; its rate is divided among the tasks.

        ``on_progress`` is called with the bytes read and the ranges completed. Raises SparkUnavailable.
        """
        outcomes: list[RangeOutcome] = ["the comparison was not started"] * len(spans)
        if not spans:
            return []
        context = self._spark.context(_START_TIMEOUT_S + job.patience_s, until=self._stopping)
        server = self._listen(context)
        shares = _assign(spans, self.parallel)
        name = f"verify {job.source_alias}->{job.target_alias}"
        done: set[int] = set()

        def on_outcome(number: int, outcome: RangeOutcome) -> None:
            outcomes[number] = outcome
            done.add(number)

        tasks = [
            VerifyTask(f"{name} task {index}", _job_of(job, spans, share, len(shares)), on_outcome)
            for index, share in enumerate(shares)
        ]
        for task in tasks:
            server.expect(task)
        group = f"{name} ({tasks[0].id})"
        runner = threading.Thread(target=self._run, args=(context, server, group, tasks), name="spark-job", daemon=True)
        runner.start()
        try:
            self._watch(tasks, job.patience_s, lambda: on_progress(sum(task.bytes for task in tasks), len(done)))
        finally:
            for task in tasks:
                server.forget(task)
            if not all(task.finished.is_set() for task in tasks):
                self._spark.cancel(group)
        for task, share in zip(tasks, shares, strict=True):
            for number in share:
                if task.error and number not in done:
                    outcomes[number] = task.error
        return list(outcomes)

    def stop(self) -> None:
        """Stop Spark."""
        self._spark.stop(10)
        if self._server is not None:
            self._server.close()

    def _listen(self, context: Any) -> ChannelServer:
        if self._server is None:
            local = is_local(self._props)
            bind = self._host
            if not local:
                conf = context.getConf()
                self._host = conf.get("spark.driver.host")
                bind = conf.get("spark.driver.bindAddress", self._host)
            port = int(self._props.get(_CHANNEL_PORT_KEY, "0"))
            self._server = ChannelServer(bind, port, None if local else DriverIdentity.create())
        return self._server

    def _run(self, context: Any, server: ChannelServer, group: str, tasks: Sequence[VerifyTask]) -> None:
        from mm2.verify.executor import run  # noqa: PLC0415  (imported when Spark is)

        host, port = self._host, server.address[1]
        assignments = [
            json.dumps(asdict(Assignment(task.id, host, port, task.secret, server.fingerprint))) for task in tasks
        ]
        reason = "the Spark task ended before its ranges were compared"
        try:
            context.setJobGroup(group, group)
            ends = context.parallelize(assignments, len(assignments)).mapPartitions(run).setName(group).collect()
            reasons = [json.loads(end).get("reason") for end in ends]
            reason = next(filter(None, reasons), reason)
        except Exception as error:  # noqa: BLE001
            reason = f"the Spark job failed: {failure_of(error)}"
            self._spark.check_jvm()
        for task in tasks:
            # The final message is on the channel, and may arrive after Spark's result on a busy machine.
            task.finished.wait(channel.LEASE_TIMEOUT_S)
            task.ended(reason)

    def _watch(self, tasks: Sequence[VerifyTask], patience_s: float, on_progress: Callable[[], None]) -> None:
        limit_s = patience_s + _GRACE_S
        while not all(task.finished.wait(_POLL_S) for task in tasks):
            on_progress()
            if self._stopping.is_set():
                for task in tasks:
                    task.ended("the verification was stopped")
                return
            # If Spark has fewer slots than there are tasks, some tasks wait for others.
            started = [task for task in tasks if task.started and not task.finished.is_set()]
            for task in started or tasks:
                if not task.finished.is_set() and time.monotonic() - task.last_message_at > limit_s:
                    task.ended(f"its Spark task sent no message for {limit_s:.0f} s")
        on_progress()


def _job_of(job: SpanSet, spans: Sequence[Span], numbers: Sequence[int], tasks: int) -> SpanSet:
    """The job of one of ``tasks`` tasks, with its share of the rate."""
    return replace(job, spans=tuple((number, spans[number]) for number in numbers), rate=job.rate / tasks)


def _assign(spans: Sequence[Span], parallel: int) -> list[list[int]]:
    """The numbers of the ranges of each task, with similar total sizes.

    The largest are assigned first, each to the task with the least.
    """
    shares: list[list[int]] = [[] for _ in range(max(1, min(parallel, len(spans))))]
    sizes = [0] * len(shares)
    for number in sorted(range(len(spans)), key=lambda number: -spans[number].size):
        least = sizes.index(min(sizes))
        shares[least].append(number)
        sizes[least] += spans[number].size + 1
    return [sorted(share) for share in shares]


__all__ = ["RangeOutcome", "SparkUnavailable", "Verifier"]
