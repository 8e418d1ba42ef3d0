"""Several worker processes share a connector's tasks and take over those of a killed worker."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer

from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.integration.connect_toy import connector_props, node, worker_props
from tests.support.waiting import wait_until

_ROOT = Path(__file__).parents[3]


class WorkerProcess:
    """A worker in another process; `status` is the last status that it printed."""

    def __init__(self, props: dict[str, str], worker_id: str, folder: Path) -> None:
        self.worker_id = worker_id
        self._said = folder / f"{worker_id.replace(':', '-')}.jsonl"
        self._log = folder / f"{worker_id.replace(':', '-')}.log"
        with self._said.open("wb") as output, self._log.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    sys.executable,
                    str(Path(__file__).parents[1].joinpath("connect_toy.py")),
                    json.dumps({"props": props, "worker_id": worker_id}),
                ],
                stdout=output,
                stderr=log,
                cwd=_ROOT,
                env={**os.environ, "PYTHONPATH": str(_ROOT)},
            )

    @property
    def status(self) -> dict[str, Any]:
        output = self._said.read_text()
        lines = [line for line in output[: output.rfind("\n") + 1].splitlines() if line.startswith("{")]
        return dict(json.loads(lines[-1])) if lines else {}

    @property
    def tasks(self) -> list[str]:
        return list(self.status.get("assigned_tasks", []))

    def end(self, sig: signal.Signals) -> int:
        if self.process.poll() is None:
            self.process.send_signal(sig)
        return self.process.wait(30)


@contextmanager
def workers(kafka: LocalKafka, name: str, folder: Path, count: int, **overrides: str) -> Iterator[list[WorkerProcess]]:
    props = worker_props(kafka.bootstrap, name, **overrides)
    with ExitStack() as stack:
        started = []
        for n in range(count):
            one = WorkerProcess(props, f"w{n}:1", folder)
            stack.callback(one.end, signal.SIGKILL)
            started.append(one)
        yield started


def put_connector(kafka: LocalKafka, name: str, **props: str) -> None:
    """Write the connector's config as the leader does: every worker of the group applies the record."""
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    value = json.dumps({"properties": connector_props("toy", name, **props)})
    producer.produce(f"{name}-configs", key="connector-toy", value=value)
    assert producer.flush(10) == 0


def states(worker: WorkerProcess) -> list[tuple[int, str, str]]:
    tasks = worker.status.get("connectors", {}).get("toy", {}).get("tasks", [])
    return [(task["id"], task["state"], task["worker_id"]) for task in tasks]


def values(kafka: LocalKafka, topic: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for message in read_all(kafka.bootstrap, topic):
        found.setdefault(message.key().decode(), []).append(int(message.value()))
    assert found
    return found


def test_two_workers_share_the_tasks_and_the_survivor_takes_all_over(
    kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    create_topic(kafka_b.bootstrap, unique)
    with workers(kafka_b, unique, tmp_path, 2) as (one, two):
        wait_until(lambda: all(w.status.get("ready") for w in (one, two)))
        put_connector(kafka_b, unique, **{"tasks.max": "4"})
        wait_until(lambda: len(one.tasks) == len(two.tasks) == 2)
        assert not set(one.tasks) & set(two.tasks)
        wait_until(lambda: Counter(state for _, state, _ in states(one)) == {"RUNNING": 4})
        leader, follower = (one, two) if one.status["leader"] else (two, one)
        # Without REST a follower could not publish task configs.
        assert leader.status["assigned_connectors"] == ["toy"]
        assert follower.status["assigned_connectors"] == []

        leader.end(signal.SIGKILL)
        wait_until(lambda: len(follower.tasks) == 4)
        wait_until(lambda: follower.status["assigned_connectors"] == ["toy"])
        wait_until(lambda: {w for _, s, w in states(follower) if s == "RUNNING"} == {follower.worker_id})
        assert follower.status["leader"]
        time.sleep(0.5)
        assert follower.end(signal.SIGTERM) == 0
    for numbers in values(kafka_b, unique).values():
        # At least once: the last records of a killed worker may be duplicated, none is missing.
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))


