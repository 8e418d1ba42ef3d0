"""Many connectors on one worker, ours beside Java's: how long until all run, how long a status of all takes, how long until the
worker has stopped, and how much memory it needs at most.

    bench/connect.py [--connectors 100] [--tasks 10] [--only ours|java]

Both run the same connector, `bench/idle_source.py` and `bench/java/IdleSource.java`, whose tasks poll once a second in vain, on
the same broker, one worker after the other, each on internal topics of its own. Kafka's own idle connectors are in none of its
published jars. One JSON object per worker goes to standard output, all in seconds and MiB.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil

sys.path.insert(0, str(Path(__file__).parents[1]))

from mm2.sandbox.jars import CONNECT_MIRROR, classpath
from mm2.sandbox.kafka import LocalKafka
from tests.systems.workers import DistributedWorker, JavaDistributedWorker, WorkerProcess, distributed_props

_PATIENCE_S = 600.0
_CLIENTS = 8


class Memory:
    """Watches how much memory a process holds at most, its children included."""

    def __init__(self, pid: int) -> None:
        self._process = psutil.Process(pid)
        self._ended = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def _watch(self) -> None:
        while not self._ended.wait(0.1):
            try:
                family = [self._process, *self._process.children(recursive=True)]
                now = sum(process.memory_info().rss for process in family)
            except psutil.Error:
                return
            self.peak_bytes = max(self.peak_bytes, now)

    def stop(self) -> float:
        """The most, in MiB."""
        self._ended.set()
        self._thread.join()
        return round(self.peak_bytes / 2**20, 1)


class _JavaWorker(JavaDistributedWorker):
    """With the idle connector on its class path, and as much memory as it wants."""

    def _command(self, file: Path) -> list[str]:
        jars, classes = classpath(CONNECT_MIRROR), self.folder / "classes"
        source = Path(__file__).parent / "java" / "IdleSource.java"
        subprocess.run(["javac", "-cp", jars, "-d", classes, source], check=True, timeout=120)
        command = ["-Xmx2g" if part.startswith("-Xmx") else part for part in super()._command(file)]
        place = command.index("-cp") + 1
        return [*command[:place], f"{classes}:{command[place]}", *command[place + 1 :]]

    @staticmethod
    def _defaults() -> dict[str, str]:
        return {**WorkerProcess._defaults(), "plugin.discovery": "only_scan"}  # noqa: SLF001


def config(connector_class: str, name: str, tasks: int) -> dict[str, str]:
    """A connector that wants ``tasks`` tasks which do nothing."""
    return {
        "name": name,
        "connector.class": connector_class,
        "tasks.max": str(tasks),
    }


def running(http: httpx.Client) -> tuple[int, int]:
    """How many connectors and tasks are RUNNING."""
    shown = http.get("/connectors", params={"expand": "status"}).json()
    states = [entry["status"] for entry in shown.values()]
    tasks = sum(task["state"] == "RUNNING" for status in states for task in status["tasks"])
    return sum(status["connector"]["state"] == "RUNNING" for status in states), tasks


def create(http: httpx.Client, body: dict[str, Any]) -> None:
    """Again while a rebalance refuses it."""
    deadline = time.monotonic() + _PATIENCE_S
    while (answer := http.post("/connectors", json=body)).status_code == 409:
        if time.monotonic() > deadline:
            raise TimeoutError(answer.text)
        time.sleep(0.05)
    if answer.status_code != 201:
        raise RuntimeError(f"{answer.status_code} {answer.text}")


def measure(worker: WorkerProcess, connector_class: str, connectors: int, tasks: int) -> dict[str, Any]:
    """One worker's figures."""
    began = time.monotonic()
    worker.launch()
    memory = Memory(worker.pid)
    worker.await_healthy(_PATIENCE_S)
    healthy = time.monotonic()
    http = httpx.Client(base_url=worker.rest.url, timeout=_PATIENCE_S, trust_env=False)
    names = [f"bench-{number:03d}" for number in range(connectors)]
    with ThreadPoolExecutor(_CLIENTS) as pool:
        list(pool.map(lambda name: create(http, {"name": name, "config": config(connector_class, name, tasks)}), names))
    created = time.monotonic()
    deadline = created + _PATIENCE_S
    while running(http) != (connectors, connectors * tasks):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{running(http)} of {connectors}, {connectors * tasks} run: {worker.tail()}")
        time.sleep(0.1)
    all_run = time.monotonic()
    asked = [_timed(lambda: running(http)) for _ in range(10)]
    one_by_one = _timed(lambda: [http.get(f"/connectors/{name}/status").raise_for_status() for name in names])
    threads = psutil.Process(worker.pid).num_threads()
    stopping = time.monotonic()
    worker.stop(_PATIENCE_S)
    stopped = time.monotonic()
    # Once more: a worker that comes back to all its connectors.
    again = time.monotonic()
    worker.launch()
    worker.await_healthy(_PATIENCE_S)
    while running(http) != (connectors, connectors * tasks):
        time.sleep(0.1)
    back = time.monotonic()
    worker.stop(_PATIENCE_S)
    http.close()
    return {
        "until_healthy_s": round(healthy - began, 2),
        "create_s": round(created - healthy, 2),
        "until_all_run_s": round(all_run - healthy, 2),
        "status_of_all_ms": round(sorted(asked)[len(asked) // 2] * 1000, 1),
        "each_status_s": round(one_by_one, 2),
        "stop_s": round(stopped - stopping, 2),
        "restart_until_all_run_s": round(back - again, 2),
        "threads": threads,
        "peak_mib": memory.stop(),
    }


def _timed(call: Any) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def main() -> None:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connectors", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--only", choices=["ours", "java"])
    arguments = parser.parse_args()
    kinds: dict[str, tuple[type[WorkerProcess], str]] = {
        "ours": (DistributedWorker, "bench.idle_source.IdleSource"),
        "java": (_JavaWorker, "bench.IdleSource"),
    }
    with tempfile.TemporaryDirectory() as folder, LocalKafka("bench", Path(folder) / "broker") as broker:
        for name, (kind, connector_class) in kinds.items():
            if arguments.only in {None, name}:
                props = {**distributed_props(broker.bootstrap, f"bench-{name}"), "session.timeout.ms": "30000"}
                worker = kind(Path(folder) / name, props)
                figures = measure(worker, connector_class, arguments.connectors, arguments.tasks)
                sys.stdout.write(json.dumps({"worker": name, "connectors": arguments.connectors, **figures}) + "\n")
                sys.stdout.flush()


if __name__ == "__main__":
    main()
