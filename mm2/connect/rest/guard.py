"""Limits on size and duration of request bodies."""

from __future__ import annotations

import asyncio

import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.rest.failures import RestFailure, failure_answer
from mm2.connect.rest.settings import Limits

log = structlog.get_logger(__name__)

_PAYLOAD_TOO_LARGE = 413
_REQUEST_TIMEOUT = 408
_CLOSE = {"Connection": "close"}


class Guard:
    """ASGI middleware: 413 for a body above the limit, 408 for one that stalls or exceeds the time limit of requests.

    An exception of the application before it has started to respond becomes a JSON error. WebSockets have no limits,
    since they may be idle for any time.
    """

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self._app = app
        self._limits = limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        limits = self._limits
        deadline_s = asyncio.get_running_loop().time() + limits.request_timeout_s
        read_bytes = 0
        complete = started = False

        async def guarded_receive() -> Message:
            nonlocal read_bytes, complete
            if complete:  # the next message is the end of the connection, which has no time limit
                return await receive()
            patience_s = min(limits.idle_timeout_s, deadline_s - asyncio.get_running_loop().time())
            try:
                message = await asyncio.wait_for(receive(), max(0.0, patience_s))
            except TimeoutError:
                raise RestFailure(_REQUEST_TIMEOUT, "The body of the request did not come in time", _CLOSE) from None
            read_bytes += len(message.get("body", b""))
            if read_bytes > limits.max_body_bytes:
                raise self._too_large()
            complete = not message.get("more_body", False)
            return message

        async def watched_send(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            if scope["type"] != "http":
                await self._app(scope, receive, watched_send)
                return
            length = Headers(scope=scope).get("content-length", "")
            if length.isdigit() and int(length) > limits.max_body_bytes:
                raise self._too_large()
            await self._app(scope, guarded_receive, watched_send)
        except Exception as error:  # noqa: BLE001 - the outermost handler
            if started:
                # The application has already responded, or the rest of its response is lost.
                log.debug("What was raised came after the answer.", reason=repr(error))
                return
            await failure_answer(error)(scope, receive, watched_send)

    def _too_large(self) -> RestFailure:
        sentence = f"The body of the request is larger than rest.request.max.bytes = {self._limits.max_body_bytes}"
        return RestFailure(_PAYLOAD_TOO_LARGE, sentence, _CLOSE)
