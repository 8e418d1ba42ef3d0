"""Sessions of browsers, and the share of WebSockets in the connections of a process.

A browser cannot send the token of a process by itself. `mm2 ui` requests a link with it, and the browser exchanges the
code in the link, which can be used once, for a cookie. Sessions are kept in memory and end with the process, and with the
token or certificate by which the link was requested.

A WebSocket is never idle for the limits of connections, so one client could hold all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import secrets
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

from starlette.datastructures import Headers

from mm2.connect.rest.access.roles import Principal, RequestPeer

#: A quarter of the connections.
SHARE = 4
CODE_LIFE_S: Final = 60
SESSION_LIFE_S: Final = 12 * 3600
#: Of codes, and of sessions. The client with the most of them loses its oldest one, so no client ends those of others.
_MOST: Final = 200
_COOKIE: Final = "mm2-session"

T = TypeVar("T")


def oldest_of_greediest(held: Mapping[T, Principal]) -> T:
    """The first of those that the client with the most of them holds; ``held`` has the oldest first."""
    ((greedy, _),) = Counter(held.values()).most_common(1)
    return next(one for one, principal in held.items() if principal == greedy)


class WebSockets:
    """The open WebSockets, at most ``limit``. At the limit, the client with the most of them loses its oldest one."""

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._limit = limit
        #: Oldest first.
        self._open: dict[asyncio.Timeout, Principal] = {}

    async def run(self, principal: Principal, call: Callable[[], Awaitable[object]]) -> None:
        """Serve one WebSocket of a client until it ends, or until it is closed for another one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as own:
                self._open[own] = principal
                try:
                    if len(self._open) > self._limit:
                        self._close_one()
                    await call()
                finally:
                    self._open.pop(own, None)

    def _close_one(self) -> None:
        oldest = oldest_of_greediest(self._open)
        del self._open[oldest]
        oldest.reschedule(asyncio.get_running_loop().time())


@dataclass(frozen=True)
class _Entry:
    principal: Principal
    until_s: float
    connections: set[asyncio.Timeout] = field(default_factory=set, compare=False)
    """Of WebSockets, which are closed when the session ends."""


class Sessions:
    """Codes and sessions; only hashes of the secrets are kept. Runs on one event loop."""

    def __init__(
        self, port: int = 0, now_s: Callable[[], float] = time.monotonic, epoch_s: Callable[[], float] = time.time
    ) -> None:
        """``port`` distinguishes the cookies of several processes on one machine."""
        self.cookie_name = f"{_COOKIE}-{port}"
        self._now_s = now_s
        self._epoch_s = epoch_s
        self._codes: OrderedDict[bytes, _Entry] = OrderedDict()
        self._sessions: OrderedDict[bytes, _Entry] = OrderedDict()

    @property
    def challenge(self) -> str | None:
        """None: browsers cannot answer one."""
        return None

    def new_code(self, principal: Principal) -> str:
        """A code that logs a browser in as this principal, once, within `CODE_LIFE_S`."""
        return self._add(self._codes, principal, CODE_LIFE_S)

    def redeem(self, code: str) -> str | None:
        """The value of the cookie of a new session; None if the code is unknown, used or expired."""
        entry = self._codes.pop(_hash(code), None)
        if entry is None or entry.until_s <= self._now_s():
            return None
        return self._add(self._sessions, entry.principal, SESSION_LIFE_S)

    def end(self, headers: Headers) -> None:
        """End the session of a request, if there is one."""
        entry = self._sessions.pop(_hash(self._cookie_of(headers)), None)
        if entry is not None:
            _close_connections(entry)

    async def while_open(self, headers: Headers, run: Callable[[], Awaitable[object]]) -> None:
        """Run until it ends or the session of a request does: by its age, a logout, or too many sessions."""
        entry = self._entry(headers)
        if entry is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(entry.until_s - self._now_s()) as connection:
                entry.connections.add(connection)
                try:
                    await run()
                finally:
                    entry.connections.discard(connection)

    def remaining_s(self, headers: Headers) -> float:
        """The time until the session of a request ends, 0 without one."""
        entry = self._entry(headers)
        return 0.0 if entry is None else entry.until_s - self._now_s()

    async def authenticate(self, headers: Headers, peer: RequestPeer) -> Principal | None:
        """See Authenticator. The cookie of a session that has ended is ignored: browsers send it for hours."""
        entry = self._entry(headers)
        return None if entry is None else entry.principal

    def _entry(self, headers: Headers) -> _Entry | None:
        entry = self._sessions.get(_hash(self._cookie_of(headers)))
        return entry if entry is not None and entry.until_s > self._now_s() else None

    def _cookie_of(self, headers: Headers) -> str:
        for line in headers.getlist("cookie"):
            for part in line.split(";"):
                name, _, value = part.strip().partition("=")
                if name == self.cookie_name:
                    return value
        return ""

    def _add(self, entries: OrderedDict[bytes, _Entry], principal: Principal, life_s: float) -> str:
        secret = secrets.token_urlsafe(32)
        if principal.until_s is not None:
            life_s = min(life_s, principal.until_s - self._epoch_s())
        entries[_hash(secret)] = _Entry(principal, self._now_s() + life_s)
        while len(entries) > _MOST:
            oldest = oldest_of_greediest({key: entry.principal for key, entry in entries.items()})
            _close_connections(entries.pop(oldest))
        return secret


def _close_connections(entry: _Entry) -> None:
    for connection in entry.connections:
        connection.reschedule(asyncio.get_running_loop().time())


def _hash(secret: str) -> bytes:
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).digest()
