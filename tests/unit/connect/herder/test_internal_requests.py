"""Requests of a worker to the leader, as the leader receives them."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect.herder.internal_requests import InternalRequests, RequestRefused
from mm2.connect.request_signing import SessionKey
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.forwarding import _MOST_OF_ALL_BYTES, RestClient

KEY = SessionKey(bytes(32), "HmacSHA256", 0)


class Leader(HTTPServer):
    """Returns configured responses and records the requests."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, str, dict[str, str]]] = []
        self.answer: tuple[int, bytes] = (204, b"")
        self.is_slow = False
        self.stopping = threading.Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class Handler(BaseHTTPRequestHandler):
    server: Leader

    def do_PUT(self) -> None:
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.asked.append((self.command, self.path, headers))
        status, body = self.server.answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not self.server.is_slow:
            self.wfile.write(body)
            return
        for byte in body:  # each read is in time, the whole response is not
            try:
                self.wfile.write(bytes([byte]))
            except OSError:
                return
            if self.server.stopping.wait(0.05):
                return

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def leader() -> Iterator[Leader]:
    server = Leader()
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield server
    server.stopping.set()
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_request_equals_java_s_and_is_signed(leader: Leader) -> None:
    InternalRequests({}, algorithm="HmacSHA256").fence(leader.url, "a b/ü", KEY)
    ((method, path, headers),) = leader.asked
    assert (method, path) == ("PUT", "/connectors/a%20b%2F%C3%BC/fence")
    signature = base64.b64decode(headers["x-connect-authorization"])
    assert signature == hmac.new(bytes(32), b"", hashlib.sha256).digest()
    assert headers["x-connect-request-signature-algorithm"] == "HmacSHA256"
    assert headers["accept"] == "application/json"


def test_in_dedicated_mode_the_path_begins_with_the_flow(leader: Leader) -> None:
    InternalRequests({}, namespace=("A", "B"), algorithm="HmacSHA256").fence(leader.url, "c", KEY)
    assert leader.asked[0][1] == "/A/B/connectors/c/fence"


def test_an_error_keeps_the_leader_s_status_and_message(leader: Leader) -> None:
    leader.answer = (409, json.dumps({"error_code": 409, "message": "new configs"}).encode())
    with pytest.raises(RequestRefused, match="answered 409: new configs") as refused:
        InternalRequests({}, algorithm="HmacSHA256").fence(leader.url, "c", KEY)
    assert refused.value.status == 409


def test_a_missing_response_is_an_error_without_a_status() -> None:
    with pytest.raises(RequestRefused, match="No response from") as refused:
        InternalRequests({}, algorithm="HmacSHA256").fence("http://127.0.0.1:1", "c", KEY)
    assert refused.value.status is None


def test_tls_settings_come_from_the_listeners_or_from_the_worker_and_are_never_mixed() -> None:
    worker = {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/no/such/file.pem"}
    with pytest.raises(ConfigException, match=r"/no/such/file\.pem"):
        InternalRequests(worker, algorithm="HmacSHA256").fence("https://127.0.0.1:1", "c", KEY)
    listeners = {**worker, "listeners.https.ssl.protocol": "TLSv1.3"}
    with pytest.raises(RequestRefused, match="No response from"):
        InternalRequests(listeners, algorithm="HmacSHA256").fence("https://127.0.0.1:1", "c", KEY)


def test_a_leader_that_never_completes_its_response_is_not_awaited(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.answer, leader.is_slow = (200, b" " * 1000), True
    monkeypatch.setattr("mm2.connect.herder.internal_requests._TIMEOUT_S", 2.0)
    with pytest.raises(RequestRefused, match=r"no complete response in time") as refused:
        InternalRequests({}, algorithm="HmacSHA256").fence(leader.url, "c", KEY)
    assert refused.value.status is None


def test_a_worker_that_never_completes_its_response_to_a_forwarded_request_is_not_awaited(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    leader.answer, leader.is_slow = (200, b" " * 1000), True
    monkeypatch.setattr("mm2.connect.rest.forwarding._GRACE_S", 1.9)
    with pytest.raises(RestFailure, match=r"forward REST request: no complete response within 2 s") as failure:
        asyncio.run(RestClient({}, 0.1).request("PUT", leader.url, {}, b""))
    assert failure.value.status == 500


def test_a_response_of_another_worker_has_a_limit(leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("mm2.connect.herder.internal_requests", "mm2.connect.rest.forwarding"):
        monkeypatch.setattr(f"{module}._MOST_BYTES", 2)
    leader.answer = (200, b"{}")
    InternalRequests({}, algorithm="HmacSHA256").fence(leader.url, "c", KEY)
    assert asyncio.run(RestClient({}, 5).request("PUT", leader.url, {}, b"")).body == {}
    leader.answer = (200, b"{ }")
    with pytest.raises(RequestRefused, match="the response has more than 2 bytes"):
        InternalRequests({}, algorithm="HmacSHA256").fence(leader.url, "c", KEY)
    with pytest.raises(RestFailure, match="the response has more than 2 bytes"):
        asyncio.run(RestClient({}, 5).request("PUT", leader.url, {}, b""))


def test_responses_that_are_received_at_the_same_time_have_a_limit_together(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each of them had 256 MB."""
    assert _MOST_OF_ALL_BYTES <= 64 << 20
    monkeypatch.setattr("mm2.connect.rest.forwarding._MOST_OF_ALL_BYTES", 1)
    client = RestClient({}, 5)
    leader.answer = (200, b"{}")
    with pytest.raises(RestFailure, match="more than 1 bytes of responses are being received"):
        asyncio.run(client.request("PUT", leader.url, {}, b""))
    monkeypatch.setattr("mm2.connect.rest.forwarding._MOST_OF_ALL_BYTES", 2)
    for _ in range(3):  # what has been received does not count any more
        assert asyncio.run(client.request("PUT", leader.url, {}, b"")).body == {}


def test_of_the_response_to_a_challenge_only_the_header_is_read(
    leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of Java answers with any list, a rogue member of the group with as much as it likes."""
    monkeypatch.setattr("mm2.connect.rest.forwarding._MOST_BYTES", 1)
    leader.answer = (200, b"{ }")
    assert asyncio.run(RestClient({}, 5).proves(leader.url, "/", KEY)) is False


def test_a_worker_with_https_sends_nothing_by_http(leader: Leader) -> None:
    """Task configurations may contain passwords, and any client with READ on the group can name the leader's URL."""
    requests = InternalRequests({}, algorithm="HmacSHA256", own_url="https://here:8443/")
    with pytest.raises(RequestRefused, match="which uses no TLS, and this worker does"):
        requests.fence(leader.url, "c", KEY)
    with pytest.raises(RequestRefused, match="which uses no TLS, and this worker does"):
        requests.put_task_configs(leader.url, "c", [{"password": "secret"}], KEY)
    assert leader.asked == []
    InternalRequests({}, algorithm="HmacSHA256", own_url="http://here:8083/").fence(leader.url, "c", KEY)
    assert len(leader.asked) == 1
