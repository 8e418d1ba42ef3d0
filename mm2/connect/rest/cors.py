"""Cross-origin requests, handled like Jetty's CrossOriginFilter (``access.control.*``).

Starlette's middleware is not used: it answers preflights itself and rejects foreign origins with 400, where Jetty
processes the request and leaves the rejection to the browser.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
