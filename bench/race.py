"""One contender copies the whole topic once, on brokers that stay up, and is measured from outside."""

import os
import time
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from bench.arrivals import Arrivals
from bench.cluster_pair import ClusterPair
from bench.contenders import Contender, log_file
from bench.errors import BenchFailed
from bench.outcome import Figure, Outcome
from bench.proctree import CpuTime, PeakMemory, tree_cpu_time
from bench.shapes import Shape
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.structs import NewTopic
from mm2.sandbox.process import end

_START_PATIENCE_S = 120.0
_COPY_PATIENCE_S = 900.0
_STOP_PATIENCE_S = 20.0
_CLEAN_UP_S = 30.0
_SETTLE_S = 3.0
_LOG_TAIL_LINES = 15

RATE = Figure("rec/s")
"""Of what became visible after the first look."""
THROUGHPUT = Figure("MB/s")
"""The same; MB and GB are 10^6 and 10^9 bytes of values, before compression."""
COPY = Figure("first → last s", 2)
"""From the first to the last record visible on the target."""
START = Figure("start → first s", 2)
"""From the start of the process to the first record visible on the target."""
CPU = Figure("CPU s/GB", 2)
"""Of the replicator, user and system, all its processes, between the first and the last record."""
CPU_IN_ALL = Figure("CPU s in all", 1)
"""The same since the start of the process, in seconds."""
MEMORY = Figure("peak RSS MB")
"""Of all its processes together, since the start."""
BROKER_SYSTEM = Figure("broker system s/GB", 2)
BROKER_USER = Figure("broker user s/GB", 2)
"""Of both brokers, between the first and the last record."""
BUSY = Figure("cores busy", 2)
"""CPU time of all of them, replicator and brokers, by the time that passed: near the number of cores, nothing waits."""
DUPLICATES = Figure("duplicates")
"""Records on the target beyond those on the source."""

FIGURES = (RATE, THROUGHPUT, COPY, START, CPU, CPU_IN_ALL, MEMORY, BROKER_SYSTEM, BROKER_USER, BUSY, DUPLICATES)

Watch = Callable[[int], AbstractContextManager[None]]


@dataclass(frozen=True)
class _Clock:
    """All counters at one time."""

    replicator: CpuTime
    brokers: CpuTime


class CopyRuns:
    """A pair of clusters, the loaded topic, and a fresh pair of aliases for each run."""

    def __init__(self, pair: ClusterPair, topic: str) -> None:
        self._pair = pair
        self._topic = topic
        self._runs = 0

    def run(
        self, contender: Contender, shape: Shape, folder: Path, watch: Watch = lambda _pid: nullcontext()
    ) -> Outcome:
        """`watch(process id)` surrounds the time between the first and the last record.

        Raises BenchFailed, with the end of its log, when the contender dies or does not copy.
        """
        self._runs += 1
        place = folder / f"run-{self._runs}"
        try:
            return self._measure(contender, shape, place, watch)
        finally:
            clean_up(self._pair, keep={self._topic})

    def _measure(self, contender: Contender, shape: Shape, place: Path, watch: Watch) -> Outcome:
        flow = self._pair.flow(self._runs, self._topic)
        exactly_once = self._pair.conditions.exactly_once
        arrivals = Arrivals(self._pair.clusters[1], flow.remote_topic, shape.partitions, committed=exactly_once)
        began = time.monotonic()
        process = contender.launch(flow, place)
        try:
            with PeakMemory(process.pid).watching() as memory:
                first = arrivals.wait(1, _START_PATIENCE_S, still_running(process))
                with watch(process.pid):
                    at_first = self._read_clocks(process)
                    last = arrivals.wait(shape.records, _COPY_PATIENCE_S, still_running(process), all_of_them=True)
                    at_last = self._read_clocks(process)
        except BenchFailed as exc:
            raise BenchFailed(f"{contender.title}: {exc}\n{log_tail(place)}") from exc
        finally:
            end(process, patience_s=_STOP_PATIENCE_S)
        copied = min(last.records, shape.records) - first.records
        if copied <= 0:
            raise BenchFailed(f"{contender.title} had copied everything at the first look: use more records.")
        copy_s = last.at_s - first.at_s
        gigabytes = copied * shape.record_bytes / 1e9
        brokers = at_last.brokers - at_first.brokers
        replicator = at_last.replicator - at_first.replicator
        arrived = arrivals.count() if exactly_once else arrivals.now().records
        if arrived < shape.records:
            raise BenchFailed(f"{contender.title}: {arrived:,} of {shape.records:,} records are on the target.")
        figures = {
            START: first.at_s - began,
            COPY: copy_s,
            RATE: copied / copy_s,
            THROUGHPUT: gigabytes * 1000 / copy_s,
            CPU: replicator.total_s / gigabytes,
            CPU_IN_ALL: at_last.replicator.total_s,
            MEMORY: memory.peak_bytes / 1e6,
            BROKER_SYSTEM: brokers.system_s / gigabytes,
            BROKER_USER: brokers.user_s / gigabytes,
            BUSY: (replicator + brokers).total_s / copy_s,
            DUPLICATES: arrived - shape.records,
        }
        return Outcome(contender.name, {figure.name: value for figure, value in figures.items()})

    def _read_clocks(self, process: Popen[bytes]) -> _Clock:
        return _Clock(tree_cpu_time(process.pid), self._pair.broker_cpu_time())


def still_running(process: Popen[bytes]) -> Callable[[], None]:
    """What raises BenchFailed when the process has ended."""

    def check() -> None:
        if process.poll() is not None:
            raise BenchFailed(f"it ended with exit code {process.returncode}.")

    return check


def create_topic(cluster: Cluster, name: str, partitions: int) -> None:
    """Raises KafkaFailure."""
    made = Admin(cluster).create_topics([NewTopic(name, partitions, 1)])[name]
    if made is not None:
        raise made


def clean_up(pair: ClusterPair, keep: Iterable[str], *, patience_s: float = _CLEAN_UP_S) -> None:
    """Delete the topics of a run and wait until the brokers and the disk have finished the deletion."""
    source, target = pair.clusters
    _delete_topics(target, (), patience_s)
    _delete_topics(source, keep, patience_s)
    os.sync()  # otherwise the next run shares the disk with dirty pages of this one
    time.sleep(_SETTLE_S)


def log_tail(place: Path) -> str:
    """The last log lines of the contender in that folder."""
    return "\n".join(log_file(place).read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])


def _delete_topics(cluster: Cluster, keep: Iterable[str], patience_s: float) -> None:
    admin = Admin(cluster)
    deadline = time.monotonic() + patience_s
    while left := admin.list_topics() - set(keep):
        if time.monotonic() > deadline:
            raise BenchFailed(f"{len(left)} topics of an earlier run cannot be deleted, {min(left)} for one.")
        admin.delete_topics(left)
        time.sleep(0.2)
