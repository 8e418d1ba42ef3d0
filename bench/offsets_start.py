"""How long a worker needs to read its offsets topic at the start: ours and Java's, on the same broker, one after another.

    python -m bench.offsets_start [--records 2000000] [--keys 1000] [--record-bytes 100] [--runs 3] [--per-batch 100]

Each worker is started with an empty offsets topic and with a full one; what counts is the difference of the times until its
``/health`` answers 200, which issue 5 of the project wants to be at most a third of Java's. Best on a machine that does nothing
else; slow starts are awaited.
"""

from __future__ import annotations

import argparse
import functools
import secrets
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from confluent_kafka import Producer

from bench.errors import BenchFailed
from bench.outcome import Figure
from bench.workers import KINDS, RESULTS, Kind, Section, one_broker
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import NewTopic
from tests.systems.workers import WorkerProcess, distributed_props

PARTITIONS = 25
EMPTY, FULL, ADDED = Figure("empty s", 2), Figure("full s", 2), Figure("added s", 2)
ADDED_CPU, ADDED_MEMORY = Figure("added CPU s", 2), Figure("added RSS MB")
FIGURES = (EMPTY, FULL, ADDED, ADDED_CPU, ADDED_MEMORY)
_PATIENCE_S = 1800.0


@dataclass(frozen=True, slots=True)
class Start:
    """Seconds until healthy, CPU seconds and resident MB at that moment."""

    seconds: float
    cpu_s: float
    rss_mb: float


def offsets(records: int, keys: int, record_bytes: int) -> Iterator[tuple[bytes, bytes]]:
    """Keys and values as a source connector's commits leave them, together so many bytes a record."""
    for number in range(records):
        key = b'["a-source-connector",{"partition":%d,"topic":"some.topic"}]' % (number % keys)
        value = b'{"offset":%d}' % number
        missing = record_bytes - len(key) - len(value)
        yield key, value if missing < 9 else b'{"offset":%d,"x":"%s"}' % (number, b"x" * (missing - 7))


def preload(bootstrap: str, topic: str, arguments: argparse.Namespace) -> None:
    """Creates the topic as a worker would, except that nothing compacts it, and fills it."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": bootstrap}, client_id="preload"), name="bench")
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "1.0", "segment.bytes": str(1 << 30)}
    made = Admin(cluster).create_topics([NewTopic(topic, PARTITIONS, 1, configs)])[topic]
    cluster.close()
    if isinstance(made, KafkaFailure):
        raise made
    settings = {
        "bootstrap.servers": bootstrap,
        "log_level": 0,
        "batch.num.messages": arguments.per_batch,
        "linger.ms": 500,
        "acks": 1,
        "message.timeout.ms": int(_PATIENCE_S * 1000),
    }
    producer = Producer({**settings, "queue.buffering.max.messages": 500_000})
    place = functools.cache(partition_for)
    for number, (key, value) in enumerate(offsets(arguments.records, arguments.keys, arguments.record_bytes)):
        while True:
            try:
                producer.produce(topic, value, key, partition=place(key, PARTITIONS))
                break
            except BufferError:
                producer.poll(0.05)
        if number % 1000 == 0:
            producer.poll(0)
    if producer.flush(_PATIENCE_S):
        raise SystemExit("the offsets could not be written")


def start(kind: type[WorkerProcess], bootstrap: str, folder: Path, offsets_topic: str) -> Start:
    """One start and stop. Raises BenchFailed."""
    props = distributed_props(bootstrap, f"bench-{secrets.token_hex(3)}")
    props |= {"offset.storage.topic": offsets_topic, "offset.storage.partitions": str(PARTITIONS)}
    # So that workers keep their group membership on a busy machine.
    props |= {"session.timeout.ms": "120000", "heartbeat.interval.ms": "3000"}
    worker = kind(folder, props)
    began = time.monotonic()
    worker.launch()
    try:
        while True:
            if not worker.is_running or time.monotonic() - began > _PATIENCE_S:
                raise BenchFailed(worker.tail())
            try:
                if worker.rest.http.get("/health", timeout=120).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        seconds = time.monotonic() - began
        process = psutil.Process(worker.pid)
        times = process.cpu_times()
        return Start(seconds, times.user + times.system, process.memory_info().rss / 1e6)
    finally:
        worker.stop(_PATIENCE_S)
        worker.rest.http.close()


def one_run(kind: Kind, bootstrap: str, folder: Path) -> dict[str, float]:
    """A start with each topic. Raises BenchFailed."""
    empty, full = (start(kind.worker, bootstrap, folder / topic, topic) for topic in ("empty", "full"))
    return {
        EMPTY.name: empty.seconds,
        FULL.name: full.seconds,
        ADDED.name: full.seconds - empty.seconds,
        ADDED_CPU.name: full.cpu_s - empty.cpu_s,
        ADDED_MEMORY.name: full.rss_mb - empty.rss_mb,
    }


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("records", 2_000_000),
        ("keys", 1000),
        ("record-bytes", 100),
        ("runs", 3),
        ("per-batch", 100),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=list(KINDS), help="measure only this worker")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the page of results")
    options = parser.parse_args()
    section = Section(
        "offsets at the start",
        f"What {options.records:,} offset records of {options.record_bytes} bytes, {options.keys:,} keys, {PARTITIONS} partitions "
        "add to a worker's start",
        FIGURES,
        (ADDED, ADDED_CPU),
    )
    with (
        tempfile.TemporaryDirectory() as name,
        one_broker(Path(name) / "kafka", {"log.cleaner.enable": "false"}) as broker,
    ):
        preload(broker.bootstrap, "full", options)
        preload(broker.bootstrap, "empty", argparse.Namespace(**{**vars(options), "records": 0}))
        for run in range(options.runs):
            for kind in [options.only] if options.only else KINDS:
                try:
                    found = one_run(KINDS[kind], broker.bootstrap, Path(name) / f"{kind}-{run}")
                    section.add(kind, found)
                except BenchFailed as failure:
                    section.fail(kind, failure)
    sys.stdout.write("\n".join(section.lines()) + "\n")
    section.put(options.results)
    return 1 if section.failures else 0


if __name__ == "__main__":
    sys.exit(main())
