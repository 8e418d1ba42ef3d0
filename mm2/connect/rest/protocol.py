"""Limits on the size and duration of requests, and uvicorn's HTTP/1.1 with Jetty's additions.

Stalled connections are closed; protocol errors are JSON and logged.
"""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar, Final

import h11
import structlog
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mm2.connect.rest.access.control import PEER_KEY
from mm2.connect.rest.access.principal import Peer
from mm2.connect.rest.failures import RestFailure, error_answer, failure_answer
from mm2.connect.rest.middleware import LOGGER, request_line
from mm2.connect.rest.middleware import log as access_log
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
            timeout_s = min(limits.idle_timeout_s, deadline_s - asyncio.get_running_loop().time())
            try:
                message = await asyncio.wait_for(receive(), max(0.0, timeout_s))
            except TimeoutError:
                raise RestFailure(_REQUEST_TIMEOUT, "The request body was not received in time", _CLOSE) from None
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
                log.debug("exception after the response had started", reason=repr(error))
                return
            await failure_answer(error)(scope, receive, watched_send)

    def _too_large(self) -> RestFailure:
        sentence = f"The request body is larger than rest.request.max.bytes = {self._limits.max_body_bytes}"
        return RestFailure(_PAYLOAD_TOO_LARGE, sentence, _CLOSE)


#: Of request line and headers together; Jetty's default.
MAX_HEADER_BYTES: Final = 8 * 1024
#: Of messages on a WebSocket.
MAX_MESSAGE_BYTES: Final = 1024 * 1024
#: Time for a client to end its side of a TLS connection when the server stops. asyncio would wait for 30 s.
_TLS_CLOSE_TIMEOUT_S: Final = 1.0


class StallingProtocol(H11Protocol):
    """Closes a connection when a request stays incomplete or a response unread for ``idle_timeout_s``.

    The time counts from the last byte. Bodies are not included: :class:`mm2.connect.rest.protocol.Guard` reads them.
    """

    idle_timeout_s: ClassVar[float]
    _stalled: asyncio.TimerHandle | None = None
    _is_ending = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        tls = transport.get_extra_info("ssl_object")
        if tls is not None:  # copied into the scope of each request, also of a WebSocket
            self.app_state = {**self.app_state, PEER_KEY: Peer(tls.getpeercert(binary_form=True))}
        self._await_bytes()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        try:
            super().data_received(data)
        except h11.RemoteProtocolError:  # data after a rejected request
            self.transport.close()
        if self.conn.their_state is h11.IDLE:
            self._await_bytes()
        else:
            self._cancel_timer()

    def shutdown(self) -> None:
        super().shutdown()
        self._is_ending = True
        _abort_later(self.loop, self.transport)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._is_ending:
            _abort_later(self.loop, self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_bytes()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._cancel_timer()

    def send_400_response(self, msg: str) -> None:
        # When the error is in the body, a response may have been started already.
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE} or self.transport.is_closing():
            self.transport.close()
            return
        answer = error_answer(400, "Bad Request: the request is not valid HTTP (RFC 9112).")
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=400, headers=headers, reason=b"Bad Request"),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            sent = self.conn.send(event)
            if sent:
                self.transport.write(sent)
        self.transport.close()
        access_log.info(request_line(_NO_REQUEST | {"client": self.client}, 400, len(answer.body), 0), logger=LOGGER)

    def _await_bytes(self) -> None:
        self._cancel_timer()
        self._stalled = self.loop.call_later(self.idle_timeout_s, self.transport.abort)

    def _cancel_timer(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None


def stalling_protocol(timeout_s: float) -> type[StallingProtocol]:
    """The protocol class for uvicorn, which creates its protocols itself."""

    class ConfiguredProtocol(StallingProtocol):
        idle_timeout_s = timeout_s

    return ConfiguredProtocol


def websocket_protocol(*args: Any, **kwargs: Any) -> asyncio.Protocol:
    """The uvicorn protocol for a connection that becomes a WebSocket; imported on first use."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol  # noqa: PLC0415

    class RefusingProtocol(WebSocketsSansIOProtocol):
        def shutdown(self) -> None:
            super().shutdown()
            _abort_later(self.loop, self.transport)

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                self.handshake_complete = True  # or a completed rejection is logged as an application error

    return RefusingProtocol(*args, **kwargs)


def _abort_later(loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
    # Without TLS there is no need to wait for the client. Data that is still to be sent keeps its time.
    if transport.is_closing() and transport.get_extra_info("ssl_object") is not None:
        loop.call_later(_TLS_CLOSE_TIMEOUT_S, transport.abort)


_NO_REQUEST: Final[dict[str, Any]] = {
    "headers": (),
    "raw_path": b"-",
    "query_string": b"",
    "method": "-",
    "http_version": "-",
}
