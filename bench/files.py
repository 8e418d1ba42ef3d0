"""A file into a topic and out again: FileStreamSource and FileStreamSink of ours beside Java's, on the same broker.

    python -m bench.files [--lines 1000000] [--line-bytes 100] [--runs 3] [--only ours|java] [--converter string|json]

What counts is the time from the first record, or byte, to the last, so neither the worker's start nor the group's. The broker
has a topic of one partition for each run; its logs and all files lie in memory if that has room. Best on a machine that does
nothing else; CPU time per record is the worker's own, and is most meaningful on such a machine.
"""

from __future__ import annotations

import argparse
import filecmp
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from bench import memory
from bench.errors import BenchFailed
from bench.outcome import Figure
from bench.workers import KINDS, RESULTS, Kind, Section, one_broker
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import LATEST, NewTopic, TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.systems.workers import STRING_CONVERTER, WorkerProcess, distributed_props

SOURCE, SINK = Figure("source rec/s"), Figure("sink rec/s")
SOURCE_CPU, SINK_CPU = Figure("source CPU µs/record", 1), Figure("sink CPU µs/record", 1)
_CONVERTERS = {"string": STRING_CONVERTER, "json": "org.apache.kafka.connect.json.JsonConverter"}
_PATIENCE_S = 1800.0
_LOOK_S = 0.01


def write_lines(file: Path, lines: int, line_bytes: int) -> None:
    """Lines of exactly so many bytes, their ends included."""
    letters = random.Random(1).choices("abcdefghijklmnopqrstuvwxyz ", k=line_bytes)
    text = "".join(letters)
    with file.open("w") as out:
        for number in range(lines):
            out.write(f"{number:010d} {text}"[: line_bytes - 1] + "\n")


class Watch:
    """How fast something grows to its end, and what the process that makes it grow takes for that."""

    def __init__(self, worker: WorkerProcess, size: Callable[[], int], whole: int) -> None:
        self._worker = worker
        self._size = size
        self._whole = whole

    def run(self) -> tuple[float, float]:
        """Share of the whole per second, and CPU seconds for all of it. Raises BenchFailed when it takes too long."""
        process = psutil.Process(self._worker.pid)
        deadline = time.monotonic() + _PATIENCE_S
        while not (first := self._size()):
            self._go_on(deadline)
        began, cpu = time.monotonic(), _cpu_s(process)
        while (now := self._size()) < self._whole:
            self._go_on(deadline)
        if now > self._whole:
            raise BenchFailed(f"{now} of {self._whole} are there.")
        share = (self._whole - first) / self._whole
        if not share:
            raise BenchFailed("It was all there at once: take more lines.")
        return share / (time.monotonic() - began), (_cpu_s(process) - cpu) / share

    def _go_on(self, deadline: float) -> None:
        if not self._worker.is_running or time.monotonic() > deadline:
            raise BenchFailed(f"{self._size()} of {self._whole} are there. {self._worker.tail()}")
        time.sleep(_LOOK_S)


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


class Race:
    """One broker and one file for all runs."""

    def __init__(self, broker: LocalKafka, cluster: Cluster, folder: Path, lines: int, converter: str) -> None:
        self._broker = broker
        self._admin = Admin(cluster)
        self._folder = folder
        self._file = folder / "lines.txt"
        self._lines = lines
        self._converter = _CONVERTERS[converter]

    def run(self, kind: Kind, name: str) -> dict[str, float]:
        """Raises BenchFailed and KafkaFailure."""
        topic, place = f"{name}-lines", self._folder / name
        made = self._admin.create_topics([NewTopic(topic, 1, 1)])[topic]
        if isinstance(made, KafkaFailure):
            raise made
        props = {**distributed_props(self._broker.bootstrap, name), "session.timeout.ms": "60000"}
        props |= {"key.converter": self._converter, "value.converter": self._converter}
        with _running(kind.worker(place, props)) as worker:
            source = {"connector.class": "FileStreamSource", "topic": topic, "file": str(self._file)}
            worker.rest.create("source", {**source, "tasks.max": "1"})
            into, into_cpu = Watch(worker, lambda: self._end_of(topic), self._lines).run()
            worker.rest.delete("source")
            copy = place / "copy.txt"
            sink = {"connector.class": "FileStreamSink", "topics": topic, "file": str(copy), "tasks.max": "1"}
            worker.rest.create("sink", sink)
            size = self._file.stat().st_size
            out, out_cpu = Watch(worker, lambda: copy.stat().st_size if copy.exists() else 0, size).run()
            worker.rest.delete("sink")
        if not filecmp.cmp(self._file, copy, shallow=False):
            raise BenchFailed(f"What came out of {topic} is not what went in.")
        self._admin.delete_topics([topic])
        copy.unlink()
        return {
            SOURCE.name: into * self._lines,
            SOURCE_CPU.name: into_cpu / self._lines * 1e6,
            SINK.name: out * self._lines,
            SINK_CPU.name: out_cpu / self._lines * 1e6,
        }

    def _end_of(self, topic: str) -> int:
        tp = TopicPartition(topic, 0)
        found = self._admin.list_offsets({tp: LATEST})[tp]
        if isinstance(found, KafkaFailure):
            raise found
        return found.offset


@contextmanager
def _running(worker: WorkerProcess) -> Iterator[WorkerProcess]:
    worker.launch()
    try:
        worker.await_healthy(_PATIENCE_S)
        yield worker
    finally:
        worker.stop(120)
        worker.rest.http.close()


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lines", type=int, default=1_000_000)
    parser.add_argument("--line-bytes", type=int, default=100)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--only", choices=list(KINDS), help="leave the other one out")
    parser.add_argument("--converter", choices=list(_CONVERTERS), default="string")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the page of results")
    options = parser.parse_args()
    section = Section(
        f"files, {options.converter}",
        f"Lines of {options.line_bytes} bytes through FileStreamSource into a topic of one partition and out by FileStreamSink: "
        f"{options.lines:,} of them, {options.converter} converters",
        (SOURCE, SOURCE_CPU, SINK, SINK_CPU),
        (SOURCE, SINK),
    )
    folder = Path(tempfile.mkdtemp(prefix="mm2-files-", dir=memory.folder()))
    try:
        with one_broker(folder / "broker", {"log.segment.delete.delay.ms": "500"}) as broker:
            cluster = Cluster(
                ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}, client_id="bench"), name="b"
            )
            write_lines(folder / "lines.txt", options.lines, options.line_bytes)
            race = Race(broker, cluster, folder, options.lines, options.converter)
            for run in range(options.runs):
                for name in [options.only] if options.only else list(KINDS)[:: 1 if run % 2 == 0 else -1]:
                    try:
                        section.add(name, race.run(KINDS[name], f"{name}-{run}"))
                    except (BenchFailed, AssertionError) as failure:
                        section.fail(name, failure)
            cluster.close()
        sys.stdout.write("\n".join(section.lines()) + "\n")
        section.put(options.results)
        return 1 if section.failures else 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
