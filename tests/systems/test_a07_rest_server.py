"""The server: listeners and the advertised address (A7), admin listeners (A8), HTTPS (A9), CORS and headers (A10), extensions
(A11), resources (A12), concurrent requests and the request log (A51)."""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import create
from tests.support.certificates import KEY_PASSWORD, PASSWORD, Issued, issue, to_jks, truststore
from tests.support.passwords import password_settings
from tests.support.waiting import wait_until
from tests.systems.counting import counting
from tests.systems.workers import DistributedWorker, StandaloneWorker, distributed_props

HOST = "127.0.0.1"


@dataclass(frozen=True)
class Served:
    """A worker with all features of the REST server."""

    worker: DistributedWorker
    https: int
    admin: int
    authority: Issued
    folder: Path

    def trusting(self) -> ssl.SSLContext:
        return ssl.create_default_context(cadata=self.authority.certificate_pem)


@pytest.fixture(scope="module")
def served(broker: LocalKafka, group: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    authority = issue("authority")
    issue(HOST, authority, address=HOST).pkcs12(folder / "worker.p12", authority)
    https, admin = free_ports(2)
    worker = DistributedWorker(
        folder,
        distributed_props(broker.bootstrap, group)
        | {
            "admin.listeners": f"http://{HOST}:{admin}",
            "listeners.https.ssl.keystore.location": str(folder / "worker.p12"),
            "listeners.https.ssl.keystore.password": PASSWORD,
            "listeners.https.ssl.keystore.type": "PKCS12",
            # must be ignored, because keys with the prefix exist
            "ssl.keystore.location": "/no/such/file",
            "access.control.allow.origin": "http://good.example,*.fine.example",
            "access.control.allow.methods": "GET,PUT",
            "response.http.headers.config": 'set X-Frame-Options: DENY, "add Cache-Control: no-cache, no-store"',
            "rest.extension.classes": "tests.systems.plugins_for_rest.StateExtension",
            "test.greeting": "hello",
        },
    )
    worker.props["listeners"] = f"http://{HOST}:{worker.port},https://{HOST}:{https}"
    with worker:
        yield Served(worker, https, admin, authority, folder)


def get(url: str, context: ssl.SSLContext | None = None, **headers: str) -> httpx.Response:
    return httpx.get(url, verify=context or True, headers=headers, timeout=30, trust_env=False)


def test_a07_both_listeners_answer_and_the_worker_id_is_the_advertised_address(
    served: Served, broker: LocalKafka, unique: str
) -> None:
    create(broker, unique)
    served.worker.rest.create("counting", counting(unique))
    status = served.worker.rest.await_running("counting", 1)
    assert status["connector"]["worker_id"] == f"{HOST}:{served.worker.port}"
    assert status["tasks"][0]["worker_id"] == f"{HOST}:{served.worker.port}"
    secure = get(f"https://{HOST}:{served.https}/connectors/counting/status", served.trusting())
    assert secure.json() == served.worker.rest.get("/connectors/counting/status")


@pytest.mark.parametrize(
    ("props", "worker_id"),
    [
        ({"rest.advertised.host.name": "me.example", "rest.advertised.port": "99"}, "me.example:99"),
        ({"rest.advertised.host.name": "me.example"}, "me.example:{port}"),
        ({"listeners": "http://[::1]:{port}"}, "[::1]:{port}"),
        ({"listeners": "http://localhost:{port}"}, "localhost:{port}"),
    ],
)
def test_a07_the_address_can_be_overridden(
    broker: LocalKafka, unique: str, folder: Path, props: dict[str, str], worker_id: str
) -> None:
    create(broker, unique)
    connector = folder / "c.properties"
    connector.write_text("".join(f"{key}={value}\n" for key, value in counting(unique, name="c").items()))
    worker = StandaloneWorker(folder, {"bootstrap.servers": broker.bootstrap}, [connector])
    worker.props |= {key: value.format(port=worker.port) for key, value in props.items()}
    if "[::1]" in worker.props["listeners"]:
        if not socket.has_ipv6:
            pytest.fail("this machine has no IPv6, without which this cannot be shown")
        worker.rest.http.base_url = httpx.URL(f"http://[::1]:{worker.port}")
    with worker:
        assert worker.rest.await_running("c", 1)["connector"]["worker_id"] == worker_id.format(port=worker.port)


def test_a07_port_0_is_a_free_port_and_the_log_contains_it(broker: LocalKafka, folder: Path) -> None:
    worker = StandaloneWorker(folder, {"bootstrap.servers": broker.bootstrap, "listeners": f"http://{HOST}:0"}).launch()
    found: list[str] = []

    def listens() -> bool:
        assert worker.is_running, worker.tail()
        found[:] = re.findall(rf"http://{HOST}:(\d+)/", worker.log.read_text() if worker.log.exists() else "")
        return bool(found) and int(found[0]) > 0

    try:
        wait_until(listens, 60, detail=worker.tail)
        wait_until(lambda: get(f"http://{HOST}:{found[0]}/health").status_code == 200, 60, detail=worker.tail)
    finally:
        worker.stop()


def test_a08_admin_resources_with_their_own_listener_are_only_there(served: Served) -> None:
    assert get(f"http://{HOST}:{served.admin}/admin/loggers").status_code == 200
    assert get(f"http://{HOST}:{served.admin}/connectors").status_code == 404
    assert get(f"http://{HOST}:{served.worker.port}/admin/loggers").status_code == 404


def test_a11_extensions_apply_to_admin_listeners(served: Served) -> None:
    """Since Kafka 4.4: before, a filter that authenticates clients did not protect the loggers."""
    admin = f"http://{HOST}:{served.admin}"
    assert httpx.get(f"{admin}/admin/loggers", headers={"X-Tea": "yes"}, trust_env=False, timeout=60).status_code == 418
    assert (
        httpx.post(f"{admin}/integration-test-rest-extension/echo", content=b"hi", trust_env=False, timeout=60).text
        == "hi"
    )


def test_a08_admin_resources_without_their_own_listener_are_with_the_others(worker: DistributedWorker) -> None:
    assert "root" in worker.rest.get("/admin/loggers")


def test_a09_https_needs_the_configured_authority_and_tls(served: Served) -> None:
    url = f"https://{HOST}:{served.https}/"
    assert get(url, served.trusting()).status_code == 200
    with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
        get(url)
    with pytest.raises(httpx.TransportError):
        get(f"http://{HOST}:{served.https}/")


@pytest.mark.parametrize("kind", ["PEM", "JKS"])
def test_a09_clients_without_the_required_certificate_are_rejected(broker: LocalKafka, folder: Path, kind: str) -> None:
    authority = issue("authority")
    own = issue(HOST, authority, address=HOST)
    client = issue("client", authority)
    untrusted = issue("untrusted", issue("another authority"))
    if kind == "PEM":
        store = {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.key": own.key_pem().replace("\n", "\\n"),
            "ssl.keystore.certificate.chain": own.certificate_pem.replace("\n", "\\n"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.certificates": authority.certificate_pem.replace("\n", "\\n"),
        }
    else:
        own.pkcs12(folder / "own.p12", authority)
        to_jks(folder / "own.p12", folder / "own.jks")
        truststore(authority, folder / "trust.jks", "JKS")
        store = {
            "ssl.keystore.location": str(folder / "own.jks"),
            "ssl.keystore.password": PASSWORD,
            "ssl.key.password": KEY_PASSWORD,
            "ssl.truststore.location": str(folder / "trust.jks"),
            "ssl.truststore.password": PASSWORD,
        }
    worker = StandaloneWorker(folder, {"bootstrap.servers": broker.bootstrap, "ssl.client.auth": "required", **store})
    worker.props |= {"listeners": f"https://{HOST}:{worker.port}", "admin.listeners": ""}

    def context(who: Issued | None) -> ssl.SSLContext:
        made = ssl.create_default_context(cadata=authority.certificate_pem)
        if who is not None:
            file = folder / f"{who.certificate.serial_number}.pem"
            file.write_text(who.key_pem() + who.certificate_pem)
            made.load_cert_chain(file)
        return made

    url = f"https://{HOST}:{worker.port}"
    worker.rest.http.close()
    worker.rest.http = httpx.Client(base_url=url, verify=context(client), timeout=30, trust_env=False)
    with worker:
        for who in (None, untrusted):
            with pytest.raises(httpx.TransportError):
                get(url, context(who))
        assert worker.rest.get("/connectors") == []
        # A8: an empty list disables the admin endpoints
        assert worker.rest.http.get("/admin/loggers").status_code == 404
        # An open connection of a client that does not read does not delay the shutdown.
        assert worker.stop(10) == 0


def test_a10_origins_are_allowed_and_headers_are_in_every_response(served: Served) -> None:
    base = f"http://{HOST}:{served.worker.port}"
    for origin in ("http://good.example", "https://a.fine.example"):
        allowed = get(f"{base}/connectors", Origin=origin)
        assert allowed.headers["access-control-allow-origin"] == origin
    assert "access-control-allow-origin" not in get(f"{base}/connectors", Origin="http://bad.example").headers
    assert "access-control-allow-origin" not in get(f"{base}/connectors").headers
    preflight = {"Origin": "http://good.example", "Access-Control-Request-Method": "PUT"}
    answer = httpx.options(f"{base}/connectors/x/config", headers=preflight, trust_env=False)
    assert answer.headers["access-control-allow-methods"] == "GET,PUT"
    refused = httpx.options(
        f"{base}/connectors", headers=preflight | {"Access-Control-Request-Method": "DELETE"}, trust_env=False
    )
    assert "access-control-allow-methods" not in refused.headers
    for path in ("/", "/nope", "/connectors/nope", "/connectors/a%2Fb"):
        headers = get(base + path).headers
        assert headers["x-frame-options"] == "DENY"
        assert headers["cache-control"] == "no-cache, no-store"


def test_a10_without_the_key_no_origin_is_allowed(worker: DistributedWorker) -> None:
    assert "access-control-allow-origin" not in worker.rest.http.get("/", headers={"Origin": "http://x"}).headers


def test_a11_an_extension_sees_the_cluster_state(served: Served, broker: LocalKafka, unique: str) -> None:
    create(broker, unique)
    rest = served.worker.rest
    config = counting(unique, 2, name=unique)
    rest.create(unique, config)
    rest.await_running(unique, 2)
    seen = rest.get(f"/integration-test-rest-extension/connector/{unique}/state")
    assert seen["greeting"] == "hello"
    assert unique in seen["connectors"]
    # the module's other worker is in the group too
    assert (seen["state"], seen["worker"]) == ("RUNNING", rest.status(unique)["connector"]["worker_id"])
    assert seen["tasks"] == {"0": "RUNNING", "1": "RUNNING"}
    assert seen["type"] == "source"
    assert seen["config"] == config
    assert seen["cluster"] == rest.get("/")["kafka_cluster_id"]
    assert rest.http.get("/integration-test-rest-extension/connector/nope/state").status_code == 404
    assert rest.http.get("/integration-test-rest-extension/echo").status_code == 405
    assert rest.http.post("/integration-test-rest-extension/echo", content=b"hi").text == "hi"
    assert rest.http.get("/connectors", headers={"X-Tea": "yes"}).status_code == 418


def test_a11_basic_auth_rejects_requests_without_credentials(broker: LocalKafka, folder: Path) -> None:
    worker = StandaloneWorker(
        folder,
        {
            "bootstrap.servers": broker.bootstrap,
            **password_settings(folder, {"admin": "s3cret-word"}),
            "rest.unauthenticated.access": "none",
        },
    )
    worker.rest.http.auth = ("admin", "s3cret-word")
    with worker:
        base = f"http://{HOST}:{worker.port}"
        for auth in (None, ("admin", "wrong"), ("nobody", "s3cret-word"), ("", "")):
            refused = httpx.get(f"{base}/connectors", auth=auth, trust_env=False, timeout=60)
            assert refused.status_code == 401
            assert refused.json()["error_code"] == 401
        assert worker.rest.get("/connectors") == []
        # Requests between workers are signed instead (here: not supported).
        assert httpx.put(f"{base}/connectors/x/fence", trust_env=False, timeout=60).status_code != 401
        assert "s3cret" not in worker.log.read_text()
        assert "admin" in worker.log.read_text()  # the request log contains the user


def test_a12_each_resource_responds_and_unknown_ones_return_json(worker: DistributedWorker) -> None:
    for path in ("/", "/health", "/connectors", "/connector-plugins", "/admin/loggers", "/openapi.json", "/docs"):
        assert worker.rest.http.get(path).status_code == 200
    unknown = worker.rest.http.get("/unknown")
    assert unknown.status_code == 404
    assert unknown.json() == {"error_code": 404, "message": "HTTP 404 Not Found"}


def test_a51_two_hundred_concurrent_requests_are_answered_and_logged_in_one_line_each(
    worker: DistributedWorker,
) -> None:
    mark = "a51"
    with (
        httpx.Client(
            base_url=worker.rest.url, timeout=60, trust_env=False, limits=httpx.Limits(max_connections=200)
        ) as http,
        ThreadPoolExecutor(200) as threads,
    ):
        answers = list(threads.map(lambda number: http.get(f"/connectors?{mark}={number}"), range(200)))
    assert [answer.status_code for answer in answers] == [200] * 200
    line = re.compile(
        rf'127\.0\.0\.1 - - \[\d\d/\w{{3}}/\d{{4}}:\d\d:\d\d:\d\d [+-]\d{{4}}\] \\?"GET /connectors\?{mark}=(\d+) HTTP/1\.1\\?" '
        r'200 \d+ \\?"-\\?" \\?"python-httpx/[^"]+\\?" \d+'
    )
    wait_until(lambda: len(line.findall(worker.log.read_text())) >= 200, 20, detail=worker.tail)
    assert sorted(map(int, line.findall(worker.log.read_text()))) == list(range(200))
