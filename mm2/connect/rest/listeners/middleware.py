"""ASGI layers around all resources: access log, headers of every response, and checks of other origins.

The access log has the extended NCSA format and the duration in ms, like Jetty's CustomRequestLog for Connect.

Cross-origin requests are those that browsers send for the pages of other origins. CORS (``access.control.*``) follows
Jetty's CrossOriginFilter. Starlette's middleware is not used for it: it answers preflights itself and rejects foreign
origins with 400, where Jetty processes the request and leaves the rejection to the browser.

:class:`CallerCheck` protects against them. It identifies no client: :mod:`mm2.connect.rest.access` does. A browser sends
requests for any page, from inside a firewall and with the user's credentials. The checks are those of
net/http.CrossOriginProtection of Go 1.25, and more:

- Requests that may change state, and every WebSocket, are rejected with 403 when they come from a page of another
  origin. The check uses ``Sec-Fetch-Site`` if the browser sends it, otherwise ``Origin``, which it then always sends.
  ``access.control.allow.origin`` allows origins. A request with neither header is not from a browser.
- On listeners that only this machine can reach, a foreign host name is rejected with 421: a DNS entry of an attacker
  points here, so that the browser takes this server for the attacker's ("DNS rebinding"). Valid names are those of the
  loopback interface, of ``listeners``, of ``rest.advertised.host.name`` and of allowed origins.
- Responses cannot be embedded in a frame of another page.

Java has none of these checks. They do not affect clients other than browsers.
"""

from __future__ import annotations

import re
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from email.utils import formatdate
from typing import Any, Final

import structlog
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.rest.access.authorization import PREFLIGHT_KEY, SAFE_METHODS
from mm2.connect.rest.binding import Binding, Port
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.paths import target_of
from mm2.connect.rest.settings import HTTP, HTTPS, HeaderRule, is_loopback

#: Java's name of the logger for request lines.
LOGGER: Final = "org.apache.kafka.connect.runtime.rest.RestServer"

log = structlog.get_logger(LOGGER)

_SWITCHED: Final = 101
_OK: Final = 200
_BAD: Final = 400
_ROUTINE: Final = frozenset({"health", "metrics"})
#: Values of ``Sec-Fetch-Site`` for pages of this server and for URLs entered by the user.
_OWN_SITES: Final = frozenset({"same-origin", "none"})
_FORBIDDEN: Final = 403
_MISDIRECTED: Final = 421
_PAGE_HEADERS: Final = {
    "X-Frame-Options": "DENY",
    "Content-Security-Policy": "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
}


