"""The process's one Spark context and the copy jobs that run on it."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections import Counter
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import structlog

from mm2.copy.driver.batch import Batch
from mm2.copy.driver.lane import Lane, Starts
from mm2.copy.driver.server import ChannelServer
from mm2.copy.spec import Assignment, CopySpec, PartitionProgress

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
# A small young generation and little free heap: per-job leftovers go early, and memory stays where it is for years.
_JVM_OPTIONS: Final = (
    "-XX:+UseSerialGC -XX:TieredStopAtLevel=1 -XX:-UsePerfData -Xss512k "
    "-Xmn48m -XX:MinHeapFreeRatio=15 -XX:MaxHeapFreeRatio=30 "
    f'"-Dlog4j2.configurationFile={_LOG_SETTINGS}"'
)

#: What a copying process needs of Spark, unless the user says otherwise.
DEFAULTS: Final[Mapping[str, str]] = {
    # Lanes wait on sockets: with as many slots as cores a third lane starved for seconds.
    "spark.master": "local[512]",
    "spark.app.name": "mm2",
    "spark.default.parallelism": "2",
    # By default as many as slots: 512 threads that dispatch nothing.
    "spark.rpc.netty.dispatcher.numThreads": "2",
    "spark.shuffle.mapOutput.dispatcher.numThreads": "1",
    # The least that Spark starts with; the heap grows only as far as it must.
    "spark.driver.memory": "480m",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.ui.retainedJobs": "50",
    "spark.ui.retainedStages": "50",
    "spark.ui.retainedTasks": "200",
    "spark.ui.retainedDeadExecutors": "5",
    "spark.sql.ui.retainedExecutions": "1",
    "spark.python.worker.reuse": "true",
    "spark.python.daemon.module": "mm2.copy.executor.daemon",
    "spark.broadcast.compress": "false",
    "spark.cleaner.periodicGC.interval": "5min",
}
_LOOPBACK: Final = {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}


class CopyEngine:
    """Starts Spark in the background and opens copy jobs; one engine serves all flows of a process.

    ``spark_props`` are the user's ``spark.*`` keys. Speculation is refused: two copies of a task would both write.
    """

    def __init__(self, spark_props: Mapping[str, str]) -> None:
        self._props = {**DEFAULTS, **spark_props, "spark.speculation": "false"}
        if self._props["spark.master"].startswith("local"):
            self._props = {**_LOOPBACK, **self._props}
            if "spark.driver.extraJavaOptions" not in spark_props:
                self._props["spark.driver.extraJavaOptions"] = _JVM_OPTIONS
        self._context: Future[Any] | None = None
        self._server: ChannelServer | None = None
        self._lock = threading.Lock()
        self._jobs: set[CopyJob] = set()
        self._submitters = ThreadPoolExecutor(512, thread_name_prefix="spark-job")
        self._running: set[str] = set()  # ids of batches whose Spark job has not returned
        self._stopped = False
        self._log = structlog.get_logger(__name__)

    def start(self) -> None:
        """Begin starting Spark; returns at once, idempotent."""
        with self._lock:
            if self._context is None:
                self._server = ChannelServer(self._props.get("spark.driver.bindAddress", "127.0.0.1"))
                self._context = Future()
                threading.Thread(
                    target=self._start_spark, args=(self._context,), name="spark-start", daemon=True
                ).start()

    def open(self, spec: CopySpec, starts: Starts) -> CopyJob:
        """Begin copying ``spec.partitions``; ``starts`` says where, see `mm2.copy.driver.lane.Starts`."""
        self.start()
        job = CopyJob(self, spec, starts)
        with self._lock:
            self._jobs.add(job)
        job.begin()
        return job

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop what is still copying, then Spark."""
        with self._lock:
            self._stopped = True
            jobs = list(self._jobs)
        deadline = time.monotonic() + timeout_s
        for job in jobs:
            job.signal_stop()
        for job in jobs:
            job.stop(max(0.1, deadline - time.monotonic()))
        # Spark complains when its context goes while a task's result is on its way.
        self._submitters.shutdown(wait=False, cancel_futures=True)
        while self._running and time.monotonic() < deadline:
            time.sleep(0.01)
        if self._context is not None and self._context.done() and self._context.exception() is None:
            with contextlib.suppress(Exception):  # a JVM that is gone already needs no stopping
                self._context.result().stop()
        if self._server is not None:
            self._server.close()

    # -- for the lanes ---------------------------------------------------------------------------------------------

    def submit(self, batch: Batch) -> None:
        """Start a batch's Spark job in a thread of its own."""
        server = self._server
        if server is None or self._stopped:
            batch.ended("the copy engine is stopped")
            return
        server.expect(batch)
        self._running.add(batch.id)
        self._submitters.submit(self._run_job, batch, server)

    def cancel(self, batch: Batch) -> None:
        """Make sure that a batch's task ends: by hanging up on it, then through Spark."""
        if self._server is not None:
            self._server.forget(batch)
        batch.ended("cancelled")
        if self._context is not None and self._context.done() and not self._stopped:
            with contextlib.suppress(Exception):  # the lane goes on whether Spark could cancel or not
                self._context.result().cancelJobGroup(batch.job_group)

    def closed(self, job: CopyJob) -> None:
        """A job is over."""
        with self._lock:
            self._jobs.discard(job)

    def _run_job(self, batch: Batch, server: ChannelServer) -> None:
        from mm2.copy.executor.task import run  # noqa: PLC0415  (pulled in when Spark is)

        try:
            context = self._spark()
            if batch.over.is_set():
                return
            host, port = server.address
            assignment = Assignment(batch.id, self._props.get("spark.driver.host", host), port, batch.secret)
            # Job group and description are properties of this thread (pinned mode), so they name this job only.
            context.setJobGroup(batch.job_group, batch.name)
            rdd = context.parallelize([json.dumps(asdict(assignment))], 1).setName(batch.name)
            results = rdd.mapPartitions(run).setName(batch.name).collect()
            report = json.loads(results[0]) if results else {}
            if report.get("state") == "stopped":
                # The same word as on the channel, which a busy machine may hear later than Spark's.
                batch.received(report)
            batch.ended(str(report.get("reason") or "the Spark job ended"))
        except Exception as error:  # noqa: BLE001
            batch.ended(f"the Spark job failed: {_first_line(error)}")
            if not self._stopped:
                self._replace_lost_jvm()
        finally:
            server.forget(batch)
            self._running.discard(batch.id)

    def _spark(self) -> Any:
        context = self._context
        if context is None:
            message = "the copy engine was not started"
            raise RuntimeError(message)
        return context.result(timeout=120)

    def _start_spark(self, promise: Future[Any]) -> None:
        started = time.monotonic()
        try:
            # PySpark would start whatever "python3" is on the PATH for its workers, without our packages.
            os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
            from pyspark import SparkConf, SparkContext  # noqa: PLC0415  (half a second, in this thread)

            conf = SparkConf().setAll(list(self._props.items()))
            promise.set_result(SparkContext(conf=conf))
            self._log.info(
                "Spark is up", master=self._props["spark.master"], seconds=round(time.monotonic() - started, 1)
            )
        except Exception as error:  # noqa: BLE001
            self._log.error("Spark does not start", error=_first_line(error))
            promise.set_exception(error)

    def _replace_lost_jvm(self) -> None:
        """Start Spark anew when its JVM is gone; the lanes' next batches wait for it."""
        with self._lock:
            context = self._context
            if context is None or not context.done():
                return
            if context.exception() is None:
                spark = context.result()
                try:
                    if not spark._jsc.sc().isStopped():  # noqa: SLF001
                        return
                except Exception:  # noqa: BLE001
                    self._log.error("the Spark JVM is gone, another is started")
            from pyspark import SparkContext  # noqa: PLC0415

            # PySpark keeps its gateway in class attributes and has no public way to let go of a dead one.
            with contextlib.suppress(Exception):
                SparkContext._gateway.shutdown()  # type: ignore[union-attr]  # noqa: SLF001
            for name in ("_gateway", "_jvm", "_active_spark_context"):
                setattr(SparkContext, name, None)
            self._context = Future()
            threading.Thread(target=self._start_spark, args=(self._context,), name="spark-start", daemon=True).start()


