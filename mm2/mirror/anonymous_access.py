"""Restricts what clients on other machines may do without authentication.

The properties file of a Java MirrorMaker may set ``listeners`` that other machines can reach. Java serves only the
signed requests between workers there. This REST interface serves much more, including changes. Without authentication
(an extension that authenticates, or client certificates), other machines may therefore only read what contains no
secrets. ``rest.unauthenticated.access=all`` allows everything to every client.
"""

from __future__ import annotations

from typing import Final

from starlette.types import ASGIApp, Receive, Scope, Send

from mm2.connect.rest.basic_auth import INTERNAL_PATHS
from mm2.connect.rest.callers import Caller
from mm2.connect.rest.dispatch import resource_path
from mm2.connect.rest.failures import RestFailure

_OPEN: Final = frozenset({"/", "/health", "/metrics"})
_FORBIDDEN: Final = 403


class AnonymousAccess:
    """ASGI middleware behind :class:`~mm2.connect.rest.callers.CallerCheck`. Raises RestFailure 403."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle an ASGI request."""
        caller = Caller.of(scope)
        if not (caller.is_local or caller.is_certified or _is_for_all(scope)):
            raise RestFailure(
                _FORBIDDEN,
                "Clients on other machines can access /health and /metrics only, because authentication is not configured: "
                "set rest.extension.classes to an extension that requires a password, or "
                "ssl.client.auth=required for https listeners.",
            )
        await self._app(scope, receive, send)


def _is_for_all(scope: Scope) -> bool:
    if scope["type"] != "http":
        return False
    path = resource_path(scope["raw_path"].decode("latin-1"))  # the path that is dispatched on
    if scope["method"] in {"GET", "HEAD"}:
        return path in _OPEN
    internal = INTERNAL_PATHS.get(scope["method"])
    return internal is not None and internal.fullmatch(path) is not None
