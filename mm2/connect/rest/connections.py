"""Accepts the connections of a listener, within limits that hold before a client is authenticated.

A connection is *waiting* while it waits for its client: for a handshake, a header, a body, or for the client to read.
Only its client can end that, so a client that opens many such connections must not exclude others. At the limit, the
address with the most connections therefore loses the one that has been waiting for the longest time. No address gets
more than three quarters of the connections, so that requests in progress do not exclude others either.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import errno
import ipaddress
import socket
import ssl
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.connect.rest.failures import error_answer
from mm2.connect.tls import ListenerTls

log = structlog.get_logger(__name__)

UNAVAILABLE: Final = 503
RETRY_AFTER_S: Final = 1
#: IPv6 clients usually have all addresses of such a network.
_IPV6_NETWORK_BITS: Final = 64
#: Errors of accept() that end by themselves: too many open files, or no memory.
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_OUT_OF_RESOURCES_S: Final = 0.2


@dataclass(eq=False)
class HttpConnection:
    """An accepted connection. ``peer`` identifies its client; ``waiting_since_s`` None: a request is being processed."""

    peer: str
    waiting_since_s: float | None
    #: The handshake; its end is the beginning of ``transport``.
    opening: asyncio.Task[None] | None = None
    transport: asyncio.Transport | None = None

    def abort(self) -> None:
        """Close it without waiting for the client."""
        if self.transport is not None:
            self.transport.abort()
        elif self.opening is not None:
            self.opening.cancel()


class Connections:
    """The open connections of one listener, at most ``limit``. Used on the event loop only."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._limit_of_peer = limit - limit // 4
        self._open: set[HttpConnection] = set()
        #: How many have ended.
        self.ended = 0

    def admit(self, connection: HttpConnection) -> bool:
        """Add a connection; at the limit in exchange for one that waits. False if there is none."""
        own = [one for one in self._open if one.peer == connection.peer]
        if len(own) >= self._limit_of_peer:
            if not self._evict_from(own):
                return False
        elif len(self._open) >= self._limit and not self.evict():
            return False
        self._open.add(connection)
        return True

    def evict(self) -> bool:
        """Abort a waiting connection, see the module. False if there is none."""
        return self._evict_from(self._open)

    def _evict_from(self, candidates: Collection[HttpConnection]) -> bool:
        counts = collections.Counter(one.peer for one in candidates)
        victim: HttpConnection | None = None
        worst = (0, 0.0)
        for one in candidates:
            if one.waiting_since_s is not None and (rank := (counts[one.peer], -one.waiting_since_s)) > worst:
                victim, worst = one, rank
        if victim is None:
            return False
        self.remove(victim)
        victim.abort()
        return True

    def remove(self, connection: HttpConnection) -> None:
        """Forget a connection; may be called twice."""
        if connection in self._open:
            self._open.remove(connection)
            self.ended += 1


def peer_of(address: object) -> str:
    """What counts as one client: an IPv4 address, or an IPv6 network. ``address`` is that of a socket."""
    if not isinstance(address, tuple):
        return ""  # a UNIX socket
    host = str(address[0]).partition("%")[0]
    try:
        found = ipaddress.ip_address(host)
    except ValueError:
        return host
    if isinstance(found, ipaddress.IPv6Address):
        if found.ipv4_mapped is not None:
            return str(found.ipv4_mapped)
        return str(ipaddress.ip_network((found, _IPV6_NETWORK_BITS), strict=False))
    return str(found)


class Acceptor:
    """Accepts connections of one listening socket, in the place of an asyncio server."""

    def __init__(
        self,
        sock: socket.socket,
        connections: Connections,
        new_protocol: Callable[[HttpConnection], asyncio.Protocol],
        tls: ListenerTls | None,
        handshake_timeout_s: float,
    ) -> None:
        self._socket = sock
        self._connections = connections
        self._new_protocol = new_protocol
        self._tls = tls
        self._timeout_s = handshake_timeout_s
        self._loop = asyncio.get_running_loop()
        self._opening: set[asyncio.Task[None]] = set()
        self._accepting = self._loop.create_task(self._accept())

    def close(self) -> None:
        """Accept no more connections, and end handshakes."""
        self._loop.remove_reader(self._socket)  # it may be closed before the task ends
        self._accepting.cancel()
        for task in self._opening:
            task.cancel()

    async def wait_closed(self) -> None:
        """Wait until :meth:`close` has taken effect."""
        await asyncio.gather(self._accepting, *self._opening, return_exceptions=True)

    async def _accept(self) -> None:
        self._socket.setblocking(False)
        while True:
            try:
                sock, address = await self._loop.sock_accept(self._socket)
            except OSError as error:
                if error.errno in _OUT_OF_RESOURCES and not self._connections.evict():
                    log.warning("connections not accepted", reason=error.strerror)
                # Without a pause an error that lasts would occupy the event loop.
                await asyncio.sleep(_OUT_OF_RESOURCES_S)
                continue
            connection = HttpConnection(peer_of(address), self._loop.time())
            if not self._connections.admit(connection):
                self._refuse(sock)
                continue
            task = self._loop.create_task(self._open(connection, sock))
            connection.opening = task
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
            # Otherwise a burst would be accepted before the first of its connections is served.
            await asyncio.sleep(0)

    async def _open(self, connection: HttpConnection, sock: socket.socket) -> None:
        is_open = False
        try:
            async with asyncio.timeout(self._timeout_s):
                context = await self._context()
                await self._loop.connect_accepted_socket(
                    lambda: self._new_protocol(connection),
                    sock,
                    ssl=context,
                    ssl_shutdown_timeout=None if context is None else self._timeout_s,
                )
            is_open = True
        except (OSError, TimeoutError) as error:
            log.debug("connection ended before its first request", reason=str(error) or type(error).__name__)
        except Exception:
            log.exception("connection could not be opened")
        finally:
            if not is_open:
                self._connections.remove(connection)
                sock.close()

    async def _context(self) -> ssl.SSLContext | None:
        if self._tls is None:
            return None
        # Opening an encrypted store takes some 100 ms.
        return await asyncio.to_thread(self._tls.context) if self._tls.is_stale else self._tls.context()

    def _refuse(self, sock: socket.socket) -> None:
        if self._tls is None:
            with contextlib.suppress(OSError):
                sock.setblocking(False)
                sock.send(_REFUSAL)
        sock.close()


def _refusal() -> bytes:
    answer = error_answer(
        UNAVAILABLE,
        "Too many connections to this listener (rest.connections.max)",
        {"Retry-After": str(RETRY_AFTER_S), "Connection": "close"},
    )
    head = b"".join(b"%s: %s\r\n" % header for header in answer.raw_headers)
    return b"HTTP/1.1 503 Service Unavailable\r\n" + head + b"\r\n" + bytes(answer.body)


_REFUSAL: Final = _refusal()
