"""The Spark context of the process and the copy jobs that run on it."""

from __future__ import annotations

import contextlib
import functools
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, Self

import structlog

from mm2.copy.causes import StoppedPartition, causes_of, sentences_of
from mm2.copy.driver.batch import MicroBatch
from mm2.copy.driver.given_spark import GivenSpark
from mm2.copy.driver.identity import DriverIdentity
from mm2.copy.driver.jvm import SparkUnavailable, is_local
from mm2.copy.driver.lanes.job_lanes import Balancer, JobLanes
from mm2.copy.driver.lanes.lane import CurrentLedger, Lane, MovedPartition, Paused, Starts
from mm2.copy.driver.lanes.slots import Slots
from mm2.copy.driver.query_progress import Queries
from mm2.copy.driver.server import ChannelServer
from mm2.copy.driver.settings import given_props, is_encrypted, spark_props
from mm2.copy.driver.spark import Spark, failure_of, warm_up
from mm2.copy.driver.status import FlowStatus, LaneStatus, PartitionStatus
from mm2.copy.spec import Assignment, CopySpec, PartitionProgress
from mm2.copy.states import HEALTHY, LASTING, PartitionState
from mm2.copy.tally import Tally
from mm2.kafka.structs import TopicPartition
from mm2.reasons import SparkDown

_FINAL_REPORT_TIMEOUT_S: Final = 5.0
#: Port of the progress channel, for firewalls; any free port by default.
_CHANNEL_PORT_KEY: Final = "spark.mm2.channel.port"
_SLOTS_POLL_S: Final = 2.0
_SPARK_STOP_SHARE_S: Final = 3.0
_RESULT_S: Final = 2.0
#: Jobs at the same time, those that wait for a slot included: one that gets no thread would wait for ever, because it takes part in no turn.
_MOST_JOBS: Final = 1 << 14


