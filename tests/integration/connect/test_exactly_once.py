"""Source tasks with exactly-once: the records of a read_committed consumer after a crash, a freeze or fencing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.node import Node
from mm2.connect.stores.config_store import PrivilegedWriteError
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import ProducerFenced
from mm2.kafka.producer.transactions import TransactionalProducer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect.test_connect_group import WorkerProcess, put_connector
from tests.integration.connect_reading import create_topic, read_committed
from tests.integration.connect_toy import connector_props, running_worker, worker_props
from tests.support.waiting import wait_until

ENABLED = {"exactly.once.source.support": "enabled"}


@pytest.fixture
def topic(kafka_b: LocalKafka, unique: str) -> str:
    create_topic(kafka_b.bootstrap, unique, 2)
    return unique


def worker(kafka: LocalKafka, name: str, worker_id: str = "w1:1", **overrides: str) -> AbstractContextManager[Node]:
    return running_worker(kafka, name, worker_id, **{**ENABLED, **overrides})


def put(herder: DistributedHerder, topic: str, **props: str) -> None:
    herder.put_connector_config("toy", connector_props("toy", topic, **props), allow_replace=True).result(60)


def task_states(herder: DistributedHerder) -> list[str]:
    return [task["state"] for task in herder.status()["connectors"].get("toy", {}).get("tasks", [])]


def sequences(kafka: LocalKafka, topic: str) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for message in read_committed(kafka.bootstrap, topic):
        found.setdefault(message.key().decode(), []).append(int(message.value()))
    return found


def assert_exact(kafka: LocalKafka, topic: str, tasks: int, at_least: int) -> None:
    """Assert that every task's records are 1, 2, 3 … without gaps and duplicates."""
    found = sequences(kafka, topic)
    assert set(found) == {f"task-{n}" for n in range(tasks)}
    for numbers in found.values():
        wrong = [place for place, number in enumerate(numbers) if number != place + 1]
        assert not wrong, (len(numbers), numbers[max(0, wrong[0] - 3) : wrong[0] + 10])
        assert len(numbers) >= at_least


def longest(kafka: LocalKafka, topic: str) -> int:
    return max((len(numbers) for numbers in sequences(kafka, topic).values()), default=0)


def fencing_records(kafka: LocalKafka, name: str) -> list[str]:
    return [
        m.value().decode()
        for m in read_committed(kafka.bootstrap, f"{name}-configs")
        if m.key() == b"tasks-fencing-toy"
    ]


def shortest(kafka: LocalKafka, topic: str, tasks: int) -> int:
    found = sequences(kafka, topic)
    return min(map(len, found.values())) if len(found) == tasks else 0


@pytest.mark.parametrize(("boundary", "fate"), [("poll", signal.SIGKILL), ("interval", signal.SIGSTOP)])
def test_a_worker_that_dies_or_freezes_causes_no_loss_or_duplicate(
    kafka_b: LocalKafka, topic: str, boundary: str, fate: signal.Signals, tmp_path: Path
) -> None:
    """A worker ends between records and another one takes over: no data loss and no duplicates, even when it was only frozen
    in an open transaction and resumes later."""
    props = {"tasks": "2", "tasks.max": "2", "pause.s": "0.002", "transaction.boundary": boundary}
    props |= {"exactly.once.support": "required", "transaction.boundary.interval.ms": "300"}
    first = WorkerProcess(worker_props(kafka_b.bootstrap, topic, **ENABLED), "w0:1", tmp_path)
    try:
        wait_until(lambda: bool(first.status.get("ready")), 30)
        put_connector(kafka_b, topic, **props)
        wait_until(lambda: shortest(kafka_b, topic, 2) > 40, 30)
        os.kill(first.process.pid, fate)
        before = longest(kafka_b, topic)
        with worker(kafka_b, topic) as second:
            wait_until(lambda: shortest(kafka_b, topic, 2) > before + 40, 40)
            if fate == signal.SIGSTOP:
                os.kill(first.process.pid, signal.SIGCONT)
                wait_until(lambda: first.status.get("at", 0) > time.time() - 1)
                now = longest(kafka_b, topic)
                wait_until(lambda: shortest(kafka_b, topic, 2) > now + 40, 30)
            assert second.herder.failure is None
        assert_exact(kafka_b, topic, 2, before)
    finally:
        os.kill(first.process.pid, signal.SIGCONT)
        first.end(signal.SIGKILL)


@pytest.mark.parametrize("support", ["preparing", "enabled"])
def test_a_leader_that_was_fenced_claims_the_config_topic_again(kafka_b: LocalKafka, topic: str, support: str) -> None:
    with worker(kafka_b, topic, **{"exactly.once.source.support": support}) as w:
        put(w.herder, topic, tasks="1")
        wait_until(lambda: task_states(w.herder) == ["RUNNING"])
        with other_producer(kafka_b, f"connect-cluster-{topic}-group"):
            request = w.herder.put_connector_config("toy", connector_props("toy", topic, tasks="2"), allow_replace=True)
            with pytest.raises(PrivilegedWriteError, match="a newer producer uses the same"):
                request.result(60)
        put(w.herder, topic, tasks="2", **{"tasks.max": "2"})
        wait_until(lambda: task_states(w.herder) == ["RUNNING"] * 2)


