"""Throughput of a copy job while executors of a Spark standalone cluster join and leave.

    python -P -m bench.growth [BYTES_PER_SECOND_OF_A_LANE] [RECORDS_OF_A_PARTITION]

200 partitions are copied by 1, 2, 4 and 8 lanes, then by 4, 2 and 1. Each lane has a limit of its own, which is not divided, so that
one machine can show what more machines would do. Each executor has one slot; one slot more than lanes is for hand-offs. Executors are
killed. At the end all records have to be on the target once and in order.
"""

from __future__ import annotations

import contextlib
import os
import sys
import tempfile
import time
from pathlib import Path

import psutil

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.spec import CopySpec
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Flow, producer_of, read_all
from tests.support.spark import LocalSpark
from tests.support.waiting import wait_until

PARTITIONS = 200
LANES = (1, 2, 4, 8, 4, 2, 1)
_SETTLE_S = 4.0
_MEASURE_S = 12.0
_RECORD_BYTES = 1000


def kill(pid: int) -> None:
    """End a worker with its executors, as ``kill -9`` of its machine."""
    worker = psutil.Process(pid)
    for process in [*worker.children(recursive=True), worker]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def fill(broker: LocalKafka, topic: str, records: int) -> None:
    """Write numbered records to all partitions."""
    producer = producer_of(broker, linger__ms=100, batch__size=16384, enable__idempotence=True, acks="all")
    for number in range(records):
        for partition in range(PARTITIONS):
            producer.produce(topic, (b"%08d" % number).ljust(_RECORD_BYTES, b"x"), partition=partition)
        producer.poll(0)
        if number % 50 == 0:
            producer.flush(120)
    assert producer.flush(120) == 0


def check(broker: LocalKafka, topic: str, records: int) -> None:
    """Every partition has all records once and in order."""
    for first in range(0, PARTITIONS, 20):
        for partition, found in read_all(broker, topic, range(first, first + 20)).items():
            assert [int((record.value or b"")[:8]) for record in found] == list(range(records)), partition


def main(rate: float, records: int) -> None:
    """Run and print."""
    setattr(CopySpec, "limited_to", lambda spec, _share: spec)  # noqa: B010  (each lane has a limit of its own)
    with (
        tempfile.TemporaryDirectory() as name,
        LocalKafka("A", Path(name) / "a") as a,
        LocalKafka("B", Path(name) / "b") as b,
        LocalSpark(Path(name) / "spark", workers=2, cores=1, heap="128m") as cluster,
    ):
        engine = CopyEngine({**cluster.props, "spark.authenticate": "false"})  # the master is on loopback
        engine.start()
        wait_until(lambda: engine.slots.count == 2, 240)
        flow = Flow(engine, a, b, "growth")
        topic = flow.topic(partitions=PARTITIONS)
        fill(a, topic, records)
        spec = flow.spec(topic, partitions=PARTITIONS, lanes=0, throttle=rate)
        workers = list(cluster.worker_pids)
        with flow.copying(spec) as job:
            for lanes in LANES:
                while len(workers) < lanes + 1:
                    workers.append(cluster.add_worker(120))
                while len(workers) > lanes + 1:
                    kill(workers.pop())
                changed_s = time.monotonic()
                wait_until(
                    lambda lanes=lanes: (  # type: ignore[misc]
                        engine.slots.count == lanes + 1
                        and len(job.lanes()) == lanes
                        and not job.division.is_moving
                        and all(lane.since_ms is not None for lane in job.lanes())
                    ),
                    300,
                    detail=lambda: (engine.slots.count, job.lanes()),
                )
                settled_s = time.monotonic() - changed_s
                time.sleep(_SETTLE_S)
                before, began_s = job.status()["bytes"], time.monotonic()
                time.sleep(_MEASURE_S)
                copied = (job.status()["bytes"] - before) / (time.monotonic() - began_s)
                print(
                    f"{lanes} lanes: {copied / 1e6:6.3f} MB/s, {copied / rate / lanes:.3f} of proportional, settled {settled_s:4.1f} s after "
                    f"the last change, {job.division.moves} moves, lag {job.status()['lag']}, load {os.getloadavg()[0]:.0f}",
                    flush=True,
                )
            job.throttle(0.0, {})
            flow.wait_until_copied(job, spec, 600)
        check(b, flow.remote(topic), records)
        print("all records are there once and in order:", PARTITIONS * records)
        engine.stop()


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 200_000, int(sys.argv[2]) if len(sys.argv) > 2 else 1500)
