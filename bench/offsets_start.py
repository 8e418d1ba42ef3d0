"""How long a worker's offsets topic keeps it from starting: ours and Java's, on the same broker, one after another.

    python -m bench.offsets_start [--records 2000000] [--keys 1000] [--record-bytes 100] [--runs 3] [--per-batch 100]

Each worker is started with an empty offsets topic and with a full one; what counts is the difference of the times until its
``/health`` answers 200. Best on a machine that does nothing else.
"""

from __future__ import annotations

import argparse
import functools
import os
import secrets
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
from confluent_kafka import Producer

from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.partitioner import partition_for
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import NewTopic
from mm2.sandbox.kafka import LocalKafka
from tests.systems.workers import DistributedWorker, JavaDistributedWorker, WorkerProcess, distributed_props

PARTITIONS = 25
WORKERS: dict[str, type[WorkerProcess]] = {
    "this project": DistributedWorker,
    "Java Connect 4.3.0": JavaDistributedWorker,
}


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
    settings = {"bootstrap.servers": bootstrap, "batch.num.messages": arguments.per_batch, "linger.ms": 500, "acks": 1}
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
    if producer.flush(300):
        raise SystemExit("the offsets could not be written")


def start(kind: type[WorkerProcess], bootstrap: str, folder: Path, offsets_topic: str) -> Start:
    """One start and stop."""
    props = distributed_props(bootstrap, f"bench-{secrets.token_hex(3)}")
    props |= {"offset.storage.topic": offsets_topic, "offset.storage.partitions": str(PARTITIONS)}
    worker = kind(folder, props)
    began = time.monotonic()
    worker.launch()
    try:
        while True:
            if not worker.is_running:
                raise SystemExit(worker.tail())
            try:
                if worker.rest.http.get("/health", timeout=30).status_code == 200:
                    break
            except httpx.TransportError:
                pass
            time.sleep(0.02)
        seconds = time.monotonic() - began
        process = psutil.Process(worker.pid)
        times = process.cpu_times()
        return Start(seconds, times.user + times.system, process.memory_info().rss / 1e6)
    finally:
        worker.stop()
        worker.rest.http.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (
        ("records", 2_000_000),
        ("keys", 1000),
        ("record-bytes", 100),
        ("runs", 3),
        ("per-batch", 100),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--only", choices=["ours", "java"], help="leave the other one out")
    arguments = parser.parse_args()
    workers = list(WORKERS.items())
    if arguments.only:
        workers = [workers[["ours", "java"].index(arguments.only)]]
    with (
        tempfile.TemporaryDirectory() as name,
        LocalKafka("bench", Path(name) / "kafka", heap="1g", overrides={"log.cleaner.enable": "false"}) as broker,
    ):
        began = time.monotonic()
        preload(broker.bootstrap, "full", arguments)
        preload(broker.bootstrap, "empty", argparse.Namespace(**{**vars(arguments), "records": 0}))
        print(f"{arguments.records:,} records of {arguments.record_bytes} bytes, {arguments.keys:,} keys, ", end="")
        print(f"{PARTITIONS} partitions, written in {time.monotonic() - began:.0f} s; {os.cpu_count()} cores")
        found: dict[tuple[str, str], list[Start]] = {}
        for run in range(arguments.runs):
            for label, kind in workers:
                for topic in ("empty", "full"):
                    folder = Path(name) / f"{label}-{topic}-{run}"
                    found.setdefault((label, topic), []).append(start(kind, broker.bootstrap, folder, topic))
        print("| worker | empty s | full s | added s | added CPU s | added RSS MB |")
        print("| --- | ---: | ---: | ---: | ---: | ---: |")
        for label, _ in workers:
            empty, full = (
                Start(
                    *(
                        statistics.median(getattr(one, field) for one in found[label, topic])
                        for field in Start.__slots__
                    )
                )
                for topic in ("empty", "full")
            )
            print(
                f"| {label} | {empty.seconds:.2f} | {full.seconds:.2f} | {full.seconds - empty.seconds:.2f} "
                f"| {full.cpu_s - empty.cpu_s:.2f} | {full.rss_mb - empty.rss_mb:.0f} |"
            )


if __name__ == "__main__":
    main()
