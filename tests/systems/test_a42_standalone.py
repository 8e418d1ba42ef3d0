"""A42: the same REST API in one process that stores only offsets; connectors from files on the command line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families as parse

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.systems.herder_toys import CLASS
from tests.systems.workers import Rest, StandaloneWorker


@pytest.fixture(scope="module")
def topic(broker: LocalKafka, group: str) -> str:
    create_topic(broker.bootstrap, f"{group}-data")
    return f"{group}-data"


@pytest.fixture(scope="module")
def alone(broker: LocalKafka, topic: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneWorker]:
    """A worker with one connector from a properties file, and one from a JSON create request with initial state STOPPED."""
    folder = tmp_path_factory.mktemp("alone")
    first, second = folder / "c1.properties", folder / "c2.json"
    first.write_text(f"name=c1\nconnector.class={CLASS}\ntopic={topic}\ntasks.max=2\n")
    config = {"connector.class": CLASS, "topic": topic, "tasks.max": "1"}
    second.write_text(json.dumps({"name": "c2", "config": config, "initial_state": "STOPPED"}))
    with StandaloneWorker(folder, {"bootstrap.servers": broker.bootstrap}, [first, second]) as worker:
        yield worker


def test_a42_standalone_runs_the_connectors_of_its_files(alone: StandaloneWorker) -> None:
    rest = alone.rest
    assert rest.get("/connectors") == ["c1", "c2"]
    status = rest.await_running("c1", 2)
    assert {task["worker_id"] for task in status["tasks"]} == {alone.worker_id}
    assert rest.states("c2") == ["STOPPED"]
    assert rest.get("/health")["status"] == "healthy"


def test_a42_standalone_has_metrics_of_its_connectors(alone: StandaloneWorker) -> None:
    alone.rest.await_running("c1", 2)
    answer = alone.rest.http.get("/metrics")
    assert (answer.status_code, answer.headers["content-type"].partition(";")[0]) == (200, "text/plain")
    samples = {
        (one.name, tuple(sorted(one.labels.items()))): one.value
        for family in parse(answer.text)
        for one in family.samples
    }
    c1 = (("connector", "c1"),)
    assert samples["kafka_connect_worker_task_count", ()] == 2
    assert samples["kafka_connect_worker_connector_running_task_count", c1] == 2
    assert samples["kafka_connect_worker_connector_failed_task_count", c1] == 0
    assert samples["kafka_connect_worker_task_startup_success_total", ()] >= 2
    task = (("connector", "c1"), ("task", "0"))
    assert samples["kafka_connect_connector_status", (*c1, ("status", "running"), ("task", "0"))] == 1
    assert samples["kafka_connect_source_task_source_record_poll_total", task] >= 0
    assert samples["kafka_connect_task_error_total_record_failures", task] == 0
    assert 0 < samples["kafka_connect_connector_task_running_ratio", task] <= 1


def test_a42_all_requests_work_except_those_that_need_a_cluster(alone: StandaloneWorker, topic: str) -> None:
    rest = alone.rest
    config = {"connector.class": CLASS, "topic": topic, "tasks.max": "2"}
    created = rest.ask("POST", "/connectors", json={"name": "c3", "config": config}, expect=201)
    assert created["config"] == {**config, "name": "c3"}
    assert [task["task"] for task in created["tasks"]] == [0, 1]
    rest.ask("POST", "/connectors", json={"name": "c3", "config": config}, expect=409)
    rest.await_running("c3", 2)
    rest.ask("PUT", "/connectors/c3/config", json={**config, "tasks.max": "1"}, expect=200)
    rest.await_running("c3", 1)
    rest.ask("PATCH", "/connectors/c3/config", json={"tasks.max": "3"}, expect=200)
    rest.await_running("c3", 3)
    rest.pause("c3")
    wait_until(lambda: rest.states("c3") == ["PAUSED"] * 4)
    rest.resume("c3")
    rest.await_running("c3", 3)
    rest.ask("POST", "/connectors/c3/tasks/1/restart", expect=204)
    rest.ask("POST", "/connectors/c3/tasks/9/restart", expect=404)
    rest.ask("POST", "/connectors/c3/restart", expect=204)
    shown = rest.ask("POST", "/connectors/c3/restart?includeTasks=true", expect=202)
    assert {task["state"] for task in shown["tasks"]} == {"RESTARTING"}
    rest.await_running("c3", 3)
    _offsets(rest, "c3")
    rest.ask("POST", "/connectors/c3/tasks", json=[], expect=500)
    rest.ask("PUT", "/connectors/c3/fence", expect=500)
    rest.delete("c3")
    rest.ask("GET", "/connectors/c3/status", expect=404)
    rest.ask("DELETE", "/connectors/c3", expect=404)
    assert rest.states("c1") == ["RUNNING"] * 3, "other tasks were affected"


def _offsets(rest: Rest, name: str) -> None:
    wait_until(lambda: len(rest.offsets(name)) == 3)
    body = {"offsets": [{"partition": {"number": 0}, "offset": {"count": 5000}}]}
    rest.ask("PATCH", f"/connectors/{name}/offsets", json=body, expect=400)
    rest.stop(name)
    rest.ask("PATCH", f"/connectors/{name}/offsets", json=body)
    assert body["offsets"][0] in rest.offsets(name)
    rest.ask("DELETE", f"/connectors/{name}/offsets")
    assert rest.offsets(name) == []
    rest.resume(name)
    rest.await_running(name, 3)


@pytest.mark.parametrize(
    "bad", ["{", "name=bad\nconnector.class=no.such.Connector\n"], ids=["not JSON", "no such class"]
)
def test_a42_a_bad_second_file_ends_the_process_with_exit_code_3(
    broker: LocalKafka, topic: str, folder: Path, bad: str
) -> None:
    first, second = folder / "c1.properties", folder / ("c2.json" if bad == "{" else "c2.properties")
    first.write_text(f"name=c1\nconnector.class={CLASS}\ntopic={topic}\ntasks.max=1\n")
    second.write_text(bad)
    worker = StandaloneWorker(folder, {"bootstrap.servers": broker.bootstrap}, [first, second])
    with pytest.raises(AssertionError, match="ended by itself with 3"), worker:
        pass


def test_secrets_are_read_again_when_they_expire(broker: LocalKafka, topic: str, folder: Path) -> None:
    secret, file = folder / "secret", folder / "c.properties"
    secret.write_text("1234")
    file.write_text(
        f"name=expiring\nconnector.class={CLASS}\ntopic={topic}\ntasks.max=1\nconfig=${{brief:{secret}:x}}\n"
    )
    props = {
        "bootstrap.servers": broker.bootstrap,
        "config.providers": "brief",
        "config.providers.brief.class": "tests.systems.herder_toys.BriefProvider",
    }
    with StandaloneWorker(folder, props, [file]) as worker:
        worker.rest.await_running("expiring", 1)
        starts = worker.log.read_text().count("connector restart scheduled for the expiry of its secrets")
        wait_until(
            lambda: worker.log.read_text().count("connector restart scheduled for the expiry of its secrets") > starts,
            detail=worker.tail,
        )
        worker.rest.await_running("expiring", 1)
        assert any(json.loads(message.value())["config"] == "1234" for message in read_all(broker.bootstrap, topic))
