"""Limits that hold before a client is authenticated: connections, times, sizes."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest
from cryptography import x509
from starlette.types import Receive, Scope, Send

from mm2.connect.request_signing import signature_headers
from mm2.connect.rest.basic_auth import BasicAuthSecurityRestExtension
from mm2.connect.rest.listeners.limits import peer_of
from tests.support.certificates import Issued, issue
from tests.support.passwords import basic, password_settings
from tests.support.slow_clients import OTHER_ADDRESS, connect, connected, everything, head, is_closed
from tests.support.waiting import wait_until
from tests.unit.connect.rest.conftest import JSON, Running, Start
from tests.unit.connect.rest.toy_herder import SESSION_KEY

SHORT = "300"


def test_connections_that_wait_make_room_for_those_of_another_client(start: Start) -> None:
    rest = start({"rest.connections.max": "4"})
    with connected(rest.port, 8) as waiting:
        wait_until(lambda: sum(map(is_closed, waiting)) >= 5, 10)
        assert [is_closed(sock) for sock in waiting] == [True] * 5 + [False] * 3, "the oldest are closed first"
        assert rest.ask("GET", "/health").status == 200
        with connected(rest.port, 2, "127.0.0.3"):
            wait_until(lambda: sum(map(is_closed, waiting)) == 6, 10)


def test_the_client_with_the_most_connections_loses_one(start: Start) -> None:
    rest = start({"rest.connections.max": "4"})
    with connected(rest.port, 1, "127.0.0.3") as (modest,), connected(rest.port, 12) as greedy:
        wait_until(lambda: sum(map(is_closed, greedy)) >= 9, 10)
        assert not is_closed(modest)
        modest.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert everything(modest).startswith(b"HTTP/1.1 200")


def test_a_connection_is_rejected_while_all_have_requests_in_progress(start: Start) -> None:
    rest = start({"rest.connections.max": "4"})
    rest.herder.configs["c"] = {}
    rest.herder.hang = True
    with connected(rest.port, 3) as busy:
        for sock in busy:
            sock.sendall(b"PUT /connectors/c/pause HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_until(lambda: rest.herder.waiting == 3, 10)
        with connected(rest.port) as (sock,):
            answer = everything(sock)
        assert answer.startswith(b"HTTP/1.1 503 Service Unavailable\r\n")
        assert b"retry-after: 1\r\n" in answer
        assert "rest.connections.max" in json.loads(answer.partition(b"\r\n\r\n")[2])["message"]
        assert not any(map(is_closed, busy))
        with connected(rest.port, 1, "127.0.0.3") as (last,):
            last.sendall(b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert last.recv(4096).startswith(b"HTTP/1.1 200"), "one client does not exclude the others"


def test_a_header_has_a_time_limit_even_if_bytes_keep_coming(start: Start) -> None:
    rest = start({"rest.header.timeout.ms": SHORT})
    for before in (b"", b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n"):
        with connected(rest.port) as (sock,):
            if before:
                sock.sendall(before)
                assert sock.recv(4096).startswith(b"HTTP/1.1 200")
            sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
            with pytest.raises(OSError, match=r"reset|Broken pipe"):  # noqa: PT012 - until the server closes
                for _ in range(400):
                    sock.sendall(b"x")
                    time.sleep(0.05)
    assert rest.ask("GET", "/").status == 200


def test_a_body_has_a_time_limit_even_if_bytes_keep_coming(start: Start) -> None:
    rest = start({"rest.body.timeout.ms": SHORT})
    with connected(rest.port) as (sock,):
        sock.sendall(head("POST", "/connectors", 1000))
        with contextlib.suppress(OSError):
            for _ in range(400):
                sock.sendall(b" ")
                time.sleep(0.05)
                if is_readable(sock):
                    break
        assert everything(sock).startswith(b"HTTP/1.1 408")


def is_readable(sock: socket.socket) -> bool:
    sock.setblocking(False)
    try:
        return bool(sock.recv(1, socket.MSG_PEEK))
    except BlockingIOError:
        return False
    finally:
        sock.settimeout(60)


@pytest.mark.parametrize(
    ("header", "is_complete"),
    [
        (b"X: " + b"y" * 20_000 + b"\r\n", True),
        (b"X: y\r\n" * 101, True),
        (b"X: " + b"y" * 20_000, False),
    ],
    ids=["large", "many", "endless"],
)
def test_a_large_header_returns_431(rest: Running, header: bytes, is_complete: bool) -> None:
    with connected(rest.port) as (sock,):
        sock.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n" + header + (b"\r\n" if is_complete else b""))
        answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 431 Request Header Fields Too Large\r\n")
    assert json.loads(answer.partition(b"\r\n\r\n")[2])["error_code"] == 431


def test_bodies_together_have_a_budget(start: Start) -> None:
    rest = start({"rest.request.max.bytes": "1000", "rest.bodies.max.bytes": "2000"})  # 1,500 without the signed ones
    with connected(rest.port, 2) as (one, two), connected(rest.port, 2, "127.0.0.3") as (three, four):
        one.sendall(head("POST", "/connectors", 1000) + b" " * 900)
        await_used(rest, 900)
        two.sendall(head("POST", "/connectors", 900) + b" " * 300)
        answer = everything(two)
        assert answer.startswith(b"HTTP/1.1 503"), "one client gets 1,125"
        assert b"retry-after: 1\r\n" in answer
        assert b"rest.bodies.max.bytes" in answer
        three.sendall(head("POST", "/connectors", 900) + b" " * 700)
        assert everything(three).startswith(b"HTTP/1.1 503"), "all together get 1,500"
        four.sendall(head("POST", "/connectors", 500) + b" " * 500)
        assert four.recv(4096).startswith(b"HTTP/1.1 500"), "another client is served"
        one.sendall(b" " * 100)
        assert one.recv(4096).startswith(b"HTTP/1.1 500"), "blanks are not JSON"
    await_used(rest, 0)
    assert rest.ask("POST", "/connectors", '{"name":"c","config":{"connector.class":"X"}}').status == 201


def await_used(rest: Running, size_bytes: int) -> None:
    wait_until(lambda: rest.server.budgets.used_bytes == size_bytes, 10, detail=lambda: rest.server.budgets.used_bytes)


def _with_passwords(folder: Path) -> BasicAuthSecurityRestExtension:
    extension = BasicAuthSecurityRestExtension()
    extension.configure(password_settings(folder, {"ann": "secret"}))
    return extension


def test_responses_that_their_clients_do_not_read_have_a_budget(start: Start) -> None:
    rest = start({"rest.bodies.max.bytes": "24000000"})  # one address gets 18,000,000
    rest.herder.configs["c"] = {"k": "x" * 15_000_000}  # more than the sockets can hold
    request = b"GET /connectors/c/config HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    responses = rest.server.budgets.responses
    with connected(rest.port, 2) as (one, two), connected(rest.port, 1, "127.0.0.3") as (three,):
        one.sendall(request)
        wait_until(lambda: responses.used_bytes > 15_000_000, 20)
        two.sendall(request)
        answer = everything(two)
        assert answer.startswith(b"HTTP/1.1 503"), answer[:500]
        assert b"retry-after: 1\r\n" in answer
        assert b"rest.bodies.max.bytes" in answer
        three.sendall(request)
        answer = everything(three)
        assert answer.startswith(b"HTTP/1.1 200"), "another client is served"
        assert len(answer) > 15_000_000
        assert len(everything(one)) > 15_000_000
    wait_until(lambda: responses.used_bytes == 0, 20)
    assert rest.ask("GET", "/connectors/c/config").status == 200


def test_guesses_exclude_the_user_at_their_machine_for_ten_seconds(start: Start, tmp_path: Path) -> None:
    """All loopback addresses are one. See test_access.py for users at other addresses."""
    rest = start({}, _with_passwords(tmp_path))
    statuses = []
    for number in range(8):
        with connected(rest.port) as (sock,):
            authorization = f"Authorization: {basic('ann', f'guess {number}')['Authorization']}"
            sock.sendall(head("GET", "/connectors", 0, authorization, "Connection: close"))
            statuses.append(everything(sock)[9:12])
    assert statuses == [b"401"] * 5 + [b"429"] * 3
    excluded = rest.ask("GET", "/connectors", headers=basic("ann", "secret"))
    assert (excluded.status, excluded.headers["retry-after"]) == (429, "10")


def test_a_body_is_not_received_before_the_password_is_known(start: Start, tmp_path: Path) -> None:
    rest = start({}, _with_passwords(tmp_path))
    with connected(rest.port) as (sock,):
        sock.sendall(head("POST", "/connectors", 16 * 1024 * 1024, "Expect: 100-continue"))
        answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 401"), "not 100, which asks for the body"
    assert rest.server.budgets.received_bytes == 0


def test_an_unsigned_request_between_workers_is_rejected_before_its_body(rest: Running) -> None:
    before = rest.server.budgets.received_bytes
    with connected(rest.port) as (sock,):
        sock.sendall(head("POST", "/connectors/c/tasks", 16 * 1024 * 1024, "Expect: 100-continue"))
        answer = everything(sock)
    assert answer.startswith(b"HTTP/1.1 400")
    assert b"missing required signature" in answer
    assert rest.server.budgets.received_bytes == before


def test_signed_bodies_use_a_quarter_of_the_budget(start: Start) -> None:
    rest = start({"rest.bodies.max.bytes": "4000"})
    body = json.dumps([{"a": "b" * 700}]).encode()
    assert rest.ask("POST", "/connectors/c/tasks", body, JSON | signature_headers(SESSION_KEY, body)).status == 204
    large = json.dumps([{"a": "b" * 800}]).encode()
    answer = rest.ask("POST", "/connectors/c/tasks", large, JSON | signature_headers(SESSION_KEY, large))
    assert (answer.status, answer.message) == (
        413,
        "The body of a request between workers is larger than 750 bytes, its part of rest.bodies.max.bytes",
    )
    assert rest.ask("PUT", "/connectors/c/config", '{"a":"' + "b" * 2000 + '"}').status != 413


def test_the_body_of_a_request_with_a_wrong_signature_is_not_parsed(rest: Running) -> None:
    wrong = JSON | signature_headers(SESSION_KEY, b"another body")
    answer = rest.ask("POST", "/connectors/c/tasks", "[" * 100_000, wrong)
    assert (answer.status, answer.message) == (403, "Internal request contained invalid signature.")


def test_a_client_that_is_still_sending_can_read_the_rejection(rest: Running) -> None:
    answer = rest.ask("POST", "/connectors", b" " * (17 * 1024 * 1024))
    assert answer.status == 413


def test_a_connection_with_an_unread_body_is_closed_and_the_response_announces_it(rest: Running) -> None:
    with connected(rest.port) as (sock,):
        sock.sendall(head("GET", "/connectors", 1_000_000) + b"x" * 100_000)
        answer = everything(sock)
        assert answer.startswith(b"HTTP/1.1 200")
        assert b"\r\nconnection: close\r\n" in answer
    with connected(rest.port) as (sock,):
        sock.sendall(head("GET", "/connectors", 4) + b"null")
        sock.sendall(b"GET /connectors HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert everything(sock).count(b"HTTP/1.1 200") == 2


@pytest.mark.parametrize(
    ("body", "sentence"),
    [
        ("[" * 100_000, "nested too deeply"),
        ('{"config":{"a":' + "9" * 1001 + "}}", "number with more than 1000 digits"),
        ('{"config":{"a":' + "[]," * 600_000 + "[]}}", "more than 500000 names and values"),
    ],
)
def test_json_that_needs_too_much_time_or_memory_is_rejected(rest: Running, body: str, sentence: str) -> None:
    answer = rest.ask("POST", "/connectors", body)
    assert answer.status == 500, "as for other malformed bodies"
    assert sentence in answer.message


def test_an_offset_has_a_number_that_can_be_stored(rest: Running) -> None:
    rest.herder.configs["c"] = {}
    body = '{"offsets":[{"partition":{"a":"b"},"offset":{"pos":1e999}}]}'
    answer = rest.ask("PATCH", "/connectors/c/offsets", body)
    assert (answer.status, answer.message) == (500, "The body contains a number that is too large")


def test_text_with_many_commas_is_not_taken_for_values(rest: Running) -> None:
    topics = ",".join(["t-0"] * 600_000)
    body = json.dumps({"name": "c", "config": {"connector.class": "X", "topics": topics}})
    assert rest.ask("POST", "/connectors", body).status == 201
    assert rest.herder.configs["c"]["topics"] == topics


def test_health_does_not_wait_for_calls_that_hang(start: Start) -> None:
    rest = start({"rest.connections.max": "200"})
    hanging = threading.Event()
    rest.herder.connectors = lambda: [str(hanging.wait(60))]  # type: ignore[method-assign]
    with connected(rest.port, 80) as busy:
        try:
            for sock in busy:
                sock.sendall(b"GET /connectors HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert rest.ask("GET", "/health").status == 200
        finally:
            hanging.set()


def test_a_websocket_is_a_connection_that_makes_no_room(start: Start) -> None:
    async def accept(_scope: Scope, receive: Receive, send: Send) -> None:
        await receive()
        await send({"type": "websocket.accept"})
        assert (await receive())["type"] == "websocket.disconnect"

    rest = start({"rest.connections.max": "1"})
    rest.server.serve(accept)
    upgrade = "\r\n".join(
        [
            "GET / HTTP/1.1",
            "Host: localhost",
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            *("", ""),
        ]
    ).encode()
    with connected(rest.port) as (sock,):
        sock.sendall(upgrade)
        assert sock.recv(4096).startswith(b"HTTP/1.1 101")
        with connected(rest.port) as (other,):
            assert everything(other).startswith(b"HTTP/1.1 503")
        assert not is_closed(sock)

    def is_released() -> bool:
        with connected(rest.port) as (other,):
            other.sendall(upgrade)
            return other.recv(4096).startswith(b"HTTP/1.1 101")

    wait_until(is_released, 10)


@pytest.mark.parametrize(
    ("address", "peer"),
    [
        (("10.0.0.1", 5), "10.0.0.1"),
        (("::ffff:10.0.0.1", 5, 0, 0), "10.0.0.1"),
        (("2001:db8:1:2:3::4", 5, 0, 0), "2001:db8:1:2::/64"),
        (("fe80::1%eth0", 5, 0, 2), "fe80::/64"),
        ("", ""),
    ],
)
def test_a_client_is_an_address_or_a_network_of_ipv6(address: object, peer: str) -> None:
    assert peer_of(address) == peer


# -- TLS

AUTHORITY = issue("authority")


def served(folder: Path, own: Issued) -> dict[str, str]:
    """Settings of a listener with this certificate; calling it again replaces the file."""
    store = folder / "own.pem"
    new = folder / "new.pem"
    new.write_text(own.key_pem() + own.certificate_pem)
    new.rename(store)
    return {
        "listeners": "https://127.0.0.1:0",
        "listeners.https.ssl.keystore.type": "PEM",
        "listeners.https.ssl.keystore.location": str(store),
    }


def serial_of(port: int) -> int:
    """The serial number of the certificate that a new connection gets."""
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    with connect(port) as sock, context.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
        der = tls.getpeercert(binary_form=True)
        assert der is not None
        return x509.load_der_x509_certificate(der).serial_number


def own_certificate() -> Issued:
    return issue("listener", AUTHORITY, address="127.0.0.1")


def test_a_tls_handshake_has_a_time_limit(start: Start, tmp_path: Path) -> None:
    rest = start(served(tmp_path, own_certificate()) | {"rest.header.timeout.ms": SHORT})
    with connected(rest.port, 3) as silent:
        assert [everything(sock) for sock in silent] == [b""] * 3


def client_of(folder: Path, certificate: Issued) -> ssl.SSLContext:
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    file = folder / f"{certificate.certificate.serial_number}.pem"
    file.write_text(certificate.key_pem() + certificate.certificate_pem)
    context.load_cert_chain(file)
    return context


def old_tls(folder: Path) -> ssl.SSLContext:
    context = client_of(folder, issue("client", AUTHORITY))
    context.set_ciphers("ALL:@SECLEVEL=0")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        context.minimum_version, context.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    return context


def weak_cipher(folder: Path) -> ssl.SSLContext:
    """One without encryption of TLS 1.2."""
    context = client_of(folder, issue("client", AUTHORITY))
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers("ECDHE-ECDSA-NULL-SHA:NULL-SHA256:@SECLEVEL=0")
    return context


@pytest.mark.parametrize(
    ("made", "is_accepted"),
    [
        (lambda folder: client_of(folder, issue("client", AUTHORITY)), True),
        (lambda folder: client_of(folder, issue("client", AUTHORITY, is_expired=True)), False),
        (lambda folder: client_of(folder, issue("client", issue("authority"))), False),
        (lambda _: ssl.create_default_context(cadata=AUTHORITY.certificate_pem), False),
        (old_tls, False),
        (weak_cipher, False),
    ],
    ids=["valid", "expired", "another authority of the same name", "none", "TLS 1.1", "no encryption"],
)
def test_mutual_tls_accepts_valid_certificates_and_current_versions_only(
    start: Start, tmp_path: Path, made: Callable[[Path], ssl.SSLContext], is_accepted: bool
) -> None:
    (tmp_path / "trust.pem").write_text(AUTHORITY.certificate_pem)
    mutual = {
        "listeners.https.ssl.client.auth": "required",
        "listeners.https.ssl.truststore.type": "PEM",
        "listeners.https.ssl.truststore.location": str(tmp_path / "trust.pem"),
    }
    rest = start(served(tmp_path, own_certificate()) | mutual)
    answer = b""
    # In TLS 1.3 the client learns with its first read that its certificate is not accepted.
    with (
        contextlib.suppress(ssl.SSLError, ConnectionError),
        connect(rest.port) as sock,
        made(tmp_path).wrap_socket(sock, server_hostname="127.0.0.1") as tls,
    ):
        tls.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        answer = tls.recv(4096)
    assert answer.startswith(b"HTTP/1.1 200") is is_accepted, answer
    assert bool(answer) is is_accepted


def test_silent_tls_connections_make_room(start: Start, tmp_path: Path) -> None:
    rest = start(served(tmp_path, own := own_certificate()) | {"rest.connections.max": "4"})
    with connected(rest.port, 9) as silent:
        wait_until(lambda: sum(map(is_closed, silent)) >= 6, 10)
        assert serial_of(rest.port) == own.certificate.serial_number


def test_new_connections_get_the_replaced_certificate_and_open_ones_stay(start: Start, tmp_path: Path) -> None:
    old, new = own_certificate(), own_certificate()
    rest = start(served(tmp_path, old))
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    with connect(rest.port) as sock, context.wrap_socket(sock, server_hostname="127.0.0.1") as kept:
        assert serial_of(rest.port) == old.certificate.serial_number
        served(tmp_path, new)
        assert serial_of(rest.port) == new.certificate.serial_number
        kept.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        assert kept.recv(4096).startswith(b"HTTP/1.1 200")


def test_a_server_stops_although_a_tls_client_has_not_ended_its_side(start: Start, tmp_path: Path) -> None:
    """An exception of the server's thread would make this test fail."""
    rest = start(served(tmp_path, own_certificate()))
    context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
    with connect(rest.port) as sock, context.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
        tls.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
        assert tls.recv(4096).startswith(b"HTTP/1.1 200")
        rest.server.stop(1.0)


