"""The three internal topics of a distributed worker, checked in the topics and through REST."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from mm2.connect.api import ConnectError
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_config_store import KafkaConfigStore
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, read
from tests.integration.mirror_process import config_of, partitions_of
from tests.support.waiting import wait_until
from tests.systems.internal_topics import is_connect_json, latest, rows, write
from tests.systems.workers import DistributedWorker, NewestJavaWorker, WorkerProcess, distributed_props


def file_source(file: Path, topic: str) -> dict[str, str]:
    return {"connector.class": "FileStreamSource", "tasks.max": "1", "file": str(file), "topic": topic}


def verifiable(topic: str, tasks: int, throughput: int = 50) -> dict[str, str]:
    return {
        "connector.class": "org.apache.kafka.connect.tools.VerifiableSourceConnector",
        "tasks.max": str(tasks),
        "topic": topic,
        "throughput": str(throughput),
    }


@pytest.mark.timeout(240)
def test_a14_another_worker_resumes_at_the_committed_offset(broker: LocalKafka, unique: str, folder: Path) -> None:
    create(broker, unique)
    source = folder / "source.txt"
    source.write_text("one\ntwo\nthree\n")
    props = distributed_props(broker.bootstrap, unique)
    expected: list[dict[str, Any]] = [{"partition": {"filename": str(source)}, "offset": {"position": 14}}]
    with DistributedWorker(folder / "first", props) as first:
        first.rest.create("src", file_source(source, unique))
        wait_until(lambda: first.rest.offsets("src") == expected, 60, detail=first.tail)
        first.kill9()
    shutil.rmtree(folder / "first")
    with source.open("a") as growing:
        growing.write("four\n")
    with DistributedWorker(folder / "second", props) as second:
        second.rest.await_running("src", 1)
        wait_until(lambda: len(read(broker, unique)) == 4, 60, detail=second.tail)
        expected[0]["offset"]["position"] = 19
        wait_until(lambda: second.rest.offsets("src") == expected, 60, detail=second.tail)
    assert [record.value for record in read(broker, unique)] == [b"one", b"two", b"three", b"four"]
    assert rows(broker, f"{unique}-offsets")[0] == (f'["src",{{"filename":"{source}"}}]', b'{"position":14}')


@pytest.mark.timeout(180)
def test_a14_a_connector_s_own_offsets_topic_takes_precedence_over_the_worker_s(
    worker: DistributedWorker, broker: LocalKafka, group: str, unique: str, folder: Path
) -> None:
    create(broker, unique)
    own, shared = f"{unique}-own", f"{group}-offsets"
    source = folder / "source.txt"
    source.write_text("one\n")
    key = f'["{unique}",{{"filename":"{source}"}}]'
    config = {**file_source(source, unique), "offsets.storage.topic": own}
    worker.rest.create(unique, config)
    written = (key, b'{"position":4}')  # to its own, and copied to the other
    wait_until(lambda: written in rows(broker, own) and written in rows(broker, shared), 60, detail=worker.tail)
    assert config_of(broker, own, "cleanup.policy") == "compact"
    assert partitions_of(broker, own) == 3
    worker.rest.stop(unique)
    worker.rest.ask(
        "PATCH",
        f"/connectors/{unique}/offsets",
        json={"offsets": [{"partition": {"filename": str(source)}, "offset": {"position": 0}}]},
    )
    assert worker.rest.offsets(unique)[0]["offset"] == {"position": 0}
    worker.rest.resume(unique)
    wait_until(lambda: len(read(broker, unique)) == 2, 60, detail=worker.tail)
    worker.rest.stop(unique)
    worker.rest.ask("DELETE", f"/connectors/{unique}/offsets")
    assert worker.rest.offsets(unique) == []
    for topic in (own, shared):
        assert [value for name, value in rows(broker, topic) if name == key][-1] is None
    worker.rest.delete(unique)


@pytest.mark.timeout(240)
def test_a16_a39_status_records_are_written(
    worker: DistributedWorker, broker: LocalKafka, group: str, unique: str, folder: Path
) -> None:
    create(broker, unique)
    worker.rest.create(unique, verifiable(unique, 3))
    worker.rest.await_running(unique, 3)
    with DistributedWorker(folder, distributed_props(broker.bootstrap, group)) as other:
        # It is assigned its share in a later generation.
        def is_shared() -> bool:
            found = worker.rest.status(unique)
            owners = {task["worker_id"] for task in found["tasks"]}
            return len(owners) == 2 and worker.rest.states(unique) == ["RUNNING"] * 4

        wait_until(is_shared, 60, detail=lambda: str(worker.rest.status(unique)))
        here = worker.rest.status(unique)
        wait_until(
            lambda: other.rest.status(unique) == here, 1, what=f"{here}", detail=lambda: other.rest.status(unique)
        )
        table = latest(broker, f"{group}-status")
        for task in here["tasks"]:
            found = table[f"status-task-{unique}-{task['id']}"]
            assert list(found) == ["state", "trace", "worker_id", "generation", "version"]
            assert (found["state"], found["trace"], found["worker_id"]) == ("RUNNING", None, task["worker_id"])
        moved = [task["id"] for task in here["tasks"] if task["worker_id"] == other.worker_id]
        for number in moved:
            key = f"status-task-{unique}-{number}"
            written = [json.loads(value) for name, value in rows(broker, f"{group}-status") if name == key and value]
            generations = [status["generation"] for status in written]
            assert generations == sorted(generations)
            assert generations[0] < generations[-1]
            assert [status["state"] for status in written] == ["RUNNING", "UNASSIGNED", "RUNNING"]
        topic = table[f"status-topic-{unique}:connector-{unique}"]["topic"]
        assert list(topic) == ["name", "connector", "task", "discoverTimestamp"]
        assert (topic["name"], topic["connector"]) == (unique, unique)
        other.stop()
    worker.rest.delete(unique)
    wait_until(lambda: not [key for key in latest(broker, f"{group}-status") if unique in key], 30)
    assert worker.rest.http.get(f"/connectors/{unique}/status").status_code == 404


@pytest.mark.timeout(120)
def test_a39_a_failure_is_reported_with_its_stack_trace(
    worker: DistributedWorker, broker: LocalKafka, group: str, unique: str, folder: Path
) -> None:
    create(broker, unique)
    config = {
        "connector.class": "FileStreamSink",
        "tasks.max": "1",
        "file": str(folder / "sink.txt"),
        "topics": unique,
        "value.converter": "org.apache.kafka.connect.json.JsonConverter",
    }
    worker.rest.create(unique, config)
    worker.rest.await_running(unique, 1)
    write(broker, unique, "key", "this is no JSON")
    wait_until(lambda: worker.rest.states(unique) == ["RUNNING", "FAILED"], 60, detail=worker.tail)
    found = latest(broker, f"{group}-status")[f"status-task-{unique}-0"]
    (shown,) = worker.rest.status(unique)["tasks"]
    assert (found["state"], found["worker_id"], found["trace"]) == ("FAILED", worker.worker_id, shown["trace"])
    assert "JSON" in found["trace"]
    worker.rest.delete(unique)
    wait_until(lambda: not [key for key in latest(broker, f"{group}-status") if unique in key], 30)


@pytest.mark.timeout(180)
def test_a18_config_records_are_written(worker: DistributedWorker, broker: LocalKafka, group: str, unique: str) -> None:
    create(broker, unique)
    topic = f"{group}-configs"
    config = verifiable(unique, 2)
    worker.rest.create(unique, config, state="PAUSED")
    wait_until(lambda: worker.rest.states(unique) == ["PAUSED"], 60, detail=lambda: str(worker.rest.status(unique)))
    worker.rest.resume(unique)
    worker.rest.await_running(unique, 2)
    mine = [(key, value) for key, value in rows(broker, topic) if unique in key]
    assert [key for key, _ in mine] == [
        f"target-state-{unique}",
        f"connector-{unique}",
        f"target-state-{unique}",
        f"task-{unique}-0",
        f"task-{unique}-1",
        f"commit-{unique}",
    ]
    assert all(value is not None and is_connect_json(value) for _, value in mine)
    assert mine[0][1] == b'{"state":"PAUSED","state.v2":"PAUSED"}'
    assert json.loads(mine[1][1] or b"") == {"properties": {**config, "name": unique}}
    assert mine[2][1] == b'{"state":"STARTED","state.v2":"STARTED"}'
    assert mine[5][1] == b'{"tasks":2}'
    # The worker applies records of any writer to the topic.
    write(broker, topic, f"target-state-{unique}", '{"state":"PAUSED","state.v2":"PAUSED"}')
    wait_until(lambda: worker.rest.states(unique) == ["PAUSED"] * 3, 30, detail=lambda: str(worker.rest.status(unique)))
    by_hand = {"properties": {**config, "name": f"{unique}-hand", "tasks.max": "1"}}
    write(broker, topic, f"connector-{unique}-hand", json.dumps(by_hand))
    worker.rest.await_running(f"{unique}-hand", 1)
    write(broker, topic, f"connector-{unique}-hand", None)
    wait_until(lambda: f"{unique}-hand" not in worker.rest.get("/connectors"), 30)
    worker.rest.delete(unique)
    assert rows(broker, topic)[-2:] == [(f"connector-{unique}", None), (f"target-state-{unique}", None)]
    assert {config_of(broker, f"{group}-{store}", "cleanup.policy") for store in ("configs", "offsets", "status")} == {
        "compact"
    }


def test_task_configs_that_the_topic_rejects_are_reported_by_name_and_none_is_used(
    broker: LocalKafka, unique: str
) -> None:
    # All partitions of a task are one record, as in Java: more than about 25,000 exceed the default size.
    many = ",".join(f"a-topic-with-a-name-of-ordinary-length-{number}" for number in range(30_000))
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="B")
    store = KafkaConfigStore(cluster, InternalTopic(unique, "config.storage.", 1, 1), start_timeout_s=30)
    unused: Any = object()  # never called
    try:
        store.start(unused)
        wrong = rf"the task configs of connector c to the config topic {unique} of cluster B: .*MESSAGE_TOO_LARGE"
        with pytest.raises(ConnectError, match=wrong):
            store.put_task_configs("c", [{"task.assigned.partitions": "t-0"}, {"task.assigned.partitions": many}])
        store.refresh(10)
        assert store.snapshot().task_counts == {}
    finally:
        store.stop()
        cluster.close()


@pytest.mark.timeout(240)
def test_a24_the_first_response_contains_everything_written_before(
    broker: LocalKafka, unique: str, folder: Path
) -> None:
    create(broker, unique)
    worker = DistributedWorker(folder, distributed_props(broker.bootstrap, unique))
    with worker:
        names = sorted(f"c{number}" for number in range(12))
        for name in names:
            worker.rest.create(name, verifiable(unique, 1))
        for name in names:
            worker.rest.await_running(name, 1)
        worker.rest.delete("c3")
        names.remove("c3")
        worker.kill9()
        worker.launch()
        found = worker.rest_when_open("/connectors")
        assert sorted(found) == names
        statuses = worker.rest.get("/connectors?expand=status")
        assert sorted(statuses) == names


@pytest.mark.timeout(120)
@pytest.mark.timeout(240)
@pytest.mark.parametrize("kind", [DistributedWorker, pytest.param(NewestJavaWorker, marks=pytest.mark.slow)])
def test_a_worker_that_must_not_create_its_topics_names_the_missing_one(
    broker: LocalKafka, unique: str, folder: Path, kind: type[WorkerProcess]
) -> None:
    """Since Kafka 4.4, here for ours and for Java's worker."""
    props = distributed_props(broker.bootstrap, unique) | {"internal.topics.automatic.creation.enable": "false"}
    worker = kind(folder / "none", props).launch()
    wait_until(lambda: not worker.is_running, 90, detail=worker.tail)
    assert (
        f"Topic '{unique}-offsets' specified via the 'offset.storage.topic' property is missing. The config "
        "'internal.topics.automatic.creation.enable' is set to 'false', so automatic creation of internal topics is disabled. "
        "Either enable automatic creation or create the topics manually."
    ) in worker.tail(200)
    assert not partitions_of(broker, f"{unique}-offsets")
    for store, partitions in (("offsets", 2), ("status", 2), ("configs", 1)):
        create(broker, f"{unique}-{store}", partitions, cleanup__policy="compact")
    with kind(folder / "all", props) as started:
        started.rest.get("/connectors")


