"""Memory of the driver and size of the event log over many micro-batches, in local mode.

    python -P -m bench.driver_heap MINUTES [LANES]

Each lane has one partition, and micro-batches that are as short as possible while records arrive. Ten times during the run it prints the
JVM's heap after a full collection, the memory of both processes, and the bytes of the event log per micro-batch.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

from mm2.copy.driver.engine import CopyEngine
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Flow, Traffic

_USED = re.compile(r"(?:new generation|tenured generation|garbage-first heap)\s+total \d+K, used (\d+)K")
#: A micro-batch without changes is extended; a quarter of this is the shortest time until a position is stored again.
_LENGTH_MS = 100
_BUSY_DAY_LANES = 200


def heap_mb(pid: int) -> float:
    """The JVM's used heap after a full collection."""
    subprocess.run(["jcmd", str(pid), "GC.run"], check=True, stdout=subprocess.DEVNULL)
    shown = subprocess.run(["jcmd", str(pid), "GC.heap_info"], check=True, stdout=subprocess.PIPE, text=True).stdout
    return sum(int(used) for used in _USED.findall(shown)) / 1024


def written(folder: Path) -> int:
    """Bytes of all files below a folder."""
    return sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())


def main(minutes: float, lanes: int) -> None:
    """Run and print."""
    with (
        tempfile.TemporaryDirectory() as name,
        LocalKafka("A", Path(name) / "a") as a,
        LocalKafka("B", Path(name) / "b") as b,
    ):
        events = Path(name) / "events"
        events.mkdir()
        settings = {"spark.ui.enabled": "true", "spark.ui.port": "0", "spark.eventLog.enabled": "true"}
        engine = CopyEngine({**settings, "spark.eventLog.dir": events.as_uri()})
        engine.start()
        engine.spark.context(120)
        flow = Flow(engine, a, b, "heap")
        topic = flow.topic(partitions=lanes)
        spec = flow.spec(topic, partitions=lanes, lanes=lanes, batch_duration_ms=_LENGTH_MS)
        jvm, own = engine.spark.pid, psutil.Process()
        assert jvm is not None
        logged, size_before, growth = 0, 0, 0
        with Traffic(a, topic, lanes, per_second=100) as traffic, flow.copying(spec) as job:
            began = time.monotonic()
            for step in range(11):
                time.sleep(max(0.0, began + minutes * 60 * step / 10 - time.monotonic()))
                batches, lost = job.micro_batches()
                size = written(events)
                growth, size_before, before, logged = size - size_before, size, logged, batches
                print(
                    f"{(time.monotonic() - began) / 60:5.1f} min: {batches:6d} micro-batches ({lost} lost, {traffic.sent} records), heap "
                    f"{heap_mb(jvm):5.1f} MB, JVM {psutil.Process(jvm).memory_info().rss / 2**20:4.0f} MB, Python "
                    f"{own.memory_info().rss / 2**20:4.0f} MB, event log {size / 1e6:6.1f} MB"
                    + (f", {growth / (batches - before):.0f} bytes for each micro-batch" if batches > before else ""),
                    flush=True,
                )
            traffic.finish()
            flow.wait_until_copied(job, spec, 120)
        for partition in range(lanes):
            flow.assert_equal(topic, partition)
        print("all records are there once and in order:", traffic.sent)
        engine.stop()


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else 4)
