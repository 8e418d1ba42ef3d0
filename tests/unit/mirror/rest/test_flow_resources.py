"""The flow of each REST path."""

from __future__ import annotations

import http.client
import json
import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from starlette.types import Receive, Scope, Send

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.listeners.server import RestServer
from mm2.connect.rest.settings import RestSettings
from mm2.mirror.rest.flow_paths import RESERVED, flow_path
from mm2.mirror.rest.flow_resources import FlowResources
from tests.support.access import OPEN
from tests.unit.connect.rest.toy_herder import ToyHerder

PAIRS = [
    SourceAndTarget("a", "b"),
    SourceAndTarget("b", "ä b"),
    SourceAndTarget("ui", "b"),
    SourceAndTarget("flows", "x"),
]
Ask = Callable[[str, str], tuple[int, Any]]


@pytest.fixture
def herders() -> dict[SourceAndTarget, ToyHerder]:
    made = {pair: ToyHerder() for pair in PAIRS}
    for pair, herder in made.items():
        herder.configs[str(pair)] = {"name": str(pair)}
    return made


@pytest.fixture
def internal() -> bool:
    """Whether the internal endpoints are enabled."""
    return True


@pytest.fixture
def binding() -> Binding:
    return Binding(RestSettings.of({"listeners": "http://127.0.0.1:0", **OPEN}))


@pytest.fixture
def resources(herders: dict[SourceAndTarget, ToyHerder], internal: bool, binding: Binding) -> FlowResources:
    return FlowResources(herders, binding.settings, internal=internal, apps={"ui": lambda _: _dashboard})


async def _dashboard(_scope: Scope, _receive: Receive, _send: Send) -> None:
    raise RestFailure.plain(404)


