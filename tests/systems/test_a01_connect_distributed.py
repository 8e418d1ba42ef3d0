"""The program: arguments, exit codes, signals (A1), the Kafka cluster id (A6), start-up and shutdown (A41)."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import time
from pathlib import Path

import httpx
import pytest

from mm2 import KAFKA_VERSION
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import create, read
from tests.support import programs
from tests.support.waiting import wait_until
from tests.systems.counting import counting
from tests.systems.workers import DistributedWorker, StandaloneWorker, distributed_props


def run(program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the program without a PATH, and wait for its end."""
    return programs.run(program, *arguments, PATH="")


@pytest.mark.parametrize("program", ["connect_distributed", "connect_standalone"])
@pytest.mark.parametrize("arguments", [(), ("--help",), ("worker.properties", "--help"), ("-h",)])
def test_a01_without_arguments_the_usage_is_printed_and_the_exit_code_is_1(
    program: str, arguments: tuple[str, ...]
) -> None:
    ended = run(program, *arguments)
    assert ended.returncode == 1
    assert "usage: connect-" in ended.stderr
    assert "worker.properties" in ended.stderr


def test_a01_invalid_settings_end_it_with_exit_code_2_and_one_sentence(folder: Path) -> None:
    file = folder / "worker.properties"
    good = distributed_props("127.0.0.1:1", "g") | {
        "key.converter": "org.apache.kafka.connect.storage.StringConverter",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
        "listeners": "http://127.0.0.1:0",
    }
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for change, expected in (
            ({"session.timeout.ms": "soon"}, "session.timeout.ms"),
            ({"listeners": "ftp://:1"}, "listeners"),
            ({"listeners": f"http://127.0.0.1:{port}"}, f"http://127.0.0.1:{port}"),
            ({"listeners": "https://127.0.0.1:0"}, "ssl.keystore.location"),
            ({"rest.extension.classes": "no.such.Extension"}, "no.such.Extension"),
            ({"response.http.headers.config": "bogus X:y"}, "bogus"),
        ):
            file.write_text("".join(f"{key}={value}\n" for key, value in {**good, **change}.items()))
            ended = run("connect_distributed", str(file), "--log-format", "json")
            assert ended.returncode == 2, ended.stderr
            last = [json.loads(line) for line in ended.stderr.splitlines() if '"level": "error"' in line]
            assert len(last) == 1, ended.stderr
            assert expected in last[0]["event"]
    assert run("connect_distributed", str(folder / "none.properties")).returncode == 2


def test_a06_an_unreachable_broker_ends_it_with_exit_code_2(folder: Path) -> None:
    (port,) = free_ports(1)
    props = distributed_props(f"127.0.0.1:{port}", "g") | {"default.api.timeout.ms": "1500"}
    worker = DistributedWorker(folder, props).launch()
    wait_until(lambda: worker.exit_code == 2, 60, detail=worker.tail)
    assert "Failed to connect to and describe Kafka cluster" in worker.tail()


def test_a06_the_cluster_id_is_that_of_the_broker(worker: DistributedWorker, broker: LocalKafka) -> None:
    with contextlib.closing(
        Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="test")
    ) as cluster:
        assert worker.rest.get("/")["kafka_cluster_id"] == cluster.metadata(()).cluster_id


def test_a01_a_valid_file_starts_a_worker_that_reports_version_commit_and_cluster(worker: DistributedWorker) -> None:
    info = worker.rest.get("/")
    assert info["version"] == KAFKA_VERSION
    assert info["commit"]
    assert set(info) == {"version", "commit", "kafka_cluster_id"}


def test_a01_sigterm_leaves_the_group_with_statuses_unassigned(broker: LocalKafka, unique: str, folder: Path) -> None:
    create(broker, unique)
    with DistributedWorker(folder, distributed_props(broker.bootstrap, unique)) as worker:
        worker.rest.create("counting", counting(unique))
        worker.rest.await_running("counting", 1)
        assert worker.stop() == 0
    records = [
        record
        for partition in range(2)
        for record in read(broker, f"{unique}-status", partition)
        if record.key and b"counting" in record.key and record.key.startswith((b"status-connector", b"status-task"))
    ]
    last = {record.key: json.loads(record.value or b"{}") for record in records}
    assert {status["state"] for status in last.values()} == {"UNASSIGNED"}, last
    # It left the group: the next worker becomes leader without waiting for a session timeout.
    with DistributedWorker(folder / "next", distributed_props(broker.bootstrap, unique)) as after:
        began_s = time.monotonic()
        after.rest.await_running("counting", 1)
        assert time.monotonic() - began_s < 20


@pytest.mark.slow  # as in Java, creating a topic with too few brokers is retried for a minute
def test_a01_a_herder_that_fails_is_reported_by_health_and_ends_it_with_exit_code_1(
    broker: LocalKafka, unique: str, folder: Path
) -> None:
    props = distributed_props(broker.bootstrap, unique) | {"config.storage.replication.factor": "3"}
    worker = DistributedWorker(folder, props).launch()
    seen: set[int] = set()

    def ended() -> bool:
        with contextlib.suppress(httpx.TransportError):
            seen.add(worker.rest.http.get("/health", timeout=5).status_code)
        return worker.exit_code is not None

    wait_until(ended, 90, detail=worker.tail)
    assert worker.exit_code == 1, worker.tail()
    assert seen <= {503}


def test_a41_sigterm_during_the_start_ends_it_cleanly(broker: LocalKafka, unique: str, folder: Path) -> None:
    # As soon as it listens, long before it has read its topics.
    worker = DistributedWorker(folder, distributed_props(broker.bootstrap, unique)).launch()

    def listens() -> bool:
        assert worker.is_running, worker.tail()
        with socket.socket() as sock:
            return sock.connect_ex(("127.0.0.1", worker.port)) == 0

    wait_until(listens, 60, detail=worker.tail)
    assert worker.stop(60) == 0, worker.tail()
    assert "Traceback" not in worker.log.read_text()
    assert "Stopped." in worker.tail()


def test_a41_it_can_be_stopped_while_it_waits_for_a_broker(folder: Path) -> None:
    (port,) = free_ports(1)
    worker = DistributedWorker(folder, distributed_props(f"127.0.0.1:{port}", "g")).launch()
    wait_until(lambda: "does not answer yet" in worker.tail(), 60, detail=worker.tail)
    # REST already responds, and reports that the worker is not ready.
    answer = worker.rest.http.get("/connectors")
    assert (answer.status_code, answer.json()["error_code"]) == (503, 503)
    assert worker.stop(30) == 0


def test_a41_the_second_signal_does_not_wait(broker: LocalKafka, folder: Path) -> None:
    unfinished = (
        b"POST /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 9\r\n\r\n"
    )
    with (
        StandaloneWorker(folder, {"bootstrap.servers": broker.bootstrap}) as worker,
        socket.create_connection(("127.0.0.1", worker.port)) as slow,
    ):
        slow.sendall(unfinished)
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: "Stopping REST server" in worker.tail(), 20, detail=worker.tail)
        os.kill(worker.pid, signal.SIGTERM)
        wait_until(lambda: worker.exit_code == 128 + signal.SIGTERM, 10, detail=worker.tail)
