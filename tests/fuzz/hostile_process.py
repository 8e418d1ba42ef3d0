"""connect-mirror-maker with a hostile source cluster beside a healthy one, as `bin/fuzz --process MINUTES` runs it."""

from __future__ import annotations

import contextlib
import json
import tempfile
import threading
import time
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import psutil

from bench.proctree import PeakMemory
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.fuzz.hostile_broker import TOPIC, HostileBroker
from tests.integration.copy_flow import create, producer_of
from tests.integration.mirror_flow import partitions_of
from tests.integration.mirror_process import MirrorProcess, doubled, has_all, records, write_config
from tests.support.slow_clients import HealthProbe
from tests.support.waiting import PATIENCE

#: The limit of the container in conf/kubernetes/statefulset.yaml, for all processes together.
LIMIT_BYTES: Final = 2 << 30
HEALTHY: Final = "healthy"
HOSTILE_FLOW: Final = "H->B"
HEALTHY_FLOW: Final = "A->B"
#: Shares of valid answers to everything but Fetch, one after the other. With the last one copying begins, so that
#: executors receive the damaged batches and the bombs.
_HONESTY: Final = (0.0, 0.97, 0.8, 0.995)
_PHASE_S: Final = 15.0
_PARTITIONS: Final = 2
_TICK_S: Final = 0.1
_RECORDS: Final = 10  # at each tick
_MESSAGES: Final = 200


@dataclass
class Observations:
    """What the process reported about its flows, once a second."""

    states: dict[str, Counter[str]] = field(default_factory=lambda: {HOSTILE_FLOW: Counter(), HEALTHY_FLOW: Counter()})
    partitions: Counter[str] = field(default_factory=Counter)
    messages: Counter[str] = field(default_factory=Counter)

    def add(self, overview: dict[str, Any]) -> None:
        for flow in overview["flows"]:
            self.states[flow["name"]][flow["state"]] += 1
            if flow["name"] == HOSTILE_FLOW:
                self.partitions.update(flow["states"] or ())
                texts = {flow["sentence"], flow["source_error"], *flow["troubles"]} - {""}
                self.messages.update(text for text in texts if text in self.messages or len(self.messages) < _MESSAGES)


@dataclass(frozen=True)
class ProcessAttack:
    """One run: what the hostile cluster sent, and what the process did meanwhile."""

    answers: Counter[str]
    seen: Observations
    health: Counter[int]
    slowest_health_s: float
    peak_bytes: int
    threads: int
    files: int
    log_bytes: int
    sent: int
    lost: int
    duplicates: int
    exit_code: int

    def findings(self) -> list[str]:
        """What must not happen, apart from the time of ``/health``, which depends on the machine."""
        hostile, healthy = self.seen.states[HOSTILE_FLOW], self.seen.states[HEALTHY_FLOW]
        checks = {
            f"{self.peak_bytes >> 20} MB of memory": self.peak_bytes >= LIMIT_BYTES,
            f"/health answered {_listed(self.health)}": not self.health.keys() <= {200, 503},
            f"{self.lost} records lost, {self.duplicates} duplicates": self.lost or self.duplicates,
            f"{HEALTHY_FLOW} was {_listed(healthy)}": not healthy.keys() <= {"RUNNING", "CATCHING_UP", "UNKNOWN"},
            f"{HOSTILE_FLOW} was {_listed(hostile)}": not hostile["DEGRADED"] + hostile["STOPPED"],
            "no message names the cluster H": not any("cluster H" in text for text in self.seen.messages),
            # Few of its batches are bombs, so two minutes may pass without one that is read. A task of which all partitions have stopped
            # is FAILED.
            f"no partition stopped: {_listed(self.seen.partitions)}": self.seen.partitions.keys().isdisjoint(
                {"OVER_LIMIT", "CORRUPT", "FAILED"}
            ),
            f"exit code {self.exit_code}": self.exit_code,
        }
        return [text for text, is_finding in checks.items() if is_finding]

    def rows(self) -> Iterator[tuple[str, str]]:
        """For a table."""
        yield "answers of the hostile cluster", f"{self.answers.total():,}: {_listed(self.answers)}"
        yield "memory of all processes at most", f"{self.peak_bytes >> 20} MB"
        yield "threads, open files of the main process at most", f"{self.threads}, {self.files}"
        yield "/health", f"{_listed(self.health)}; {self.slowest_health_s:.2f} s at most"
        for flow, states in self.seen.states.items():
            yield flow, _listed(states)
        yield f"partitions of {HOSTILE_FLOW}", _listed(self.seen.partitions)
        yield "log", f"{self.log_bytes >> 10} kB"
        yield f"records of {HEALTHY_FLOW}", f"{self.sent:,}, lost {self.lost}, duplicates {self.duplicates}"
        for text, count in self.seen.messages.most_common(12):
            yield f"message, {count} times", text


def attacked_process(brokers: tuple[LocalKafka, LocalKafka], folder: Path, minutes: float, seed: int) -> ProcessAttack:
    """Run a process for so many minutes. Raises AssertionError if it ends by itself."""
    healthy, target = brokers
    topic = f"{HEALTHY}-{seed}"
    create(healthy, topic, _PARTITIONS)
    with closing(HostileBroker(seed)) as hostile:
        file = write_config(folder / "mm2.properties", _props(healthy, hostile, target, topic))
        process = MirrorProcess(file, folder / "mm2.log", variables={"XDG_STATE_HOME": str(folder)})
        try:
            port = int(process.await_log("REST server listening.")["advertised_url"].rstrip("/").rpartition(":")[2])
            process.eventually(lambda: partitions_of(target, f"A.{topic}") == _PARTITIONS)
            return _Run(process, hostile, healthy, target, topic, port).run(minutes * 60)
        finally:
            process.clean_up()


