"""Listens for executors, authenticates them, and passes their messages to their batches."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import threading
from collections import deque
from typing import Any, Final, Protocol

import structlog

from mm2.codec import encode
from mm2.copy import channel
from mm2.copy.driver.batch import ExecutorConnection
from mm2.copy.driver.identity import DriverIdentity

_HANDSHAKE_TIMEOUT_S: Final = 10.0
_MAX_HANDSHAKE_BYTES: Final = 4096
#: Far more than the executors that start at the same time. Beyond it the oldest connection is closed: an executor
#: authenticates at once.
_MAX_UNAUTHENTICATED: Final = 256
#: Without a pause, accept() would fail again and again while the process has no file descriptor left.
_ACCEPT_PAUSE_S: Final = 1.0
_CLOSE_TIMEOUT_S: Final = 5.0
#: A task that was cancelled while Spark started it may still connect. It is logged differently from an unknown client.
_FORGOTTEN_KEPT: Final = 1024


class ExpectedTasks(Protocol):
    """The task of an expected executor: a `mm2.copy.driver.batch.MicroBatch`, or a task of another Spark job. Called
    on the server's thread.
    """

    @property
    def id(self) -> str:
        """The id that the executor sends."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def secret(self) -> str:
        """Shared with its executor only, hex."""

    @property
    def spec(self) -> Any:
        """The job, with secrets: what `mm2.codec.encode` accepts."""

    def attach(self, connection: ExecutorConnection) -> bool:
        """Set the executor's connection; False for a second one."""

    def received(self, message: dict[str, Any]) -> None:
        """Handle one message of the executor. A ValueError, KeyError or TypeError closes the connection."""

    def ended(self, reason: str, *, dead: bool = False) -> None:
        """The connection was closed."""


