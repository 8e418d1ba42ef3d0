"""A33 to A37 with workers as processes: requests through REST, results from the status topic.

The last test but one checks incremental rebalancing: with two workers and six tasks, when a third joins and one is killed,
only tasks that move leave RUNNING.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.systems.herder_toys import CLASS
from tests.systems.workers import DistributedWorker, distributed_props

Statuses = dict[str, list[dict[str, Any]]]


def beating(topic: str, tasks: int, **more: str) -> dict[str, str]:
    return {"connector.class": CLASS, "topic": topic, "tasks.max": str(tasks), **more}


@contextlib.contextmanager
def group_of(
    number: int, broker: LocalKafka, group: str, folder: Path, **props: str
) -> Iterator[list[DistributedWorker]]:
    """Start that many workers; also stops those that a test appends."""
    given = {**distributed_props(broker.bootstrap, group), "scheduled.rebalance.max.delay.ms": "500", **props}
    with contextlib.ExitStack() as closing:
        workers = [DistributedWorker(folder / f"w{n}", given) for n in range(number)]
        for worker in workers:
            worker.launch()
            closing.callback(worker.__exit__)
        for worker in workers:
            worker.await_healthy()
        yield workers


def like(worker: DistributedWorker) -> dict[str, str]:
    """Properties of another worker of the same group."""
    return {key: value for key, value in worker.props.items() if key != "listeners"}


def statuses(broker: LocalKafka, group: str) -> Statuses:
    """All records of the status topic by key, in order, without those of active topics."""
    found: Statuses = {}
    for message in read_all(broker.bootstrap, f"{group}-status"):
        key = message.key().decode()
        if not key.startswith("status-topic-"):
            value = {"state": "DESTROYED"} if message.value() is None else json.loads(message.value())
            found.setdefault(key, []).append(value)
    return found


def owners(worker: DistributedWorker, name: str) -> dict[int, str]:
    """The worker of each running task."""
    return {task["id"]: task["worker_id"] for task in worker.rest.status(name)["tasks"] if task["state"] == "RUNNING"}


def spread(worker: DistributedWorker, name: str) -> list[int]:
    """The number of running tasks of each worker, sorted."""
    found = list(owners(worker, name).values())
    return sorted(found.count(owner) for owner in set(found))


def members(broker: LocalKafka, group: str) -> tuple[str, int]:
    """Protocol type and number of members of a group."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="B")
    try:
        found = Admin(cluster).describe_groups([group])[group]
        assert not isinstance(found, Exception), found
        return found.protocol_type, len(found.members or ())
    finally:
        cluster.close()


def generations(found: Statuses, key: str) -> list[int]:
    return [status["generation"] for status in found[key] if "generation" in status]


def status_text(worker: DistributedWorker, name: str) -> Callable[[], str]:
    return lambda: f"{worker.rest.status(name)} {worker.tail(5)}"


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[LocalKafka]:
    """A broker that the test may kill."""
    with LocalKafka("own", tmp_path / "broker") as broker:
        yield broker


def test_a33_the_group_is_of_type_connect_and_a_killed_worker_leaves_after_its_session_timeout(
    broker: LocalKafka, group: str, folder: Path
) -> None:
    group = f"{group}-33"
    with group_of(2, broker, group, folder) as (first, second):
        assert members(broker, group) == ("connect", 2)
        second.kill9()
        wait_until(lambda: members(broker, group) == ("connect", 1), timeout_s=20)
        assert first.stop() == 0
        assert members(broker, group)[1] == 0, "a stopped worker must leave the group"


