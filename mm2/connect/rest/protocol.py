"""uvicorn's HTTP/1.1 with Jetty's additions: stalled connections are closed, protocol errors are JSON and logged."""

from __future__ import annotations

import asyncio
import functools
import sys
from collections.abc import Callable
from typing import Any, ClassVar, Final

import h11
import structlog
from uvicorn.protocols.http.h11_impl import H11Protocol

from mm2.connect.rest.access.control import PEER_KEY
from mm2.connect.rest.access.roles import RequestPeer
from mm2.connect.rest.connections import Connections, HttpConnection
from mm2.connect.rest.failures import error_answer
from mm2.connect.rest.guard import HEADER_SENTENCE, HEADER_TOO_LARGE, SENDING_KEY
from mm2.connect.rest.middleware import LOGGER, request_line
from mm2.connect.rest.middleware import log as access_log
from mm2.connect.rest.settings import Limits

log = structlog.get_logger(__name__)

#: Of messages on a WebSocket.
MAX_MESSAGE_BYTES: Final = 1024 * 1024
#: Time for a client to end its side of a TLS connection when the server stops. asyncio would wait for 30 s.
_TLS_CLOSE_TIMEOUT_S: Final = 1.0
#: Time for a client to read a response before it has sent its whole request.
_LINGER_S: Final = 1.0


