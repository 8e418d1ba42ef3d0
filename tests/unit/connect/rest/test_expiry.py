"""A token or client certificate that expires ends what its client has opened with it."""

from __future__ import annotations

import asyncio
import time

import pytest
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.rest.access.authorization import Access, AccessControl
from mm2.connect.rest.access.roles import Kind, Principal, RequestPeer, Role, RoleMap
from mm2.connect.rest.access.sessions import Sessions
from mm2.connect.rest.failures import RestFailure
from mm2.ui.login import CODE_PATH, answered_by_login
from tests.support.clock import Clock

ROLES = RoleMap.of({"rest.role.admin": "User:ada; Certificate:CN=ada"})


class Expiring:
    """Recognizes every client by credentials that are valid until then, as a token or a certificate is."""

    challenge = 'Bearer realm="mm2"'

    def __init__(self, kind: Kind, until_s: float) -> None:
        self.kind = kind
        self.until_s = until_s

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal:
        return Principal("CN=ada" if self.kind is Kind.CERTIFICATE else "ada", self.kind, until_s=self.until_s)


def scope_of(kind: str, path: str = "/ui/x") -> Scope:
    scope: Scope = {"type": kind, "path": path, "raw_path": path.encode(), "query_string": b"", "headers": []}
    return scope if kind == "websocket" else {**scope, "method": "POST"}


async def no_message() -> Message:
    raise AssertionError("nothing is received")


async def no_answer(message: Message) -> None:
    raise AssertionError(message)


def serve(app: ASGIApp, scope: Scope, send: Send = no_answer) -> None:
    async def play() -> None:
        async with asyncio.timeout(20):
            await app(scope, no_message, send)

    asyncio.run(play())


@pytest.mark.parametrize("kind", [Kind.OIDC, Kind.CERTIFICATE])
def test_a_websocket_ends_with_the_token_or_certificate_of_its_client(kind: Kind) -> None:
    """It stayed open, with the role of the client, until the client closed it."""
    seen: list[bool] = []

    async def endless(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(Access.of(scope).allows(Role.ADMIN))
        await asyncio.Event().wait()

    until_s = time.time() + 0.2
    sessions = Sessions()
    control = AccessControl([Expiring(kind, until_s), sessions], ROLES, sessions)
    serve(control.around(endless), scope_of("websocket"))
    assert time.time() >= until_s - 0.1
    assert seen == [True]


def test_the_role_of_a_client_ends_with_its_token() -> None:
    clock, found = Clock(), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        found.append(Access.of(scope))

    sessions = Sessions()
    control = AccessControl([Expiring(Kind.OIDC, clock.now_s + 10), sessions], ROLES, sessions, epoch_s=clock)
    serve(control.around(app), scope_of("http"))
    (access,) = found
    clock.now_s += 9
    assert access.allows(Role.ADMIN)
    clock.now_s += 1
    assert not access.allows(Role.ADMIN)
    with pytest.raises(RestFailure) as raised:
        access.require(Role.METRICS, scope_of("http"))
    assert raised.value.status == 401


@pytest.mark.parametrize("kind", ["http", "websocket"])
def test_a_connection_with_an_expired_certificate_is_closed(kind: str) -> None:
    """A client keeps its connection for many requests; on the next one it uses the certificate that it has renewed."""
    clock = Clock()
    sessions = Sessions()
    control = AccessControl([Expiring(Kind.CERTIFICATE, clock.now_s), sessions], ROLES, sessions, epoch_s=clock)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        raise AssertionError("the request was not rejected")

    with pytest.raises(RestFailure, match="expired") as raised:
        serve(control.around(app), scope_of(kind))
    assert raised.value.status == 401
    assert raised.value.headers["Connection"] == "close"


def test_a_client_whose_token_expires_may_request_a_link() -> None:
    """Only a session, which a link would prolong, may not."""
    answers: list[Message] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert await answered_by_login(scope, receive, send)

    async def send(message: Message) -> None:
        answers.append(message)

    sessions = Sessions()
    control = AccessControl([Expiring(Kind.OIDC, time.time() + 300), sessions], ROLES, sessions)
    serve(control.around(app), scope_of("http", CODE_PATH), send)
    assert answers[0]["status"] == 200