def test_a34_the_eager_protocol_reassigns_everything_in_each_rebalance(
    broker: LocalKafka, group: str, folder: Path
) -> None:
    group = f"{group}-34"
    create_topic(broker.bootstrap, f"{group}-data")
    with group_of(2, broker, group, folder, **{"connect.protocol": "eager"}) as (first, second):
        first.rest.create("c", beating(f"{group}-data", 3))
        first.rest.await_running("c", 3)
        status = first.rest.status("c")
        work = [status["connector"]["worker_id"], *(task["worker_id"] for task in status["tasks"])]
        low, high = sorted({first.worker_id, second.worker_id}, key=work.index)
        # Connector first, then its tasks in order, over the sorted members.
        assert work == [low, high, low, high]
        before = statuses(broker, group)
        second.rest.create("d", beating(f"{group}-data", 1))
        second.rest.await_running("d", 1)
        first.rest.await_running("c", 3)
        wait_until(lambda: len(statuses(broker, group)["status-task-c-2"]) > len(before["status-task-c-2"]) + 1)
        after = statuses(broker, group)
        for number in range(3):
            new = after[f"status-task-c-{number}"][len(before[f"status-task-c-{number}"]) :]
            assert {"UNASSIGNED", "RUNNING"} <= {status["state"] for status in new}, "every rebalance stops everything"
        keys = {message.key() for message in read_all(broker.bootstrap, f"{group}-configs")}
        assert b"session-key" not in keys, "such a group does not sign its requests"


def test_a35_only_tasks_that_move_are_stopped(broker: LocalKafka, group: str, folder: Path) -> None:
    group = f"{group}-35"
    create_topic(broker.bootstrap, f"{group}-data")
    with group_of(2, broker, group, folder) as workers:
        first, second = workers
        first.rest.create("six", beating(f"{group}-data", 6))
        wait_until(lambda: spread(first, "six") == [3, 3], timeout_s=60, detail=status_text(first, "six"))
        before, placed = statuses(broker, group), owners(first, "six")

        third = DistributedWorker(folder / "w2", like(first))
        with third:
            wait_until(lambda: spread(first, "six") == [2, 2, 2], timeout_s=60, detail=status_text(first, "six"))
            joined, moved_to = statuses(broker, group), owners(first, "six")
            stayed = [task for task, owner in placed.items() if moved_to[task] == owner]
            assert len(stayed) == 4
            for task in stayed:
                key = f"status-task-six-{task}"
                assert joined[key] == before[key], "a task that did not move wrote a status"

            dead = next(worker for worker in (second, first) if worker.worker_id in moved_to.values())
            alive = next(worker for worker in (first, second) if worker is not dead)
            dead.kill9()
            wait_until(lambda: spread(alive, "six") == [3, 3], timeout_s=60, detail=status_text(alive, "six"))
            killed, now_at = statuses(broker, group), owners(alive, "six")
            survivors = [task for task, owner in moved_to.items() if owner != dead.worker_id]
            assert len(survivors) == 4
            for task in survivors:
                key = f"status-task-six-{task}"
                assert now_at[task] == moved_to[task]
                assert killed[key] == joined[key], "what ran elsewhere is not touched by the death of a worker"


def test_a36_only_some_changes_cause_a_new_generation(broker: LocalKafka, group: str, folder: Path) -> None:
    group = f"{group}-36"
    create_topic(broker.bootstrap, f"{group}-data")
    with group_of(1, broker, group, folder) as (worker,):
        rest, topic = worker.rest, f"{group}-data"
        rest.create("c", beating(topic, 1))
        rest.await_running("c", 1)
        rest.pause("c")
        wait_until(lambda: rest.states("c") == ["PAUSED", "PAUSED"])
        first = statuses(broker, group)
        was = max(generations(first, "status-connector-c"))

        # Only the connector's configuration changes (a running one also generates its task configs again): only it restarts.
        rest.configure("c", beating(topic, 2))
        wait_until(lambda: len(statuses(broker, group)["status-connector-c"]) >= len(first["status-connector-c"]) + 2)
        second = statuses(broker, group)
        grown = second["status-connector-c"][len(first["status-connector-c"]) :]
        assert [(status["state"], status["generation"]) for status in grown] == [("UNASSIGNED", was), ("PAUSED", was)]
        assert second["status-task-c-0"] == first["status-task-c-0"]

        # Task configs: a new generation.
        rest.resume("c")
        rest.await_running("c", 2)
        now = max(generations(statuses(broker, group), "status-task-c-1"))
        assert now > was

        # A new connector and a deleted one: a new generation each.
        rest.create("d", beating(topic, 1))
        rest.await_running("d", 1)
        with_d = max(generations(statuses(broker, group), "status-connector-d"))
        assert with_d > now
        rest.delete("d")
        wait_until(lambda: statuses(broker, group)["status-connector-d"][-1]["state"] == "DESTROYED")
        rest.create("e", beating(topic, 1))
        rest.await_running("e", 1)
        assert max(generations(statuses(broker, group), "status-connector-e")) > with_d + 1


