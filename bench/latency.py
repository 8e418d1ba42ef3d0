"""Steady traffic: how long after being made a record can be read on the target, and on the source."""

import json
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from subprocess import Popen
from typing import Any

from bench.arrivals import Arrivals
from bench.cluster_pair import ClusterPair
from bench.contenders import NOTHING, Contender
from bench.errors import BenchFailed
from bench.outcome import Figure, Outcome
from bench.proctree import PeakMemory, tree_cpu_time
from bench.race import clean_up, create_topic, log_tail, still_running
from bench.requests import request_counts
from bench.stamps import VALUE_BYTES
from mm2.sandbox.process import end, spawn

PARTITIONS = 8
_FOLDER = Path(__file__).resolve().parent
_START_PATIENCE_S = 120.0
_WARM_UP_S = 15.0
_WATCHER_PATIENCE_S = 60.0
_TOLD_SECONDS = 5
_LONG_S = 300

P50, P99, P999 = Figure("p50 ms", 2), Figure("p99 ms", 2), Figure("p99.9 ms", 2)
LONGEST = Figure("max ms", 1)
FLOOR_P50, FLOOR_P99, FLOOR_LONGEST = Figure("source p50 ms", 2), Figure("source p99 ms", 2), Figure("source max ms", 1)
"""The noise floor: the same records, read by the same consumer on the source broker."""
CPU_SHARE = Figure("CPU %", 1)
"""Of the replicator, all its processes, in percent of one core."""
MEMORY = Figure("peak RSS MB")
MISSING = Figure("missing")
"""Records that were seen on the source and, half a minute after the end, not on the target."""

BROKER_CPU_SHARE = Figure("brokers' CPU %", 1)
"""Of both brokers, in percent of one core; the producer and the watcher cause a part of it."""
FETCHES, PRODUCES = Figure("Fetch/s"), Figure("Produce/s")
"""Requests that the source and the target answer in a second; the watcher's Fetch requests are among them."""

FIGURES = (
    *(P50, P99, P999, LONGEST, FLOOR_P50, FLOOR_P99, FLOOR_LONGEST, CPU_SHARE, BROKER_CPU_SHARE, FETCHES, PRODUCES),
    *(MEMORY, MISSING),
)
COMPARED = (P50, P99, P999, LONGEST, CPU_SHARE, BROKER_CPU_SHARE, FETCHES, PRODUCES)


@dataclass(frozen=True)
class Traffic:
    """`rate` in records per second, watched for `seconds`.

    A batch each millisecond, or with `batch_records` so many records in each batch. `tasks` is tasks.max of all
    contenders. `cold`: each run has brokers of its own, and is watched from the first record that is copied.
    """

    rate: int
    seconds: int
    partitions: int = PARTITIONS
    batch_records: int = 0
    tasks: int = 0
    cold: bool = False

    @property
    def name(self) -> str:
        """Also what it is called on the command line."""
        parts = (
            f"latency-{self.rate}",
            f"{self.partitions}p" if self.partitions != PARTITIONS else "",
            f"batches-of-{self.batch_records}" if self.batch_records else "",
            f"{self.tasks}-tasks" if self.tasks else "",
            "cold" if self.cold else "",
            "max" if self.seconds >= _LONG_S else "",
        )
        return "-".join(filter(None, parts))

    @property
    def title(self) -> str:
        """In a report."""
        parts = (
            f"latency at {self.rate:,} records of {VALUE_BYTES} B per second over {self.seconds} s",
            f"{self.partitions} partitions",
            f"{self.batch_records} records a batch" if self.batch_records else "",
            f"tasks.max={self.tasks}" if self.tasks else "",
            "brokers just started" if self.cold else "",
        )
        return ", ".join(filter(None, parts))

    @property
    def more(self) -> Mapping[str, str]:
        """Settings of all contenders."""
        return {"tasks.max": str(self.tasks)} if self.tasks else {}


