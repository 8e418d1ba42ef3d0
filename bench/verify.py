"""How fast `mm2 verify` compares a flow on this machine: one shape, copied by the product first, then compared.

    python -m bench.verify [--shape 1k] [--records N] [--runs 3] [--parallel N] [--results FILE]
    python -m bench.verify --in-memory      the comparison itself, in CPU time; needs no brokers

Counted are bytes read from both sides together, as they lie on the brokers, against the time from the command's report (without
the start of Spark) and against the wall clock. The brokers run on the same cores; their CPU time is reported separately from that of the command and
all its processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import secrets
import struct
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import psutil

from bench.cluster_pair import ClusterPair, open_cluster_pair
from bench.conditions import Conditions
from bench.errors import BenchFailed
from bench.preload import preload
from bench.proctree import session_members
from bench.report import commit, machine, put
from bench.shapes import SHAPES, Shape
from mm2.cli.common.flow import CommandError, ConfiguredFlow
from mm2.copy.progress.segments import Segment
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.batch import BatchView, check_crc, iter_batches
from mm2.kafka.records.record import Record, encode_batch
from mm2.verify.comparing.comparison import Comparison
from mm2.verify.comparing.passes import Pass, Route
from mm2.verify.comparing.spans import Span
from tests.integration.mirror_process import MirrorProcess, ends, write_config

ROOT: Final = Path(__file__).parents[1]
RESULTS: Final = ROOT / "bench" / "RESULTS.md"
_PATIENCE_S: Final = 3600.0


def copied(pair: ClusterPair, shape: Shape, topic: str, folder: Path) -> Path:
    """Have the shape on both sides; the properties file of the flow. Raises BenchFailed or KafkaFailure."""
    source, target = pair.brokers
    stored = preload(pair.clusters[0], source.bootstrap, topic, shape)
    sys.stderr.write(f"{stored.records_per_batch:.0f} records, {stored.bytes_per_batch:.0f} bytes a batch\n")
    props = {
        "clusters": "A, B",
        "A.bootstrap.servers": source.bootstrap,
        "B.bootstrap.servers": target.bootstrap,
        "A->B.enabled": "true",
        "A->B.topics": topic,
        "heartbeats.replication.enabled": "false",
    }
    file = write_config(folder / "mm2.properties", props)
    process = MirrorProcess(file, folder / "copy.log")
    wanted = ends(source, topic)
    deadline = time.monotonic() + _PATIENCE_S
    try:
        while True:
            with suppress(CommandError, KafkaFailure):
                ledger = ConfiguredFlow.of(file, "A->B").ledger()
                marks = {tp.partition: entry.mark.source for tp in ledger.partitions() if (entry := ledger.entry(tp))}
                if [marks.get(index, 0) for index in range(len(wanted))] == wanted:
                    break
            if not process.is_running or time.monotonic() > deadline:
                raise BenchFailed(process.tail())
            time.sleep(1)
        process.stop()
    finally:
        process.clean_up()
    return file


def verified(pair: ClusterPair, file: Path, parallel: int) -> dict[str, Any]:
    """One run of the command: its report, and what it cost. Raises BenchFailed."""
    command = [
        sys.executable,
        "-P",
        "-m",
        "mm2.cli.mm2",
        "verify",
        str(file),
        "A->B",
        "--json",
        "--parallel",
        str(parallel),
    ]
    before = pair.broker_cpu_time()
    began = time.monotonic()
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    costs: dict[int, float] = {}  # of each process, the ended ones as they were last seen
    while process.poll() is None:
        for member in session_members(process.pid):
            with suppress(psutil.Error):
                times = member.cpu_times()
                costs[member.pid] = times.user + times.system
        if time.monotonic() - began > _PATIENCE_S:
            process.kill()
        time.sleep(0.2)
    wall_s = time.monotonic() - began
    out = process.stdout.read() if process.stdout is not None else ""
    if process.returncode != 0:
        raise BenchFailed(f"mm2 verify ended with {process.returncode}: {out[:2000]}")
    brokers = pair.broker_cpu_time() - before
    report = json.loads(out)
    return {
        "bytes": report["bytes_read"],
        "records": report["records"],
        "seconds": report["seconds"],
        "wall_s": wall_s,
        "cpu_s": sum(costs.values()),
        "broker_cpu_s": brokers.total_s,
    }


def section(shape: Shape, parallel: int, runs: list[dict[str, Any]], note: str) -> list[str]:
    """For RESULTS.md."""
    best = min(runs, key=lambda run: run["seconds"])
    per_minute = best["bytes"] / best["seconds"] * 60 / 1e9
    lines = [
        (
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {commit(ROOT)}. {machine()} {shape.records:,} records in {shape.partitions} partitions, {parallel} Spark tasks, brokers "
            f"on the same cores.{f' {note}' if note else ''}"
        ),
        "",
        "| run | MB read, both sides | s | wall s | MB/s | records/s of the source | CPU s per GB read | brokers' CPU s per GB read |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    for number, run in enumerate(runs, 1):
        size, seconds = run["bytes"], run["seconds"]
        cells = (
            f"{size / 1e6:,.0f}",
            f"{seconds:.1f}",
            f"{run['wall_s']:.1f}",
            f"{size / seconds / 1e6:,.0f}",
            f"{run['records'] / seconds:,.0f}",
            f"{run['cpu_s'] / size * 1e9:.2f}",
            f"{run['broker_cpu_s'] / size * 1e9:.2f}",
        )
        lines.append(f"| {number} | {' | '.join(cells)} |")
    return [
        *lines,
        "",
        f"The best of them is {per_minute:.1f} GB read a minute, {per_minute / 2:.1f} GB of source compared.",
        "",
    ]


class _Feed:
    """Batches out of memory, their CRC checked as a reader checks it."""

    log_start, log_end = 0, 1 << 40

    def __init__(self, per_batch: int, record_bytes: int, batches: int) -> None:
        payload = random.Random(1).randbytes(record_bytes)
        data = encode_batch([Record(None, payload, (), 1_700_000_000_000) for _ in range(per_batch)])
        self.bytes = batches * len(data)
        self._views: list[BatchView] = []
        for number in range(batches):
            struct.pack_into(">q", data, 0, number * per_batch)
            self._views += iter_batches(memoryview(bytes(data)))
        self._views.reverse()

    def read(self) -> BatchView | None:
        if not self._views:
            return None
        view = self._views.pop()
        if view.header is not None:
            check_crc(view.header, view.data)
        return view


def in_memory() -> None:
    """CPU seconds of the comparison per GB of both sides."""
    for title, record_bytes, per_batch, other, batches in (
        ("batches of 128 KB, passed on", 1024, 126, 126, 1200),
        ("batches of 16 KB with records of 100 B", 100, 148, 148, 4000),
        ("one record of 100 B a batch", 100, 1, 1, 60_000),
        ("batches of 128 KB, other ones on the target", 1024, 126, 63, 1200),
    ):
        records = per_batch * batches
        source, target = _Feed(per_batch, record_bytes, batches), _Feed(other, record_bytes, records // other)
        route = Route((Segment(0, 0, records),))
        comparison = Comparison(Span("t", 0, "t", Pass(0, records, 0, records, route)), source, target)
        began = time.process_time()
        comparison.run()
        seconds = time.process_time() - began
        if comparison.findings.records != records:
            raise BenchFailed(f"{title}: {comparison.findings.records} of {records} records were found equal")
        size = source.bytes + target.bytes
        sys.stdout.write(
            f"{title}: {seconds / size * 1e9:.2f} CPU s per GB read, {records / seconds:,.0f} records per CPU s\n"
        )


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=SHAPES, default="1k")
    parser.add_argument("--records", type=int)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--parallel", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--note", default="", help="under which conditions it runs, for the results")
    parser.add_argument("--in-memory", action="store_true", help="only the comparison itself, without brokers")
    options = parser.parse_args()
    if options.in_memory:
        in_memory()
        return 0
    shape = SHAPES[options.shape]
    if options.records is not None:
        shape = replace(shape, records=options.records)
    try:
        with (
            tempfile.TemporaryDirectory(prefix="mm2-bench-") as name,
            open_cluster_pair(Path(name), Conditions()) as pair,
        ):
            file = copied(pair, shape, f"verify-{secrets.token_hex(3)}", Path(name))
            runs = []
            for number in range(options.runs):
                runs.append(verified(pair, file, options.parallel))
                sys.stderr.write(f"run {number + 1}: {runs[-1]}\n")
    except (BenchFailed, KafkaFailure) as failure:
        sys.stderr.write(f"bench.verify: {failure}\n")
        return 1
    lines = section(shape, options.parallel, runs, options.note)
    put(options.results, f"mm2 verify: {shape.title}", *lines)
    sys.stdout.write("\n".join(lines))
    return 0


if __name__ == "__main__":
    sys.exit(main())
