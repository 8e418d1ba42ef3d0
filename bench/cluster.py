"""What the driver and the executors cost with many partitions, in local mode and on a Spark cluster with four executors.

    python -m bench.cluster [--topics 1000] [--rate 2000] [--masters local cluster]

Topics of ten partitions with one record each. CPU time is measured for a minute at rest, then for a minute in which single records go
to all partitions in turn. The cluster is a standalone one on this machine, with authentication and encryption.
"""

from __future__ import annotations

import argparse
import secrets
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from subprocess import Popen
from typing import Final

import psutil

from bench import memory, report
from bench.cluster_pair import ClusterPair, open_cluster_pair
from bench.conditions import PLAIN
from bench.contenders import OURS
from bench.errors import BenchFailed
from bench.many import BROKER_SETTINGS, HEAP, await_copies, fill_topics, make_topics, traffic
from bench.proctree import CpuTime, cpu_time, session_members
from bench.race import clean_up, log_tail, still_running
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.errors import SandboxError
from mm2.sandbox.process import end
from tests.support.spark import LocalSpark

_REPOSITORY = Path(__file__).resolve().parents[1]
_PARTITIONS: Final = 10
_EXECUTORS, _CORES, _TASKS = 4, 2, 4
_PATIENCE_S: Final = 600.0
_SETTLE_S: Final = 30.0
_MINUTE_S: Final = 60.0


@dataclass(frozen=True)
class Usage:
    """CPU time and resident memory of the parts of a flow."""

    cpu: Mapping[str, CpuTime]
    bytes: Mapping[str, int]


DRIVER, JVM, EXECUTORS, WORKERS, BROKERS = (
    "driver, Python",
    "driver, JVM",
    "executors, JVM",
    "Python workers",
    "both brokers",
)


def usage(process: Popen[bytes], spark: LocalSpark | None, pair: ClusterPair) -> Usage:
    """Of all processes since their start; the processes of a worker that has ended are counted by its parent."""
    cpu = {BROKERS: pair.broker_cpu_time()}
    resident: dict[str, int] = {}
    executors = [
        child for pid in (spark.worker_pids if spark else ()) for child in psutil.Process(pid).children(recursive=True)
    ]
    for one, is_executor in [(one, False) for one in session_members(process.pid)] + [(one, True) for one in executors]:
        with suppress(psutil.Error):
            if one.pid == process.pid:
                part, used = DRIVER, _own(one)
            elif "java" in one.name():
                part, used = (EXECUTORS if is_executor else JVM), _own(one)
            else:
                part, used = WORKERS, cpu_time(one)
            cpu[part] = cpu.get(part, CpuTime()) + used
            resident[part] = resident.get(part, 0) + one.memory_info().rss
    return Usage(cpu, resident)


def _own(process: psutil.Process) -> CpuTime:
    """Without the children it has reaped, which are parts of their own."""
    times = process.cpu_times()
    return CpuTime(times.user, times.system)


@dataclass(frozen=True)
class Result:
    """CPU time by part in percent of a core, and memory in bytes."""

    master: str
    start_s: float
    idle: Mapping[str, float]
    busy: Mapping[str, float]
    bytes: Mapping[str, int]


def measure(pair: ClusterPair, topics: list[str], rate: int, master: str, number: int, folder: Path) -> Result:
    """Raises BenchFailed with the end of the log."""
    cluster = (
        LocalSpark(folder / "spark", workers=_EXECUTORS, cores=_CORES, executor_mb=512, secret=secrets.token_hex(16))
        if master == "cluster"
        else None
    )
    with cluster or nullcontext() as spark:
        more = {"tasks.max": str(_TASKS), **(spark.props if spark else {})}
        flow = replace(pair.flow(number, "many-.*"), more=more)
        began = time.monotonic()
        process = OURS.launch(flow, folder / "flow")
        try:
            places = {TopicPartition(flow.remote(topic), index) for topic in topics for index in range(_PARTITIONS)}
            await_copies(pair.clusters[1], places, 1, still_running(process))
            start_s = time.monotonic() - began
            time.sleep(_SETTLE_S)
            idle, _ = _minute(process, spark, pair)
            in_turn = [(topic, index) for index in range(_PARTITIONS) for topic in topics]
            with traffic(pair.brokers[0].bootstrap, in_turn, rate, b"x" * 200):
                time.sleep(_SETTLE_S)
                busy, last = _minute(process, spark, pair)
            await_copies(pair.clusters[1], places, 2, still_running(process))
            return Result(master, start_s, idle, busy, last.bytes)
        except BenchFailed as failure:
            raise BenchFailed(f"{master}: {failure}\n{log_tail(folder / 'flow')}") from failure
        finally:
            end(process, patience_s=30.0)
            clean_up(pair, keep=topics, patience_s=_PATIENCE_S)