@pytest.mark.parametrize("content", [None, b"-----BEGIN PRIVATE KEY-----\nMIGH"], ids=["missing", "half"])
def test_a_certificate_that_cannot_be_read_is_reported_and_the_previous_one_served(
    start: Start, tmp_path: Path, content: bytes | None, capsys: pytest.CaptureFixture[str]
) -> None:
    old, new = own_certificate(), own_certificate()
    props = served(tmp_path, old)
    rest = start(props)
    store = Path(props["listeners.https.ssl.keystore.location"])
    store.unlink()
    if content is not None:
        store.write_bytes(content)
    for _ in range(3):
        assert serial_of(rest.port) == old.certificate.serial_number
    (tls,) = rest.server.binding.https
    assert str(store) in tls.problem
    assert capsys.readouterr().out.count("certificates not reloaded") == 1
    served(tmp_path, new)
    assert serial_of(rest.port) == new.certificate.serial_number
    assert not tls.problem


def test_a_replaced_trust_store_decides_which_clients_connect(start: Start, tmp_path: Path) -> None:
    clients = [issue("first authority"), issue("second authority")]
    trust = tmp_path / "trust.pem"
    trust.write_text(clients[0].certificate_pem)
    rest = start(
        served(tmp_path, own_certificate())
        | {
            "ssl.client.auth": "required",
            "listeners.https.ssl.truststore.type": "PEM",
            "listeners.https.ssl.truststore.location": str(trust),
        }
    )

    def accepted(position: int) -> bool:
        client = issue("client", clients[position])
        (tmp_path / "client.pem").write_text(client.key_pem() + client.certificate_pem)
        context = ssl.create_default_context(cadata=AUTHORITY.certificate_pem)
        context.load_cert_chain(tmp_path / "client.pem")
        with connect(rest.port) as sock, context.wrap_socket(sock, server_hostname="127.0.0.1") as tls:
            try:
                tls.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
                return tls.recv(4096).startswith(b"HTTP/1.1 200")
            except OSError:
                return False

    assert [accepted(0), accepted(1)] == [True, False]
    trust.write_text(clients[1].certificate_pem)
    assert [accepted(0), accepted(1)] == [False, True]