@pytest.fixture
def ask(resources: FlowResources, binding: Binding) -> Iterator[Ask]:
    server = RestServer(binding)
    server.serve(resources.main, resources.admin)

    def one(method: str, path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", binding.main[0].number, timeout=20)
        connection.request(method, path)
        response = connection.getresponse()
        body = response.read()
        connection.close()
        return response.status, json.loads(body) if body else None

    yield one
    server.stop(1.0)
    resources.requests.close()


def test_each_flow_has_its_own_resources(ask: Ask) -> None:
    assert ask("GET", "/a/b/connectors") == (200, ["a->b"])
    assert ask("GET", "/b/%C3%A4%20b/connectors/") == (200, ["b->ä b"])
    assert ask("GET", "/flows/a/b/connectors") == (200, ["a->b"])
    assert ask("GET", "/flows/ui/b/connectors") == (200, ["ui->b"])
    assert ask("GET", "/flows/flows/x/connectors") == (200, ["flows->x"])
    assert ask("GET", "/a/b")[1]["kafka_cluster_id"] == "toy-cluster"
    assert ask("GET", "/a/b/health")[0] == 200
    assert ask("GET", "/a/b/connectors/a-%3Eb/config") == (200, {"name": "a->b"})
    assert ask("GET", "/a/b/openapi.json")[1]["servers"] == [{"url": "/a/b"}]


def test_flows_are_added_and_removed(
    ask: Ask, resources: FlowResources, herders: dict[SourceAndTarget, ToyHerder]
) -> None:
    new, gone, other = ToyHerder(), PAIRS[0], ToyHerder()
    new.configs["new"] = {"name": "new"}
    other.configs["other"] = {"name": "other"}
    kept = {pair: herder for pair, herder in herders.items() if pair != gone}
    resources.change({**kept, PAIRS[1]: other, SourceAndTarget("c", "d"): new})
    assert ask("GET", "/a/b/connectors")[0] == 404
    assert ask("GET", "/c/d/connectors") == (200, ["new"])
    assert ask("GET", "/b/%C3%A4%20b/connectors") == (200, ["other"])
    assert ask("GET", "/flows/ui/b/connectors") == (200, ["ui->b"])
    assert {flow["source"] for flow in ask("GET", "/flows")[1]} == {"b", "ui", "flows", "c"}
    assert ask("GET", "/health")[0] == 200
    assert ask("GET", "/admin/loggers")[0] == 200


def test_an_unknown_flow_returns_404_in_json(ask: Ask) -> None:
    for path in (
        "/b/a/connectors",
        "/a",
        "/ui/b/connectors",
        "/flows/x",
        "/flows/a/c",
        "/flows/x/connectors",
        "/metrics",
    ):
        status, body = ask("GET", path)
        assert (status, body["error_code"]) == (404, 404), path


def test_reserved_segments_belong_to_the_process(ask: Ask) -> None:
    assert RESERVED == ("ui", "metrics", "overview", "health", "admin", "connectors", "flows")
    assert [flow_path(pair) for pair in PAIRS] == ["/a/b", "/b/%C3%A4%20b", "/flows/ui/b", "/flows/flows/x"]
    assert [flow["path"] for flow in ask("GET", "/flows")[1]] == [flow_path(pair) for pair in PAIRS]
    assert ask("GET", "/admin/loggers")[0] == 200
    assert ask("GET", "/a/b/admin/loggers")[0] == 200
    assert ask("GET", "/")[1]["version"] == "4.3.0"


@pytest.mark.parametrize("internal", [True, False])
def test_the_internal_endpoints_have_java_s_paths_and_exist_only_when_enabled(ask: Ask, internal: bool) -> None:
    status = 400 if internal else 404  # 400: there is no signature
    for path in (
        "/a/b/connectors/c/fence",
        "/flows/a/b/connectors/c/fence",
        "/ui/b/connectors/c/fence",
        "/flows/x/connectors/c/fence",
    ):
        assert ask("PUT", path)[0] == status, path
    # GET of the same path is the public resource
    assert ask("GET", "/a/b/connectors/a-%3Eb/tasks")[0] == 200


def test_a_flow_whose_lanes_cannot_copy_is_not_healthy(
    herders: dict[SourceAndTarget, ToyHerder], resources: FlowResources, ask: Ask
) -> None:
    """503, which counts as alive: a restart of the process would not help, and would interrupt its other flows."""
    failing = {PAIRS[0]: ["the last 3 micro-batches of lane 0 were lost", "the last 4 of lane 1"]}
    resources._failing = lambda pair: failing.get(pair, [])
    status, body = ask("GET", "/health")
    assert (status, body["status"]) == (503, "unhealthy")
    assert body["message"] == "the last 3 micro-batches of lane 0 were lost; the last 4 of lane 1"
    assert [flow for flow, health in body["flows"].items() if health["status"] != "healthy"] == [str(PAIRS[0])]
    assert ask("GET", "/a/b/health")[0] == 503
    assert ask("GET", "/flows/flows/x/health")[0] == 200
    failing.clear()
    assert ask("GET", "/health")[0] == ask("GET", "/a/b/health")[0] == 200


def test_the_health_of_the_process_is_that_of_its_worst_flow(
    ask: Ask, herders: dict[SourceAndTarget, ToyHerder]
) -> None:
    status, body = ask("GET", "/health")
    assert (status, body["status"], set(body["flows"])) == (200, "healthy", {str(pair) for pair in PAIRS})


def test_extensions_apply_to_admin_listeners() -> None:
    settings = RestSettings.of(
        {
            "listeners": "http://127.0.0.1:0",
            "admin.listeners": "http://127.0.0.1:0",
            "rest.extension.classes": "tests.systems.plugins_for_rest.StateExtension",
            **OPEN,
        }
    )
    resources = FlowResources({PAIRS[0]: ToyHerder()}, settings, internal=False)
    server = RestServer(Binding(settings))
    server.serve(resources.main, resources.admin)
    try:
        for port, path in ((server.binding.main[0], "/flows"), (server.binding.admin[0], "/admin/loggers")):
            for headers, status in (({}, 200), ({"X-Tea": "yes"}, 418)):
                connection = http.client.HTTPConnection("127.0.0.1", port.number, timeout=20)
                connection.request("GET", path, headers=headers)
                assert connection.getresponse().status == status, (path, headers)
                connection.close()
    finally:
        server.stop(1.0)
        resources.requests.close()


def test_a_process_without_a_flow_has_loggers() -> None:
    """Each request was answered by 500."""
    settings = RestSettings.of({"listeners": "http://127.0.0.1:0", **OPEN})
    resources = FlowResources({}, settings, internal=False)
    server = RestServer(Binding(settings))
    server.serve(resources.main, resources.admin)
    name = "mm2.test_flow_resources"
    try:
        for method, path, status in (
            ("GET", "/admin/loggers", 200),
            ("PUT", f"/admin/loggers/{name}", 200),
            ("GET", f"/admin/loggers/{name}", 200),
            ("PUT", f"/admin/loggers/{name}?scope=cluster", 503),
        ):
            connection = http.client.HTTPConnection("127.0.0.1", server.binding.main[0].number, timeout=20)
            body = json.dumps({"level": "DEBUG"}) if method == "PUT" else None
            connection.request(method, path, body, {"Content-Type": "application/json"})
            response = connection.getresponse()
            assert (response.status, method, path) == (status, method, path)
            found = json.loads(response.read())
            connection.close()
        assert found == {"error_code": 503, "message": "No flow runs in this process."}
        assert logging.getLogger(name).level == logging.DEBUG
    finally:
        server.stop(1.0)
        resources.requests.close()


def test_the_progress_of_a_flow_is_shown(resources: FlowResources, ask: Ask) -> None:
    newest = {PAIRS[0]: [{"batchId": 7, "numInputRows": 42}]}
    resources._progress = lambda pair: newest.get(pair, [])
    assert ask("GET", "/a/b/progress") == (200, [{"batchId": 7, "numInputRows": 42}])
    assert ask("GET", "/flows/flows/x/progress") == (200, [])
