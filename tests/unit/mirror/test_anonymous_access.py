"""Access to a MirrorMaker process by anonymous clients, and secrets in responses."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from mm2.config.mirrormaker import SourceAndTarget
from mm2.connect.rest.binding import Binding
from mm2.connect.rest.server import RestServer
from mm2.connect.rest.settings import RestSettings
from mm2.mirror.flow_resources import FlowResources
from tests.support import certificates
from tests.unit.connect.rest.toy_herder import ToyHerder

AUTH = "org.apache.kafka.connect.rest.basic.auth.extension.BasicAuthSecurityRestExtension"
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
Ask = Callable[..., tuple[int, Any]]


class Process:
    """The REST interface of a process with one flow, `a->b`, that has the connector `c`."""

    def __init__(self, props: dict[str, str]) -> None:
        self.herder = ToyHerder()
        self.herder.configs["c"] = dict(CONFIG)
        self._binding = Binding(RestSettings.of({"listeners": "http://0.0.0.0:0", **props}))
        herders = {SourceAndTarget("a", "b"): self.herder}
        self._resources = FlowResources(herders, self._binding.settings, internal=True)
        self._server = RestServer(self._binding)
        self._server.serve(self._resources.main, self._resources.admin)

    def close(self) -> None:
        self._server.stop(1.0)
        self._resources.requests.close()

    def ask(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        host: str = "localhost",
        admin: bool = False,
        tls: ssl.SSLContext | None = None,
        **headers: str,
    ) -> tuple[int, Any]:
        ports = self._binding.admin if admin else self._binding.main
        port = ports[0].number
        connection = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=20)
            if tls is None
            else http.client.HTTPSConnection("127.0.0.1", port, timeout=20, context=tls)
        )
        sent = {"Host": host, **headers} | ({} if body is None else {"Content-Type": "application/json"})
        connection.request(method, path, None if body is None else json.dumps(body), sent)
        response = connection.getresponse()
        text = response.read()
        connection.close()
        return response.status, json.loads(text) if text else None


@pytest.fixture
def start() -> Iterator[Callable[..., Process]]:
    with ExitStack() as stack:

        def make(**props: str) -> Process:
            process = Process({key.replace("_", "."): value for key, value in props.items()})
            stack.callback(process.close)
            return process

        yield make


#: A host name that is not this machine's: requests to it count as remote.
ELSEWHERE = "mm2.example"


def test_remote_clients_can_read_only_what_has_no_secrets(start: Callable[..., Process]) -> None:
    process = start(admin_listeners="http://0.0.0.0:0")
    for method, path in (
        ("GET", "/a/b/connectors"),
        ("GET", "/a/b/connectors/c/config"),
        ("GET", "/flows/a/b/connectors"),
        ("PUT", "/a/b/connectors/c/pause"),
        ("POST", "/a/b/connectors"),
        ("DELETE", "/a/b/connectors/c"),
        ("GET", "/ui"),
        ("POST", "/health"),
        ("GET", "/a/b/../../a/b/connectors"),
    ):
        status, body = process.ask(method, path, host=ELSEWHERE)
        assert (status, "authentication is not configured" in body["message"]) == (403, True), (method, path)
    assert process.ask("PUT", "/admin/loggers/root", {"level": "TRACE"}, host=ELSEWHERE, admin=True)[0] == 403
    assert process.herder.calls == []
    assert process.ask("GET", "/", host=ELSEWHERE)[0] == 200
    assert process.ask("GET", "/health", host=ELSEWHERE)[0] == 200
    # These requests must be signed, and this one is not.
    assert process.ask("PUT", "/a/b/connectors/c/fence", host=ELSEWHERE)[0] == 400
    # The same port from this machine.
    assert process.ask("GET", "/a/b/connectors") == (200, ["c"])
    assert process.ask("PUT", "/a/b/connectors/c/pause")[0] == 202
    assert process.ask("PUT", "/admin/loggers/root", {"level": "INFO"}, admin=True)[0] == 200


def test_anonymous_access_can_be_allowed_for_everything(start: Callable[..., Process]) -> None:
    process = start(rest_unauthenticated_access="all")
    assert process.ask("GET", "/a/b/connectors", host=ELSEWHERE) == (200, ["c"])


def test_authenticated_clients_may_do_everything(start: Callable[..., Process], tmp_path: Path) -> None:
    (tmp_path / "users").write_text("ada=lovelace\n")
    module = "org.apache.kafka.connect.rest.basic.auth.extension.PropertyFileLoginModule"
    (tmp_path / "login").write_text(f'KafkaConnect {{ {module} required file="{tmp_path}/users"; }};')
    process = start(rest_extension_classes=AUTH, java_security_auth_login_config=str(tmp_path / "login"))
    right = "Basic " + base64.b64encode(b"ada:lovelace").decode()
    assert process.ask("GET", "/a/b/connectors", host=ELSEWHERE, Authorization=right) == (200, ["c"])
    assert process.ask("GET", "/metrics", host=ELSEWHERE)[0] == 401
    # An empty file accepts every client, as in Java; the clients are then anonymous.
    (tmp_path / "users").write_text("")
    other = start(rest_extension_classes=AUTH, java_security_auth_login_config=str(tmp_path / "login"))
    assert other.ask("GET", "/a/b/connectors", host=ELSEWHERE)[0] == 403
    assert other.ask("GET", "/a/b/connectors")[0] == 200


def test_clients_with_a_certificate_may_do_everything_and_others_are_rejected(
    start: Callable[..., Process], tmp_path: Path
) -> None:
    authority = certificates.issue("Authority")
    certificates.issue("worker", authority, address="127.0.0.1").pkcs12(tmp_path / "worker.p12", authority)
    (tmp_path / "trusted.pem").write_text(authority.certificate_pem)
    client = certificates.issue("ada", authority)
    (tmp_path / "ada.pem").write_text(client.key_pem() + client.certificate_pem)
    https = {
        "ssl.client.auth": "required",
        "ssl.keystore.location": str(tmp_path / "worker.p12"),
        "ssl.keystore.password": certificates.PASSWORD,
        "ssl.truststore.location": str(tmp_path / "trusted.pem"),
        "ssl.truststore.type": "PEM",
    }
    process = start(listeners="https://0.0.0.0:0", **{f"listeners.https.{key}": value for key, value in https.items()})
    untrusted = ssl.create_default_context(cafile=str(tmp_path / "trusted.pem"))
    known = ssl.create_default_context(cafile=str(tmp_path / "trusted.pem"))
    known.load_cert_chain(tmp_path / "ada.pem")
    assert process.ask("GET", "/a/b/connectors", host=ELSEWHERE, tls=known) == (200, ["c"])
    with pytest.raises((ssl.SSLError, ConnectionError)):
        process.ask("GET", "/health", tls=untrusted)


def test_configurations_are_shown_without_secrets(start: Callable[..., Process]) -> None:
    process = start()
    assert process.ask("GET", "/a/b/connectors/c/config") == (200, SHOWN)
    assert process.ask("GET", "/a/b/connectors/c")[1]["config"] == SHOWN
    assert process.ask("GET", "/a/b/connectors?expand=info")[1]["c"]["info"]["config"] == SHOWN
    assert process.ask("GET", "/a/b/connectors/c/tasks")[1][0]["config"] == SHOWN


def test_hidden_values_can_be_put_back_unchanged(start: Callable[..., Process]) -> None:
    process = start()
    changed = {**SHOWN, "topics": "bills", "producer.override.ssl.key.password": "new"}
    assert process.ask("PUT", "/a/b/connectors/c/config", changed)[0] == 200
    wanted = {**CONFIG, "topics": "bills", "producer.override.ssl.key.password": "new"}
    assert process.herder.configs["c"] == wanted
    assert process.ask("PATCH", "/a/b/connectors/c/config", {"my.filter.token": "[hidden]", "tasks.max": "2"})[0] == 200
    assert process.herder.configs["c"] == {**wanted, "tasks.max": "2"}


def test_hidden_values_cannot_be_put_without_a_stored_value(start: Callable[..., Process]) -> None:
    process = start()
    for name, key, value in (
        ("c", "target.cluster.sasl.jaas.config", "[hidden]"),
        ("d", "source.cluster.sasl.jaas.config", "[hidden]"),
        ("c", "source.cluster.sasl.oauthbearer.token.endpoint.url", "https://[hidden]@elsewhere.example/"),
    ):
        config = {"name": name, "connector.class": CONFIG["connector.class"], key: value}
        status, body = process.ask("PUT", f"/a/b/connectors/{name}/config", config)
        assert (status, body["message"].startswith(f"{key} holds [hidden]")) == (400, True)
    assert process.herder.configs == {"c": CONFIG}
