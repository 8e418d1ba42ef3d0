"""The HTTP server of a worker (Kafka's RestServer); starts before the herder and gets its resources later."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from typing import Final, cast

import structlog
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from mm2.allocator import return_free_memory
from mm2.connect.rest.binding import Binding, Port
from mm2.connect.rest.connections import Acceptor, Connections, HttpConnection
from mm2.connect.rest.failures import RestFailure
from mm2.connect.rest.guard import MAX_HEADER_BYTES, Budgets, Guard
from mm2.connect.rest.middleware import DEFAULT_METHODS, AccessLog, CallerCheck, CrossOrigin, OwnNames, ResponseHeaders
from mm2.connect.rest.paths import CanonicalPath
from mm2.connect.rest.protocol import MAX_MESSAGE_BYTES, StallingProtocol, http_protocol, websocket_protocol

log = structlog.get_logger(__name__)

#: Time for requests in progress to complete when the server stops.
GRACEFUL_STOP_S: Final = 60.0
_STARTING: Final = 503
#: Memory is returned after this many bytes of bodies, or connections.
_TRIM_BYTES: Final = 1024 * 1024
_TRIM_CONNECTIONS: Final = 64


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
