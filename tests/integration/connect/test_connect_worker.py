"""One worker on a real broker: the bytes of its internal topics, and the life cycle of connectors and tasks."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient, ConfigResource, ResourceType

from mm2.connect.api import ConnectError
from mm2.connect.errors import AlreadyExists, BadRequest, NotFound
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.stores.config_state import RestartRequest
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, pairs, read_all
from tests.integration.connect_toy import CONNECTOR, MODULE, connector_props, node, running_worker, worker_props
from tests.integration.mirror_flow import flow_props
from tests.support.waiting import wait_until


def task_states(herder: DistributedHerder, connector: str) -> list[str]:
    return [task["state"] for task in herder.status()["connectors"].get(connector, {}).get("tasks", [])]


def connector_state(herder: DistributedHerder, connector: str) -> str | None:
    state: str | None = herder.status()["connectors"].get(connector, {}).get("connector", {}).get("state")
    return state


def running(herder: DistributedHerder, connector: str, tasks: int) -> Callable[[], bool]:
    return lambda: (
        connector_state(herder, connector) == "RUNNING" and task_states(herder, connector) == ["RUNNING"] * tasks
    )


def counts(bootstrap: str, topic: str, task: int) -> list[int]:
    return [int(m.value()) for m in read_all(bootstrap, topic) if m.key() == f"task-{task}".encode()]


@pytest.fixture
def topic(kafka_b: LocalKafka, unique: str) -> str:
    create_topic(kafka_b.bootstrap, unique)
    return unique


def test_records_arrive_and_the_internal_topics_have_java_s_bytes(kafka_b: LocalKafka, topic: str) -> None:
    b = kafka_b.bootstrap
    props = connector_props("toy", topic, **{"tasks.max": "2", "umlaut": "ü"})
    with running_worker(kafka_b, topic) as w:
        assert w.herder.put_connector_config("toy", props, allow_replace=False).result(60)
        wait_until(running(w.herder, "toy", 2))
        wait_until(lambda: len(counts(b, topic, 1)) > 30)
    for task in (0, 1):
        written = counts(b, topic, task)
        assert written == list(range(1, len(written) + 1))
    first = read_all(b, topic)[0]
    assert first.headers() == [("h", b"\x00\xff")]
    assert first.timestamp()[1] == 1_700_000_000_001

    key, value = pairs(b, f"{topic}-configs")[0]
    assert key == "session-key"
    assert re.fullmatch(r'\{"key":"[A-Za-z0-9+/]{43}=","algorithm":"HmacSHA256","creation-timestamp":\d{13}\}', value)
    configs = pairs(b, f"{topic}-configs")[1:]
    assert [k for k, _ in configs] == ["connector-toy", "task-toy-0", "task-toy-1", "commit-toy"]
    # The order in which Java 17's HashMap iterates these keys.
    assert configs[0][1] == (
        f'{{"properties":{{"connector.class":"{CONNECTOR}","umlaut":"ü","tasks.max":"2","name":"toy","topic":"{topic}"}}}}'
    )
    assert json.loads(configs[1][1])["properties"]["task.class"] == f"{MODULE}.CountingTask"
    assert configs[3][1] == '{"tasks":2}'

    offsets = pairs(b, f"{topic}-offsets")
    last = dict(offsets)
    assert set(last) == {'["toy",{"number":0,"toy":"é"}]', '["toy",{"number":1,"toy":"é"}]'}
    for task in (0, 1):
        assert last[f'["toy",{{"number":{task},"toy":"é"}}]'] == f'{{"count":{counts(b, topic, task)[-1]}}}'

    statuses = pairs(b, f"{topic}-status")
    assert ("status-connector-toy", _status("RUNNING", 2)) in statuses
    assert ("status-task-toy-0", _status("RUNNING", 3)) in statuses
    latest = dict(statuses)
    assert latest["status-connector-toy"] == _status("UNASSIGNED", 3)
    assert latest["status-task-toy-1"] == _status("UNASSIGNED", 3)
    seen = latest[f"status-topic-{topic}:connector-toy"]
    assert re.fullmatch(
        rf'\{{"topic":\{{"name":"{topic}","connector":"toy","task":[01],"discoverTimestamp":\d{{13}}\}}\}}', seen
    )


def _status(state: str, generation: int) -> str:
    return f'{{"state":"{state}","trace":null,"worker_id":"w1:1","generation":{generation},"version":"1.0"}}'


def test_internal_topics_are_compacted_with_their_partitions_and_settings(kafka_b: LocalKafka, unique: str) -> None:
    with running_worker(
        kafka_b, unique, **{"config.storage.segment.ms": "7200000", "offset.storage.cleanup.policy": "delete"}
    ):
        admin = AdminClient({"bootstrap.servers": kafka_b.bootstrap})
        topics = admin.list_topics(timeout=60).topics
        assert {n: len(topics[f"{unique}-{n}"].partitions) for n in ("configs", "offsets", "status")} == {
            "configs": 1,
            "offsets": 3,
            "status": 2,
        }
        for name in ("configs", "offsets", "status"):
            resource = ConfigResource(ResourceType.TOPIC, f"{unique}-{name}")
            found = admin.describe_configs([resource])[resource].result(60)
            assert found["cleanup.policy"].value == "compact"
            assert (found["segment.ms"].value == "7200000") == (name == "configs")
        group = f"{unique}-group"
        with pytest.raises(KafkaException, match=r"not a consumer group \(connect\)"):
            admin.describe_consumer_groups([group])[group].result(60)


def test_topics_of_the_worker_are_no_remote_topics(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    """A record that was copied there would configure connectors. The names are known when a configuration is validated."""
    props = flow_props(
        "MirrorSourceConnector",
        kafka_a,
        kafka_b,
        replication__policy__class="org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
    )
    with running_worker(kafka_b, unique) as w:
        for store in ("configs", "offsets", "status"):
            refused = props | {"topics": f"{unique}-orders,{unique}-{store}"}
            infos = w.herder.validate_connector_config(refused).result(20)
            (message,) = next(one.errors for info in infos.configs if (one := info.value) and one.name == "topics")
            assert f"its remote topic would be the internal topic {unique}-{store};" in message
            with pytest.raises(BadRequest, match=f"the internal topic {unique}-{store};"):
                w.herder.put_connector_config(refused["name"], refused, allow_replace=False).result(20)
        accepted = w.herder.validate_connector_config(props | {"topics": f"{unique}-orders"}).result(20)
        assert accepted.error_count == 0


def test_a_clean_stop_leaves_the_group_immediately(kafka_b: LocalKafka, unique: str) -> None:
    with running_worker(kafka_b, unique) as w:
        group = w.herder.group_id
        assert w.herder.is_leader
    with running_worker(kafka_b, unique, **{"session.timeout.ms": "30000"}) as again:
        # A former member in the group would delay the join until its session expires.
        assert again.herder.generation > 1
        assert again.herder.group_id == group


def test_tasks_resume_at_their_committed_offset(kafka_b: LocalKafka, topic: str) -> None:
    b = kafka_b.bootstrap
    with running_worker(kafka_b, topic) as w:
        w.herder.put_connector_config("toy", connector_props("toy", topic), allow_replace=True).result(60)
        wait_until(lambda: len(counts(b, topic, 0)) > 10)
    before = counts(b, topic, 0)
    with running_worker(kafka_b, topic) as w:
        wait_until(running(w.herder, "toy", 1))
        wait_until(lambda: len(counts(b, topic, 0)) > len(before) + 5)
        assert w.herder.status()["connectors"]["toy"]["tasks"][0]["detail"] == {"resumed_at": before[-1]}
    after = counts(b, topic, 0)
    assert after == list(range(1, len(after) + 1))


def test_a_failed_task_stays_failed_until_it_is_restarted(kafka_b: LocalKafka, topic: str) -> None:
    props = connector_props("toy", topic, **{"fail.at": "5"})
    with running_worker(kafka_b, topic) as w:
        w.herder.put_connector_config("toy", props, allow_replace=True).result(60)
        wait_until(lambda: task_states(w.herder, "toy") == ["FAILED"])
        (task,) = w.herder.status()["connectors"]["toy"]["tasks"]
        assert "configured to fail at 5" in task["trace"]
        assert connector_state(w.herder, "toy") == "RUNNING"
        time.sleep(0.5)
        assert task_states(w.herder, "toy") == ["FAILED"]
        w.herder.restart_connector_and_tasks(RestartRequest("toy", only_failed=True, include_tasks=True)).result(60)
        wait_until(lambda: ("status-task-toy-0", "RESTARTING") in _states(kafka_b, topic))
        assert ("status-connector-toy", "RESTARTING") not in _states(kafka_b, topic)
        assert ("restart-connector-toy", '{"include-tasks":true,"only-failed":true}') in pairs(
            kafka_b.bootstrap, f"{topic}-configs"
        )
        wait_until(lambda: task_states(w.herder, "toy") == ["FAILED"])
    assert counts(kafka_b.bootstrap, topic, 0) == [1, 2, 3, 4]


def _states(kafka: LocalKafka, name: str) -> list[tuple[str, str]]:
    return [
        (key, json.loads(value)["state"])
        for key, value in pairs(kafka.bootstrap, f"{name}-status")
        if value is not None and not key.startswith("status-topic-")
    ]


def test_a_failing_connector_is_shown_and_can_be_repaired(kafka_b: LocalKafka, topic: str) -> None:
    with running_worker(kafka_b, topic) as w:
        bad = connector_props("toy", topic, **{"fail.connector": "yes"})
        w.herder.put_connector_config("toy", bad, allow_replace=True).result(60)
        wait_until(lambda: connector_state(w.herder, "toy") == "FAILED")
        assert "configured to fail" in w.herder.status()["connectors"]["toy"]["connector"]["trace"]
        w.herder.put_connector_config("toy", connector_props("toy", topic), allow_replace=True).result(60)
        wait_until(running(w.herder, "toy", 1))


def test_pause_resume_stop_delete(kafka_b: LocalKafka, topic: str) -> None:
    b = kafka_b.bootstrap
    with running_worker(kafka_b, topic) as w:
        herder = w.herder
        props = connector_props("toy", topic, **{"tasks.max": "2"})
        herder.put_connector_config("toy", props, allow_replace=True).result(60)
        wait_until(running(herder, "toy", 2))

        herder.pause_connector("toy").result(60)
        wait_until(lambda: task_states(herder, "toy") == ["PAUSED"] * 2 and connector_state(herder, "toy") == "PAUSED")
        still = len(read_all(b, topic))
        time.sleep(0.4)
        assert len(read_all(b, topic)) <= still + 2
        assert ("target-state-toy", '{"state":"PAUSED","state.v2":"PAUSED"}') in pairs(b, f"{topic}-configs")

        herder.resume_connector("toy").result(60)
        wait_until(running(herder, "toy", 2))

        herder.stop_connector("toy").result(60)
        wait_until(lambda: task_states(herder, "toy") == [] and connector_state(herder, "toy") == "STOPPED")
        assert ("target-state-toy", '{"state":"PAUSED","state.v2":"STOPPED"}') in pairs(b, f"{topic}-configs")
        assert pairs(b, f"{topic}-configs")[-2:-1] == [("commit-toy", '{"tasks":0}')]

        herder.resume_connector("toy").result(60)
        wait_until(running(herder, "toy", 2))

        herder.delete_connector_config("toy").result(60)
        wait_until(lambda: "toy" not in herder.status()["connectors"])
        assert pairs(b, f"{topic}-configs")[-2:] == [("connector-toy", None), ("target-state-toy", None)]
        latest = dict(pairs(b, f"{topic}-status"))
        assert set(latest.values()) == {None}
        with pytest.raises(NotFound):
            herder.pause_connector("toy").result(60)


def test_changed_configs_restart_connector_and_tasks_with_another_number_of_tasks(
    kafka_b: LocalKafka, topic: str
) -> None:
    with running_worker(kafka_b, topic) as w:
        herder = w.herder
        for tasks in (1, 3, 2):
            props = connector_props("toy", topic, **{"tasks.max": str(tasks)})
            herder.put_connector_config("toy", props, allow_replace=True).result(60)
            wait_until(running(herder, "toy", tasks))
        with pytest.raises(AlreadyExists):
            herder.put_connector_config("toy", props, allow_replace=False).result(60)


def test_too_many_tasks_fail_the_connector(kafka_b: LocalKafka, topic: str) -> None:
    with running_worker(kafka_b, topic) as w:
        props = connector_props("toy", topic, **{"tasks": "4", "tasks.max": "2"})
        w.herder.put_connector_config("toy", props, allow_replace=True).result(60)
        wait_until(lambda: connector_state(w.herder, "toy") == "FAILED")
        assert "4 tasks, which is greater than 2" in w.herder.status()["connectors"]["toy"]["connector"]["trace"]
        assert task_states(w.herder, "toy") == []


def test_bad_connector_configs_are_refused_with_class_and_key(kafka_b: LocalKafka, unique: str) -> None:
    with running_worker(kafka_b, unique) as w:
        props = {**connector_props("toy", unique), "connector.class": "Nowhere"}
        with pytest.raises(ConnectError, match=r"Nowhere.*connector\.class"):
            w.herder.put_connector_config("toy", props, allow_replace=True).result(60)
        props = connector_props("toy", unique, **{"tasks.max": "0"})
        del props["topic"]
        with pytest.raises(ConnectError, match=r"(?s)2 error\(s\).*tasks\.max.*topic"):
            w.herder.put_connector_config("toy", props, allow_replace=True).result(60)
        assert w.herder.status()["connectors"] == {}


def test_a_blocking_poll_does_not_delay_the_stop(kafka_b: LocalKafka, topic: str) -> None:
    with running_worker(kafka_b, topic) as w:
        w.herder.put_connector_config("toy", connector_props("toy", topic, block="true"), allow_replace=True).result(60)
        wait_until(running(w.herder, "toy", 1))
    assert dict(_states(kafka_b, topic))["status-task-toy-0"] == "UNASSIGNED", "a task that is given up reports nothing"


def failure_of(kafka: LocalKafka, name: str, **overrides: str) -> str:
    props = worker_props(kafka.bootstrap, name, **overrides)
    started = node(props, "w1:1", start_timeout_s=1.0)
    started.herder.start()
    try:
        assert started.herder.await_stopped(30)
        return str(started.herder.failure)
    finally:
        started.stop()


def test_too_many_replicas_are_explained(kafka_b: LocalKafka, unique: str) -> None:
    message = failure_of(kafka_b, unique, **{"config.storage.replication.factor": "3"})
    assert f"{unique}-configs" in message
    assert "config.storage.replication.factor=3" in message
    assert "cluster toy has 1 broker(s)" in message


def test_an_uncompacted_topic_is_refused(kafka_b: LocalKafka, unique: str) -> None:
    create_topic(kafka_b.bootstrap, f"{unique}-offsets", 3, **{"cleanup.policy": "compact,delete"})
    message = failure_of(kafka_b, unique)
    assert f"{unique}-offsets" in message
    assert "offset.storage.topic" in message
    assert "compact,delete" in message


def test_a_config_topic_with_several_partitions_is_refused(kafka_b: LocalKafka, unique: str) -> None:
    create_topic(kafka_b.bootstrap, f"{unique}-configs", 2, **{"cleanup.policy": "compact"})
    message = failure_of(kafka_b, unique)
    assert "config.storage.topic" in message
    assert "single partition" in message


def test_the_leader_hook_runs_once_and_sees_the_stored_configs(kafka_b: LocalKafka, topic: str) -> None:
    seen: list[dict[str, Any]] = []

    def configure(herder: DistributedHerder) -> None:
        stored = herder.configs().connector_config("toy")
        wanted = connector_props("toy", topic)
        seen.append({"stored": stored, "same": stored == wanted})
        if stored != wanted:
            herder.put_connector_config("toy", wanted, allow_replace=True)

    for _ in range(2):
        started = node(worker_props(kafka_b.bootstrap, topic), "w1:1", on_leader_ready=configure)
        started.herder.start()
        try:
            wait_until(running(started.herder, "toy", 1))
        finally:
            started.stop()
    assert [one["same"] for one in seen] == [False, True]
    written = [key for key, _ in pairs(kafka_b.bootstrap, f"{topic}-configs")]
    assert written.count("connector-toy") == 1


def test_a_retriable_error_of_poll_is_retried(kafka_b: LocalKafka, topic: str) -> None:
    with running_worker(kafka_b, topic) as w:
        w.herder.put_connector_config("toy", connector_props("toy", topic, moody="true"), allow_replace=True).result(60)
        wait_until(lambda: counts(kafka_b.bootstrap, topic, 0)[:2] == [1, 2])
        assert task_states(w.herder, "toy") == ["RUNNING"]


def test_a_record_that_cannot_be_converted_is_skipped_only_when_errors_are_tolerated(
    kafka_b: LocalKafka, topic: str
) -> None:
    with running_worker(kafka_b, topic) as w:
        bad = connector_props("toy", topic, **{"bad.at": "2"})
        w.herder.put_connector_config("toy", bad, allow_replace=True).result(60)
        wait_until(lambda: task_states(w.herder, "toy") == ["FAILED"])
        assert "ByteArrayConverter accepts only bytes" in w.herder.status()["connectors"]["toy"]["tasks"][0]["trace"]
        tolerant = {**bad, "errors.tolerance": "all"}
        w.herder.put_connector_config("toy", tolerant, allow_replace=True).result(60)
        wait_until(lambda: counts(kafka_b.bootstrap, topic, 0)[:3] == [1, 3, 4])


def test_secrets_of_config_providers_reach_the_task_but_not_the_topic(
    kafka_b: LocalKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOY_SECRET", "open sesame")
    providers = {
        "config.providers": "env",
        "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
    }
    with running_worker(kafka_b, topic, **providers) as w:
        props = connector_props("toy", topic, secret="${env:TOY_SECRET}")
        w.herder.put_connector_config("toy", props, allow_replace=True).result(60)
        wait_until(running(w.herder, "toy", 1))
        detail = w.herder.status()["connectors"]["toy"]["tasks"][0]["detail"]
        assert detail["secret_length"] == len("open sesame")
    stored = dict(pairs(kafka_b.bootstrap, f"{topic}-configs"))
    assert json.loads(stored["task-toy-0"])["properties"]["secret"] == "${env:TOY_SECRET}"
    assert not any(value is not None and "sesame" in value for value in stored.values())
