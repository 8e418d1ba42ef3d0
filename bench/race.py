"""One contender copies the whole topic once, on brokers that stay up, and is measured from outside."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import psutil

from bench.arrivals import Arrivals
from bench.contenders import Contender, Flow, log_file
from bench.errors import BenchFailed
from bench.proctree import CpuTime, PeakMemory, cpu_time, tree_cpu_time
from bench.shapes import Shape
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.process import end

_START_PATIENCE_S = 120.0
_COPY_PATIENCE_S = 900.0
_STOP_PATIENCE_S = 20.0
_CLEAN_UP_S = 30.0
_SETTLE_S = 3.0
_LOG_TAIL_LINES = 15


@dataclass(frozen=True)
class Outcome:
    """What one run was like. MB and GB are 10^6 and 10^9 bytes of values, before compression."""

    contender: str
    start_s: float
    """From the start of the process to the first record visible on the target."""
    copy_s: float
    """From the first to the last record visible on the target."""
    records_per_s: float
    """Of what became visible after that first look."""
    mb_per_s: float
    cpu_s_per_gb: float
    """Of the replicator, user and system, all its processes, between the first and the last record."""
    whole_cpu_s: float
    """The same since the start of the process, in seconds."""
    peak_rss_mb: float
    """Of all its processes together, since the start."""
    broker_system_s_per_gb: float
    broker_user_s_per_gb: float
    """Of both brokers, between the first and the last record."""
    duplicates: int
    """Records on the target beyond those on the source."""


@dataclass(frozen=True)
class _Clock:
    """All that is counted, at one moment."""

    replicator: CpuTime
    brokers: CpuTime


class Course:
    """Two brokers, the loaded topic, and a fresh pair of aliases for each run."""

    def __init__(self, brokers: tuple[LocalKafka, LocalKafka], clusters: tuple[Cluster, Cluster], topic: str) -> None:
        self._brokers = brokers
        self._source, self._target = clusters
        self._topic = topic
        self._runs = 0
        self._broker_processes = [psutil.Process(broker.pid) for broker in brokers]

    def run(self, contender: Contender, shape: Shape, folder: Path) -> Outcome:
        """Raises BenchFailed, with the end of its log, when the contender dies or does not copy."""
        self._runs += 1
        source, target = (broker.bootstrap for broker in self._brokers)
        flow = Flow(f"A{self._runs}", f"B{self._runs}", source, target, self._topic)
        place = folder / f"run-{self._runs}"
        try:
            return self._measure(contender, shape, flow, place)
        finally:
            self._clean_up()

    def _measure(self, contender: Contender, shape: Shape, flow: Flow, place: Path) -> Outcome:
        arrivals = Arrivals(self._target, flow.remote_topic, shape.partitions)
        began = time.monotonic()
        process = contender.launch(flow, place)

        def check() -> None:
            if process.poll() is not None:
                raise BenchFailed(f"it ended with exit code {process.returncode}.")

        try:
            with PeakMemory(process.pid).watching() as memory:
                first = arrivals.wait(1, _START_PATIENCE_S, check)
                at_first = self._read_clocks(process)
                last = arrivals.wait(shape.records, _COPY_PATIENCE_S, check)
                at_last = self._read_clocks(process)
        except BenchFailed as exc:
            raise BenchFailed(f"{contender.title}: {exc}\n{_tail(place)}") from exc
        finally:
            end(process, patience_s=_STOP_PATIENCE_S)
        copied = last.records - first.records
        if copied <= 0:
            raise BenchFailed(f"{contender.title} had copied everything at the first look: use more records.")
        copy_s = last.at_s - first.at_s
        gigabytes = copied * shape.record_bytes / 1e9
        brokers = at_last.brokers - at_first.brokers
        return Outcome(
            contender=contender.name,
            start_s=first.at_s - began,
            copy_s=copy_s,
            records_per_s=copied / copy_s,
            mb_per_s=gigabytes * 1000 / copy_s,
            cpu_s_per_gb=(at_last.replicator - at_first.replicator).total_s / gigabytes,
            whole_cpu_s=at_last.replicator.total_s,
            peak_rss_mb=memory.peak_bytes / 1e6,
            broker_system_s_per_gb=brokers.system_s / gigabytes,
            broker_user_s_per_gb=brokers.user_s / gigabytes,
            duplicates=arrivals.now().records - shape.records,
        )

    def _read_clocks(self, process: Popen[bytes]) -> _Clock:
        brokers = CpuTime()
        for broker in self._broker_processes:
            brokers += cpu_time(broker)
        return _Clock(tree_cpu_time(process.pid), brokers)

    def _clean_up(self) -> None:
        """Deletes what the run left, and waits until neither the brokers nor the disk are busy with it any more."""
        _delete_topics(self._target, keep=())
        _delete_topics(self._source, keep=(self._topic,))
        os.sync()  # or the next run shares the disk with this one's dirty pages
        time.sleep(_SETTLE_S)


def _delete_topics(cluster: Cluster, keep: Iterable[str]) -> None:
    admin = Admin(cluster)
    deadline = time.monotonic() + _CLEAN_UP_S
    while left := admin.list_topics() - set(keep):
        if time.monotonic() > deadline:
            raise BenchFailed(f"{len(left)} topics of an earlier run cannot be deleted, {min(left)} for one.")
        admin.delete_topics(left)
        time.sleep(0.2)


def _tail(place: Path) -> str:
    return "\n".join(log_file(place).read_text(errors="replace").splitlines()[-_LOG_TAIL_LINES:])
