"""Many connectors on one worker, ours beside Java's: how long until all run, how long statuses take, how long until the worker
has stopped, and how much memory it needs at most.

    python -m bench.connect [--connectors 100] [--tasks 10] [--only ours|java]

Both run the same connector, `bench/idle_source.py` and `bench/java/IdleSource.java`, whose tasks poll once a second in vain, on
the same broker, one worker after the other, each on internal topics of its own. Kafka's own idle connectors are in none of its
published jars. Each step may take half an hour; the times are taken from the reported statuses.
"""

from __future__ import annotations

import argparse
import http.client
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import psutil

from bench.errors import BenchFailed
from bench.outcome import Figure
from bench.workers import KINDS, RESULTS, JavaWorker, Section, one_broker
from mm2.sandbox.jars import classpath
from tests.support.java import CONNECT_MIRROR
from tests.systems.workers import DistributedWorker, WorkerProcess, distributed_props

HEALTHY = Figure("start → healthy s", 2)
CREATED = Figure("created s", 2)
"""Until the last of the requests that create connectors is answered."""
ALL_RUN = Figure("created, all run s", 2)
STATUS_OF_ALL = Figure("status of all ms", 1)
"""One request for all connectors and tasks."""
KEPT, NEW = Figure("one status ms", 1), Figure("one status, new connection ms", 1)
"""Median over all connectors."""
STOP = Figure("stop s", 2)
AGAIN = Figure("started again, all run s", 2)
THREADS = Figure("threads")
MEMORY = Figure("peak RSS MB")

FIGURES = (HEALTHY, CREATED, ALL_RUN, STATUS_OF_ALL, KEPT, NEW, STOP, AGAIN, THREADS, MEMORY)

_PATIENCE_S = 1800.0
_CLIENTS = 8
#: So that workers keep their group membership on a busy machine.
_CALM = {"session.timeout.ms": "120000", "heartbeat.interval.ms": "3000", "rebalance.timeout.ms": "300000"}


class IdleJavaWorker(JavaWorker):
    """With the idle connector on its class path."""

    def __init__(self, folder: Path, props: Mapping[str, str]) -> None:
        super().__init__(folder, props)
        self._classes = folder / "classes"
        source = Path(__file__).parent / "java" / "IdleSource.java"
        command = ["javac", "-cp", classpath(CONNECT_MIRROR), "-d", str(self._classes), str(source)]
        subprocess.run(command, check=True, timeout=_PATIENCE_S)

    def _command(self, file: Path) -> list[str]:
        command = super()._command(file)
        place = command.index("-cp") + 1
        return [*command[:place], f"{self._classes}:{command[place]}", *command[place + 1 :]]

    @staticmethod
    def _defaults() -> dict[str, str]:
        # It has no manifest that service_load would find it by.
        return {**WorkerProcess._defaults(), "plugin.discovery": "only_scan"}  # noqa: SLF001


_WORKERS: dict[str, tuple[type[WorkerProcess], str]] = {
    "ours": (DistributedWorker, "bench.idle_source.IdleSource"),
    "java": (IdleJavaWorker, "bench.IdleSource"),
}


class Memory:
    """Measures the peak memory of a process with its children."""

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

    def stop(self) -> int:
        """Peak in bytes."""
        self._ended.set()
        self._thread.join()
        return self.peak_bytes