class AccessLog:
    """ASGI middleware that logs when the response is complete or the connection is closed; a WebSocket when it ends.

    Successful periodic requests (`is_routine`) are logged at DEBUG.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        began_s = time.monotonic()
        status, sent_bytes = 0, 0

        async def counting(message: Message) -> None:
            nonlocal status, sent_bytes
            await send(message)
            if message["type"] in {"http.response.start", "websocket.http.response.start"}:
                status = message["status"]
            elif message["type"] == "websocket.accept":
                status = _SWITCHED
            elif scope.get("method") != "HEAD":
                sent_bytes += len(message.get("body", b""))

        try:
            await self._app(scope, receive, counting)
        finally:
            write = log.debug if is_routine(scope, status) else log.info
            write(request_line(scope, status, sent_bytes, int((time.monotonic() - began_s) * 1000)), logger=LOGGER)


def is_routine(scope: Mapping[str, Any], status: int) -> bool:
    """Whether this was a successful probe or scrape (GET or HEAD of ``/metrics``, or of a ``/health``)."""
    *before, last = scope["path"].rstrip("/").split("/")
    # A connector may have this name, too.
    asked = last in _ROUTINE and before[-1:] != ["connectors"]
    return asked and scope.get("method") in {"GET", "HEAD"} and _OK <= status < _BAD


def request_line(scope: Mapping[str, Any], status: int, sent_bytes: int, took_ms: int) -> str:
    """``client - user [time] "request" status bytes "referer" "user agent" ms``; status 0: no response."""
    headers = Headers(raw=scope["headers"])
    client = scope.get("client")
    request = f"{scope.get('method', 'GET')} {without_secrets(target_of(scope))} HTTP/{scope['http_version']}"
    when = datetime.now().astimezone().strftime("%d/%b/%Y:%H:%M:%S %z")
    user = scope.get("state", {}).get("user", "-")
    return " ".join(
        [
            client[0] if client else "-",
            "-",
            _safe(user),
            f"[{when}]",
            f'"{_safe(request)}"',
            str(status),
            str(sent_bytes),
            f'"{_safe(without_secrets(headers.get("referer", "-")))}"',
            f'"{_safe(headers.get("user-agent", "-"))}"',
            str(took_ms),
        ]
    )


#: Parameters that give access to a page: of socket.io, NiceGUI and the login. Tokens in URLs (RFC 6750, section 2.3) are
#: not accepted, but a client may send them.
_SECRETS: Final = frozenset({"sid", "client_id", "code", "access_token"})


def without_secrets(url: str) -> str:
    """A URL without the values of parameters by which another client could take over a page or a session."""
    path, mark, query = url.partition("?")
    parts = []
    for part in query.split("&"):
        name, equals, _ = part.partition("=")
        is_secret = equals and urllib.parse.unquote_plus(name) in _SECRETS
        parts.append(f"{name}=[hidden]" if is_secret else part)
    return path + mark + "&".join(parts)


_MAX_LOGGED: Final = 8 * 1024
_CONTROL: Final = {code: f"\\x{code:02x}" for code in [*range(32), 127]}


class ResponseHeaders:
    """ASGI middleware that applies the rules to all responses."""

    def __init__(self, app: ASGIApp, rules: Sequence[HeaderRule]) -> None:
        self._app = app
        self._rules = tuple(rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for action, name, value in self._rules:
                    shown = _date(value) if action.lower().endswith("date") else value
                    if action.lower().startswith("set"):
                        headers[name] = shown
                    else:
                        headers.append(name, shown)
            await send(message)

        await self._app(scope, receive, send_with_headers)


DEFAULT_METHODS: Final = ("GET", "POST", "HEAD")
_HEADERS: Final = "X-Requested-With,Content-Type,Accept,Origin"
_MAX_AGE_S: Final = "1800"


class Origins:
    """The origins of ``access.control.allow.origin``; ``*`` matches any sequence of characters."""

    def __init__(self, patterns: Sequence[str]) -> None:
        self.includes_any = "*" in patterns
        self._patterns = [re.compile(".*".join(map(re.escape, pattern.split("*")))) for pattern in patterns]

    def allow(self, origin: str) -> bool:
        """Whether the value of an Origin header is among them."""
        return any(pattern.fullmatch(origin) for pattern in self._patterns)


class CrossOrigin:
    """ASGI middleware. In ``origins``, ``*`` matches any sequence of characters."""

    def __init__(self, app: ASGIApp, origins: Sequence[str], methods: Sequence[str] = DEFAULT_METHODS) -> None:
        self._app = app
        self._origins = Origins(origins)
        self._methods = tuple(methods)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        asked = Headers(scope=scope)
        origin = asked.get("origin")
        # The header may contain several origins, separated by single blanks.
        allowed = origin is not None and any(self._origins.allow(one) for one in origin.split(" "))
        method = asked.get("access-control-request-method")
        preflight = scope["method"] == "OPTIONS" and method is not None
        if preflight and allowed and method in self._methods:
            scope = {**scope, PREFLIGHT_KEY: True}

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if not self._origins.includes_any:
                    headers.add_vary_header("Origin")
                if allowed and origin is not None and (not preflight or method in self._methods):
                    headers["Access-Control-Allow-Origin"] = origin
                    headers["Access-Control-Allow-Credentials"] = "true"
                    if preflight:
                        headers["Access-Control-Max-Age"] = _MAX_AGE_S
                        headers["Access-Control-Allow-Methods"] = ",".join(self._methods)
                        headers["Access-Control-Allow-Headers"] = _HEADERS
            await send(message)

        await self._app(scope, receive, send_with_headers)


@dataclass(frozen=True)
class OwnNames:
    """The names of this server. ``hosts`` are in lower case."""

    hosts: frozenset[str]
    origins: Origins

    @classmethod
    def of(cls, binding: Binding) -> OwnNames:
        """The names of the listeners and of the advertised URL."""
        ports = [*binding.main, *binding.admin]
        hosts = {port.listener.host for port in ports} | {binding.advertised_host}
        return cls(frozenset(host.lower() for host in hosts if host), Origins(binding.settings.allowed_origins))

    def has(self, authority: str) -> bool:
        """Whether ``host[:port]`` of a Host header is one of them. The port is ignored: there may be a tunnel."""
        try:
            host = (urllib.parse.urlsplit(f"//{authority}").hostname or "").rstrip(".")
        except ValueError:
            return False
        if is_loopback(host) or host in self.hosts:
            return True
        return any(self.origins.allow(f"{scheme}://{authority}") for scheme in (HTTP, HTTPS))


class CallerCheck:
    """ASGI middleware in front of all resources of one port. Raises RestFailure."""

    def __init__(self, app: ASGIApp, names: OwnNames, port: Port) -> None:
        self._app = app
        self._names = names
        self._is_loopback = port.is_loopback

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        headers = Headers(scope=scope)
        authority = headers.get("host", "")
        # Only HTTP/1.0 requests lack this header; browsers never do.
        is_own_name = not authority or self._names.has(authority)
        if self._is_loopback and not is_own_name:
            raise RestFailure(
                _MISDIRECTED,
                f"The host name {authority!r} is not allowed. This listener accepts requests from its own machine only; "
                "a proxy must use a name in rest.advertised.host.name or access.control.allow.origin.",
            )
        is_foreign = self._is_foreign(headers, authority)
        if is_foreign and (scope["type"] == "websocket" or scope["method"] not in SAFE_METHODS):
            raise RestFailure(
                _FORBIDDEN,
                f"The origin {headers.get('origin', 'of this request')!r} is not allowed to send this request; "
                "it can be allowed in access.control.allow.origin.",
            )

        async def send_checked(message: Message) -> None:
            if message["type"] == "http.response.start":
                _set_headers(MutableHeaders(scope=message), is_foreign=is_foreign)
            await send(message)

        await self._app(scope, receive, send_checked)

    def _is_foreign(self, headers: Headers, authority: str) -> bool:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin is not None and self._names.origins.allow(origin):
            return False
        if site is not None:
            return site not in _OWN_SITES
        if origin is None:
            return False
        # The scheme is not compared: TLS may end at a proxy.
        return origin.partition("://")[2].lower() != authority.lower()


def _safe(text: str) -> str:
    """Client input, escaped so that it cannot end the quotes or the line, and shortened like that of a large header."""
    return (
        text[:_MAX_LOGGED]
        .replace("\\", "\\\\")
        .replace('"', '\\"')
        .encode("ascii", "backslashreplace")
        .decode()
        .translate(_CONTROL)
    )


def _date(from_now_ms: str) -> str:
    return formatdate(time.time() + int(from_now_ms) / 1000, usegmt=True)


def _set_headers(headers: MutableHeaders, *, is_foreign: bool) -> None:
    if is_foreign and "access-control-allow-origin" in headers:
        # Remove the header of other libraries; CrossOrigin, which runs afterwards, sets the configured one.
        del headers["access-control-allow-origin"]
    if headers.get("content-type", "").startswith("text/html"):
        for name, value in _PAGE_HEADERS.items():
            headers.setdefault(name, value)