@pytest.mark.parametrize("older", ["eager", "compatible"])
def test_an_older_worker_downgrades_the_group_until_it_leaves(
    broker: LocalKafka, group: str, folder: Path, older: str
) -> None:
    group = f"{group}-{older}"
    create_topic(broker.bootstrap, f"{group}-data")
    with group_of(1, broker, group, folder) as (worker,):
        worker.rest.create("c", beating(f"{group}-data", 2))
        worker.rest.await_running("c", 2)
        unsigned = f"{worker.rest.url}/connectors/c/tasks"
        assert worker.rest.http.post(unsigned, json=[]).status_code == 400
        with DistributedWorker(folder / "older", like(worker) | {"connect.protocol": older}) as second:
            wait_until(lambda: spread(worker, "c") == [1, 1], timeout_s=60, detail=status_text(worker, "c"))
            # The other worker stopped its task before the group was downgraded.
            ours, theirs = worker.worker_id, second.worker_id
            moved = next(task for task, owner in owners(worker, "c").items() if owner == theirs)
            ran = [
                (status["state"], status["worker_id"]) for status in statuses(broker, group)[f"status-task-c-{moved}"]
            ]
            assert ran.index(("UNASSIGNED", ours)) < ran.index(("RUNNING", theirs)), ran
            # Such a group does not sign its requests: an empty set of task configs is accepted.
            wait_until(lambda: worker.rest.http.post(unsigned, json=[]).status_code in {204, 200}, timeout_s=30)
            second.stop()
        wait_until(lambda: worker.rest.http.post(unsigned, json=[]).status_code == 400, timeout_s=60)
        worker.rest.configure("c", beating(f"{group}-data", 2, config="again"))
        worker.rest.await_running("c", 2)


@pytest.mark.slow
def test_a37_without_brokers_nothing_runs_and_everything_resumes_with_them(
    own_broker: LocalKafka, group: str, folder: Path
) -> None:
    group = f"{group}-37"
    create_topic(own_broker.bootstrap, f"{group}-data")
    with group_of(1, own_broker, group, folder) as (worker,):
        worker.rest.create("c", beating(f"{group}-data", 2))
        worker.rest.await_running("c", 2)
        own_broker.kill9()
        wait_until(lambda: "giving up all work" in worker.log.read_text(), timeout_s=20, detail=worker.tail)
        wait_until(lambda: worker.rest.http.get("/health", timeout=20).status_code == 500, timeout_s=30)
        own_broker.start()
        worker.await_healthy(30)
        worker.rest.await_running("c", 2, 30)
        assert AdminClient({"bootstrap.servers": own_broker.bootstrap}).list_topics(timeout=60)
        count = len(read_all(own_broker.bootstrap, f"{group}-data"))
        wait_until(lambda: len(read_all(own_broker.bootstrap, f"{group}-data")) > count, timeout_s=20)


@pytest.mark.slow
def test_a32_a_worker_is_starting_until_its_topics_are_read_and_healthy_afterwards(
    own_broker: LocalKafka, group: str, folder: Path
) -> None:
    worker = DistributedWorker(folder, distributed_props(own_broker.bootstrap, f"{group}-32"))
    worker.launch()
    try:
        # It has started to read the first of its topics.
        wait_until(lambda: "internal topic created" in worker.tail(200), timeout_s=60, detail=worker.tail)
        own_broker.pause()
        try:
            # At first REST has no herder yet.
            wait_until(lambda: "status" in worker.rest.http.get("/health", timeout=20).json())
            answer = worker.rest.http.get("/health", timeout=20)
            assert answer.status_code == 503
            assert answer.json()["status"] == "starting"
            assert "The worker is currently " in answer.json()["message"]
        finally:
            own_broker.resume()
        worker.await_healthy(60)
        assert worker.rest.get("/health") == {
            "status": "healthy",
            "message": "Worker has completed startup and is ready to handle requests.",
        }
    finally:
        worker.__exit__()
