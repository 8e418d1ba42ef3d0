"""The HTTP server of a worker (Kafka's RestServer); starts before the herder and gets its resources later.

It is uvicorn's HTTP/1.1 with Jetty's additions: stalled connections are closed, protocol errors are JSON and logged.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import socket
import sys
import threading
from collections.abc import Callable
from typing import Any, ClassVar, Final, cast

import h11
import structlog
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from mm2.allocator import return_free_memory
from mm2.connect.rest.access.authorization import PEER_KEY
from mm2.connect.rest.access.roles import RequestPeer
from mm2.connect.rest.binding import Binding, Port
from mm2.connect.rest.failures import RestFailure, error_answer
from mm2.connect.rest.listeners.limits import (
    HEADER_SENTENCE,
    HEADER_TOO_LARGE,
    MAX_HEADER_BYTES,
    SENDING_KEY,
    Acceptor,
    Budgets,
    Connections,
    Guard,
    HttpConnection,
)
from mm2.connect.rest.listeners.middleware import (
    DEFAULT_METHODS,
    LOGGER,
    AccessLog,
    CallerCheck,
    CrossOrigin,
    OwnNames,
    ResponseHeaders,
    request_line,
)
from mm2.connect.rest.listeners.middleware import log as access_log
from mm2.connect.rest.paths import CanonicalPath
from mm2.connect.rest.settings import Limits

log = structlog.get_logger("mm2.connect.rest.server")

#: Of messages on a WebSocket.
MAX_MESSAGE_BYTES: Final = 1024 * 1024
#: Time for a client to end its side of a TLS connection when the server stops. asyncio would wait for 30 s.
_TLS_CLOSE_TIMEOUT_S: Final = 1.0
#: Time for a client to read a response before it has sent its whole request.
_LINGER_S: Final = 1.0

#: Time for requests in progress to complete when the server stops.
GRACEFUL_STOP_S: Final = 60.0
_STARTING: Final = 503
#: Memory is returned after this many bytes of bodies, or connections.
_TRIM_BYTES: Final = 1024 * 1024
_TRIM_CONNECTIONS: Final = 64


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
    connection. Bodies are not included: :class:`mm2.connect.rest.listeners.limits.Guard` reads them.
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


_NO_REQUEST: Final[dict[str, Any]] = {
    "headers": (),
    "raw_path": b"-",
    "query_string": b"",
    "method": "-",
    "http_version": "-",
}


class Switch:
    """ASGI application that forwards to another one, which may be set later."""

    def __init__(self) -> None:
        self.target: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI. Raises RestFailure 503 until the application is set."""
        if self.target is None:
            raise RestFailure(_STARTING, "The worker is starting; its resources are not available yet.")
        await self.target(scope, receive, send)


class _CalmServer(uvicorn.Server):
    """The uvicorn server of one port, without polling, and with limits for connections.

    uvicorn checks ten times a second whether it must stop, which takes a third of the CPU time of an idle process. This
    server waits for `end`, and renews the Date header once a second as uvicorn does.
    """

    def __init__(
        self, config: uvicorn.Config, port: Port, connections: Connections, handshake_timeout_s: float
    ) -> None:
        super().__init__(config)
        self._port = port
        self._connections = connections
        self._handshake_timeout_s = handshake_timeout_s
        self._loop: asyncio.AbstractEventLoop | None = None
        self._stop_requested = asyncio.Event()

    def end(self) -> None:
        """Request a stop; any thread."""
        self.should_exit = True
        if self._loop is not None:
            with contextlib.suppress(RuntimeError):  # the loop has already ended
                self._loop.call_soon_threadsafe(self._stop_requested.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """See uvicorn."""
        await self.lifespan.startup()
        acceptor = Acceptor(
            self._port.socket, self._connections, self._new_protocol, self._port.tls, self._handshake_timeout_s
        )
        self.servers = [acceptor]  # type: ignore[list-item]  # used are close and wait_closed
        self.started = True

    def _new_protocol(self, connection: HttpConnection) -> asyncio.Protocol:
        made = cast(type[StallingProtocol], self.config.http_protocol_class)(
            self.config, self.server_state, self.lifespan.state
        )
        made.connection = connection
        return made

    async def main_loop(self) -> None:
        """See uvicorn."""
        self._loop = asyncio.get_running_loop()
        while not await self.on_tick(0):
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._stop_requested.wait(), 1.0)


