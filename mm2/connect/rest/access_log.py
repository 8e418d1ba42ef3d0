"""One line per request: extended NCSA format and the duration in ms, like Jetty's CustomRequestLog for Connect."""

from __future__ import annotations

import time
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

#: Java's name of the logger for request lines.
LOGGER: Final = "org.apache.kafka.connect.runtime.rest.RestServer"

log = structlog.get_logger(LOGGER)

_SWITCHED: Final = 101
_OK: Final = 200
_BAD: Final = 400
_ROUTINE: Final = frozenset({"health", "metrics"})


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
            say = log.debug if is_routine(scope, status) else log.info
            say(request_line(scope, status, sent_bytes, int((time.monotonic() - began_s) * 1000)), logger=LOGGER)


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
    target = scope["raw_path"] + (b"?" + scope["query_string"] if scope["query_string"] else b"")
    request = f"{scope.get('method', 'GET')} {target.decode('latin-1')} HTTP/{scope['http_version']}"
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
            f'"{_safe(headers.get("referer", "-"))}"',
            f'"{_safe(headers.get("user-agent", "-"))}"',
            str(took_ms),
        ]
    )


def _safe(text: str) -> str:
    """Client input, escaped so that it cannot end the quotes or the line."""
    return (
        text.replace("\\", "\\\\").replace('"', '\\"').encode("ascii", "backslashreplace").decode().translate(_CONTROL)
    )


_CONTROL: Final = {code: f"\\x{code:02x}" for code in [*range(32), 127]}
