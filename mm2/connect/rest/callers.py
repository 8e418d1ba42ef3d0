"""Protection against cross-origin requests of browsers. It identifies no client: :mod:`mm2.connect.rest.access` does.

A browser sends requests for any page, from inside a firewall and with the user's credentials. The checks are those of
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

import urllib.parse
from dataclasses import dataclass
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.rest.access.control import SAFE_METHODS
from mm2.connect.rest.binding import Binding, Port
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.middleware import Origins
from mm2.connect.rest.settings import HTTP, HTTPS, is_loopback

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


def _set_headers(headers: MutableHeaders, *, is_foreign: bool) -> None:
    if is_foreign and "access-control-allow-origin" in headers:
        # Remove the header of other libraries; CrossOrigin, which runs afterwards, sets the configured one.
        del headers["access-control-allow-origin"]
    if headers.get("content-type", "").startswith("text/html"):
        for name, value in _PAGE_HEADERS.items():
            headers.setdefault(name, value)
