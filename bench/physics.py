"""Run `line.py` and report the limits of the machine, with which all other figures are compared."""

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

from bench.cluster_pair import ClusterPair
from bench.errors import BenchFailed
from bench.outcome import Figure, Outcome
from bench.proctree import CpuTime
from bench.race import BROKER_SYSTEM, BROKER_USER, BUSY, CPU, THROUGHPUT, clean_up, create_topic
from bench.shapes import Shape
from mm2.sandbox.process import end, spawn

SYSTEM = Figure("of it system s/GB", 2)
FIGURES = (THROUGHPUT, CPU, SYSTEM, BROKER_SYSTEM, BROKER_USER, BUSY)

_SCRIPT = Path(__file__).with_name("line.py")
_PATIENCE_S = 300.0
_BARE_GIGABYTES = 4.0


@dataclass(frozen=True)
class _Printed:
    """What one process printed."""

    begin: float
    end: float
    bytes: int
    user: float
    system: float


def bare(folder: Path) -> Outcome:
    """One receive, one CRC-32C pass and one send for each byte, without brokers. GB are bytes moved."""
    printed = _run(folder, ["bare", str(_BARE_GIGABYTES)])
    return Outcome("bare line", _figures(printed, printed[0].bytes / 1e9, CpuTime()))


def between_brokers(pair: ClusterPair, topic: str, shape: Shape, processes: int, folder: Path) -> Outcome:
    """Fetch, two CRC passes and Produce by so many processes, each with its share of the partitions. GB are bytes of
    values, as everywhere. Raises BenchFailed."""
    remote = f"line-{processes}.{topic}"
    create_topic(pair.clusters[1], remote, shape.partitions)
    trusted = pair.client.get("ssl.truststore.location")
    shares = [",".join(map(str, range(first, shape.partitions, processes))) for first in range(processes)]
    before = pair.broker_cpu_time()
    try:
        printed = _run(
            folder,
            *(["brokers", *pair.bootstraps, topic, remote, share, *([trusted] if trusted else [])] for share in shares),
        )
        brokers = pair.broker_cpu_time() - before
    finally:
        clean_up(pair, keep={topic})
    return Outcome(
        f"line, {processes} process{'es' if processes > 1 else ''}",
        _figures(printed, shape.payload_bytes / 1e9, brokers),
    )


def _figures(printed: Sequence[_Printed], gigabytes: float, brokers: CpuTime) -> dict[str, float]:
    elapsed_s = max(one.end for one in printed) - min(one.begin for one in printed)
    own_s = sum(one.user + one.system for one in printed)
    figures = {
        THROUGHPUT: gigabytes * 1000 / elapsed_s,
        CPU: own_s / gigabytes,
        SYSTEM: sum(one.system for one in printed) / gigabytes,
    }
    if brokers.total_s:
        figures[BROKER_SYSTEM] = brokers.system_s / gigabytes
        figures[BROKER_USER] = brokers.user_s / gigabytes
        figures[BUSY] = (own_s + brokers.total_s) / elapsed_s
    return {figure.name: value for figure, value in figures.items()}


def _run(folder: Path, *orders: Sequence[str]) -> list[_Printed]:
    folder.mkdir(parents=True, exist_ok=True)
    outputs = [folder / f"line-{index}.json" for index in range(len(orders))]
    for output in outputs:
        output.unlink(missing_ok=True)
    processes: list[Popen[bytes]] = []
    try:
        for order, output in zip(orders, outputs, strict=True):
            processes.append(spawn([sys.executable, "-P", str(_SCRIPT), *order], output=output))
        codes = [process.wait(_PATIENCE_S) for process in processes]
    finally:
        for process in processes:
            end(process)
    if any(codes):
        raise BenchFailed(f"the line failed: {outputs[0].read_text(errors='replace')[-500:]}")
    return [_Printed(**json.loads(output.read_text().splitlines()[-1])) for output in outputs]
