"""Headers of every response (``response.http.headers.config``, Jetty's HeaderFilter)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from email.utils import formatdate

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.rest.settings import HeaderRule


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


def _date(from_now_ms: str) -> str:
    return formatdate(time.time() + int(from_now_ms) / 1000, usegmt=True)
