"""Secrets in the configurations that a MirrorMaker process returns."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import pytest

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.listeners.server import RestServer
from mm2.connect.rest.settings import RestSettings
from mm2.mirror.rest.flow_resources import FlowResources
from tests.support.access import OPEN
from tests.unit.connect.rest.toy_herder import ToyHerder

JAAS = 'org.apache.kafka.common.security.plain.PlainLoginModule required username="u" password="hunter2";'
CONFIG: dict[str, str] = {
    "name": "c",
    "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
    "topics": "orders.*",
    "source.cluster.sasl.jaas.config": JAAS,
    "source.cluster.sasl.oauthbearer.token.endpoint.url": "https://client:hunter3@tokens.example/token",
    "target.cluster.ssl.keystore.password": "${file:/run/secrets/b:keystore}",
    "producer.override.ssl.key.password": "hunter4",
    "topic.filter.class": "my.Filter",
    "my.filter.token": "hunter5",
}
SHOWN = CONFIG | {
    "source.cluster.sasl.jaas.config": "[hidden]",
    "source.cluster.sasl.oauthbearer.token.endpoint.url": "https://[hidden]@tokens.example/token",
    "producer.override.ssl.key.password": "[hidden]",
    "my.filter.token": "[hidden]",
}


class Process:
    """The REST interface of a process with one flow, `a->b`, that has the connector `c`."""

    def __init__(self) -> None:
        self.herder = ToyHerder()
        self.herder.configs["c"] = dict(CONFIG)
        self._binding = Binding(RestSettings.of({"listeners": "http://127.0.0.1:0", **OPEN}))
        herders = {SourceAndTarget("a", "b"): self.herder}
        self._resources = FlowResources(herders, self._binding.settings, internal=True)
        self._server = RestServer(self._binding)
        self._server.serve(self._resources.main, self._resources.admin)

    def close(self) -> None:
        self._server.stop(1.0)
        self._resources.requests.close()

    def ask(self, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", self._binding.main[0].number, timeout=20)
        sent = {} if body is None else {"Content-Type": "application/json"}
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text) if text else None


@pytest.fixture
def process() -> Iterator[Process]:
    with closing(Process()) as made:
        yield made


def test_configurations_are_shown_without_secrets(process: Process) -> None:
    assert process.ask("GET", "/a/b/connectors/c/config") == (200, SHOWN)
    assert process.ask("GET", "/a/b/connectors/c")[1]["config"] == SHOWN
    assert process.ask("GET", "/a/b/connectors?expand=info")[1]["c"]["info"]["config"] == SHOWN
    assert process.ask("GET", "/a/b/connectors/c/tasks")[1][0]["config"] == SHOWN


def test_hidden_values_can_be_put_back_unchanged(process: Process) -> None:
    changed = {**SHOWN, "topics": "bills", "producer.override.ssl.key.password": "new"}
    assert process.ask("PUT", "/a/b/connectors/c/config", changed)[0] == 200
    wanted = {**CONFIG, "topics": "bills", "producer.override.ssl.key.password": "new"}
    assert process.herder.configs["c"] == wanted
    assert process.ask("PATCH", "/a/b/connectors/c/config", {"my.filter.token": "[hidden]", "tasks.max": "2"})[0] == 200
    assert process.herder.configs["c"] == {**wanted, "tasks.max": "2"}


def test_hidden_values_cannot_be_put_without_a_stored_value(process: Process) -> None:
    for name, key, value in (
        ("c", "target.cluster.sasl.jaas.config", "[hidden]"),
        ("d", "source.cluster.sasl.jaas.config", "[hidden]"),
        ("c", "source.cluster.sasl.oauthbearer.token.endpoint.url", "https://[hidden]@elsewhere.example/"),
    ):
        config = {"name": name, "connector.class": CONFIG["connector.class"], key: value}
        status, body = process.ask("PUT", f"/a/b/connectors/{name}/config", config)
        assert (status, body["message"].startswith(f"{key} holds [hidden]")) == (400, True)
    assert process.herder.configs == {"c": CONFIG}


@pytest.mark.parametrize(
    "change",
    [
        {"source.admin.bootstrap.servers": "evil:9092"},
        {"source.cluster.sasl.mechanism": "PLAIN"},
        {"source.cluster.sasl.oauthbearer.token.endpoint.url": "https://evil.example/"},
        {"target.cluster.bootstrap.servers": "evil:9092"},
        {"producer.override.bootstrap.servers": "evil:9092"},
        {"database.url": "jdbc:evil"},
    ],
)
def test_a_stored_secret_is_not_sent_to_an_address_of_the_client(process: Process, change: dict[str, str]) -> None:
    for method, config in (("PATCH", change), ("PUT", {**SHOWN, **change})):
        status, body = process.ask(method, "/a/b/connectors/c/config", config)
        assert (status, body["message"].startswith(f"{next(iter(change))} decides where secrets are sent")) == (
            400,
            True,
        ), body
    assert process.herder.configs == {"c": CONFIG}


def test_with_the_secrets_again_an_address_may_be_changed(process: Process) -> None:
    change = {
        "source.cluster.bootstrap.servers": "other:9092",
        "source.cluster.sasl.jaas.config": JAAS,
        "source.cluster.sasl.oauthbearer.token.endpoint.url": "https://client:known@tokens.example/token",
        "producer.override.ssl.key.password": "hunter4",
        "my.filter.token": "hunter5",
    }
    assert process.ask("PATCH", "/a/b/connectors/c/config", change)[0] == 200
    assert process.herder.configs["c"] == {**CONFIG, **change}


def test_the_query_of_a_url_is_hidden(process: Process) -> None:
    key = "source.cluster.sasl.oauthbearer.token.endpoint.url"
    process.herder.configs["c"] = {
        "name": "c",
        "connector.class": CONFIG["connector.class"],
        key: "https://t/x?key=hunter6",
    }
    assert process.ask("GET", "/a/b/connectors/c/config")[1][key] == "https://t/x?[hidden]"