def test_a40_a_reference_is_stored_and_not_the_secret(broker: LocalKafka, unique: str, folder: Path) -> None:
    create(broker, unique)
    secrets = folder / "secrets.properties"
    secrets.write_text(f"password=hunter2-{unique}\ntopic={unique}\n")
    props = distributed_props(broker.bootstrap, unique) | {
        "config.providers": "file",
        "config.providers.file.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
    }
    with DistributedWorker(folder / "worker", props) as worker:
        reference = f"${{file:{secrets}:password}}"
        config = {
            **verifiable(f"${{file:{secrets}:topic}}", 1),
            "producer.override.client.id": reference,
        }
        worker.rest.create("c", config)
        worker.rest.await_running("c", 1)
        assert worker.rest.get("/connectors/c/config")["producer.override.client.id"] == reference
        assert worker.rest.get("/connectors/c/tasks")[0]["config"]["topic"] == config["topic"]
        wait_until(lambda: len(read(broker, unique)) > 0, 30, detail=worker.tail)
        stored = rows(broker, f"{unique}-configs")
        assert {key for key, _ in stored} >= {"connector-c", "task-c-0", "commit-c"}
        assert json.loads(dict(stored)["connector-c"] or b"")["properties"]["producer.override.client.id"] == reference
        for store in ("configs", "offsets", "status"):
            assert not [value for _, value in rows(broker, f"{unique}-{store}") if b"hunter2" in (value or b"")]
        assert "hunter2" not in worker.log.read_text()


