"""A31, A32, A38 and the effect of each request, through REST; a connector that hangs or fails affects no other."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import PATIENCE, wait_until
from tests.systems.herder_toys import CLASS, MODULE
from tests.systems.workers import DistributedWorker, Rest

RUNNING, FAILED = "RUNNING", "FAILED"


@pytest.fixture(scope="module")
def topic(broker: LocalKafka, group: str) -> str:
    create_topic(broker.bootstrap, f"{group}-data")
    return f"{group}-data"


@pytest.fixture(scope="module")
def rest(worker: DistributedWorker) -> Rest:
    return worker.rest


@pytest.fixture
def beating(rest: Rest, topic: str, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """Configuration of a beating connector without tasks, named after the test and deleted at its end."""
    name = request.node.name.replace("[", "-").replace("]", "")[5:45]
    yield {"name": name, "connector.class": CLASS, "topic": topic, "tasks": "0"}
    rest.http.delete(f"/connectors/{name}")


def records_of(broker: LocalKafka, group: str, key: str) -> list[Any]:
    return [
        None if message.value() is None else json.loads(message.value())
        for message in read_all(broker.bootstrap, f"{group}-configs")
        if message.key() == key.encode()
    ]


def test_a31_conflicting_writes_are_serialized(
    rest: Rest, broker: LocalKafka, group: str, beating: dict[str, str]
) -> None:
    name = beating["name"]
    rest.create(name, beating)
    rest.await_running(name, 0)

    def put(number: int) -> int:
        config = {**beating, "config": str(number)}
        return rest.http.put(f"/connectors/{name}/config", json=config).status_code

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(put, range(24))) <= {200, 409}
    written = [record["properties"].get("config") for record in records_of(broker, group, f"connector-{name}")]
    assert rest.get(f"/connectors/{name}/config").get("config") == written[-1]
    with ThreadPoolExecutor(8) as pool:
        created = list(
            pool.map(
                lambda _: rest.http.post(
                    "/connectors", json={"name": f"{name}2", "config": {**beating, "name": f"{name}2"}}
                ),
                range(8),
            )
        )
    assert sorted(answer.status_code for answer in created).count(201) == 1
    assert {answer.status_code for answer in created} == {201, 409}
    rest.delete(f"{name}2")


def test_a38_a_read_after_a_write_returns_the_written_value(rest: Rest, beating: dict[str, str]) -> None:
    name = beating["name"]
    assert rest.http.post("/connectors", json={"name": name, "config": beating}).status_code == 201
    assert rest.get(f"/connectors/{name}")["config"] == beating
    assert name in rest.get("/connectors")
    for number in range(20):
        config = {**beating, "config": str(number)}
        rest.configure(name, config)
        assert rest.get(f"/connectors/{name}/config") == config
    rest.ask("PATCH", f"/connectors/{name}/config", json={"config": None, "more": "1"})
    assert rest.get(f"/connectors/{name}/config") == {**beating, "more": "1"}
    rest.delete(name)
    assert rest.http.get(f"/connectors/{name}").status_code == 404


@pytest.mark.parametrize("where", ["validate", "start", "task.configs", "stop"])
def test_a31_a_connector_that_hangs_blocks_no_other(
    rest: Rest, topic: str, beating: dict[str, str], folder: Path, where: str
) -> None:
    name, file = beating["name"], folder / "hang"
    file.touch()
    hanging = {**beating, "hang.in": where, "hang.file": str(file)}
    try:
        with ThreadPoolExecutor(1) as pool:
            creating = pool.submit(rest.http.post, "/connectors", json={"name": name, "config": hanging})
            if where == "stop":
                assert creating.result(60).status_code == 201
                rest.await_running(name, 0)
                creating = pool.submit(rest.http.post, f"/connectors/{name}/restart")
            began = time.monotonic()
            other = f"{name}-other"
            rest.create(other, {"connector.class": CLASS, "topic": topic, "tasks.max": "1"})
            rest.await_running(other, 1, 20)
            rest.delete(other)
            # The worker waits five seconds for a connector that does not stop.
            assert time.monotonic() - began < 12 * PATIENCE
            if where == "validate":
                assert not creating.done()
            file.unlink()
            assert creating.result(60).status_code in {201, 204, 409}
        rest.await_running(name, 0)
    finally:
        file.unlink(missing_ok=True)


def test_failed_tasks_are_restarted_as_requested(rest: Rest, beating: dict[str, str], folder: Path) -> None:
    name, cure = beating["name"], folder / "cure"
    rest.create(name, {**beating, "tasks": "2", "tasks.max": "2", "task.fails.until": str(cure)})
    wait_until(lambda: rest.states(name) == [RUNNING, FAILED, FAILED], detail=lambda: rest.status(name))
    trace = rest.get(f"/connectors/{name}/tasks/1/status")["trace"]
    assert "task configured to fail" in trace

    def restart(query: str, expect: int) -> Any:
        return rest.ask("POST", f"/connectors/{name}/restart{query}", expect=expect)

    shown = restart("?onlyFailed=true", 202)
    assert [shown["connector"]["state"], *(task["state"] for task in shown["tasks"])] == [RUNNING, FAILED, FAILED]
    cure.touch()
    rest.ask("POST", f"/connectors/{name}/tasks/1/restart", expect=204)
    wait_until(lambda: rest.states(name) == [RUNNING, FAILED, RUNNING], detail=lambda: rest.status(name))
    shown = restart("?onlyFailed=true&includeTasks=true", 202)
    assert [task["state"] for task in shown["tasks"]] == ["RESTARTING", RUNNING]
    wait_until(lambda: rest.states(name) == [RUNNING] * 3)
    shown = restart("?includeTasks=true", 202)
    assert {shown["connector"]["state"], *(task["state"] for task in shown["tasks"])} == {"RESTARTING"}
    wait_until(lambda: rest.states(name) == [RUNNING] * 3)
    assert restart("", 204) is None
    wait_until(lambda: rest.states(name) == [RUNNING] * 3)
    for flags in ("", "?includeTasks=true", "?onlyFailed=true", "?includeTasks=true&onlyFailed=true"):
        rest.ask("POST", f"/connectors/unknown/restart{flags}", expect=404)
    rest.ask("POST", f"/connectors/{name}/tasks/7/restart", expect=404)
    rest.ask("POST", "/connectors/unknown/tasks/0/restart", expect=404)


def test_a_connector_that_failed_to_start_can_be_stopped_resumed_and_restarted(
    rest: Rest, beating: dict[str, str], folder: Path
) -> None:
    name, cure = beating["name"], folder / "cure"
    rest.create(name, {**beating, "tasks": "1", "fail.until": str(cure)})
    wait_until(lambda: rest.states(name) == [FAILED])
    assert "configured to fail" in rest.status(name)["connector"]["trace"]
    answer = rest.http.post(f"/connectors/{name}/restart")
    assert answer.status_code == 500
    assert "Failed to start connector" in answer.json()["message"]
    rest.stop(name)
    cure.touch()
    rest.resume(name)
    rest.await_running(name, 1)


@pytest.mark.parametrize("state", ["PAUSED", "STOPPED"])
def test_a_connector_can_be_created_in_another_state(rest: Rest, beating: dict[str, str], state: str) -> None:
    name = beating["name"]
    rest.create(name, {**beating, "tasks": "2", "tasks.max": "2"}, state=state)
    wait_until(lambda: rest.states(name) == [state])
    assert rest.get(f"/connectors/{name}/tasks") == []
    rest.resume(name)
    rest.await_running(name, 2)


def test_states_can_be_changed_repeatedly(rest: Rest, beating: dict[str, str]) -> None:
    name = beating["name"]
    rest.create(name, {**beating, "tasks": "1"})
    rest.await_running(name, 1)
    for _ in range(2):
        rest.stop(name)
    assert rest.get(f"/connectors/{name}/tasks") == []
    rest.resume(name)
    rest.await_running(name, 1)
    for _ in range(2):
        rest.pause(name)
    wait_until(lambda: rest.states(name) == ["PAUSED"] * 2)
    rest.stop(name)
    rest.pause(name)
    wait_until(lambda: rest.states(name) == ["PAUSED"])
    rest.resume(name)
    rest.await_running(name, 1)
    for verb in ("pause", "resume", "stop"):
        rest.ask("PUT", f"/connectors/unknown/{verb}", expect=404)


def test_tasks_max_is_enforced_unless_disabled(rest: Rest, beating: dict[str, str]) -> None:
    name = beating["name"]
    for most in (1, 4, 1, 2):
        rest.configure(name, {**beating, "tasks": str(most), "tasks.max": str(most)})
        rest.await_running(name, most)
    rest.configure(name, {**beating, "tasks": "3", "tasks.max": "2"})
    wait_until(lambda: rest.states(name)[0] == FAILED)
    assert "generated 3 tasks" in rest.status(name)["connector"]["trace"]
    rest.configure(name, {**beating, "tasks": "3", "tasks.max": "2", "tasks.max.enforce": "false"})
    rest.await_running(name, 3)


def test_offsets_of_a_stopped_source_are_shown_changed_and_removed(rest: Rest, beating: dict[str, str]) -> None:
    name = beating["name"]
    path = f"/connectors/{name}/offsets"
    rest.ask("GET", path, expect=404)
    rest.ask("PATCH", path, json={"offsets": [{"partition": {}, "offset": {}}]}, expect=404)
    rest.create(name, {**beating, "tasks": "2", "tasks.max": "2"})
    rest.await_running(name, 2)
    wanted = {"offsets": [{"partition": {"number": 0}, "offset": {"count": 5000}}]}
    for running in ("PATCH", "DELETE"):
        answer = rest.http.request(running, path, json=wanted if running == "PATCH" else None)
        assert answer.status_code == 400
        assert "must be in the STOPPED state" in answer.json()["message"]
    wait_until(lambda: len(rest.offsets(name)) == 2)
    rest.stop(name)
    for body, status in (
        ({}, 400),
        ({"offsets": []}, 400),
        ({"offsets": [{"offset": {"count": 1}}]}, 500),
        ({"offsets": [{"partition": {"number": {"a": 1}}, "offset": {"count": 1}}]}, 400),
        ({"offsets": 7}, 500),
        ({"unknown": []}, 500),
        ({"offsets": [{"partition": {"number": 0}, "offset": {}}]}, 500),  # the connector rejects it
    ):
        rest.ask("PATCH", path, json=body, expect=status)
    both = {"offsets": [*wanted["offsets"], {"partition": {"number": 1}, "offset": None}]}
    message = rest.ask("PATCH", path, json=both)["message"]
    assert message == "The offsets for this connector have been altered successfully"
    assert rest.offsets(name) == wanted["offsets"]
    rest.resume(name)
    rest.await_running(name, 2)
    wait_until(lambda: rest.offsets(name)[0]["offset"]["count"] > 5000)
    rest.stop(name)
    for _ in range(2):
        assert rest.ask("DELETE", path)["message"] == "The offsets for this connector have been reset successfully"
        assert rest.offsets(name) == []


def test_topics_in_use_are_listed_and_reset(rest: Rest, topic: str, beating: dict[str, str]) -> None:
    name = beating["name"]
    assert rest.get(f"/connectors/{name}/topics") == {name: {"topics": []}}
    rest.create(name, {**beating, "tasks": "1"})
    wait_until(lambda: rest.get(f"/connectors/{name}/topics") == {name: {"topics": [topic]}})
    rest.stop(name)
    rest.ask("PUT", f"/connectors/{name}/topics/reset", expect=202)
    wait_until(lambda: rest.get(f"/connectors/{name}/topics") == {name: {"topics": []}})


def test_a_bad_config_is_rejected_with_all_errors(rest: Rest, beating: dict[str, str]) -> None:
    bad = {**beating, "tasks.max": "zero", "key.converter": "no.such.Converter", "transforms": "a,a"}
    del bad["topic"]
    answer = rest.http.post("/connectors", json={"name": beating["name"], "config": bad})
    assert answer.status_code == 400
    for key in ("tasks.max", "topic", "no.such.Converter", "transforms"):
        assert key in answer.json()["message"]
    infos = rest.ask("PUT", "/connector-plugins/BeatingConnector/config/validate", json=bad, expect=[200, 400])
    if "error_count" in infos:
        assert infos["error_count"] >= 4
    unknown = rest.http.post("/connectors", json={"name": "x", "config": {"connector.class": f"{MODULE}.Nobody"}})
    assert unknown.status_code == 400


def test_loggers_are_shown_and_set_on_one_worker_and_on_all(rest: Rest, worker: DistributedWorker) -> None:
    name = "mm2.connect.herder.distributed"
    assert rest.ask("PUT", f"/admin/loggers/{name}", json={"level": "debug"}) == [name]
    assert rest.get(f"/admin/loggers/{name}")["level"] == "DEBUG"
    assert isinstance(rest.get(f"/admin/loggers/{name}")["last_modified"], int)
    rest.ask("PUT", f"/admin/loggers/{name}", json={"level": "nonsense"}, expect=404)
    rest.ask("PUT", f"/admin/loggers/{name}", json={}, expect=400)
    rest.ask("GET", "/admin/loggers/nobody.knows", expect=404)
    rest.ask("PUT", f"/admin/loggers/{name}?scope=cluster", json={"level": "INFO"}, expect=204)
    wait_until(lambda: rest.get(f"/admin/loggers/{name}")["level"] == "INFO")
    assert rest.get("/admin/loggers")["root"]["level"] == "INFO"