@contextmanager
def other_producer(kafka: LocalKafka, transactional_id: str) -> Iterator[TransactionalProducer]:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka.bootstrap}), name="B")
    producer = TransactionalProducer(cluster, transactional_id)
    producer.init()
    try:
        yield producer
    finally:
        cluster.close()


def test_producers_of_older_tasks_are_fenced_when_the_number_of_tasks_changes(kafka_b: LocalKafka, topic: str) -> None:
    """3 → 1 → 3 tasks: a zombie of the first three is fenced although no new task has its id."""
    props = {"tasks.max": "3", "pause.s": "0.01"}
    with worker(kafka_b, topic) as w, ExitStack() as stack:
        put(w.herder, topic, tasks="3", **props)
        wait_until(lambda: task_states(w.herder) == ["RUNNING"] * 3 and longest(kafka_b, topic) > 5)
        zombie = stack.enter_context(other_producer(kafka_b, f"{topic}-group-toy-2"))
        wait_until(lambda: task_states(w.herder)[2] == "FAILED")
        zombie.begin()
        zombie.send(topic, [Record(b"zombie", b"1")])
        put(w.herder, topic, tasks="1", **props)
        wait_until(lambda: fencing_records(kafka_b, topic) == counts(3, 1))
        with pytest.raises(ProducerFenced):
            zombie.send(topic, [Record(b"zombie", b"2")])
        put(w.herder, topic, tasks="3", **props)
        wait_until(lambda: task_states(w.herder) == ["RUNNING"] * 3)
        now = longest(kafka_b, topic)
        wait_until(lambda: shortest(kafka_b, topic, 3) > now)
    assert_exact(kafka_b, topic, 3, now)
    assert fencing_records(kafka_b, topic) == counts(3, 1, 3)


def counts(*numbers: int) -> list[str]:
    return [f'{{"task-count":{number}}}' for number in numbers]


def test_an_open_transaction_of_a_dead_worker_does_not_block_its_successor(kafka_b: LocalKafka, topic: str) -> None:
    """The transaction would time out after a minute; the next producer of the task aborts it."""
    with worker(kafka_b, topic) as w:
        put(w.herder, topic)
        wait_until(lambda: longest(kafka_b, topic) > 5)
    with other_producer(kafka_b, f"{topic}-group-toy-0") as dead:
        dead.begin()
        dead.send(topic, [Record(b"task-0", b"999")])
        dead.send(f"{topic}-offsets", [Record(b'["toy",{"number":0,"toy":"\xc3\xa9"}]', b'{"count":999}')])
        before = longest(kafka_b, topic)
        with worker(kafka_b, topic):
            wait_until(lambda: longest(kafka_b, topic) > before + 5)
    assert_exact(kafka_b, topic, 1, before)


def test_followers_without_rest_wait_for_the_leader_to_fence(kafka_b: LocalKafka, topic: str) -> None:
    with worker(kafka_b, topic, "w1:1") as leader, worker(kafka_b, topic, "w2:1") as follower:
        wait_until(lambda: leader.herder.is_leader != follower.herder.is_leader)
        chosen = leader if leader.herder.is_leader else follower
        put(chosen.herder, topic, tasks="2", **{"tasks.max": "2", "pause.s": "0.01"})
        wait_until(lambda: task_states(chosen.herder) == ["RUNNING"] * 2)
        wait_until(lambda: len(sequences(kafka_b, topic)) == 2)
        owners = {task["worker_id"] for task in chosen.herder.status()["connectors"]["toy"]["tasks"]}
        assert owners == {"w1:1", "w2:1"}
        put(chosen.herder, topic, tasks="1", **{"tasks.max": "2", "pause.s": "0.01"})
        wait_until(lambda: task_states(chosen.herder) == ["RUNNING"])
        now = longest(kafka_b, topic)
        wait_until(lambda: longest(kafka_b, topic) > now)
    assert_exact(kafka_b, topic, 2, 1)


def test_a_pause_commits_the_open_transaction_and_a_failure_aborts_it(kafka_b: LocalKafka, topic: str) -> None:
    never = {"transaction.boundary": "interval", "transaction.boundary.interval.ms": "50000", "pause.s": "0.005"}
    with worker(kafka_b, topic) as w:
        put(w.herder, topic, **never)
        wait_until(lambda: len(uncommitted(kafka_b, topic)) > 20)
        assert sequences(kafka_b, topic) == {}
        w.herder.pause_connector("toy").result(60)
        wait_until(lambda: longest(kafka_b, topic) > 20)
        w.herder.resume_connector("toy").result(60)
        committed = longest(kafka_b, topic)
        put(w.herder, topic, **never, **{"fail.at": str(committed + 300)})
        wait_until(lambda: task_states(w.herder) == ["FAILED"])
        # Consumers do not wait for the records: their transaction was aborted.
        found = longest(kafka_b, topic)
        assert len(uncommitted(kafka_b, topic)) > found >= committed
    assert_exact(kafka_b, topic, 1, committed)


def uncommitted(kafka: LocalKafka, topic: str) -> list[Any]:
    return read_committed(kafka.bootstrap, topic, "read_uncommitted")