def _props(healthy: LocalKafka, hostile: HostileBroker, target: LocalKafka, topic: str) -> dict[str, str | None]:
    return {
        "clusters": "A, B, H",
        "A.bootstrap.servers": healthy.bootstrap,
        "B.bootstrap.servers": target.bootstrap,
        "H.bootstrap.servers": f"127.0.0.1:{hostile.port}",
        "A->B.enabled": "true",
        "A->B.topics": topic,
        "H->B.enabled": "true",
        "H->B.topics": TOPIC,
        "H->B.groups": "g",
        # On H their topic would have to be created first.
        "H->B.offset-syncs.topic.location": "target",
        "B->A.emit.heartbeats.enabled": "false",
        "B->H.emit.heartbeats.enabled": "false",
        "A->H.emit.heartbeats.enabled": "false",
        "H->A.emit.heartbeats.enabled": "false",
        # Many answers in a short time.
        "H.request.timeout.ms": "3000",
        "H.default.api.timeout.ms": "3000",
        "H.socket.connection.setup.timeout.ms": "3000",
        "H.metadata.max.age.ms": "1000",
        "H.reconnect.backoff.max.ms": "200",
        "H.retry.backoff.max.ms": "200",
    }


class _Run:
    """Observes one process under attack, with records written to the healthy cluster meanwhile."""

    def __init__(
        self,
        process: MirrorProcess,
        hostile: HostileBroker,
        healthy: LocalKafka,
        target: LocalKafka,
        topic: str,
        port: int,
    ) -> None:
        self._process, self._hostile, self._port = process, hostile, port
        self._healthy, self._target, self._topic = healthy, target, topic
        self._stopping = threading.Event()
        self._seen = Observations()
        self._sent = self._threads = self._files = 0

    def run(self, seconds: float) -> ProcessAttack:
        probe = HealthProbe(self._port)
        memory = PeakMemory(self._process.pid)
        writer = threading.Thread(target=self._write, name="healthy-records")
        writer.start()
        try:
            with memory.watching(), probe.asking():
                self._attack(seconds)
        finally:
            self._stopping.set()
            writer.join()
        remote = f"A.{self._topic}"
        self._process.eventually(lambda: has_all(self._healthy, self._topic, self._target, remote), 120)
        here, there = records(self._healthy, self._topic), records(self._target, remote)
        duplicates = doubled(here, there)
        exit_code, _ = self._process.stop()
        return ProcessAttack(
            answers=self._hostile.answers,
            seen=self._seen,
            health=Counter(probe.statuses),
            slowest_health_s=probe.slowest_s,
            peak_bytes=memory.peak_bytes,
            threads=self._threads,
            files=self._files,
            log_bytes=self._process.log.stat().st_size,
            sent=self._sent,
            lost=self._sent - sum(map(len, here)),
            duplicates=duplicates,
            exit_code=exit_code,
        )

    def _attack(self, seconds: float) -> None:
        main = psutil.Process(self._process.pid)
        began_s = time.monotonic()
        phase = -1
        while (passed_s := time.monotonic() - began_s) < seconds:
            if phase != (phase := int(passed_s / _PHASE_S)):
                self._hostile.honesty = _HONESTY[phase % len(_HONESTY)]
                self._restart()
            assert self._process.is_running, f"ended by itself: {self._process.tail()}"
            with urllib.request.urlopen(f"http://127.0.0.1:{self._port}/overview", timeout=60) as answer:
                self._seen.add(json.load(answer))
            self._threads = max(self._threads, main.num_threads())
            self._files = max(self._files, main.num_fds())
            time.sleep(1.0)

    def _restart(self) -> None:
        """Start the hostile flow's tasks again, as an operator would: a bomb has stopped the partition."""
        url = f"http://127.0.0.1:{self._port}/H/B/connectors/MirrorSourceConnector/restart?includeTasks=true"
        # 404 and 409 until the flow has started, and no answer while its connector waits for the hostile cluster.
        with contextlib.suppress(OSError):
            urllib.request.urlopen(urllib.request.Request(url, method="POST"), timeout=_TICK_S * 100).close()

    def _write(self) -> None:
        producer = producer_of(self._healthy)
        while not self._stopping.wait(_TICK_S):
            for _ in range(_RECORDS):
                producer.produce(self._topic, b"%d" % self._sent, partition=self._sent % _PARTITIONS)
                self._sent += 1
            producer.poll(0)
        assert producer.flush(60) == 0


@contextlib.contextmanager
def two_brokers() -> Iterator[tuple[tuple[LocalKafka, LocalKafka], Path]]:
    """A healthy source and a target, and a folder for the process."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pair = LocalKafka("A", folder / "a"), LocalKafka("B", folder / "b")
        start_all(pair, 60.0 * PATIENCE)
        try:
            yield pair, folder
        finally:
            stop_all(pair)


def _listed(counts: Counter[Any]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in counts.most_common())
