"""Where executors connect back to: accepts, authenticates, and hands lines to their batches."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import socket
import threading
from collections import deque
from typing import Any, Final, Protocol

import structlog

from mm2.copy import channel
from mm2.copy.driver.batch import ExecutorConnection
from mm2.copy.driver.identity import DriverIdentity

_HANDSHAKE_TIMEOUT_S: Final = 10.0
_MAX_HANDSHAKE_BYTES: Final = 4096
_CLOSE_TIMEOUT_S: Final = 5.0
#: A task that was cancelled while Spark started it may still come; it is no stranger.
_FORGOTTEN_KEPT: Final = 1024


class Job(Protocol):
    """What JSON an executor is sent when it has proved itself."""

    def to_json(self) -> str:
        """Secrets included."""


class ExpectedTasks(Protocol):
    """Whose executor is let in: a `mm2.copy.driver.batch.MicroBatch`, or who else has Spark tasks. Called on the server's thread."""

    @property
    def id(self) -> str:
        """By which the executor names it."""

    @property
    def name(self) -> str:
        """For messages."""

    @property
    def secret(self) -> str:
        """Known to nobody but its executor, hex."""

    @property
    def spec(self) -> Job:
        """The job."""

    def attach(self, connection: ExecutorConnection) -> bool:
        """Take the executor's connection; False for a second one."""

    def received(self, message: dict[str, Any]) -> None:
        """One message of the executor. May raise ValueError, KeyError or TypeError, which ends the connection."""

    def ended(self, reason: str, *, dead: bool = False) -> None:
        """The connection is over."""


class ChannelServer:
    """One listening socket for all lanes of the process, one thread for it and all connected executors.

    An event loop rather than a thread for each: OpenSSL allows no thread to send while another one waits to receive.
    ``identity`` None: no TLS, for loopback. Raises OSError when nobody can listen at that address.
    """

    def __init__(self, host: str, port: int = 0, identity: DriverIdentity | None = None) -> None:
        self.fingerprint = "" if identity is None else identity.fingerprint
        self._batches: dict[str, ExpectedTasks] = {}
        self._forgotten: deque[str] = deque(maxlen=_FORGOTTEN_KEPT)
        self._peers: set[_Peer] = set()
        self._lock = threading.Lock()
        self._log = structlog.get_logger(__name__)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server((host, port), family=family, backlog=512)
        self._address = self._socket.getsockname()[:2]
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._mishap)
        listening = self._loop.create_server(
            lambda: _Peer(self),
            sock=self._socket,
            backlog=512,
            ssl=None if identity is None else identity.context,
            ssl_handshake_timeout=None if identity is None else _HANDSHAKE_TIMEOUT_S,
        )
        self._listener = self._loop.create_task(listening)
        self._thread = threading.Thread(target=self._run, name="copy-channel", daemon=True)
        self._thread.start()

    @property
    def address(self) -> tuple[str, int]:
        """Host and port it listens at."""
        host, port = self._address
        return str(host), int(port)

    def expect(self, batch: ExpectedTasks) -> None:
        """Let the executor of this batch in."""
        with self._lock:
            self._batches[batch.id] = batch

    def forget(self, batch: ExpectedTasks) -> None:
        """Let it in no more."""
        with self._lock:
            if self._batches.pop(batch.id, None) is not None:
                self._forgotten.append(batch.id)

    def close(self) -> None:
        """Stop listening and hang up on whoever is still there. Idempotent."""
        with contextlib.suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_CLOSE_TIMEOUT_S)

    def known(self, hello: dict[str, Any], challenge: str, peer: str) -> ExpectedTasks | None:
        """Whose executor it is that answered the challenge so; None when it proves nothing."""
        with self._lock:
            batch = self._batches.get(str(hello.get("batch")))
            forgotten = batch is None and hello.get("batch") in self._forgotten
        parts = ("executor", challenge, hello.get("batch"), hello.get("attempt"))
        if batch is not None and channel.proves(hello.get("mac"), batch.secret, *parts):
            return batch
        if forgotten:
            self._log.info("a cancelled copy task was turned away")
        else:
            self._log.warning("somebody without the right proof asked for a copy job", peer=peer)
        return None

    def joined(self, peer: _Peer) -> None:
        """A connection is there."""
        self._peers.add(peer)

    def left(self, peer: _Peer) -> None:
        """It is there no more."""
        self._peers.discard(peer)

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        try:
            self._loop.run_forever()
        finally:
            with contextlib.suppress(OSError):
                self._loop.run_until_complete(self._listener).close()
            self._socket.close()
            for peer in list(self._peers):
                peer.close()
            self._loop.run_until_complete(asyncio.sleep(0.01))  # they are told the end of their connections
            self._loop.close()

    def _mishap(self, _loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM):
            # asyncio tries again a second later; without us no executor would ever be let in again.
            self._log.warning("an executor could not be let in", error=str(error))
        else:
            self._log.warning("the progress channel had an error", error=str(error or context.get("message")))