def _minute(process: Popen[bytes], spark: LocalSpark | None, pair: ClusterPair) -> tuple[dict[str, float], Usage]:
    before = usage(process, spark, pair)
    time.sleep(_MINUTE_S)
    still_running(process)()
    after = usage(process, spark, pair)
    none = CpuTime()
    return {
        part: 100 * (used - before.cpu.get(part, none)).total_s / _MINUTE_S for part, used in after.cpu.items()
    }, after


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=1000, help="of ten partitions each (default: %(default)s)")
    parser.add_argument("--rate", type=int, default=2000, help="records/s in all (default: %(default)s)")
    parser.add_argument("--masters", nargs="+", choices=("local", "cluster"), default=("local", "cluster"))
    parser.add_argument(
        "--results", type=Path, default=_REPOSITORY / "bench" / "RESULTS.md", help="the page of results"
    )
    options = parser.parse_args()
    topics = [f"many-{index:05}" for index in range(options.topics)]
    results = []
    try:
        with tempfile.TemporaryDirectory(prefix="mm2-bench-", dir=memory.folder()) as place:
            folder = Path(place)
            with open_cluster_pair(folder, PLAIN, heap=HEAP, settings=BROKER_SETTINGS) as pair:
                make_topics(pair.clusters[0], topics, _PARTITIONS)
                fill_topics(pair.brokers[0].bootstrap, topics, _PARTITIONS)
                for number, master in enumerate(options.masters, start=1):
                    results.append(measure(pair, topics, options.rate, master, number, folder / master))
                    sys.stderr.write(f"{results[-1]}\n")
    except (BenchFailed, KafkaFailure, SandboxError) as failure:
        sys.stderr.write(f"bench.cluster: {failure}\n")
        return 1
    lines = _lines(results, options.topics * _PARTITIONS, options.rate)
    report.put(options.results, "driver and executors", *lines)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _lines(results: list[Result], partitions: int, rate: int) -> list[str]:
    titles = {
        "local": f"local mode, tasks.max={_TASKS}",
        "cluster": f"{_EXECUTORS} executors of {_CORES} slots, tasks.max={_TASKS}",
    }
    rows = [
        (
            f"| {titles[one.master]} | {part} | {one.idle.get(part, 0):.1f} | {one.busy.get(part, 0):.1f} | "
            f"{one.busy.get(part, 0) * 1e4 / partitions:.1f} | "
            + (f"{one.bytes[part] / 1e6:,.0f} |" if part in one.bytes else "- |")
        )
        for one in results
        for part in (DRIVER, JVM, EXECUTORS, WORKERS, BROKERS)
        if part in one.busy
    ]
    starts = ", ".join(f"{titles[one.master]} {one.start_s:.1f} s" for one in results)
    return [
        (
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {report.commit(_REPOSITORY)}. {partitions:,} partitions at rest for a minute, then {rate:,} single records of 200 B per second to all of them. From the start to "
            f"the first record of all: {starts}. {report.machine()}"
        ),
        "",
        "| | part | CPU % at rest | CPU % with traffic | µs per partition and second, with traffic | RSS MB |",
        "| --- | --- | ---: | ---: | ---: | ---: |",
        *rows,
    ]


if __name__ == "__main__":
    sys.exit(main())