@pytest.mark.timeout(120)
def test_a44_a_file_with_internal_converters_still_starts(broker: LocalKafka, unique: str, folder: Path) -> None:
    """The worker properties that the test started with."""
    create(broker, unique)
    converter = "org.apache.kafka.connect.json.JsonConverter"
    props = distributed_props(broker.bootstrap, unique) | {
        "key.converter": converter,
        "value.converter": converter,
        "key.converter.schemas.enable": "true",
        "value.converter.schemas.enable": "true",
        "internal.key.converter": converter,
        "internal.value.converter": converter,
        "internal.key.converter.schemas.enable": "true",
        "internal.value.converter.schemas.enable": "true",
    }
    with DistributedWorker(folder / "worker", props) as worker:
        assert "internal.key.converter" in worker.log.read_text()
        source = folder / "source.txt"
        source.write_text("one\n")
        worker.rest.create("src", file_source(source, unique))
        worker.rest.await_running("src", 1)
        wait_until(lambda: worker.rest.offsets("src") != [], 30, detail=worker.tail)
        for store in ("configs", "offsets", "status"):
            values = [value for _, value in rows(broker, f"{unique}-{store}") if value is not None]
            assert values
            assert all(map(is_connect_json, values))
        assert json.loads(read(broker, unique)[0].value or b"") == {
            "schema": {"type": "string", "optional": False},
            "payload": "one",
        }
