"""Send the same requests to a Java worker and to ours and compare statuses, response shapes and error messages."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create
from tests.support.waiting import wait_until
from tests.systems.rest_requests import CLASS, Ask, ask, requests
from tests.systems.workers import (
    DistributedWorker,
    JavaDistributedWorker,
    NewestJavaWorker,
    WorkerProcess,
    distributed_props,
)
from tests.unit.connect.rest.answers import Answer

#: Intended differences, documented in docs/reference/connect-compatibility.md: Java's status, ours.
DIVERGENCES: dict[str, tuple[int, int]] = {
    # nothing to validate against is an error of the client (C: 400), which Java wraps once too often
    **{
        f"PUT /connector-plugins/{plugin}/config/validate {body}": (500, 400)
        for plugin in (CLASS, f"{CLASS}Connector", "nope")
        for body in ("{}", '{"a":1}')
    },
    # a class that cannot be loaded is an error of its key (C, newer than Java 4.3.0's answer)
    'PUT /connector-plugins/nope/config/validate {"connector.class":"nope"}': (500, 200),
    # dot segments are refused, so that one path has one meaning
    "GET /connectors/../x": (404, 400),
    # Java lets a connector's configuration have another name than the connector
    'PATCH … {"name":"other"}': (200, 400),
    # an unsigned request between workers: its body is not parsed
    "POST …/tasks": (500, 400),
}
MALFORMED_TASKS = (b"{", b"{}", b"1", b'[{"a":{}}]')
#: Messages of Java's libraries about classes and bytes that only Java has.
JAVA_ONLY = re.compile(
    r"Cannot (invoke|deserialize|construct)|Unrecognized (field|token)|Unexpected|Illegal unquoted|Non-standard token|Invalid UTF-8"
    r"|Failed to find any class|PluginDesc|Algorithm \w+ not available|Illegal base64|org\.apache\.kafka|No enum constant"
    r"|contains no connector type|Null-valued|Invalid version specification|key signing algorithm"
)


def shape(value: Any, depth: int = 4) -> Any:
    """Keys and types, not values."""
    if isinstance(value, dict):
        return {key: shape(item, depth - 1) for key, item in sorted(value.items())} if depth else "object"
    if isinstance(value, list):
        shapes = [shape(item, depth - 1) for item in value]
        return [item for number, item in enumerate(shapes) if item not in shapes[:number]]
    return type(value).__name__


def name_of(request: Ask) -> str:
    return f"{request.method} {request.path} {(request.body or b'').decode('latin-1')}"


@pytest.mark.timeout(420)
@pytest.mark.slow
@pytest.mark.parametrize("java_kind", [JavaDistributedWorker, NewestJavaWorker])
def test_every_endpoint_responds_like_java_s(
    broker: LocalKafka, worker: DistributedWorker, unique: str, folder: Path, java_kind: type[JavaDistributedWorker]
) -> None:
    create(broker, unique)
    config = {"connector.class": CLASS, "topic": unique, "file": str(folder / "none.txt"), "tasks.max": "1"}
    with java_kind(folder / "java", distributed_props(broker.bootstrap, f"java-{unique}")) as java:
        for each in (java, worker):
            each.rest.create(unique, config)
            each.rest.await_running(unique, 1)
            each.rest.stop(unique)
        differences = []
        for request in requests(unique):
            if request.method == "DELETE" and request.path.endswith("/offsets"):
                settled((java, worker), unique)
            theirs, ours = (ask("127.0.0.1", each.port, request) for each in (java, worker))
            differs = difference(request, theirs, ours)
            if differs:
                differences.append(
                    f"{request}\n    {differs}\n    java {theirs.body[:300]!r}\n    ours {ours.body[:300]!r}"
                )
    assert not differences, f"{len(differences)} differ:\n" + "\n".join(differences)


def settled(workers: Iterable[WorkerProcess], name: str) -> None:
    """All workers have stopped the connector, and it has no tasks."""
    wait_until(lambda: all(each.rest.states(name) == ["STOPPED"] for each in workers), 30)


def difference(request: Ask, theirs: Answer, ours: Answer) -> str | None:
    """The difference between two responses; None when they are equal."""
    expected = DIVERGENCES.get(name_of(request).strip())
    if request.method == "PATCH" and request.body == b'{"name":"other"}' and "/n1/" not in request.path:
        expected = DIVERGENCES['PATCH … {"name":"other"}']
    if request.method == "POST" and request.path.endswith("/tasks") and request.body in MALFORMED_TASKS:
        expected = DIVERGENCES["POST …/tasks"]
    if expected is not None:
        return (
            None if (theirs.status, ours.status) == expected else f"{theirs.status}, {ours.status} and not {expected}"
        )
    if theirs.status != ours.status:
        return f"status {theirs.status} {ours.status}"
    if not theirs.body or request.method == "HEAD":
        return None if not ours.body else "a body where Java has none"
    if ours.status >= 400:
        return refusal(theirs, ours)
    if ours.headers.get("content-type", "").split(";")[0] != theirs.headers.get("content-type", "").split(";")[0]:
        return "content type"
    if request.path.startswith(("/connector-plugins", "/admin/loggers")) and request.method == "GET":
        # the sets of plugins and loggers differ; only common entries are compared
        one, other = shape(first(theirs.json)), shape(first(ours.json))
        return None if one == other else f"shape {one} {other}"
    if "/validate" in request.path:
        return validation(theirs.json, ours.json)
    one, other = shape(theirs.json), shape(ours.json)
    return None if one == other else f"shape {one} {other}"


def first(value: Any) -> Any:
    """The shape of the entries of a list; of plugins only the fields that all have, which the version is not."""
    if isinstance(value, list):
        return {key: item for key, item in value[0].items() if key != "version"}
    return value


def refusal(theirs: Answer, ours: Answer) -> str | None:
    if set(ours.json) != {"error_code", "message"} or ours.json["error_code"] != ours.status:
        return "not the shape of a refusal"
    if theirs.body.startswith(b"<html>"):
        return None  # a page of Jetty's
    one, other = theirs.json["message"], ours.json["message"]
    if one == other or (one and JAVA_ONLY.search(one)):
        return None
    return "message"


def validation(theirs: Any, ours: Any) -> str | None:
    """The keys with errors and their number of errors."""
    if shape({**theirs, "configs": theirs["configs"][:1]}) != shape({**ours, "configs": ours["configs"][:1]}):
        return "shape"
    if theirs["name"] != ours["name"] or theirs["error_count"] != ours["error_count"]:
        return f"name or errors {theirs['name']} {theirs['error_count']} {ours['name']} {ours['error_count']}"
    # what Kafka does not have
    ours["configs"] = [each for each in ours["configs"] if each["value"]["name"] != "plugin.isolation"]
    one, other = (
        {each["value"]["name"]: bool(each["value"]["errors"]) for each in some["configs"]} for some in (theirs, ours)
    )
    return None if one == other else f"keys {sorted(set(one.items()) ^ set(other.items()))}"