class _Trim:
    """Returns the memory of large bodies and of many connections to the operating system. Called once a second."""

    def __init__(self, budgets: Budgets, connections: Connections) -> None:
        self._budgets = budgets
        self._connections = connections
        self._received_bytes = self._ended = 0

    async def __call__(self) -> None:
        received_bytes, ended = self._budgets.received_bytes, self._connections.ended
        is_due = received_bytes - self._received_bytes >= _TRIM_BYTES or ended - self._ended >= _TRIM_CONNECTIONS
        if is_due and not self._budgets.used_bytes:
            self._received_bytes, self._ended = received_bytes, ended
            await asyncio.to_thread(return_free_memory)


class RestServer:
    """Serves bound ports: 503 until :meth:`serve`, ends with :meth:`stop`. Its own thread, which must not block."""

    def __init__(self, binding: Binding) -> None:
        self.binding = binding
        self._settings = binding.settings
        self._main, self._admin = Switch(), Switch()
        names = OwnNames.of(binding)
        self.budgets = Budgets(self._settings.limits)
        self._servers = [
            *(
                self._server(self._around_main(CanonicalPath(CallerCheck(self._main, names, port))), port)
                for port in binding.main
            ),
            *(
                self._server(self._around(CanonicalPath(CallerCheck(self._admin, names, port))), port)
                for port in binding.admin
            ),
        ]
        self._stop_lock = threading.Lock()
        self._thread: threading.Thread | None = threading.Thread(target=self._run, name="rest-server", daemon=True)
        self._thread.start()

    def serve(self, main: ASGIApp, admin: ASGIApp | None = None) -> None:
        """Respond with these resources from now on."""
        self._admin.target = admin
        self._main.target = main
        log.info("REST resources initialized; server is started and ready to handle requests.")

    def stop(self, graceful_s: float = GRACEFUL_STOP_S) -> None:
        """Stop accepting requests, wait for those in progress, then close their connections. May be called twice."""
        with self._stop_lock:
            thread, self._thread = self._thread, None
            if thread is None:
                return
            log.info("Stopping REST server.")
            for server in self._servers:
                server.config.timeout_graceful_shutdown = max(1, int(graceful_s))
                server.end()
            thread.join(graceful_s + 5.0)
            self.binding.close()
            log.info("REST server stopped.", in_time=not thread.is_alive())

    # -- the thread

    def _run(self) -> None:
        structlog.contextvars.clear_contextvars()
        asyncio.run(self._serve_all())

    async def _serve_all(self) -> None:
        ports = [*self.binding.main, *self.binding.admin]
        await asyncio.gather(
            *(server.serve(sockets=[port.socket]) for server, port in zip(self._servers, ports, strict=True))
        )

    def _server(self, app: ASGIApp, port: Port) -> _CalmServer:
        limits = self._settings.limits
        connections = Connections(limits.max_connections)
        config = uvicorn.Config(
            app,
            loop="asyncio",
            http=http_protocol(limits, connections),
            ws=cast(type[asyncio.Protocol], websocket_protocol),
            ws_max_size=MAX_MESSAGE_BYTES,
            lifespan="off",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=max(1, int(limits.idle_timeout_s)),
            timeout_graceful_shutdown=int(GRACEFUL_STOP_S),
            h11_max_incomplete_event_size=MAX_HEADER_BYTES,
            callback_notify=_Trim(self.budgets, connections),
            timeout_notify=0,
        )
        return _CalmServer(config, port, connections, limits.header_timeout_s)

    def _around_main(self, app: ASGIApp) -> ASGIApp:
        settings = self._settings
        app = Guard(app, settings.limits, self.budgets)
        if settings.allowed_origins:
            app = CrossOrigin(app, settings.allowed_origins, settings.allowed_methods or DEFAULT_METHODS)
        if settings.response_headers:
            app = ResponseHeaders(app, settings.response_headers)
        return AccessLog(app)

    def _around(self, app: ASGIApp) -> ASGIApp:
        return AccessLog(Guard(app, self._settings.limits, self.budgets))


def _abort_later(loop: asyncio.AbstractEventLoop, transport: asyncio.Transport) -> None:
    # Without TLS there is no need to wait for the client. Data that is still to be sent keeps its time.
    if transport.is_closing() and transport.get_extra_info("ssl_object") is not None:
        loop.call_later(_TLS_CLOSE_TIMEOUT_S, transport.abort)
