"""A20 to A23, A40: records of the config topic, written by workers and by hand, and their effect."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from mm2.connect import request_signing
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.systems.herder_toys import CLASS
from tests.systems.workers import DistributedWorker, distributed_props


@pytest.fixture(scope="module")
def topic(broker: LocalKafka, group: str) -> str:
    create_topic(broker.bootstrap, f"{group}-data")
    return f"{group}-data"


@pytest.fixture(scope="module")
def worker(broker: LocalKafka, group: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistributedWorker]:
    folder = tmp_path_factory.mktemp("worker")
    (folder / "secrets.properties").write_text("password=123456789\n")
    props = {
        **distributed_props(broker.bootstrap, group),
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    with DistributedWorker(folder, props) as worker:
        yield worker


def like(worker: DistributedWorker) -> dict[str, str]:
    """Properties of another worker of the same group."""
    return {key: value for key, value in worker.props.items() if key != "listeners"}


def config_records(broker: LocalKafka, group: str) -> list[tuple[str, str | None]]:
    return [
        (message.key().decode(), None if message.value() is None else message.value().decode())
        for message in read_all(broker.bootstrap, f"{group}-configs")
    ]


def write(broker: LocalKafka, group: str, *records: tuple[str, dict[str, object] | None]) -> None:
    """Write a record to the config topic."""
    producer = Producer({"bootstrap.servers": broker.bootstrap})
    for key, value in records:
        producer.produce(f"{group}-configs", key=key, value=None if value is None else json.dumps(value))
    assert producer.flush(10) == 0


def beats(broker: LocalKafka, topic: str, config: str) -> int:
    """The number of records written by tasks with this ``config``."""
    return sum(json.loads(message.value())["config"] == config for message in read_all(broker.bootstrap, topic))


def test_a20_a_config_put_on_one_worker_restarts_tasks_on_another(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    with DistributedWorker(folder / "other", like(worker)) as other:
        worker.rest.create("a20", {"connector.class": CLASS, "topic": topic, "tasks.max": "2", "config": "a20-old"})
        wait_until(
            lambda: (
                {task["worker_id"] for task in worker.rest.status("a20")["tasks"]}
                == {worker.worker_id, other.worker_id}
            ),
            timeout_s=60,
        )
        worker.rest.await_running("a20", 2)
        pids = {worker.pid, other.pid}
        for asked, config in ((worker, "a20-new"), (other, "a20-newer")):
            asked.rest.configure("a20", {"connector.class": CLASS, "topic": topic, "tasks.max": "2", "config": config})
            wait_until(lambda config=config: wrote(broker, topic, config) == pids, timeout_s=60)  # type: ignore[misc]
        worker.rest.delete("a20")


def wrote(broker: LocalKafka, topic: str, config: str) -> set[int]:
    """Ids of the processes that wrote records with this ``config``."""
    found = [json.loads(message.value()) for message in read_all(broker.bootstrap, topic)]
    return {beat["worker"] for beat in found if beat["config"] == config}


def test_a21_task_configs_count_from_their_commit_on(
    worker: DistributedWorker, broker: LocalKafka, group: str, topic: str
) -> None:
    worker.rest.create("a21", {"connector.class": CLASS, "topic": topic, "tasks": "0"})
    worker.rest.await_running("a21", 0)
    task = {
        "task.class": "tests.systems.herder_toys.BeatingTask",
        "topic": topic,
        "config": "a21",
        "number": "0",
        "connector.class": CLASS,
    }
    write(broker, group, ("task-a21-0", {"properties": task}))
    assert worker.rest.get("/connectors/a21/tasks") == []
    # A later change has been applied, so the record has been read.
    worker.rest.create("a21-behind", {"connector.class": CLASS, "topic": topic, "tasks": "0"})
    worker.rest.await_running("a21-behind", 0)
    assert worker.rest.get("/connectors/a21/tasks") == []
    assert beats(broker, topic, "a21") == 0

    write(broker, group, ("commit-a21", {"tasks": 1}))
    worker.rest.await_running("a21", 1)
    wait_until(lambda: beats(broker, topic, "a21") > 0)
    assert worker.rest.get("/connectors/a21/tasks")[0]["config"] == task

    # An incomplete set of task configs is ignored.
    write(broker, group, ("commit-a21", {"tasks": 2}))
    wait_until(lambda: worker.rest.states("a21") == ["RUNNING"])
    worker.rest.delete("a21")
    worker.rest.delete("a21-behind")


def test_a22_all_workers_follow_the_target_states_in_the_topic(
    worker: DistributedWorker, broker: LocalKafka, group: str, topic: str
) -> None:
    worker.rest.create("a22", {"connector.class": CLASS, "topic": topic, "tasks.max": "2"}, state="PAUSED")
    wait_until(lambda: worker.rest.states("a22") == ["PAUSED"])
    key = "target-state-a22"
    records = [record for record in config_records(broker, group) if record[0] in {key, "connector-a22"}]
    assert [record[0] for record in records] == [key, "connector-a22"], "it never runs in another state"
    worker.rest.resume("a22")
    worker.rest.await_running("a22", 2)
    worker.rest.pause("a22")
    wait_until(lambda: worker.rest.states("a22") == ["PAUSED"] * 3)
    assert (key, '{"state":"PAUSED","state.v2":"PAUSED"}') in config_records(broker, group)
    worker.rest.stop("a22")
    states = [value for record, value in config_records(broker, group) if record == key]
    assert states[-1] == '{"state":"PAUSED","state.v2":"STOPPED"}'
    # The record of a worker from before KIP-875.
    write(broker, group, (key, {"state": "STARTED"}))
    worker.rest.await_running("a22", 2)
    worker.rest.delete("a22")
    assert config_records(broker, group)[-2:] == [("connector-a22", None), (key, None)]


def test_a23_requests_between_workers_are_signed_with_the_key_in_the_topic(
    worker: DistributedWorker, broker: LocalKafka, group: str, topic: str
) -> None:
    (key,) = [json.loads(value or "") for record, value in config_records(broker, group) if record == "session-key"]
    assert key["algorithm"] == "HmacSHA256"
    session_key = request_signing.SessionKey.from_json(key)
    assert len(session_key.key) == 32

    worker.rest.create("a23", {"connector.class": CLASS, "topic": topic, "tasks": "0"})
    worker.rest.await_running("a23", 0)
    body = b"[]"
    good = request_signing.signature_headers(session_key, body)
    wrong = {**good, request_signing.SIGNATURE_HEADER: base64.b64encode(bytes(32)).decode()}
    for path in ("/connectors/a23/tasks", "/connectors/unknown/tasks"):
        for headers, status in (({}, 400), (wrong, 403), ({**good, request_signing.ALGORITHM_HEADER: "Nonsense"}, 400)):
            given = {"Content-Type": "application/json", **headers}
            assert worker.rest.http.post(path, content=body, headers=given).status_code == status
    given = {"Content-Type": "application/json", **good}
    assert worker.rest.http.post("/connectors/unknown/tasks", content=body, headers=given).status_code == 404
    assert worker.rest.http.post("/connectors/a23/tasks", content=body, headers=given).status_code in {200, 204}
    assert worker.rest.http.put("/connectors/a23/fence").status_code == 400
    worker.rest.delete("a23")


def test_a40_secrets_are_stored_and_shown_as_references(
    worker: DistributedWorker, broker: LocalKafka, group: str, topic: str
) -> None:
    reference = "${file:%s:password}" % (worker.folder / "secrets.properties")
    worker.rest.create("a40", {"connector.class": CLASS, "topic": topic, "tasks.max": "1", "secret": reference})
    worker.rest.await_running("a40", 1)
    assert worker.rest.get("/connectors/a40/config")["secret"] == reference
    assert worker.rest.get("/connectors/a40/tasks")[0]["config"]["secret"] == reference
    assert not any("123456789" in (value or "") for _, value in config_records(broker, group))
    wait_until(lambda: any(json.loads(message.value())["secret"] == 9 for message in read_all(broker.bootstrap, topic)))
    worker.rest.delete("a40")