class CopyEngine:
    """Starts Spark in the background and opens copy jobs. One engine serves all flows of a process.

    ``user_props`` are the user's ``spark.*`` keys; ``context`` is a SparkContext that the process was given (None: the engine
    starts its own). Raises ConfigException.
    """

    def __init__(self, user_props: Mapping[str, str], context: Any = None) -> None:
        self._log = structlog.get_logger(__name__)
        self.spark: Spark | GivenSpark
        if context is None:
            self._props = spark_props(user_props)
            self.spark = Spark(self._props, on_up=self._spark_is_up)
        else:
            self._props, late = given_props(user_props, dict(context.getConf().getAll()))
            self.spark = GivenSpark(context, on_up=self._spark_is_up)
            for warning in late:
                self._log.warning("%s", warning)
        self.is_local = is_local(self._props)
        self.slots = Slots(None if self.is_local else 0)
        self.queries = Queries()
        self.balancer = Balancer(self.slots, self._open_jobs)
        self._server: ChannelServer | None = None
        self._host = ""
        self._lock = threading.Lock()
        self._jobs: set[CopyJob] = set()
        self._finished_jobs: dict[str, _FinishedJobs] = {}  # by flow
        self._submitters = ThreadPoolExecutor(_MOST_JOBS, thread_name_prefix="spark-job")
        self._running: dict[str, MicroBatch] = {}  # batches whose Spark job has not returned, by id
        self._counted: Any = None  # the context whose slots are being counted
        self._stopped = threading.Event()

    @property
    def master(self) -> str:
        """The Spark master: ``spark.master``."""
        return self._props["spark.master"]

    @property
    def down(self) -> SparkDown | None:
        """Why no task can be started; None when tasks can be started, and while Spark starts for the first time."""
        return self.spark.down or (self.slots.down if self.spark.is_up else None)

    @property
    def ended(self) -> SparkDown | None:
        """That the given Spark context has ended; None before, and for an own one, which is replaced."""
        return self.spark.down if isinstance(self.spark, GivenSpark) else None

    def start(self) -> None:
        """Start Spark in the background. Idempotent."""
        self.spark.start()
        if not self.is_local:
            self.balancer.start()

    def open(
        self, spec: CopySpec, starts: Starts, pauses: Paused = dict, ledger: CurrentLedger = lambda: None
    ) -> CopyJob:
        """Start copying ``spec.partitions``; ``starts`` returns the start positions and ``pauses`` the pauses, see
        `mm2.copy.driver.lanes.lane`.
        """
        self.start()
        job = CopyJob(self, spec, starts, pauses, ledger)
        with self._lock:
            self._jobs.add(job)
        self.queries.started(spec)
        try:
            job.begin()
        except BaseException:
            # No more threads: the lanes that were started must not copy beside those of the next attempt.
            job.stop(_FINAL_REPORT_TIMEOUT_S)
            raise
        return job

    def stop(self, timeout_s: float = 10.0) -> None:
        """Stop all jobs, then Spark. What does not stop in time is killed. Idempotent."""
        deadline = time.monotonic() + timeout_s
        self.balancer.stop()
        with self._lock:
            self._stopped.set()
            jobs = list(self._jobs)
        for job in jobs:
            job.signal_stop()
        share_s = min(_SPARK_STOP_SHARE_S, timeout_s / 2)
        for job in jobs:
            job.stop(max(0.1, deadline - share_s - time.monotonic()))
        # Spark logs errors when its context stops while a task's result is in flight.
        self._submitters.shutdown(wait=False, cancel_futures=True)
        patience = min(deadline - share_s, time.monotonic() + _RESULT_S)
        while self._running and time.monotonic() < patience:
            time.sleep(0.01)
        for batch in list(self._running.values()):
            batch.ended("the copy engine is stopped")  # no batch may wait for a slot or continue
        self.spark.stop(max(0.5, deadline - time.monotonic()))
        if self._server is not None:
            self._server.close()

    def flow_status(self, flow: str) -> FlowStatus:
        """The status of the flow ``A->B`` in this process."""
        with self._lock:
            jobs = sorted((job for job in self._jobs if job.flow == flow), key=lambda job: job.task_id)
            left = self._finished_jobs.get(flow) or _FinishedJobs()
            before, tally = left.version, left.tally.copy()
            micro_batches, lost = Counter(left.micro_batches), left.lost
            copied, moves = left.copied, left.moves
        partitions: dict[TopicPartition, PartitionStatus] = {}
        lanes: list[LaneStatus] = []
        for job in jobs:
            partitions.update(job.partition_statuses(copied, before))
            tally.merge(job.tally())
            lanes += job.lanes()
            started, without_report = job.micro_batches()
            micro_batches[job.task_id] += started
            lost += without_report
            moves += job.division.moves
        gone = {tp: counts for tp, counts in copied.items() if tp not in partitions}
        return FlowStatus(
            partitions,
            gone,
            sum(status.records for status in partitions.values()) + sum(records for records, _ in gone.values()),
            sum(status.bytes for status in partitions.values()) + sum(size for _, size in gone.values()),
            tally,
            dict(micro_batches),
            lost,
            tuple(lanes),
            tuple(sorted({reason for job in jobs for reason in job.lane_reasons()})),
            moves,
        )

    def failing_lanes(self, flow: str) -> list[str]:
        """Why lanes of the flow ``A->B`` in this process cannot copy, one sentence for each; one for all while Spark is
        down.
        """
        if (down := self.down) is not None:
            return [down.message]
        with self._lock:
            jobs = [job for job in self._jobs if job.flow == flow]
        return [lane.failing for job in jobs for lane in job.lanes() if lane.failing]

    # -- for the lanes ---------------------------------------------------------------------------------------------

    def submit(self, lane: str, batch: MicroBatch) -> None:
        """Start a batch's Spark job in its own thread, once there is a slot for it."""
        with self._lock:
            if not self._stopped.is_set():
                self._running[batch.id] = batch
                self._submitters.submit(self._run_job, lane, batch)
                return
        batch.ended("the copy engine is stopped")

    def cancel(self, batch: MicroBatch) -> None:
        """End a batch's task: close its connection, then cancel the Spark job. Returns immediately."""
        if self._server is not None:
            self._server.forget(batch)
        batch.ended("the micro-batch was cancelled")
        if batch.id in self._running:
            self.spark.cancel(batch.job_group)

    def closed(self, job: CopyJob) -> None:
        """A job has ended. Its counts remain in the totals of the flow."""
        with self._lock:
            if is_open := job in self._jobs:
                self._jobs.discard(job)
                self._finished_jobs.setdefault(job.flow, _FinishedJobs()).add(job)
        if is_open:
            self.queries.terminated(job.spec, job.failure)
        self.balancer.wake()

    def _open_jobs(self) -> list[JobLanes]:
        with self._lock:
            return [job.division for job in sorted(self._jobs, key=lambda job: (job.flow, job.task_id))]

    def _resize(self, count: int | None) -> None:
        if count != self.slots.count:
            self.slots.resize(count)
            self.balancer.wake()

    def _run_job(self, lane: str, batch: MicroBatch) -> None:
        def report_wait(reason: str) -> None:
            batch.received({"type": "waiting", "reason": reason})

        server = None
        try:
            context = self.spark.context(until=batch.finished, on_wait=report_wait)
            if not self.slots.enter(batch.id, lane, batch.finished, report_wait):
                return
            report_wait("")
            server = self._server
            if server is None:
                return
            server.expect(batch)
            end = self._copied(context, batch, server)
            if end.get("state") == "stopped":
                # The final report is on the channel and may be received later than Spark's result.
                batch.finished.wait(_FINAL_REPORT_TIMEOUT_S)
            # A second attempt is rejected when Spark has lost the first one, which may still write.
            has_ended = end.get("state") in {"stopped", "failed"}
            batch.ended(end.get("reason") or "the Spark job ended", dead=has_ended)
        except SparkUnavailable as error:
            batch.ended(str(error))
        except Exception as error:  # noqa: BLE001
            if batch.granted:
                # When an executor has died with its job, its connection is closed.
                batch.finished.wait(_FINAL_REPORT_TIMEOUT_S)
            batch.ended(f"the Spark job failed: {failure_of(error)}")
            self.spark.check_jvm()
        finally:
            if server is not None:
                server.forget(batch)
            self.slots.leave(batch.id)
            self._running.pop(batch.id, None)

    def _copied(self, context: Any, batch: MicroBatch, server: ChannelServer) -> dict[str, str]:
        """Run the job and return how its task ended."""
        from mm2.copy.executor.task import run  # noqa: PLC0415  (imported together with Spark)

        assignment = Assignment(batch.id, self._host, server.address[1], batch.secret, server.fingerprint)
        # Job group and description are properties of this thread (pinned mode).
        context.setJobGroup(batch.job_group, f"{batch.name}, partitions: {len(batch.sources)}")
        rdd = context.parallelize([json.dumps(asdict(assignment))], 1).setName(batch.name)
        results = rdd.mapPartitions(run).setName(batch.name).collect()
        return dict(json.loads(results[0])) if results else {}

    def _spark_is_up(self, context: Any) -> None:
        """Listen on the driver's address, which is known when Spark runs. Raises OSError."""
        if self._server is None:
            conf = context.getConf()
            self._host = bind = "127.0.0.1"
            if not self.is_local:
                self._host = conf.get("spark.driver.host")
                bind = conf.get("spark.driver.bindAddress", self._host)
            identity = None if self.is_local else DriverIdentity.create()
            self._server = ChannelServer(bind, int(self._props.get(_CHANNEL_PORT_KEY, "0")), identity)
            if not (self.is_local or is_encrypted(dict(conf.getAll()))):
                self._log.warning(
                    "Spark's connections are not encrypted. An attacker who can read them can request a copy job, which contains the "
                    "clusters' credentials. Remove spark.network.crypto.enabled=false and spark.authenticate=false."
                )
        if self.is_local:
            self.slots.resize(_slots_of(context))
            if not self._running:
                threading.Thread(target=self._warm_up, args=(context,), name="spark-warm-up", daemon=True).start()
        else:
            self._counted = context
            threading.Thread(target=self._count_slots, args=(context,), name="spark-slots", daemon=True).start()

    def _warm_up(self, context: Any) -> None:
        with contextlib.suppress(Exception):  # if it fails, the next job fails, too, and reports it
            warm_up(context)

    def _count_slots(self, context: Any) -> None:
        """Update the number of slots until there is another context."""
        while self._counted is context:
            with contextlib.suppress(Exception):  # the context has stopped, or the JVM had no memory for the answer
                growing = _is_on(context.getConf(), "spark.dynamicAllocation.enabled")
                while not context._jsc.sc().isStopped():  # noqa: SLF001
                    # With dynamic allocation executors start only when jobs are submitted.
                    self._resize(None if growing else _slots_of(context))
                    if self.slots.down is not None:
                        self.spark.check_application(context)
                    if self._stopped.wait(_SLOTS_POLL_S):
                        return
            self.spark.check_jvm()
            if self._counted is context and not self.spark.is_up:
                self._resize(0)
            if self._stopped.wait(_SLOTS_POLL_S):
                return


