"""Protection against cross-site requests: a real server gets requests like those of browsers."""

from __future__ import annotations

import base64
import http.client
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import pytest
from starlette.responses import HTMLResponse, PlainTextResponse
from starlette.types import Receive, Scope, Send

from mm2.connect.rest.access.authorization import Access, AccessControl
from mm2.connect.rest.access.roles import Role, RoleMap
from mm2.connect.rest.access.sessions import Sessions
from mm2.connect.rest.basic_auth import Credentials, PasswordAuthenticator, Users
from mm2.connect.rest.binding import Binding, exposed
from mm2.connect.rest.listeners.server import RestServer
from mm2.connect.rest.settings import RestSettings, is_loopback

Ask = Callable[..., http.client.HTTPResponse]
LOOPBACK, EVERYWHERE = "http://127.0.0.1:0", "http://0.0.0.0:0"


async def resources(scope: Scope, receive: Receive, send: Send) -> None:
    """Accepts and closes a WebSocket; like some libraries it allows every origin."""
    if scope["type"] == "websocket":
        await receive()
        await send({"type": "websocket.accept"})
        await send({"type": "websocket.close"})
        return
    headers = {"Access-Control-Allow-Origin": "*"}
    kind = HTMLResponse if scope["path"] == "/page" else PlainTextResponse
    await kind("", headers=headers)(scope, receive, send)


@contextmanager
def serving(listener: str = LOOPBACK, **props: str) -> Iterator[Binding]:
    named = {key.replace("_", "."): value for key, value in props.items()}
    binding = Binding(RestSettings.of({"listeners": listener, **named}))
    server = RestServer(binding)
    server.serve(resources)
    try:
        yield binding
    finally:
        server.stop(1.0)


def ask(
    binding: Binding, method: str = "GET", path: str = "/", host: str | None = None, **headers: str
) -> http.client.HTTPResponse:
    """Send a request; ``{port}`` in a header stands for that of the server."""
    port = binding.main[0].number
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.putrequest(method, path, skip_host=True)
    connection.putheader("Host", (host or "127.0.0.1:{port}").format(port=port))
    for name, value in headers.items():
        connection.putheader(name.replace("_", "-"), value.format(port=port))
    connection.endheaders()
    response = connection.getresponse()
    response.read()
    connection.close()
    return response


def status(binding: Binding, method: str = "GET", path: str = "/", host: str | None = None, **headers: str) -> int:
    return ask(binding, method, path, host, **headers).status


def shake_hands(binding: Binding, **headers: str) -> int:
    """Status of the answer to a WebSocket's handshake."""
    port = binding.main[0].number
    sent: Mapping[str, str] = {
        "Host": "127.0.0.1:{port}",
        "Upgrade": "websocket",
        "Connection": "Upgrade",
        "Sec-WebSocket-Version": "13",
        "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    lines = ["GET /socket HTTP/1.1", *(f"{name}: {value.format(port=port)}" for name, value in sent.items()), "", ""]
    with socket.create_connection(("127.0.0.1", port), 20) as connection:
        connection.sendall("\r\n".join(lines).encode())
        return int(connection.recv(4096).split(b" ")[1])


@pytest.fixture(scope="module")
def local() -> Iterator[Binding]:
    with serving(access_control_allow_origin="http://good.example") as binding:
        yield binding


CHANGING = ("POST", "PUT", "PATCH", "DELETE")
FOREIGN: dict[str, dict[str, str]] = {
    "another site": {"Origin": "http://bad.example"},
    "no origin to name": {"Origin": "null"},
    "another port of this machine": {"Origin": "http://127.0.0.1:1"},
    "another name of this machine": {"Origin": "http://localhost:{port}"},
    "as the browser says": {"Origin": "http://127.0.0.1:{port}", "Sec_Fetch_Site": "cross-site"},
    "a neighbour, as the browser says": {"Sec_Fetch_Site": "same-site"},
}
OWN: dict[str, dict[str, str]] = {
    "no browser": {},
    "our page": {"Origin": "http://127.0.0.1:{port}"},
    "our page behind a proxy with TLS": {"Origin": "https://127.0.0.1:{port}"},
    "our page, as the browser says, behind a proxy with another name": {
        "Origin": "https://mm2.example",
        "Sec_Fetch_Site": "same-origin",
    },
    "typed by a user": {"Sec_Fetch_Site": "none"},
    "an origin that is let in": {"Origin": "http://good.example", "Sec_Fetch_Site": "cross-site"},
}


@pytest.mark.parametrize("who", FOREIGN)
def test_pages_of_other_origins_change_nothing_and_open_no_socket(local: Binding, who: str) -> None:
    for method in CHANGING:
        assert status(local, method, **FOREIGN[who]) == 403, method
    # A form or a script can send these without a preflight request.
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
        assert status(local, "POST", Content_Type=kind, **FOREIGN[who]) == 403
    assert shake_hands(local, **FOREIGN[who]) == 403
    # The browser rejects reading the response, since no CORS header allows it.
    answer = ask(local, "GET", **FOREIGN[who])
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, None)