@pytest.mark.slow
def test_a_joining_worker_gets_its_share_while_other_tasks_keep_running(
    kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    create_topic(kafka_b.bootstrap, unique)
    props = worker_props(kafka_b.bootstrap, unique)
    first = node(props, "w0:1")
    first.herder.start()
    try:
        assert first.herder.await_ready(30)
        first.herder.put_connector_config(
            "toy", connector_props("toy", unique, **{"tasks.max": "4"}), allow_replace=True
        ).result(60)
        wait_until(lambda: len(first.herder.status()["assigned_tasks"]) == 4)
        wait_until(lambda: len(first.herder.worker.task_ids()) == 4)
        before = dict(first.herder.worker._tasks)
        second = WorkerProcess(props, "w1:1", tmp_path)
        try:
            wait_until(lambda: len(second.tasks) == 2)
            kept = [ConnectorTaskId(*_split(task)) for task in first.herder.status()["assigned_tasks"]]
            assert len(kept) == 2
            assert all(first.herder.worker._tasks[task] is before[task] for task in kept)
            wait_until(lambda: {w for _, s, w in states(second) if s == "RUNNING"} == {"w0:1", "w1:1"})
            assert second.end(signal.SIGTERM) == 0
            # It left the group, so the others do not wait for a session timeout.
            wait_until(lambda: len(first.herder.status()["assigned_tasks"]) == 4, timeout_s=4.0)
        finally:
            second.end(signal.SIGKILL)
    finally:
        first.stop()
    for numbers in values(kafka_b, unique).values():
        assert numbers == list(range(1, len(numbers) + 1))  # clean hand-offs: no data loss and no duplicates


def _split(task: str) -> tuple[str, int]:
    connector, _, number = task.rpartition("-")
    return connector, int(number)


@pytest.mark.slow
def test_eager_workers_share_the_tasks(kafka_b: LocalKafka, unique: str, tmp_path: Path) -> None:
    create_topic(kafka_b.bootstrap, unique)
    with workers(kafka_b, unique, tmp_path, 2, **{"connect.protocol": "eager"}) as (one, two):
        wait_until(lambda: all(w.status.get("ready") for w in (one, two)))
        put_connector(kafka_b, unique, **{"tasks.max": "3"})
        wait_until(lambda: sorted(map(len, (one.tasks, two.tasks))) == [1, 2])
        wait_until(lambda: Counter(state for _, state, _ in states(one)) == {"RUNNING": 3})
        follower, leader = (one, two) if two.status["leader"] else (two, one)
        assert follower.end(signal.SIGTERM) == 0
        wait_until(lambda: len(leader.tasks) == 3)
        wait_until(lambda: {w for _, s, w in states(leader) if s == "RUNNING"} == {leader.worker_id})
    for numbers in values(kafka_b, unique).values():
        assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))


@pytest.mark.slow
def test_work_stops_when_the_group_is_lost_and_resumes_afterwards(unique: str, tmp_path: Path) -> None:
    with LocalKafka("lost", tmp_path / "kafka") as kafka:
        create_topic(kafka.bootstrap, unique)
        running = node(worker_props(kafka.bootstrap, unique), "w0:1")
        running.herder.start()
        try:
            assert running.herder.await_ready(30)
            running.herder.put_connector_config(
                "toy", connector_props("toy", unique, **{"tasks.max": "2"}), allow_replace=True
            ).result(60)
            wait_until(lambda: len(running.herder.worker.task_ids()) == 2)
            time.sleep(0.5)
            kafka.stop()
            wait_until(lambda: not running.herder.worker.task_ids())
            kafka.start()
            wait_until(lambda: len(running.herder.worker.task_ids()) == 2)
            wait_until(
                lambda: [t["state"] for t in running.herder.status()["connectors"]["toy"]["tasks"]] == ["RUNNING"] * 2
            )
            time.sleep(0.5)
        finally:
            running.stop()
        for numbers in values(kafka, unique).values():
            assert sorted(set(numbers)) == list(range(1, max(numbers) + 1))