def _slots_of(context: Any) -> int:
    """How many tasks can run at the same time."""
    spark = context._jsc.sc()  # noqa: SLF001
    return int(spark.maxNumConcurrentTasks(spark.resourceProfileManager().defaultResourceProfile()))


#: A batch that is being split is TOO_LARGE for a moment, and a new ACL takes a moment to reach all brokers.
_LASTING_AFTER_S: Final = 5.0
#: Maximum number of partitions that a status lists with state and reason. All of them are counted.
_UNHEALTHY_SHOWN: Final = 100


class CopyFailed(Exception):
    """No partition of a copy job can continue, or one cannot and partition.error=fail."""


@dataclass(frozen=True)
class _JobSummary:
    """The state of all partitions of a job, until one changes."""

    rows: list[PartitionProgress]
    stopped: list[PartitionProgress]
    lasting: list[PartitionProgress]
    totals: dict[str, int]
    gaps: dict[str, int]
    states: dict[str, int]
    not_well: list[dict[str, Any]]
    blocked_reasons: set[str]
    notes: set[str]

    @classmethod
    def of(cls, rows: list[PartitionProgress]) -> Self:
        totals = {
            "records": sum(row.records for row in rows),
            "bytes": sum(row.bytes for row in rows),
            "lag": sum(row.lag for row in rows),
            "lost_ranges": sum(row.lost for row in rows),
            "foreign_records": sum(row.foreign for row in rows),
        }
        stopped = [row for row in rows if row.stopped]
        lasting = [row for row in rows if row.stopped or row.state in LASTING]
        not_well = [_unhealthy_row(row) for row in rows if row.state not in HEALTHY][:_UNHEALTHY_SHOWN]
        blocked_reasons = {
            row.reason for row in rows if row.reason and row.state not in HEALTHY and row.state != PartitionState.PAUSED
        }
        notes = {row.reason for row in rows if row.reason and row.state in HEALTHY}
        states = dict(Counter(row.state for row in rows))
        return cls(rows, stopped, lasting, totals, _sum_gaps(rows), states, not_well, blocked_reasons, notes)


