"""A TCP relay in front of one broker listener that delays chosen Kafka requests or their responses.

`tests.support.proxy` treats all bytes of a connection alike. This relay reads the request header (KIP-482), so that a test
can delay exactly one Produce request, and can deliver it after its sender has died: what a broker does that stops
responding and resumes with requests in its socket buffers. It can also change responses, as a malicious broker does.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from mm2.sandbox.kafka import LocalKafka

PRODUCE: Final = 0
_HEADER = struct.Struct(">hhi")
_SIZE = struct.Struct(">i")


@dataclass(frozen=True)
class Request:
    """One request without its size prefix."""

    api_key: int
    version: int
    correlation_id: int
    frame: bytes

    @classmethod
    def of(cls, frame: bytes) -> Request:
        api_key, version, correlation_id = _HEADER.unpack_from(frame)
        return cls(api_key, version, correlation_id, frame)


Choice = Callable[[Request], bool]


def produces_to(name: str, topic_id: bytes, *, about: str = "") -> Choice:
    """Produce requests to a topic, by its name or, from version 13 on, by its id (KIP-516).

    `about`: only those whose records contain this text; records must not be compressed.
    """
    marks, text = (name.encode(), topic_id), about.encode()

    def choice(request: Request) -> bool:
        return request.api_key == PRODUCE and text in request.frame and any(mark in request.frame for mark in marks)

    return choice


@dataclass
class Hold:
    """The next `limit` requests that match `choice` wait, and all behind them on the same connection, until `release`.

    `responses`: the requests are forwarded, and their responses wait instead. Several wires can share one hold.
    """

    choice: Choice
    responses: bool = False
    limit: int = 1
    caught: threading.Event = field(default_factory=threading.Event)
    released: threading.Event = field(default_factory=threading.Event)
    requests: list[Request] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def release(self) -> None:
        self.released.set()

    def catches(self, request: Request) -> bool:
        """Whether this request must wait."""
        with self._lock:
            caught = len(self.requests) < self.limit and self.choice(request)
            if caught:
                self.requests.append(request)
                self.caught.set()
            return caught


class Wire:
    """Relays connections from `address` to `upstream`, both `host:port`."""

    def __init__(self, upstream: str, address: str) -> None:
        self.delay_s = 0.0
        """Each Produce request, and all behind it on its connection, waits that long before it is forwarded."""
        self.answer: Callable[[Request, bytes], bytes] = lambda _, response: response
        """The response to a request that the client gets, both without their sizes."""
        self._upstream = _parsed(upstream)
        self.address = address
        self._lock = threading.Lock()
        self._holds: list[Hold] = []
        self._sockets: set[socket.socket] = set()
        self._listener: socket.socket | None = None

    @classmethod
    def before(cls, broker: LocalKafka, listener: str = "PROXIED") -> Self:
        """A relay for a listener that the broker advertises as `proxied`."""
        return cls(broker.address(listener), broker.advertised(listener))

    def hold(self, hold: Hold) -> None:
        """Hold matching requests from now on."""
        with self._lock:
            self._holds.append(hold)

    def heal(self) -> None:
        """Release all held requests and remove all holds."""
        with self._lock:
            holds, self._holds = self._holds, []
        for hold in holds:
            hold.release()

    def __enter__(self) -> Self:
        self._listener = listener = socket.create_server(_parsed(self.address), backlog=256)
        self._spawn(self._accept, listener)
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _exc: BaseException | None, _tb: TracebackType | None
    ) -> None:
        self.heal()
        with self._lock:
            left = [*self._sockets, *([self._listener] if self._listener is not None else [])]
        for sock in left:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    @staticmethod
    def _spawn(work: Callable[..., None], *args: object) -> None:
        threading.Thread(target=work, args=args, name="wire", daemon=True).start()

    def _accept(self, listener: socket.socket) -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                self._spawn(self._serve, client)

    def _serve(self, client: socket.socket) -> None:
        try:
            upstream = socket.create_connection(self._upstream)
        except OSError:
            client.close()
            return
        with self._lock:
            self._sockets |= {client, upstream}
        for sock in (client, upstream):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        pending: dict[int, Hold] = {}  # responses to be held, by correlation id
        asked: dict[int, Request] = {}
        back = threading.Thread(target=self._down, args=(upstream, client, pending, asked), name="wire", daemon=True)
        back.start()
        with suppress(OSError):
            self._up(client, upstream, pending, asked)
        # The broker still handles requests that a dead client has delivered: close only the sending side.
        with suppress(OSError):
            upstream.shutdown(socket.SHUT_WR)
        back.join()
        for sock in (client, upstream):
            with self._lock:
                self._sockets.discard(sock)
            sock.close()

    def _up(
        self, client: socket.socket, upstream: socket.socket, pending: dict[int, Hold], asked: dict[int, Request]
    ) -> None:
        while (frame := read_frame(client)) is not None:
            request = Request.of(frame)
            asked[request.correlation_id] = request
            with self._lock:
                hold = next((hold for hold in self._holds if hold.catches(request)), None)
            if hold is not None and hold.responses:
                pending[request.correlation_id] = hold
            elif hold is not None:
                hold.released.wait()
            if request.api_key == PRODUCE and self.delay_s:
                time.sleep(self.delay_s)
            upstream.sendall(_SIZE.pack(len(frame)) + frame)

    def _down(
        self, upstream: socket.socket, client: socket.socket, pending: dict[int, Hold], asked: dict[int, Request]
    ) -> None:
        with suppress(OSError):
            while (frame := read_frame(upstream)) is not None:
                (correlation_id,) = _SIZE.unpack_from(frame)
                hold = pending.pop(correlation_id, None)
                if hold is not None:
                    hold.released.wait()
                frame = self.answer(asked.pop(correlation_id), frame)
                with suppress(OSError):  # the client is dead: no process reads its responses
                    client.sendall(_SIZE.pack(len(frame)) + frame)
        with suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)


def read_frame(sock: socket.socket) -> bytes | None:
    """One frame without its size; None at the end of the stream."""
    head = _exactly(sock, _SIZE.size)
    return None if head is None else _exactly(sock, _SIZE.unpack(head)[0])


def _exactly(sock: socket.socket, count: int) -> bytes | None:
    data = bytearray()
    while len(data) < count:
        part = sock.recv(min(1 << 18, count - len(data)))
        if not part:
            return None
        data += part
    return bytes(data)


def _parsed(address: str) -> tuple[str, int]:
    host, port = address.rsplit(":", 1)
    return host, int(port)