class ChannelServer:
    """One listening socket for all lanes of the process, and one thread for it and all connections.

    It uses an event loop instead of a thread for each connection, because OpenSSL does not allow one thread to send
    while another waits to receive. ``identity`` None: no TLS, for loopback. Raises OSError when the address cannot be
    bound.
    """

    def __init__(self, host: str, port: int = 0, identity: DriverIdentity | None = None) -> None:
        self.fingerprint = "" if identity is None else identity.fingerprint
        self._batches: dict[str, ExpectedTasks] = {}
        self._forgotten: deque[str] = deque(maxlen=_FORGOTTEN_KEPT)
        self._identity = identity
        #: The connections, oldest first, whose clients have not authenticated. Used on the server's thread only.
        self._unauthenticated: dict[_Peer, asyncio.Task[None]] = {}
        self._peers: set[_Peer] = set()
        self._lock = threading.Lock()
        self._log = structlog.get_logger(__name__)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=512)
        self._address = self._socket.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._socket.setblocking(False)
        self._listener = self._loop.create_task(self._accept())
        self._thread = threading.Thread(target=self._run, name="copy-channel", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """The host and port it listens on."""
        host, port = self._address
        return str(host), int(port)

    def expect(self, batch: ExpectedTasks) -> None:
        """Accept the executor of this batch."""
        with self._lock:
            self._batches[batch.id] = batch

    def forget(self, batch: ExpectedTasks) -> None:
        """Reject the executor of this batch from now on."""
        with self._lock:
            if self._batches.pop(batch.id, None) is not None:
                self._forgotten.append(batch.id)

    def close(self) -> None:
        """Stop listening and close all connections. Idempotent."""
        with contextlib.suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def known(self, hello: dict[str, Any], challenge: str, peer: str) -> ExpectedTasks | None:
        """The batch of an executor that answered the challenge correctly; None for a wrong proof."""
        with self._lock:
            batch = self._batches.get(str(hello.get("batch")))
            forgotten = batch is None and hello.get("batch") in self._forgotten
        parts = ("executor", challenge, hello.get("batch"), hello.get("attempt"))
        if batch is not None and channel.proves(hello.get("mac"), batch.secret, *parts):
            return batch
        if forgotten:
            self._log.info("rejected the connection of a cancelled copy task")
        else:
            self._log.warning("rejected a connection to the progress channel: wrong proof", peer=peer)
        return None

    def joined(self, peer: _Peer) -> None:
        """A connection was opened."""
        self._peers.add(peer)

    def authenticated(self, peer: _Peer) -> None:
        """The client of a connection has proved that it is an executor."""
        self._unauthenticated.pop(peer, None)

    def left(self, peer: _Peer) -> None:
        """A connection was closed."""
        self._unauthenticated.pop(peer, None)
        self._peers.discard(peer)

    async def _accept(self) -> None:
        """Accept connections. Unlike a server of asyncio, it counts those that have not completed their TLS handshake."""
        while True:
            try:
                sock, _ = await self._loop.sock_accept(self._socket)
            except OSError as error:
                self._log.warning("could not accept the connection of an executor", error=str(error))
                await asyncio.sleep(_ACCEPT_PAUSE_S)
                continue
            if len(self._unauthenticated) >= _MAX_UNAUTHENTICATED:
                self._abort_oldest()
            peer = _Peer(self)
            self._unauthenticated[peer] = self._loop.create_task(self._open(peer, sock))
            await asyncio.sleep(0)  # let open connections continue during a burst

    async def _open(self, peer: _Peer, sock: socket.socket) -> None:
        is_open = False
        try:
            await self._loop.connect_accepted_socket(
                lambda: peer,
                sock,
                ssl=None if self._identity is None else self._identity.context,
                ssl_handshake_timeout=None if self._identity is None else _HANDSHAKE_TIMEOUT_S,
            )
            is_open = True
        except OSError as error:
            self._log.debug("a connection to the progress channel ended in its handshake", error=str(error))
        finally:
            if not is_open:
                self._unauthenticated.pop(peer, None)
                sock.close()

    def _abort_oldest(self) -> None:
        peer = next(iter(self._unauthenticated))
        self._unauthenticated.pop(peer).cancel()
        if peer in self._peers:
            peer.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            opening = [self._listener, *self._unauthenticated.values()]
            for task in opening:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*opening, return_exceptions=True))
            self._socket.close()
            for peer in list(self._peers):
                peer.close()
            self._loop.run_until_complete(asyncio.sleep(0.01))  # let `connection_lost` run
            self._loop.close()

    def _on_loop_error(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        self._log.warning("progress channel error", error=str(context.get("exception") or context.get("message")))


class _Peer(asyncio.Protocol):
    """One connection: unauthenticated at first, then the connection to the executor of its batch."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._challenge = channel.nonce()
        self._batch: ExpectedTasks | None = None
        self._buffer = bytearray()
        self._closing = False  # closed by this side
        self._searched = 0  # number of bytes of the buffer that contain no line end
        self._log = structlog.get_logger(__name__)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection was opened, after the TLS handshake if there is one."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (for mypy; asyncio guarantees it)
        self._transport = transport
        # asyncio sets TCP_NODELAY only for sockets with an explicit protocol, unlike those of `create_server`. Without it the start
        # message would wait for the acknowledgement of the lease, which Linux delays by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.joined(self)
        self._timeout = self._loop.call_later(_HANDSHAKE_TIMEOUT_S, transport.abort)
        transport.write(channel.encode({"nonce": self._challenge}))

    def data_received(self, data: bytes) -> None:
        """Handle the complete lines received so far."""
        self._buffer += data
        try:
            while (end := self._buffer.find(b"\n", self._searched)) >= 0 and not self._transport.is_closing():
                line = bytes(self._buffer[: end + 1])
                del self._buffer[: end + 1]
                self._searched = 0
                self._line(channel.decode(line))
            self._searched = len(self._buffer)
            if self._searched > (_MAX_HANDSHAKE_BYTES if self._batch is None else channel.MAX_LINE_BYTES):
                self._end("a line is too long")
        except (ValueError, KeyError, TypeError) as error:
            self._end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The connection was closed by either side."""
        self._timeout.cancel()
        self._server.left(self)
        if self._batch is not None:
            how = "the executor closed the progress channel" if exc is None else f"the progress channel failed: {exc}"
            # In local mode a closed connection means that the process has ended. On a cluster the network may have failed.
            is_dead = not (self._server.fingerprint or self._closing)
            if is_dead:
                how += " without a final report; it crashed or was killed, as the kernel does when memory is exhausted"
            self._batch.ended(how, dead=is_dead)

    def send(self, data: bytes) -> None:
        """Send bytes; called by the batch on any thread."""
        with contextlib.suppress(RuntimeError):  # the server is closed
            self._loop.call_soon_threadsafe(self._write, data)

    def close(self) -> None:
        """Close the connection; called by the batch on any thread."""
        self._closing = True
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._transport.abort)

    def _write(self, data: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(data)

    def _line(self, message: dict[str, Any]) -> None:
        if self._batch is not None:
            self._batch.received(message)
            return
        peer = self._transport.get_extra_info("peername")
        batch = self._server.known(message, self._challenge, str(peer[0]) if peer else "")
        if batch is None:
            self._transport.abort()
        elif not batch.attach(self):
            self._log.info("rejected a second attempt of a copy task", batch=batch.name)
            self._transport.abort()
        else:
            self._batch = batch
            self._timeout.cancel()
            self._server.authenticated(self)
            mac = channel.proof(batch.secret, "driver", message.get("nonce"))
            self._transport.write(channel.encode({"mac": mac, "spec": encode(batch.spec)}))

    def _end(self, why: str) -> None:
        self._closing = True
        if self._batch is not None:
            self._batch.ended(f"the progress channel failed: {why}")
        self._transport.abort()