@dataclass(slots=True)
class _FinishedJobs:
    """Counts of a flow's finished jobs. ``copied`` (records, bytes) is replaced, never changed."""

    copied: dict[TopicPartition, tuple[int, int]] = field(default_factory=dict)
    tally: Tally = field(default_factory=Tally)
    micro_batches: Counter[int] = field(default_factory=Counter)
    lost: int = 0
    moves: int = 0
    version: int = 0

    def add(self, job: CopyJob) -> None:
        copied = dict(self.copied)
        for row in job.progress():
            records, size = copied.get(row.source, (0, 0))
            copied[row.source] = (records + row.records, size + row.bytes)
        self.copied = copied
        self.tally.merge(job.tally())
        started, lost = job.micro_batches()
        self.micro_batches[job.task_id] += started
        self.lost += lost
        self.moves += job.division.moves
        self.version += 1


class CopyJob:
    """One connector task's copying, over its lanes. Thread-safe."""

    def __init__(
        self,
        engine: CopyEngine,
        spec: CopySpec,
        starts: Starts,
        pauses: Paused = dict,
        ledger: CurrentLedger = lambda: None,
    ) -> None:
        self._engine = engine
        self._spec = spec
        self._starts = starts
        self._pauses = pauses
        self._ledger = ledger
        self._updated = threading.Condition()
        self._count = 0
        self._lock = threading.RLock()  # also that of its lanes, between which partitions move
        self.division = JobLanes(spec, self._lane, self._lock)
        self._lasting: dict[
            TopicPartition, float
        ] = {}  # since when (monotonic) they are in a state that requires an action
        self._seen: tuple[object, _JobSummary] | None = None
        self._shown: tuple[object, dict[TopicPartition, PartitionStatus]] | None = None
        self.flow, self.task_id = spec.flow, spec.task_id

    def begin(self) -> None:
        """Start the lanes: immediately, or on a cluster as soon as it has slots."""
        if self._engine.is_local:
            self.division.start(self.division.size(None).most)
            if self.division.failure:
                raise CopyFailed(self.division.failure)
        else:
            self._engine.balancer.wake()

    def _lane(self, index: int, spec: CopySpec, holds: bool, on_moved: Callable[[list[MovedPartition]], None]) -> Lane:
        name = f"{self._spec.flow} {self._spec.connector}-{self._spec.task_id} lane {index}"
        return Lane(
            name,
            spec,
            self._starts,
            submit=functools.partial(self._engine.submit, name),
            cancel=self._engine.cancel,
            on_update=self._notify,
            slots=self._engine.slots,
            pauses=self._pauses,
            ledger=self._ledger,
            holds=holds,
            lock=self._lock,
            on_moved=on_moved,
            on_left=self._engine.queries.ended,
        )

    @property
    def spec(self) -> CopySpec:
        """The work of the job."""
        return self._spec

    @property
    def failure(self) -> str:
        """Why the job or one of its lanes has ended by itself; empty otherwise."""
        failures = (self.division.failure, *(lane.failure for lane in self.division.all))
        return next(filter(None, failures), "")

    def wait(self, timeout_s: float) -> None:
        """Return on an update or after ``timeout_s``. Raises CopyFailed when no partition can continue, or when one
        cannot for some seconds and ``partition.error`` is fail.
        """
        with self._updated:
            seen = self._count
            self._updated.wait_for(lambda: self._count != seen, timeout_s)
        if failure := self.failure:
            raise CopyFailed(failure)
        if failed := self._failed():
            stopped = (StoppedPartition(row.source, row.state, row.reason) for row in failed)
            raise CopyFailed("; ".join(sentences_of(causes_of(stopped))))

    def _failed(self) -> list[PartitionProgress]:
        """The partitions because of which the task has to fail."""
        summary = self._summary()
        if self._spec.partition_error != "fail":
            return summary.stopped if len(summary.stopped) == len(self._spec.partitions) else []
        now = time.monotonic()
        self._lasting = {row.source: self._lasting.get(row.source, now) for row in summary.lasting}
        return [row for row in summary.lasting if row.stopped or now - self._lasting[row.source] >= _LASTING_AFTER_S]

    def throttle(self, rate: float, topics: Mapping[str, float]) -> None:
        """Change the limits: bytes per second of this job, and of single topics; 0 for none."""
        self._spec = replace(self._spec, throttle=rate, throttle_topics=dict(topics))
        self.division.limit(self._spec)

    def follow_pauses(self) -> None:
        """The pauses have changed."""
        for lane in self.division.all:
            lane.follow_pauses()

    def progress(self) -> list[PartitionProgress]:
        """Every partition that was reported."""
        return list(self._summary().rows)

    def partition_statuses(
        self, before: Mapping[TopicPartition, tuple[int, int]], version: int
    ) -> dict[TopicPartition, PartitionStatus]:
        """Every partition of the job. ``before`` contains what other jobs have copied of them (records, bytes),
        ``version`` is its version.
        """
        with self._lock:
            lanes = self.division.all
            made_of = (version, [(lane.changes, lane.is_reporting) for lane in lanes])
            shown = self._shown
            if shown is not None and shown[0] == made_of:
                return shown[1]
            fresh = {part: lane.is_reporting for lane in lanes for part in lane.sources}
            rows = {row.source: row for lane in lanes for row in lane.progress()}
        found = {}
        for part in self._spec.partitions:
            tp = part.source
            row, (records, size) = rows.get(tp), before.get(tp, (0, 0))
            if row is not None:
                records, size = records + row.records, size + row.bytes
            found[tp] = PartitionStatus(row, self.task_id, part.remote_topic, fresh.get(tp, False), records, size)
        self._shown = (made_of, found)
        return found

    def tally(self) -> Tally:
        """Counts of record batches."""
        with self._lock:
            total = self.division.ended.tally.copy()
            for lane in self.division.all:
                total.merge(lane.tally())
        return total

    def lanes(self) -> list[LaneStatus]:
        """The status of its lanes."""
        return [lane.status for lane in self.division.all]

    def micro_batches(self) -> tuple[int, int]:
        """How many were started, and how many lost, also in lanes that have ended."""
        with self._lock:
            lanes, ended = self.lanes(), self.division.ended
            return ended.batches + sum(lane.batch for lane in lanes), ended.lost + sum(lane.lost for lane in lanes)

    def blocked_reasons(self) -> list[str]:
        """Why the job, or a part of it, is blocked."""
        return sorted({*self.lane_reasons()} | self._summary().blocked_reasons)

    def status(self) -> dict[str, Any]:
        """Totals and messages, JSON-able: records, bytes, lag (offsets), batches, latency_ms, partitions, troubles
        (reasons why something is blocked), notes (messages about running partitions).
        """
        summary = self._summary()
        return {
            **summary.totals,
            "gaps": dict(summary.gaps),
            "states": dict(summary.states),
            "not_well": list(summary.not_well),
            "partitions": len(self._spec.partitions),
            "batches": self.micro_batches()[0],
            "latency_ms": max((lane.latency_ms for lane in self.division.all), default=[]),
            "troubles": self.blocked_reasons(),
            "notes": sorted(summary.notes),
        }

    def signal_stop(self) -> None:
        """Request the stop of all lanes."""
        self.division.close()

    def stop(self, timeout_s: float) -> bool:
        """Stop reading, wait for requests in flight and their commit; False on timeout."""
        self.signal_stop()
        deadline = time.monotonic() + timeout_s
        left = [lane for lane in self.division.all if not lane.join(max(0.0, deadline - time.monotonic()))]
        self._engine.closed(self)
        return not left

    def _summary(self) -> _JobSummary:
        with self._lock:
            lanes = self.division.all
            changes = tuple(lane.changes for lane in lanes)
            seen = self._seen
            if seen is None or seen[0] != changes:
                self._seen = seen = (changes, _JobSummary.of([row for lane in lanes for row in lane.progress()]))
        return seen[1]

    def lane_reasons(self) -> list[str]:
        """Why lanes are blocked, whatever the states of their partitions."""
        if not self.division.all:
            return [down.message] if (down := self._engine.down) is not None else []
        return [lane.blocked_reason for lane in self.division.all if lane.blocked_reason]

    def _notify(self) -> None:
        with self._updated:
            self._count += 1
            self._updated.notify_all()
        if self.division.is_moving:
            self._engine.balancer.wake()


def _is_on(conf: Any, key: str) -> bool:
    return str(conf.get(key, "false")).strip().lower() == "true"


def _unhealthy_row(row: PartitionProgress) -> dict[str, Any]:
    names = ("topic", "partition", "state", "reason", "offset", "since_ms", "stopped")
    return {name: getattr(row, name) for name in names}


def _sum_gaps(rows: list[PartitionProgress]) -> dict[str, int]:
    total: dict[str, int] = {}
    for row in rows:
        for reason, count in row.gaps.items():
            total[reason] = total.get(reason, 0) + count
    return total
