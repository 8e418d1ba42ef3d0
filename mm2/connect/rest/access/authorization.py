"""The one place that decides: authenticates each request, and denies what the client's role does not include.

:class:`AccessControl` authenticates. What dispatches a request calls :meth:`Access.require` with the role that the
found route needs, so that the authorized route is always the one that is called.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import secrets
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.request_signing import SessionKey
from mm2.connect.rest.access import audit
from mm2.connect.rest.access.roles import (
    ANONYMOUS,
    Authenticator,
    Principal,
    RequestPeer,
    Role,
    RoleMap,
    TooManyFailures,
    WrongCredentials,
)
from mm2.connect.rest.access.sessions import Sessions, WebSockets
from mm2.connect.rest.access.vouchers import (
    CHALLENGE_HEADER,
    PROOF_HEADER,
    Voucher,
    Vouchers,
    checked_receive,
    proof,
    voucher_headers,
)
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.paths import path_of, target_of

_KEY: Final = "mm2.access"
#: In the state of a connection, where the protocol puts it.
PEER_KEY: Final = "mm2.peer"
#: In the scope of a CORS preflight request of an allowed origin; browsers send these without credentials.
PREFLIGHT_KEY: Final = "mm2.preflight"
#: Methods that change nothing (RFC 9110, 9.2.1).
SAFE_METHODS: Final = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
_NO_CONTENT, _UNAUTHORIZED, _FORBIDDEN, _TOO_MANY = 204, 401, 403, 429

#: The session key for a path, by which workers prove that they belong to the group.
SessionKeyOf = Callable[[str], SessionKey | None]


@dataclass(frozen=True)
class Access:
    """The client of a request, and its role."""

    principal: Principal = ANONYMOUS
    role: Role = Role.NONE
    control: AccessControl | None = field(default=None, repr=False, compare=False)
    #: Whether the session, token or certificate of the client has ended since; None: it does not end.
    has_ended: Callable[[], bool] | None = field(default=None, repr=False, compare=False)
    #: Whether the client was authenticated by the session of a browser.
    is_session: bool = field(default=False, repr=False, compare=False)

    @classmethod
    def of(cls, scope: Scope) -> Access:
        """The access of a request; none if it was not authenticated at all."""
        found = scope.get(_KEY)
        return found if isinstance(found, Access) else cls()

    def within(self, scope: Scope) -> Scope:
        """The scope of a request of this client."""
        return {**scope, _KEY: self}

    def calling(self, app: ASGIApp) -> ASGIApp:
        """An application that is called by this client from inside the process."""

        async def called(scope: Scope, receive: Receive, send: Send) -> None:
            await app(self.within(scope), receive, send)

        return called

    def allows(self, needed: Role) -> bool:
        """Whether the client has this role."""
        return self.role >= needed and not (self.has_ended is not None and self.has_ended())

    def require(self, needed: Role | None, scope: Scope) -> None:
        """Raises RestFailure 401 or 403, and logs it, if the role does not include this one.

        None: the route has no rule, which denies everyone.
        """
        if needed is not None and self.allows(needed):
            return
        method, path = scope.get("method", "WebSocket"), path_of(scope)
        is_anonymous = self.principal == ANONYMOUS or (self.has_ended is not None and self.has_ended())
        status = _UNAUTHORIZED if is_anonymous and needed is not None else _FORBIDDEN
        audit.denied(self.principal, self.role, method, path, status, str(needed or "-"))
        if needed is None:
            raise RestFailure(_FORBIDDEN, f"{method} {path} has no access rule, so it is denied.")
        if not is_anonymous:
            raise RestFailure(
                _FORBIDDEN,
                f"{audit.printable(self.principal.name)} has the role {self.role}, and {method} {path} needs the role "
                f"{needed}; roles are set with rest.role.{needed}.",
            )
        raise RestFailure(
            _UNAUTHORIZED,
            f"{method} {path} needs authentication and the role {needed}. On the machine of the process, mm2 token prints a "
            "token for Authorization: Bearer, and mm2 ui opens the dashboard. From other machines, use a login that the file "
            "of the process configures (rest.extension.classes, ssl.client.auth).",
            None if self.control is None else self.control.challenge_headers,
        )

    @property
    def is_anonymous(self) -> bool:
        """Whether the client was not authenticated."""
        return self.principal == ANONYMOUS

    def voucher(self, to: str, method: str, target: str, body: bytes) -> dict[str, str] | None:
        """Headers by which this worker vouches for the client towards the one that advertises the URL ``to``.

        None without a secret of the workers.
        """
        key = None if self.control is None else self.control.worker_key
        return None if key is None else voucher_headers(key, self.principal, self.role, to, method, target, body)


class AccessControl:
    """All authenticators and roles of a process; :meth:`around` protects an application.

    The first authenticator that recognizes credentials decides.
    """

    def __init__(
        self,
        authenticators: Sequence[Authenticator],
        roles: RoleMap,
        sessions: Sessions,
        session_key: SessionKeyOf = lambda _path: None,
        *,
        own_url: str = "",
        worker_key: SessionKey | None = None,
        websockets: WebSockets | None = None,
        epoch_s: Callable[[], float] = time.time,
    ) -> None:
        """``own_url``: see Vouchers. ``worker_key``: the workers' own secret. ``websockets``: without a limit by default."""
        self._authenticators = tuple(authenticators)
        self._roles = roles
        self.sessions = sessions
        self._session_key = session_key
        self.worker_key = worker_key
        self.own_url = own_url
        self._vouchers = Vouchers(own_url)
        self._websockets = websockets or WebSockets()
        self._epoch_s = epoch_s
        challenges = [one.challenge for one in authenticators if one.challenge is not None]
        #: Of responses with status 401.
        self.challenge_headers = {"WWW-Authenticate": ", ".join(challenges)} if challenges else None

    def around(self, app: ASGIApp) -> ASGIApp:
        """An application that authenticates requests before it calls ``app``. Raises RestFailure."""

        async def authenticated(scope: Scope, receive: Receive, send: Send) -> None:
            headers = Headers(scope=scope)
            if scope["type"] == "http" and (challenge := headers.get(CHALLENGE_HEADER)) is not None:
                await self._proof(path_of(scope), challenge)(scope, receive, send)
                return
            try:
                access, voucher = await self._access(scope, headers)
            except WrongCredentials as error:
                self._log_failure(scope, _UNAUTHORIZED, error.name, str(error))
                raise RestFailure(_UNAUTHORIZED, "The credentials are not valid.", self.challenge_headers) from None
            except TooManyFailures as error:
                self._log_failure(scope, _TOO_MANY, error.name, str(error))
                raise RestFailure(
                    _TOO_MANY,
                    f"Too many failed logins; try again in {error.retry_after_s} s.",
                    {"Retry-After": str(error.retry_after_s)},
                ) from None
            scope.setdefault("state", {})["user"] = access.principal.name
            if scope.get(PREFLIGHT_KEY) and access.role < Role.METRICS:
                # Any program can send this request; it does not learn which paths exist.
                await Response()(scope, receive, send)
                return
            receive = checked_receive(receive, voucher.body_sha256) if voucher else receive
            call = functools.partial(app, access.within(scope), receive, send)
            if scope["type"] == "websocket":
                await self._websockets.run(access.principal, functools.partial(self._in_session, access, headers, call))
                return
            await call()

        return authenticated

    def proof_key(self, path: str) -> SessionKey | None:
        """The key by which workers prove to each other that they belong together; None if there is none."""
        return self.worker_key or self._session_key(path)

    def _proof(self, path: str, challenge: str) -> Response:
        """The answer to the challenge of another worker. It does not show whether the path exists."""
        key = self.proof_key(path)
        if key is None or not self.own_url:
            key = SessionKey(secrets.token_bytes(32), "HmacSHA256", 0)
        return Response(status_code=_NO_CONTENT, headers={PROOF_HEADER: proof(key, self.own_url, challenge)})

    async def _in_session(self, access: Access, headers: Headers, call: Callable[[], Awaitable[object]]) -> None:
        """Run what would stay open after the end of the client's session, token or certificate."""
        if access.is_session:
            await self.sessions.while_open(headers, call)
            return
        until_s = access.principal.until_s
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None if until_s is None else until_s - self._epoch_s()):
                await call()

    async def _access(self, scope: Scope, headers: Headers) -> tuple[Access, Voucher | None]:
        key = self.worker_key
        method = scope.get("method", "")
        voucher = None if key is None else self._vouchers.voucher_of(headers, method, target_of(scope), key)
        if voucher is not None:
            role = min(voucher.role, self._roles.role_of(voucher.principal))
            return Access(voucher.principal, role, self), voucher
        peer = scope.get("state", {}).get(PEER_KEY) or RequestPeer()
        for authenticator in self._authenticators:
            principal = await authenticator.authenticate(headers, peer)
            if principal is not None:
                is_session = authenticator is self.sessions
                has_ended = self._end_of(principal, headers if is_session else None)
                if has_ended is not None and has_ended():
                    self._log_failure(scope, _UNAUTHORIZED, principal.name, "the credentials have expired")
                    # A client that has renewed its certificate uses it on its next connection.
                    headers_of_answer = {**(self.challenge_headers or {}), "Connection": "close"}
                    raise RestFailure(_UNAUTHORIZED, "The credentials have expired.", headers_of_answer)
                return Access(principal, self._roles.role_of(principal), self, has_ended, is_session), None
        return Access(ANONYMOUS, self._roles.role_of(ANONYMOUS), self), None

    def _end_of(self, principal: Principal, session: Headers | None) -> Callable[[], bool] | None:
        """See Access.has_ended. ``session``: the headers with the cookie of a session, which ends earlier if it does."""
        if session is not None:
            return lambda: self.sessions.remaining_s(session) <= 0
        until_s = principal.until_s
        return None if until_s is None else lambda: until_s <= self._epoch_s()

    @staticmethod
    def _log_failure(scope: Scope, status: int, name: str, reason: str) -> None:
        audit.login_failed(name, scope.get("method", "WebSocket"), path_of(scope), status, reason)


async def audited(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    """Call ``app`` and log the result if the request may change something."""
    if scope["method"] in SAFE_METHODS:
        await app(scope, receive, send)
        return
    status = 0

    async def watched(message: Message) -> None:
        nonlocal status
        if message["type"] == "http.response.start":
            status = message["status"]
        await send(message)

    try:
        await app(scope, receive, watched)
    except RestFailure as failure:
        status = failure.status
        raise
    finally:
        access = Access.of(scope)
        audit.changed(access.principal, access.role, scope["method"], path_of(scope), status)