def test_the_other_address_is_another_client() -> None:
    assert peer_of((OTHER_ADDRESS, 1)) != peer_of(("127.0.0.1", 1))


_UPGRADE = (
    "GET /ui/ HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
)
_KEY = "Sec-WebSocket-Key: MDAwMDAwMDAwMDAwMDAwMA==\r\n"


@pytest.mark.parametrize(
    "more",
    ["Content-Length: 10\r\n", "Transfer-Encoding: chunked\r\n", "X: y\r\n" * 200],
    ids=["length", "chunked", "many"],
)
def test_a_handshake_of_a_websocket_that_is_not_understood_ends_the_connection(start: Start, more: str) -> None:
    # It had no response and no timeout, and did not make room for other connections.
    rest = start({"rest.connections.max": "4", "rest.unauthenticated.access": "none"})
    with connected(rest.port, 3) as socks:
        for sock in socks:
            sock.sendall(f"{_UPGRADE}{_KEY}{more}\r\n".encode())
            assert everything(sock).startswith(b"HTTP/1.1 400")
    assert rest.ask("GET", "/health").status == 200


def test_a_body_with_two_lengths_is_rejected_and_what_follows_is_no_request(rest: Running) -> None:
    with connected(rest.port) as (sock,):
        sock.sendall(
            b"POST /connectors HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n"
            b"0\r\n\r\nGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
        )
        answers = everything(sock)
    assert answers.startswith(b"HTTP/1.1 400")
    assert answers.count(b"HTTP/1.1") == 1


def test_unauthenticated_clients_cannot_start_any_number_of_health_checks(start: Start) -> None:
    # Each one occupied a thread for as long as the herder was busy.
    rest = start({"rest.unauthenticated.access": "none"})
    rest.herder.hang = True
    with connected(rest.port, 20) as socks:
        for sock in socks:
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert all(everything(sock).startswith(b"HTTP/1.1 500") for sock in socks)
    assert rest.herder.waiting < 5
    rest.herder.hang = False
    assert rest.ask("GET", "/health").status == 200


def test_a_preflight_request_does_not_show_which_paths_exist(start: Start) -> None:
    rest = start({"rest.unauthenticated.access": "none", "access.control.allow.origin": "http://good.example"})
    asked = {"Origin": "http://good.example", "Access-Control-Request-Method": "POST"}
    known, unknown = (rest.ask("OPTIONS", path, headers=asked) for path in ("/connectors", "/nope"))
    for answer in (known, unknown):
        assert (answer.status, answer.body) == (200, b"")
        assert answer.headers["access-control-allow-methods"] == "GET,POST,HEAD"
        assert "allow" not in answer.headers