class Line:
    """A pair of clusters on which one contender after another copies a topic of its own while it is written."""

    def __init__(self, pair: ClusterPair) -> None:
        self._pair = pair
        self._runs = 0

    def run(self, contender: Contender, traffic: Traffic, folder: Path) -> Outcome:
        """Raises BenchFailed, with the end of its log, when the contender dies or does not copy.

        Without a replicator only the figures of the source and of the brokers are measured.
        """
        self._runs += 1
        topic = f"steady-{self._runs}"
        place = folder / f"run-{self._runs}"
        create_topic(self._pair.clusters[0], topic, traffic.partitions)
        bootstrap = self._pair.brokers[0].bootstrap
        shape = (traffic.partitions, traffic.rate, traffic.batch_records)
        producer = _python("steady.py", bootstrap, topic, *shape, to=folder / "producer.log")
        try:
            if contender is NOTHING:
                return self._measure_floor(traffic, topic, place, producer)
            return self._measure(contender, traffic, topic, place, producer)
        finally:
            end(producer)
            clean_up(self._pair, keep=())

    def _measure(
        self, contender: Contender, traffic: Traffic, topic: str, place: Path, producer: Popen[bytes]
    ) -> Outcome:
        flow = replace(self._pair.flow(self._runs, topic), more=traffic.more)
        arrivals = Arrivals(self._pair.clusters[1], flow.remote_topic, traffic.partitions)
        process = contender.launch(flow, place)
        check = _both_running(process, producer)
        try:
            with PeakMemory(process.pid).watching() as memory:
                arrivals.wait(1, _START_PATIENCE_S, check)
                copied_since = time.monotonic()
                if not traffic.cold:
                    time.sleep(_WARM_UP_S)  # what waited is copied, and Java's compiler has seen the work
                counted_since, requests = time.monotonic(), self._requests()
                cpu, broker_cpu = tree_cpu_time(process.pid), self._pair.broker_cpu_time()
                watched_since = time.monotonic()
                seen = self._watch((topic, flow.remote_topic), traffic, place, check)
                cpu, broker_cpu = tree_cpu_time(process.pid) - cpu, self._pair.broker_cpu_time() - broker_cpu
                watched_s = time.monotonic() - watched_since
                # Reading the counters takes as long both times, so the time between is that between the two calls.
                counted_s = time.monotonic() - counted_since
                requests = tuple(after - before for before, after in zip(requests, self._requests(), strict=True))
        except BenchFailed as exc:
            raise BenchFailed(f"{contender.title}: {exc}\n{log_tail(place)}") from exc
        finally:
            end(process, patience_s=20.0)
        source, target = seen["source"], seen["target"]
        figures = {
            P50: target["p50"],
            P99: target["p99"],
            P999: target["p999"],
            LONGEST: target["max"],
            FLOOR_P50: source["p50"],
            FLOOR_P99: source["p99"],
            FLOOR_LONGEST: source["max"],
            CPU_SHARE: 100 * cpu.total_s / watched_s,
            BROKER_CPU_SHARE: 100 * broker_cpu.total_s / watched_s,
            FETCHES: requests[0] / counted_s,
            PRODUCES: requests[1] / counted_s,
            MEMORY: memory.peak_bytes / 1e6,
            MISSING: source["records"] - target["records"],
        }
        return Outcome(
            contender.name,
            {figure.name: value for figure, value in figures.items()},
            [_worst_seconds(seen, watched_since - copied_since)],
        )

    def _measure_floor(self, traffic: Traffic, topic: str, place: Path, producer: Popen[bytes]) -> Outcome:
        place.mkdir(parents=True)
        if not traffic.cold:
            time.sleep(_WARM_UP_S)
        counted_since, requests, broker_cpu = time.monotonic(), self._requests(), self._pair.broker_cpu_time()
        source = self._watch((topic,), traffic, place, lambda: _check_producer(producer))["source"]
        counted_s, broker_cpu = time.monotonic() - counted_since, self._pair.broker_cpu_time() - broker_cpu
        fetches = self._requests()[0] - requests[0]
        figures = {
            FLOOR_P50: source["p50"],
            FLOOR_P99: source["p99"],
            FLOOR_LONGEST: source["max"],
            BROKER_CPU_SHARE: 100 * broker_cpu.total_s / counted_s,
            FETCHES: fetches / counted_s,
        }
        return Outcome(NOTHING.name, {figure.name: value for figure, value in figures.items()})

    def _requests(self) -> tuple[int, ...]:
        """The number of Fetch requests to the source and of Produce requests to the target until now."""
        source, target = (request_counts(broker.pid) for broker in self._pair.brokers)
        return source["Fetch"], target["Produce"]

    def _watch(
        self, topics: tuple[str, ...], traffic: Traffic, place: Path, check: Callable[[], None]
    ) -> dict[str, Any]:
        bootstraps = [broker.bootstrap for broker in self._pair.brokers]
        sides = [part for side in zip(bootstraps, topics, strict=False) for part in side]
        output = place / "watcher.json"
        watcher = _python("watcher.py", traffic.partitions, traffic.seconds, *sides, to=output)
        deadline = time.monotonic() + traffic.seconds + _WATCHER_PATIENCE_S
        try:
            while watcher.poll() is None:
                check()
                if time.monotonic() > deadline:
                    raise BenchFailed("the watcher of the bench does not end.")
                time.sleep(0.5)
        finally:
            end(watcher)
        printed = output.read_text()
        with suppress(ValueError, IndexError):
            return dict(json.loads(printed.splitlines()[-1]))
        raise BenchFailed(f"the watcher of the benchmark failed: {printed[-500:]}")


def _both_running(process: Popen[bytes], producer: Popen[bytes]) -> Callable[[], None]:
    check = still_running(process)

    def check_both() -> None:
        check()
        _check_producer(producer)

    return check_both


def _check_producer(producer: Popen[bytes]) -> None:
    if producer.poll() is not None:
        raise BenchFailed("the producer of the bench ended.")


def _python(script: str, *arguments: object, to: Path) -> Popen[bytes]:
    return spawn([sys.executable, "-P", str(_FOLDER / script), *map(str, arguments)], output=to)


def _worst_seconds(seen: dict[str, Any], watched_from_s: float) -> str:
    """The longest delays and when they were, so that a hand-off between two micro-batches can be distinguished from noise."""
    source, target = seen["source"]["seconds"], seen["target"]["seconds"]
    worst = sorted(range(len(target)), key=lambda second: target[second], reverse=True)[:_TOLD_SECONDS]
    delays = ", ".join(
        f"{target[second]:.1f} ms at {watched_from_s + second:.0f} s (source {source[second]:.1f})"
        for second in sorted(worst)
    )
    return f"longest, in seconds since copying began: {delays}"