class LingeringTransport:
    """A transport whose :meth:`close` first discards, for a short time, what the client still sends.

    Closing a socket with unread data resets the connection, and the client may lose the response (RFC 9112, 9.6).
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        #: Whether the client may still be sending.
        self.is_needed: Callable[[], bool] = lambda: False
        self._is_lingering = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def close(self) -> None:
        """See asyncio."""
        if self.is_closing():  # a second close() of asyncio's TLS transports disables abort()
            return
        if not self.is_needed():
            self._transport.close()
            return
        self._is_lingering = True
        self._transport.resume_reading()
        self._loop.call_later(_LINGER_S, self._transport.abort)

    def is_closing(self) -> bool:
        """See asyncio. The protocol gets data until the end, and must ignore it."""
        return self._is_lingering or self._transport.is_closing()


class StallingProtocol(H11Protocol):
    """Closes a connection when a header or a response takes too long: ``header_timeout_s``, ``idle_timeout_s``.

    The idle time counts from the last byte, the time of a header from its first byte, or from the start of the
    connection. Bodies are not included: :class:`mm2.connect.rest.guard.Guard` reads them.
    """

    limits: ClassVar[Limits]
    open_connections: ClassVar[Connections]
    #: Set by the acceptor.
    connection: HttpConnection
    _stalled: asyncio.TimerHandle | None = None
    _header_late: asyncio.TimerHandle | None = None
    _is_ending = False
    _is_upgraded = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self.connection.transport = transport
        lingering = LingeringTransport(transport, self.loop)
        lingering.is_needed = self._is_sending
        super().connection_made(lingering)  # type: ignore[arg-type]
        tls = transport.get_extra_info("ssl_object")
        certificate = None if tls is None else tls.getpeercert(binary_form=True)
        # Copied into the scope of each request, also of a WebSocket.
        own = {PEER_KEY: RequestPeer(certificate, self.connection.peer), SENDING_KEY: self._is_sending}
        self.app_state = {**self.app_state, **own}
        self._await_bytes()
        self._await_header()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_timers()
        self._unset_keepalive_if_required()
        self.open_connections.remove(self.connection)
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # lingering
            return
        try:
            super().data_received(data)
        except h11.RemoteProtocolError:  # data after a rejected request
            self.transport.close()
        if self._is_upgraded:
            return
        if self.conn.their_state is h11.IDLE:
            self._await_bytes()
        else:
            self._cancel_timers()
        self._note_progress()

    def handle_websocket_upgrade(self, event: h11.Request) -> None:
        self._is_upgraded = True
        self._cancel_timers()
        self.connection.waiting_since_s = None
        ended = functools.partial(self.open_connections.remove, self.connection)
        self.ws_protocol_class = functools.partial(websocket_protocol, ended)  # type: ignore[assignment]
        super().handle_websocket_upgrade(event)
        upgraded: Any = self.transport.get_protocol()
        if not upgraded.handshake_initiated:
            # The library does not respond to a handshake that it cannot parse, for example one with a body. Without
            # timers, the connection would stay open for as long as its client likes.
            self.send_400_response("")

    def shutdown(self) -> None:
        super().shutdown()
        self._is_ending = True
        _abort_later(self.loop, self.transport)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self.transport.close()  # the rest of the body is not wanted
        self._note_progress()
        if self._is_ending:
            _abort_later(self.loop, self.transport)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._await_bytes()
        self._note_progress()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stalled is not None:
            self._stalled.cancel()
        self._note_progress()

    def send_400_response(self, msg: str) -> None:
        # When the error is in the body, a response may have been started already.
        if self.conn.our_state not in {h11.IDLE, h11.SEND_RESPONSE} or self.transport.is_closing():
            self.transport.close()
            return
        status, sentence, reason = 400, "Bad Request: the request is not valid HTTP (RFC 9112).", b"Bad Request"
        if getattr(sys.exc_info()[1], "error_status_hint", None) == HEADER_TOO_LARGE:
            status, sentence, reason = HEADER_TOO_LARGE, HEADER_SENTENCE, b"Request Header Fields Too Large"
        answer = error_answer(status, sentence)
        headers = [*answer.raw_headers, (b"connection", b"close")]
        for event in (
            h11.Response(status_code=status, headers=headers, reason=reason),
            h11.Data(data=bytes(answer.body)),
            h11.EndOfMessage(),
        ):
            sent = self.conn.send(event)
            if sent:
                self.transport.write(sent)
        self.transport.close()
        access_log.info(request_line(_NO_REQUEST | {"client": self.client}, status, len(answer.body), 0), logger=LOGGER)

    def _is_sending(self) -> bool:
        return self.conn.their_state in {h11.SEND_BODY, h11.ERROR}

    def _note_progress(self) -> None:
        """Record whether the connection waits for its client, and watch the time of a header that has begun."""
        cycle = self.cycle
        is_working = cycle is not None and not cycle.more_body and not cycle.response_complete
        if is_working and not self.flow.write_paused:
            self.connection.waiting_since_s = None
        elif self.connection.waiting_since_s is None:
            self.connection.waiting_since_s = self.loop.time()
        if self.conn.their_state is h11.IDLE and self._header_late is None and self.conn.trailing_data[0]:
            self._await_header()

    def _await_header(self) -> None:
        self._header_late = self.loop.call_later(self.limits.header_timeout_s, self.transport.abort)

    def _await_bytes(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
        self._stalled = self.loop.call_later(self.limits.idle_timeout_s, self.transport.abort)

    def _cancel_timers(self) -> None:
        for timer in (self._stalled, self._header_late):
            if timer is not None:
                timer.cancel()
        self._stalled = self._header_late = None


def http_protocol(given: Limits, connections: Connections) -> type[StallingProtocol]:
    """The protocol class for uvicorn, which creates its protocols itself."""

    class ConfiguredProtocol(StallingProtocol):
        limits = given
        open_connections = connections

    return ConfiguredProtocol


def websocket_protocol(ended: Callable[[], None], **kwargs: Any) -> asyncio.Protocol:
    """The uvicorn protocol for a connection that becomes a WebSocket; imported on first use. ``ended`` is called last."""
    from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol  # noqa: PLC0415

    class RefusingProtocol(WebSocketsSansIOProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            ended()

        def shutdown(self) -> None:
            super().shutdown()
            _abort_later(self.loop, self.transport)

        async def send(self, message: Any) -> None:
            await super().send(message)
            if message["type"] == "websocket.http.response.body" and not message.get("more_body", False):
                self.handshake_complete = True  # or a completed rejection is logged as an application error

    return RefusingProtocol(**kwargs)


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