class _Peer(asyncio.Protocol):
    """One connection: a stranger until it has proved itself, then the way to the executor of its batch."""

    def __init__(self, server: ChannelServer) -> None:
        self._server = server
        self._loop = asyncio.get_running_loop()
        self._challenge = channel.nonce()
        self._batch: ExpectedTasks | None = None
        self._buffer = bytearray()
        self._closing = False  # by this side
        self._searched = 0  # so much of the buffer is known to hold no end of a line
        self._log = structlog.get_logger(__name__)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """A connection, after TLS where there is any."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101  (tells mypy what asyncio promises)
        self._transport = transport
        # asyncio does it for sockets that name their protocol, and those accepted from `create_server` do not. Else the word
        # to start would wait for the acknowledgement of the lease before it, which Linux delays by 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._server.joined(self)
        self._timeout = self._loop.call_later(_HANDSHAKE_TIMEOUT_S, transport.abort)
        transport.write(channel.encode({"nonce": self._challenge}))

    def data_received(self, data: bytes) -> None:
        """Some bytes of some lines."""
        self._buffer += data
        try:
            while (end := self._buffer.find(b"\n", self._searched)) >= 0 and not self._transport.is_closing():
                line = bytes(self._buffer[: end + 1])
                del self._buffer[: end + 1]
                self._searched = 0
                self._line(channel.decode(line))
            self._searched = len(self._buffer)
            if self._searched > (_MAX_HANDSHAKE_BYTES if self._batch is None else channel.MAX_LINE_BYTES):
                self._end("an endless line")
        except (ValueError, KeyError, TypeError) as error:
            self._end(str(error))

    def connection_lost(self, exc: Exception | None) -> None:
        """The end, whoever wanted it."""
        self._timeout.cancel()
        self._server.left(self)
        if self._batch is not None:
            how = "the executor closed the progress channel" if exc is None else f"the progress channel broke: {exc}"
            # On this host only the end of a process closes its sockets. In between networks, others may break a connection.
            self._batch.ended(how, dead=self._is_local and not self._closing)

    def send(self, data: bytes) -> None:
        """For the batch, on any thread."""
        with contextlib.suppress(RuntimeError):  # the server is closed
            self._loop.call_soon_threadsafe(self._write, data)

    def close(self) -> None:
        """For the batch, on any thread."""
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
            self._log.info("a second attempt of a copy task was turned away", batch=batch.name)
            self._transport.abort()
        else:
            self._batch = batch
            self._timeout.cancel()
            mac = channel.proof(batch.secret, "driver", message.get("nonce"))
            self._transport.write(channel.encode({"mac": mac, "spec": batch.spec.to_json()}))

    @property
    def _is_local(self) -> bool:
        peer = self._transport.get_extra_info("peername")
        return bool(peer) and ipaddress.ip_address(peer[0]).is_loopback

    def _end(self, why: str) -> None:
        self._closing = True
        if self._batch is not None:
            self._batch.ended(f"the progress channel broke: {why}")
        self._transport.abort()
