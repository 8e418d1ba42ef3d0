"""The herder calls of each REST resource, and the responses for their results."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest
from structlog.testing import capture_logs

from mm2.connect.errors import BadRequest, Forbidden, NotLeader, NotReady, RebalanceNeeded
from mm2.connect.request_signing import SessionKey, signature_headers
from mm2.connect.stores.config_state import RestartRequest, TargetState
from tests.unit.connect.rest.conftest import JSON, Running, starting

CONFIG = {"connector.class": "X", "name": "c"}
ALL = [
    ("GET", "/connectors/c", None),
    ("GET", "/connectors/c/config", None),
    ("GET", "/connectors/c/tasks", None),
    ("GET", "/connectors/c/offsets", None),
    ("POST", "/connectors", '{"name":"c","config":{"connector.class":"X"}}'),
    ("PUT", "/connectors/c/config", '{"connector.class":"X"}'),
    ("PATCH", "/connectors/c/config", '{"a":"b"}'),
    ("DELETE", "/connectors/c", None),
    ("PUT", "/connectors/c/pause", None),
    ("PUT", "/connectors/c/resume", None),
    ("PUT", "/connectors/c/stop", None),
    ("POST", "/connectors/c/restart", None),
    ("POST", "/connectors/c/restart?includeTasks=true", None),
    ("POST", "/connectors/c/tasks/0/restart", None),
    ("PATCH", "/connectors/c/offsets", '{"offsets":[{"partition":{},"offset":null}]}'),
    ("DELETE", "/connectors/c/offsets", None),
    ("POST", "/connectors/c/tasks", "[]"),
    ("PUT", "/connectors/c/fence", None),
    ("PUT", "/connector-plugins/X/config/validate", '{"connector.class":"X"}'),
    ("PUT", "/admin/loggers/a?scope=cluster", '{"level":"DEBUG"}'),
]


@pytest.fixture(scope="module")
def short_timeouts() -> Iterator[Running]:
    with starting() as make:
        yield make({"rest.request.timeout.ms": "400", "rest.health.timeout.ms": "300"})


@pytest.fixture
def impatient(short_timeouts: Running) -> Running:
    """Only for tests in which the herder does not respond: on a busy machine other requests take longer, too."""
    return _with_connector(short_timeouts)


@pytest.fixture
def rest(with_defaults: Running) -> Running:
    return _with_connector(with_defaults)


def _with_connector(running: Running) -> Running:
    running.herder.forget()
    running.herder.configs["c"] = dict(CONFIG)
    return running


def test_a_connector_is_created_changed_and_deleted(rest: Running) -> None:
    created = rest.ask(
        "POST", "/connectors", '{"name":" n 1 ","config":{"connector.class":"X"},"initial_state":"paused"}'
    )
    assert created.status == 201
    assert created.headers["location"] == "/connectors/n%201"
    assert created.json == {
        "name": "n 1",
        "config": {"connector.class": "X", "name": "n 1"},
        "tasks": [{"connector": "n 1", "task": 0}],
        "type": "source",
    }
    assert rest.herder.calls[-1][3] is TargetState.PAUSED
    assert rest.ask("POST", "/connectors", '{"name":"n 1","config":{"connector.class":"X"}}').status == 409
    assert rest.ask("PUT", "/connectors/n%201/config", '{"connector.class":"Y"}').status == 200
    new = rest.ask("PUT", "/connectors/z/config", '{"connector.class":"Y"}')
    assert (new.status, new.headers["location"]) == (201, "/connectors/z")
    patched = rest.ask("PATCH", "/connectors/z/config", '{"a":"b","connector.class":null}')
    assert (patched.status, patched.json["config"]) == (200, {"name": "z", "a": "b"})
    assert rest.ask("GET", "/connectors/z/config").json == {"name": "z", "a": "b"}
    assert rest.ask("GET", "/connectors").json == ["c", "n 1", "z"]
    assert rest.ask("PUT", "/connectors/z/pause").status == 202
    assert rest.ask("GET", "/connectors/z/status").json["connector"]["state"] == "PAUSED"
    assert rest.ask("PUT", "/connectors/z/resume").status == 202
    assert rest.ask("PUT", "/connectors/z/stop").status == 204
    assert rest.ask("DELETE", "/connectors/z").status == 204
    assert rest.ask("DELETE", "/connectors/z").status == 404


def test_expand_adds_the_requested_parts(rest: Running) -> None:
    both = rest.ask("GET", "/connectors?expand=info&expand=status&expand=bogus").json
    assert set(both) == {"c"}
    assert both["c"]["info"]["config"] == CONFIG
    assert both["c"]["status"]["connector"] == {"state": "RUNNING", "worker_id": "h:1", "version": "1"}
    assert rest.ask("GET", "/connectors?expand=bogus").json == {"c": {}}
    assert rest.ask("GET", "/connectors?expand").json == {"c": {}}
    with capture_logs() as logs:
        assert rest.ask("GET", "/connectors?" + "&".join(["expand=a", "expand=b"] * 200)).json == {"c": {}}
    assert [line["expand"] for line in logs if line["event"] == "unknown expansions ignored"] == ["a, b"]


def test_the_name_in_the_configuration_must_match_the_path(rest: Running) -> None:
    answer = rest.ask("PUT", "/connectors/c/config", '{"name":"other"}')
    assert answer.status == 400
    assert answer.message == "Connector name configuration (other) doesn't match connector name in the URL (c)"


def test_restart_flags(rest: Running) -> None:
    assert rest.ask("POST", "/connectors/c/restart").status == 204
    assert rest.ask("POST", "/connectors/c/restart?includeTasks=bogus&onlyFailed=").status == 204
    answer = rest.ask("POST", "/connectors/c/restart?includeTasks=TRUE&onlyFailed=true")
    assert answer.status == 202
    assert answer.json["name"] == "c"
    assert rest.herder.calls[-1] == ("restart", RestartRequest("c", only_failed=True, include_tasks=True))


def test_tasks(rest: Running) -> None:
    assert rest.ask("GET", "/connectors/c/tasks").json == [{"id": {"connector": "c", "task": 0}, "config": CONFIG}]
    assert rest.ask("GET", "/connectors/c/tasks/0/status").json == {
        "id": 0,
        "state": "FAILED",
        "worker_id": "h:1",
        "version": None,
        "trace": "why",
    }
    assert rest.ask("GET", "/connectors/c/tasks/7/status").message == "No status found for task c-7"
    assert rest.ask("POST", "/connectors/c/tasks/+0/restart").status == 204


def test_offsets(rest: Running) -> None:
    assert rest.ask("GET", "/connectors/c/offsets").json == {
        "offsets": [{"partition": {"file": "ä"}, "offset": {"position": 7, "raw": "AP8="}}]
    }
    body = '{"offsets":[{"partition":{"a":1},"offset":{"b":2.5}},{"partition":{"a":2},"offset":null}]}'
    assert rest.ask("PATCH", "/connectors/c/offsets", body).json == {"message": "done"}
    offsets = rest.herder.calls[-1][2].offsets
    assert [(entry.partition, entry.offset) for entry in offsets] == [({"a": 1}, {"b": 2.5}), ({"a": 2}, None)]
    assert rest.ask("DELETE", "/connectors/c/offsets").status == 200
    for empty in ("{}", '{"offsets":[]}', '{"offsets":null}'):
        answer = rest.ask("PATCH", "/connectors/c/offsets", empty)
        assert answer.status == 400
        assert answer.message == "Partitions / offsets need to be provided for an alter offsets request"
    for malformed in ("null", "[]", '{"x":[]}', '{"offsets":{}}', '{"offsets":[{"partition":"x","offset":null}]}', ""):
        assert rest.ask("PATCH", "/connectors/c/offsets", malformed).status == 500


def test_topics_plugins_and_loggers(rest: Running) -> None:
    assert rest.ask("GET", "/connectors/nope/topics").json == {"nope": {"topics": []}}
    assert rest.ask("PUT", "/connectors/c/topics/reset").status == 202
    assert rest.ask("GET", "/connector-plugins").json == [{"class": "a.Sink", "type": "sink", "version": "1"}]
    assert len(rest.ask("GET", "/connector-plugins?connectorsOnly=false").json) == 2
    assert rest.ask("GET", "/connector-plugins/Sink/config?version=1").json == [{"name": "topics", "version": "1"}]
    assert rest.ask("GET", "/connector-plugins/Sank/config").message == "Unknown plugin Sank."
    validated = rest.ask("PUT", "/connector-plugins/FooConnector/config/validate", '{"connector.class":"org.Foo"}')
    assert (validated.status, validated.json["error_count"]) == (200, 0)
    mismatch = rest.ask("PUT", "/connector-plugins/Foo/config/validate", '{"connector.class":"org.Bar"}')
    assert mismatch.message == "Included connector type org.Bar does not match request type Foo"
    assert rest.ask("PUT", "/connector-plugins/Foo/config/validate", "{}").status == 400

    assert rest.ask("GET", "/admin/loggers").json == {"root": {"level": "INFO", "last_modified": None}}
    assert rest.ask("GET", "/admin/loggers/nope").message == "Logger nope not found."
    assert rest.ask("PUT", "/admin/loggers/a", '{"level":"debug"}').json == ["a"]
    assert rest.ask("PUT", "/admin/loggers/a?scope=bogus", '{"level":"debug"}').json == ["a"]
    assert rest.ask("PUT", "/admin/loggers/a?scope=CLUSTER", '{"level":"debug"}').status == 204
    assert rest.ask("PUT", "/admin/loggers/a", '{"level":"bogus"}').message == "invalid log level 'bogus'."
    assert rest.ask("PUT", "/admin/loggers/a", '{"level":5}').message == "invalid log level '5'."
    missing = rest.ask("PUT", "/admin/loggers/a", "{}")
    assert (missing.status, missing.message) == (400, "Desired 'level' parameter was not specified in request.")


def test_root(rest: Running) -> None:
    info = rest.ask("GET", "/").json
    assert info["version"] == "4.3.0"
    assert info["kafka_cluster_id"] == "toy-cluster"
    assert set(info) == {"version", "commit", "kafka_cluster_id"}


@pytest.mark.parametrize(("method", "path", "body"), ALL)
def test_an_unresponsive_herder_returns_500_with_its_stage(
    impatient: Running, method: str, path: str, body: str | None
) -> None:
    impatient.herder.hang = True
    began_s = time.monotonic()
    answer = impatient.ask(method, path, body)
    assert answer.status == 500
    assert answer.message == (
        "Request timed out. The worker is currently counting sheep, which began at 1970-01-01T00:00:00.000Z."
    )
    assert time.monotonic() - began_s < 60


@pytest.mark.parametrize(
    ("refusal", "status"),
    [
        (BadRequest("b"), 400),
        (Forbidden("f"), 403),
        (RebalanceNeeded("r"), 409),
        (NotReady("n"), 503),
        (ValueError("v"), 500),
        (NotLeader("l", None), 409),
    ],
)
@pytest.mark.parametrize(("method", "path", "body"), ALL)
def test_rejections_keep_their_status(
    rest: Running, method: str, path: str, body: str | None, refusal: Exception, status: int
) -> None:
    rest.herder.refuse = refusal
    answer = rest.ask(method, path, body)
    assert answer.status == status
    assert answer.message


def test_health(rest: Running, impatient: Running) -> None:
    assert rest.ask("GET", "/health").json == {
        "status": "healthy",
        "message": "Worker has completed startup and is ready to handle requests.",
    }
    impatient.herder.hang = True
    sick = impatient.ask("GET", "/health")
    assert (sick.status, sick.json["status"]) == (500, "unhealthy")
    assert "counting sheep" in sick.json["message"]
    impatient.herder.ready = False
    starting = impatient.ask("GET", "/health")
    assert (starting.status, starting.json["status"]) == (503, "starting")


def test_a_signature_is_over_the_very_bytes(rest: Running) -> None:
    key = SessionKey(bytes(32), "HmacSHA256", 0)
    body = b'[{"a":"b"}]'
    assert rest.ask("POST", "/connectors/c/tasks", body, JSON | signature_headers(key, body)).status == 204
    assert rest.ask("POST", "/connectors/c/tasks", body, JSON).message == "Internal request missing required signature"
    bad = JSON | signature_headers(key, body)
    assert rest.ask("PUT", "/connectors/c/fence", None, bad | {"X-Connect-Authorization": "%%%"}).status == 400
    unknown = bad | {"X-Connect-Request-Signature-Algorithm": "bogus"}
    assert rest.ask("PUT", "/connectors/c/fence", None, unknown).status == 400
    for malformed in ("{", "{}", "1", '"x"', '[{"a":{}}]'):
        signed = JSON | signature_headers(key, malformed.encode())
        assert rest.ask("POST", "/connectors/c/tasks", malformed, signed).status == 500
        wrong = JSON | signature_headers(key, b"[]")
        assert rest.ask("POST", "/connectors/c/tasks", malformed, wrong).status == 403
        assert rest.ask("POST", "/connectors/c/tasks", malformed).status == 400


def test_openapi_page(rest: Running) -> None:
    description = rest.ask("GET", "/openapi.json").json
    paths = description["paths"]
    assert "/connectors/{connector}/offsets" in paths
    assert set(paths["/connectors/{connector}/config"]) == {"get", "put", "patch"}
    assert sum(len(operations) for operations in paths.values()) == 30
    page = rest.ask("GET", "/docs")
    assert page.headers["content-type"].startswith("text/html")
    assert b"/connectors/{connector}/offsets" in page.body
    assert b"http://" not in page.body.replace(b"http://127.0.0.1", b"")


#: Path, its template in the OpenAPI document, and the body.
BODIES = [
    (
        "/connectors/c",
        "/connectors/{connector}",
        '{"name":"c","config":CONFIG,"tasks":[{"connector":"c","task":0}],"type":"source"}',
    ),
    (
        "/connectors/c/status",
        "/connectors/{connector}/status",
        (
            '{"name":"c","connector":{"state":"RUNNING","worker_id":"h:1","version":"1"},'
            '"tasks":[{"id":0,"state":"RUNNING","worker_id":"h:1","version":"1"}],"type":"source"}'
        ),
    ),
    (
        "/connectors/c/tasks/0/status",
        "/connectors/{connector}/tasks/{task}/status",
        '{"id":0,"state":"FAILED","worker_id":"h:1","version":null,"trace":"why"}',
    ),
    (
        "/connectors/c/tasks",
        "/connectors/{connector}/tasks",
        '[{"id":{"connector":"c","task":0},"config":CONFIG}]',
    ),
    (
        "/connectors/c/offsets",
        "/connectors/{connector}/offsets",
        '{"offsets":[{"partition":{"file":"ä"},"offset":{"position":7,"raw":"AP8="}}]}',
    ),
    (
        "/connector-plugins?connectorsOnly=false",
        "/connector-plugins",
        '[{"class":"a.Sink","type":"sink","version":"1"},{"class":"a.Converter","type":"converter"}]',
    ),
    ("/admin/loggers/root", "/admin/loggers/{logger}", '{"level":"INFO","last_modified":5}'),
    (
        "/health",
        "/health",
        '{"status":"healthy","message":"Worker has completed startup and is ready to handle requests."}',
    ),
]


@pytest.mark.parametrize(("path", "template", "body"), BODIES, ids=[template for _, template, _ in BODIES])
def test_bodies_are_as_in_java_and_as_described(rest: Running, path: str, template: str, body: str) -> None:
    config = json.dumps(CONFIG, separators=(",", ":"))
    answer = rest.ask("GET", path)
    assert answer.body.decode() == body.replace("CONFIG", config)
    description = rest.ask("GET", "/openapi.json").json
    schema = description["paths"][template]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    component = description["components"]["schemas"][schema.get("items", schema)["$ref"].rpartition("/")[2]]
    (first, *_) = answer.json if isinstance(answer.json, list) else [answer.json]
    assert set(component.get("required", ())) <= set(first) <= set(component["properties"])
