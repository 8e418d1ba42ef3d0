"""Limits on all clients, authenticated or not: connections, the size of a header, the size and time of a body.

A connection is *waiting* while it waits for its client: for a handshake, a header, a body, or for the client to read.
Only its client can end that, so a client that opens many such connections must not exclude others. At the limit, the
address with the most connections therefore loses the one that has been waiting for the longest time. No address gets
more than three quarters of the connections, so that requests in progress do not exclude others either.

The budget for bodies limits their sum. Bodies of worker-to-worker requests (KIP-507) are received before their signature
can be verified, so they have a budget of their own: no unauthenticated client uses up that of the others.

Large responses have a budget, too, until their clients have received them: a client that reads nothing, on many
connections, would otherwise keep as many of them in memory.
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
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from mm2.connect.rest.failures import RestFailure, error_answer, failure_answer
from mm2.connect.rest.settings import Limits
from mm2.connect.tls import ListenerTls

log = structlog.get_logger("mm2.connect.rest.limits")

UNAVAILABLE: Final = 503
RETRY_AFTER_S: Final = 1
#: IPv6 clients usually have all addresses of such a network.
_IPV6_NETWORK_BITS: Final = 64
#: Errors of accept() that end by themselves: too many open files, or no memory.
_OUT_OF_RESOURCES: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)
_OUT_OF_RESOURCES_S: Final = 0.2

#: Of request line and headers together; Jetty's default.
MAX_HEADER_BYTES: Final = 8 * 1024
_MAX_HEADERS: Final = 100
_BAD_REQUEST: Final = 400
_REQUEST_TIMEOUT: Final = 408
_PAYLOAD_TOO_LARGE: Final = 413
HEADER_TOO_LARGE: Final = 431
HEADER_SENTENCE: Final = f"The header of the request is larger than {MAX_HEADER_BYTES} bytes or {_MAX_HEADERS} fields"
_CLOSE: Final = {"Connection": "close"}
_KEY: Final = "mm2.body"
_SIGNED_SHARE: Final = 4
#: Larger responses are sent in pieces, each after the client has received most of the one before it.
_PIECE_BYTES: Final = 64 * 1024


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


class Budget:
    """Bytes of the bodies that are being received or processed, up to ``max_bytes``. Used on the event loop only.

    One address gets three quarters of it, but ``min_of_peer_bytes`` in any case.
    """

    def __init__(self, max_bytes: int, min_of_peer_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.max_of_peer_bytes = max(max_bytes - max_bytes // 4, min_of_peer_bytes)
        self.used_bytes = 0
        self._by_peer: collections.Counter[str] = collections.Counter()

    def take(self, peer: str, size_bytes: int) -> bool:
        """False if it is used up."""
        if self.used_bytes + size_bytes > self.max_bytes or self._by_peer[peer] + size_bytes > self.max_of_peer_bytes:
            return False
        self._add(peer, size_bytes)
        return True

    def take_first(self, peer: str, size_bytes: int) -> bool:
        """Like `take`, but the only one of an address may have any size."""
        if peer in self._by_peer:
            return self.take(peer, size_bytes)
        self._add(peer, size_bytes)
        return True

    def _add(self, peer: str, size_bytes: int) -> None:
        self.used_bytes += size_bytes
        self._by_peer[peer] += size_bytes

    def give_back(self, peer: str, size_bytes: int) -> None:
        """The bytes are no longer needed."""
        self.used_bytes -= size_bytes
        self._by_peer[peer] -= size_bytes
        if not self._by_peer[peer]:
            del self._by_peer[peer]


#: In the state of a request: a function that returns whether its client is still sending it.
SENDING_KEY: Final = "mm2.is_sending"


class Budgets:
    """The budgets of a server, see ``rest.bodies.max.bytes``."""

    def __init__(self, limits: Limits) -> None:
        signed_bytes = max(1, limits.max_bodies_bytes // _SIGNED_SHARE)
        self.signed = Budget(signed_bytes, 1)
        # One request of the permitted size must always be possible.
        size_bytes = limits.max_body_bytes
        self.others = Budget(max(limits.max_bodies_bytes - signed_bytes, size_bytes), size_bytes)
        #: Of responses larger than `_PIECE_BYTES`.
        self.responses = Budget(limits.max_bodies_bytes, 1)
        #: Received in total.
        self.received_bytes = 0

    @property
    def used_bytes(self) -> int:
        """Of all bodies of requests."""
        return self.signed.used_bytes + self.others.used_bytes


class Body:
    """The body of a request while it is received."""

    def __init__(self, scope: Scope, limits: Limits, budgets: Budgets) -> None:
        """Raises RestFailure if the announced size is too large."""
        self._budgets = budgets
        self._budget = budgets.others
        self._max_bytes = limits.max_body_bytes
        self._taken_bytes = 0
        self._peer = peer_of(scope.get("client"))
        length = Headers(scope=scope).get("content-length", "")
        self._announced_bytes = int(length) if length.isdigit() and length.isascii() else 0
        self._check(self._announced_bytes)

    @classmethod
    def of(cls, scope: Scope) -> Body | None:
        """The body of a request that has passed :class:`Guard`; None for a call within the process."""
        found: Body | None = scope.get(_KEY)
        return found

    def use_signed_budget(self) -> None:
        """The client is not authenticated before the whole body is received. Raises RestFailure."""
        self._budget = self._budgets.signed
        self._max_bytes = min(self._max_bytes, self._budget.max_of_peer_bytes)
        self._check(self._announced_bytes)

    def receive(self, size_bytes: int) -> None:
        """Count received bytes. Raises RestFailure 413 or 503."""
        self._check(self._taken_bytes + size_bytes)
        if not self._budget.take(self._peer, size_bytes):
            raise RestFailure(
                UNAVAILABLE,
                "The server is receiving too many request bodies at the same time (rest.bodies.max.bytes)",
                {**_CLOSE, "Retry-After": str(RETRY_AFTER_S)},
            )
        self._taken_bytes += size_bytes
        self._budgets.received_bytes += size_bytes

    def end(self) -> None:
        """The request has been processed."""
        self._budget.give_back(self._peer, self._taken_bytes)
        self._taken_bytes = 0

    def _check(self, size_bytes: int) -> None:
        if size_bytes > self._max_bytes:
            sentence = f"The request body is larger than rest.request.max.bytes = {self._max_bytes}"
            if self._budget is self._budgets.signed:
                sentence = (
                    f"The body of a request between workers is larger than {self._max_bytes} bytes, its part of "
                    "rest.bodies.max.bytes"
                )
            raise RestFailure(_PAYLOAD_TOO_LARGE, sentence, _CLOSE)


class Guard:
    """ASGI middleware: 431 for a large header, 413 for a large body, 408 for a slow one, 503 over the budget.

    400 for a body with two lengths.
    An exception of the application before it has started to respond becomes a JSON error. WebSockets have no limits of
    time, since they may be idle for any time.
    """

    def __init__(self, app: ASGIApp, limits: Limits, budgets: Budgets) -> None:
        self._app = app
        self._limits = limits
        self._budgets = budgets

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        answer = _Answer(scope, send, self._budgets.responses)
        body: Body | None = None
        try:
            _check_header(scope)
            if scope["type"] != "http":
                await self._app(scope, receive, answer.send)
                return
            body = Body(scope, self._limits, self._budgets)
            await self._app({**scope, _KEY: body}, self._limited(body, receive), answer.send)
        except Exception as error:  # noqa: BLE001 - the outermost handler
            if answer.is_started:
                # The application has already responded, or the rest of its response is lost.
                log.debug("exception after the response had started", reason=repr(error))
                return
            await failure_answer(answer.refusal or error)(scope, receive, answer.send)
        finally:
            if body is not None:
                body.end()

    def _limited(self, body: Body, receive: Receive) -> Receive:
        limits = self._limits
        clock = asyncio.get_running_loop().time
        deadline_s = clock() + min(limits.body_timeout_s, limits.request_timeout_s)
        complete = False

        async def limited_receive() -> Message:
            nonlocal complete
            if complete:  # the next message is the end of the connection, which has no time limit
                return await receive()
            timeout_s = min(limits.idle_timeout_s, deadline_s - clock())
            try:
                message = await asyncio.wait_for(receive(), max(0.0, timeout_s))
            except TimeoutError:
                raise RestFailure(_REQUEST_TIMEOUT, "The request body was not received in time", _CLOSE) from None
            body.receive(len(message.get("body", b"")))
            complete = not message.get("more_body", False)
            return message

        return limited_receive


class _Answer:
    """Sends the response to one request. The header waits for the first part of the body, which may be over the budget."""

    def __init__(self, scope: Scope, send: Send, budget: Budget) -> None:
        self._send = send
        self._budget = budget
        self._peer = peer_of(scope.get("client"))
        self._is_sending: Callable[[], bool] = scope.get("state", {}).get(SENDING_KEY, bool)
        self._header: Message | None = None
        self.is_started = False
        #: Why the application's response is not sent. The application gets it as an exception, and may raise another.
        self.refusal: RestFailure | None = None

    async def send(self, message: Message) -> None:
        """See ASGI. Raises RestFailure 503 for a body over the budget."""
        if message["type"] == "http.response.start":
            self._header = message
            return
        size_bytes = len(message.get("body", b"")) if message["type"] == "http.response.body" else 0
        if size_bytes <= _PIECE_BYTES:
            await self._start()
            await self._send(message)
            return
        if not self._budget.take_first(self._peer, size_bytes):
            self.refusal = RestFailure(
                UNAVAILABLE,
                "The clients of this address have not received their previous responses yet, which are limited to "
                "rest.bodies.max.bytes together",
                {**_CLOSE, "Retry-After": str(RETRY_AFTER_S)},
            )
            raise self.refusal
        try:
            await self._start()
            await self._send_in_pieces(message)
        finally:
            self._budget.give_back(self._peer, size_bytes)

    async def _start(self) -> None:
        self.is_started = True
        header, self._header = self._header, None
        if header is None:
            return
        if self._is_sending():
            # Otherwise the client would send its next request on a connection that is closed after this response.
            MutableHeaders(scope=header)["Connection"] = "close"
        await self._send(header)

    async def _send_in_pieces(self, message: Message) -> None:
        body = message["body"]
        for start in range(0, len(body), _PIECE_BYTES):
            is_last = start + _PIECE_BYTES >= len(body)
            more = message.get("more_body", False) if is_last else True
            await self._send({**message, "body": body[start : start + _PIECE_BYTES], "more_body": more})


def _check_header(scope: Scope) -> None:
    """Raises RestFailure. The protocol limits incomplete headers only."""
    size_bytes = len(scope["raw_path"]) + len(scope["query_string"])
    size_bytes += sum(len(name) + len(value) + 4 for name, value in scope["headers"])
    if size_bytes > MAX_HEADER_BYTES or len(scope["headers"]) > _MAX_HEADERS:
        raise RestFailure(HEADER_TOO_LARGE, HEADER_SENTENCE, _CLOSE)
    if {b"content-length", b"transfer-encoding"} <= {name for name, _ in scope["headers"]}:
        # A proxy that uses the other one sees other requests ("request smuggling"). Jetty rejects it, too.
        raise RestFailure(_BAD_REQUEST, "Bad Request: Content-Length and Transfer-Encoding exclude each other", _CLOSE)