class Measured:
    """One worker with so many connectors."""

    def __init__(self, worker: WorkerProcess, connector_class: str, connectors: int, tasks: int) -> None:
        self._worker = worker
        self._names = [f"bench-{number:03d}" for number in range(connectors)]
        self._config = {"connector.class": connector_class, "tasks.max": str(tasks)}
        self._wanted = (connectors, connectors * tasks)
        self._http = httpx.Client(base_url=worker.rest.url, timeout=_PATIENCE_S, trust_env=False)

    def run(self) -> dict[str, float]:
        """All figures. Raises BenchFailed with the end of the worker's log after a timeout."""
        found: dict[str, float] = {}
        self._worker.launch()
        memory = Memory(self._worker.pid)
        found[HEALTHY.name] = _timed(lambda: self._worker.await_healthy(_PATIENCE_S))
        began = time.monotonic()
        with ThreadPoolExecutor(_CLIENTS) as pool:
            list(pool.map(self._create, self._names))
        found[CREATED.name] = time.monotonic() - began
        self._await_all()
        found[ALL_RUN.name] = time.monotonic() - began
        found[STATUS_OF_ALL.name] = _median_ms(self._running, range(10))
        found[KEPT.name] = _median_ms(lambda name: _get_status(self._http, name), self._names)
        found[NEW.name] = _median_ms(self._get_status_on_new_connection, self._names)
        found[THREADS.name] = psutil.Process(self._worker.pid).num_threads()
        found[STOP.name] = _timed(lambda: self._worker.stop(_PATIENCE_S))
        found[MEMORY.name] = memory.stop() / 1e6
        # Again: a restarted worker resumes all its connectors.
        found[AGAIN.name] = _timed(self._start_again)
        self._worker.stop(_PATIENCE_S)
        return found

    def close(self) -> None:
        if self._worker.is_running:
            self._worker.kill9()
        self._http.close()
        self._worker.rest.http.close()

    def _create(self, name: str) -> None:
        """Repeat until the connector exists: rebalances reject the request, and one that timed out may still have succeeded."""
        deadline = time.monotonic() + _PATIENCE_S
        body = {"name": name, "config": {"name": name, **self._config}}
        while self._request("POST", "/connectors", json=body) != 201:
            if self._request("GET", f"/connectors/{name}") == 200:
                return
            self._go_on(deadline, f"{name} cannot be created")

    def _request(self, method: str, path: str, **how: Any) -> int:
        try:
            return self._http.request(method, path, **how).status_code
        except httpx.TransportError:
            return 0

    def _await_all(self) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while self._running() != self._wanted:
            self._go_on(deadline, f"{self._running()} of {self._wanted} connectors and tasks run")

    def _start_again(self) -> None:
        self._worker.launch()
        self._worker.await_healthy(_PATIENCE_S)
        self._await_all()

    def _go_on(self, deadline: float, what: str) -> None:
        if not self._worker.is_running or time.monotonic() > deadline:
            raise BenchFailed(f"{what}: {self._worker.tail()}")
        time.sleep(0.1)

    def _running(self, _: int = 0) -> tuple[int, int]:
        """How many connectors and tasks are RUNNING."""
        try:
            answer = self._http.get("/connectors", params={"expand": "status"})
        except httpx.TransportError:
            return 0, 0
        if answer.status_code != 200:
            return 0, 0
        states = [entry["status"] for entry in answer.json().values()]
        tasks = sum(task["state"] == "RUNNING" for status in states for task in status["tasks"])
        return sum(status["connector"]["state"] == "RUNNING" for status in states), tasks

    def _get_status_on_new_connection(self, name: str) -> None:
        # Not httpx: creating its client takes longer than the response.
        connection = http.client.HTTPConnection("127.0.0.1", self._worker.port, timeout=_PATIENCE_S)
        connection.request("GET", f"/connectors/{name}/status")
        answer = connection.getresponse()
        answer.read()
        connection.close()
        if answer.status != 200:
            raise BenchFailed(f"{name} has no status: {answer.status}")


def _get_status(client: httpx.Client, name: str) -> None:
    client.get(f"/connectors/{name}/status").raise_for_status()


def _timed(call: Callable[[], Any]) -> float:
    began = time.monotonic()
    call()
    return time.monotonic() - began


def _median_ms(call: Callable[[Any], Any], each: Any) -> float:
    return statistics.median(_timed(lambda one=one: call(one)) * 1000 for one in each)  # type: ignore[misc]


def measure(worker: WorkerProcess, connector_class: str, connectors: int, tasks: int) -> dict[str, float]:
    """One worker's figures. Raises BenchFailed."""
    measured = Measured(worker, connector_class, connectors, tasks)
    try:
        return measured.run()
    except (AssertionError, httpx.HTTPError) as failure:
        raise BenchFailed(str(failure)) from failure
    finally:
        measured.close()


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connectors", type=int, default=100)
    parser.add_argument("--tasks", type=int, default=10)
    parser.add_argument("--only", choices=list(KINDS), help="measure only this worker")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the page of results")
    options = parser.parse_args()
    section = Section(
        "connectors",
        f"{options.connectors} connectors of {options.tasks} idle tasks on one worker",
        FIGURES,
        FIGURES,
    )
    with tempfile.TemporaryDirectory() as folder, one_broker(Path(folder) / "broker") as broker:
        for name in [options.only] if options.only else KINDS:
            worker_class, connector_class = _WORKERS[name]
            worker = worker_class(
                Path(folder) / name, {**distributed_props(broker.bootstrap, f"bench-{name}"), **_CALM}
            )
            try:
                section.add(name, measure(worker, connector_class, options.connectors, options.tasks))
            except BenchFailed as failure:
                section.fail(name, failure)
    sys.stdout.write("\n".join(section.lines()) + "\n")
    section.put(options.results)
    return 1 if section.failures else 0


if __name__ == "__main__":
    sys.exit(main())