class CopyFailed(Exception):
    """A copy job that can do nothing any more, or is not to go on without all of its partitions."""


class CopyJob:
    """One connector task's copying, over its lanes. Thread-safe."""

    def __init__(self, engine: CopyEngine, spec: CopySpec, starts: Starts) -> None:
        self._engine = engine
        self._spec = spec
        self._news = threading.Condition()
        self._count = 0
        self._lanes = [
            Lane(
                f"{spec.flow} {spec.connector}-{spec.task_id} lane {index}",
                spec.with_partitions(partitions),
                starts,
                submit=engine.submit,
                cancel=engine.cancel,
                on_news=self._heard,
            )
            for index, partitions in enumerate(_deal(spec))
        ]

    def begin(self) -> None:
        """Start the lanes."""
        for lane in self._lanes:
            lane.start()

    def wait(self, timeout_s: float) -> None:
        """Return on news or after ``timeout_s``. Raises CopyFailed when no partition can go on, or one cannot and
        ``partition.error`` is fail."""
        with self._news:
            seen = self._count
            self._news.wait_for(lambda: self._count != seen, timeout_s)
        for lane in self._lanes:
            if lane.failure:
                raise CopyFailed(lane.failure)
        rows = self.progress()
        stopped = [row for row in rows if row.stopped]
        if stopped and (self._spec.partition_error == "fail" or len(stopped) == len(self._spec.partitions)):
            raise CopyFailed("; ".join(sorted({row.reason for row in stopped})))

    def throttle(self, rate: float, topics: Mapping[str, float]) -> None:
        """Other limits from now on: bytes per second of this job, and of single topics; 0 for none."""
        for lane in self._lanes:
            lane.throttle(rate / len(self._lanes), {topic: limit / len(self._lanes) for topic, limit in topics.items()})

    def progress(self) -> list[PartitionProgress]:
        """Every partition that has been heard of."""
        return [row for lane in self._lanes for row in lane.progress()]

    def status(self) -> dict[str, Any]:
        """Totals and troubles, JSON-able: records, bytes, lag (offsets), batches, latency_ms, troubles, partitions."""
        rows = self.progress()
        return {
            "records": sum(row.records for row in rows),
            "bytes": sum(row.bytes for row in rows),
            "lag": sum(row.lag for row in rows),
            "partitions": len(self._spec.partitions),
            "batches": sum(lane.batches for lane in self._lanes),
            "latency_ms": max((lane.latency_ms for lane in self._lanes), default=[]),
            "gaps": _sum_gaps(rows),
            "states": dict(Counter(row.state for row in rows)),
            "lost_ranges": sum(row.lost for row in rows),
            "foreign_records": sum(row.foreign for row in rows),
            "troubles": sorted(
                {lane.trouble for lane in self._lanes if lane.trouble} | {row.reason for row in rows if row.reason}
            ),
        }

    def signal_stop(self) -> None:
        """Ask all lanes to stop."""
        for lane in self._lanes:
            lane.signal_stop()

    def stop(self, timeout_s: float) -> bool:
        """Stop reading, wait for what is under way and its commit; False when that took longer than ``timeout_s``."""
        self.signal_stop()
        deadline = time.monotonic() + timeout_s
        left = [lane for lane in self._lanes if not lane.join(max(0.0, deadline - time.monotonic()))]
        self._engine.closed(self)
        return not left

    def _heard(self) -> None:
        with self._news:
            self._count += 1
            self._news.notify_all()


def _deal(spec: CopySpec) -> list[tuple[Any, ...]]:
    """Partitions for each lane, round-robin; 0 lanes = one for every two cores, with two partitions each at least.

    A transaction has one producer, so with transactions there is one lane.

    One lane keeps a broker and a half busy, so on a machine that also runs brokers a second one only takes their time.
    """
    lanes = spec.lanes or min((os.cpu_count() or 1) // 2, len(spec.partitions) // 2)
    lanes = 1 if spec.transactions is not None else max(1, min(lanes, len(spec.partitions)))
    return [spec.partitions[index::lanes] for index in range(lanes)]


def _sum_gaps(rows: list[PartitionProgress]) -> dict[str, int]:
    total: dict[str, int] = {}
    for row in rows:
        for reason, count in row.gaps.items():
            total[reason] = total.get(reason, 0) + count
    return total


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