@pytest.mark.parametrize("who", OWN)
def test_own_pages_and_other_clients_have_the_same_access_as_with_java(local: Binding, who: str) -> None:
    assert {status(local, method, **OWN[who]) for method in ("GET", "HEAD", *CHANGING)} == {200}
    assert shake_hands(local, **OWN[who]) == 101


def test_a_foreign_host_name_is_rejected(local: Binding) -> None:
    for host in (
        "evil.example:{port}",
        "evil.example",
        "127.0.0.1.evil.example",
        "10.0.0.1",
        "localhost.evil",
        "[::2]",
    ):
        assert status(local, host=host) == 421, host
        # The request of a browser that accepts the preflight response.
        assert status(local, "POST", host=host, Origin=f"http://{host}", Sec_Fetch_Site="same-origin") == 421
    assert shake_hands(local, Host="evil.example", Origin="http://evil.example") == 421
    for host in (
        "localhost",
        "LOCALHOST:1",
        "localhost.",
        "mm2.localhost:{port}",
        "127.0.0.2",
        "[::1]:{port}",
        "good.example",
    ):
        assert status(local, host=host) == 200, host


def test_only_configured_host_names_are_accepted() -> None:
    with serving(rest_advertised_host_name="MM2.example") as binding:
        assert status(binding, host="mm2.EXAMPLE:80") == 200
        assert status(binding, host="mm3.example") == 421
    with serving(access_control_allow_origin="*") as binding:
        assert status(binding, host="mm3.example") == 200
        assert status(binding, "POST", Origin="http://bad.example") == 200


def test_with_external_listeners_any_host_name_is_accepted() -> None:
    with serving(EVERYWHERE) as binding:
        assert [status(binding, host=host) for host in ("localhost", "evil.example")] == [200, 200]
        assert status(binding, "POST", host="evil.example", Origin="http://bad.example") == 403
        assert exposed(binding.main) == [binding.main[0].url]


def test_websockets_need_the_same_password_as_other_requests() -> None:
    binding = Binding(RestSettings.of({"listeners": LOOPBACK}))
    server = RestServer(binding)
    passwords = PasswordAuthenticator(Credentials(Users({"ada": "lovelace"})))

    async def restricted(scope: Scope, receive: Receive, send: Send) -> None:
        Access.of(scope).require(Role.VIEWER, scope)
        await resources(scope, receive, send)

    server.serve(AccessControl([passwords], RoleMap({}), Sessions()).around(restricted))
    right, wrong = ("Basic " + base64.b64encode(text).decode() for text in (b"ada:lovelace", b"ada:byron"))
    try:
        assert [shake_hands(binding, **auth) for auth in ({}, {"Authorization": wrong})] == [401, 401]
        assert shake_hands(binding, Authorization=right) == 101
        # Browsers send a stored password with every request of a page.
        assert shake_hands(binding, Authorization=right, Origin="http://bad.example") == 403
        assert status(binding, "POST", Authorization=right, Origin="http://bad.example") == 403
    finally:
        server.stop(1.0)


def test_pages_cannot_be_framed_and_json_headers_equal_java_s(local: Binding) -> None:
    page, other = ask(local, path="/page").headers, ask(local).headers
    assert (page["X-Frame-Options"], page["Content-Security-Policy"]) == ("DENY", "frame-ancestors 'none'")
    assert (page["X-Content-Type-Options"], page["Referrer-Policy"]) == ("nosniff", "same-origin")
    assert (other["X-Frame-Options"], other["Content-Security-Policy"]) == (None, None)


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("127.0.0.1", True),
        ("127.255.0.9", True),
        ("::1", True),
        ("::ffff:127.0.0.1", True),
        ("localhost", True),
        ("a.localhost", True),
        ("0.0.0.0", False),  # noqa: S104 - no address to listen at
        ("::", False),
        ("::ffff:10.0.0.1", False),
        ("10.0.0.1", False),
        ("notlocalhost", False),
        ("127.0.0.1.example", False),
        ("", False),
    ],
)
def test_loopback_addresses_are_recognized(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
