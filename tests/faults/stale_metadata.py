"""A TCP proxy in front of one broker that can replay earlier responses to Metadata requests."""

from __future__ import annotations

import socket
import struct
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from typing import Self

_METADATA = 3
_SIZE = struct.Struct(">i")
_HEAD = struct.Struct(">hhi")  # api key, version, correlation id


class StaleMetadata:
    """Forwards frames between clients of `address` and `upstream`, both `host:port`.

    `remember` stores the newest response to each Metadata request. After `replay(n)`, the next n requests that have a
    stored response get it instead of the broker's. `cut` closes all connections.
    """

    def __init__(self, address: str, upstream: str) -> None:
        self.replayed = 0
        self._upstream = upstream.rsplit(":", 1)
        host, port = address.rsplit(":", 1)
        self._listener = socket.create_server((host, int(port)))
        self._lock = threading.Lock()
        self._newest: dict[bytes, bytes] = {}
        self._old: dict[bytes, bytes] = {}
        self._left = 0
        self._open: list[socket.socket] = []

    def __enter__(self) -> Self:
        threading.Thread(target=self._accept, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listener.close()
        self.cut()

    def remember(self) -> int:
        """Store the newest responses; returns how many requests have one."""
        with self._lock:
            self._old = dict(self._newest)
            return len(self._old)

    def remembers(self, *topics: str) -> bool:
        """Whether there is a stored response for one request about all these topics."""
        with self._lock:
            return any(all(topic.encode() in request for topic in topics) for request in self._old)

    def replay(self, answers: int) -> None:
        with self._lock:
            self._left = answers

    def cut(self) -> None:
        with self._lock:
            open_now, self._open = self._open, []
        for sock in open_now:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                try:
                    broker = socket.create_connection((self._upstream[0], int(self._upstream[1])))
                except OSError:
                    client.close()
                    continue
                with self._lock:
                    self._open += [client, broker]
                pending: deque[tuple[int, bytes]] = deque()
                for work in (self._requests, self._answers):
                    threading.Thread(target=work, args=(client, broker, pending), daemon=True).start()

    def _requests(self, client: socket.socket, broker: socket.socket, pending: deque[tuple[int, bytes]]) -> None:
        for frame in _frames(client, broker):
            key, version, _ = _HEAD.unpack_from(frame)
            # Without the correlation id, equal requests have equal bytes.
            pending.append((key, struct.pack(">h", version) + frame[_HEAD.size :]))
            with suppress(OSError):
                broker.sendall(_SIZE.pack(len(frame)) + frame)

    def _answers(self, client: socket.socket, broker: socket.socket, pending: deque[tuple[int, bytes]]) -> None:
        for frame in _frames(broker, client):
            key, request = pending.popleft() if pending else (-1, b"")
            if key == _METADATA:
                frame = frame[:4] + self._metadata(request, frame[4:])  # noqa: PLW2901
            with suppress(OSError):
                client.sendall(_SIZE.pack(len(frame)) + frame)

    def _metadata(self, request: bytes, response: bytes) -> bytes:
        with self._lock:
            if self._left and request in self._old:
                self._left -= 1
                self.replayed += 1
                return self._old[request]
            self._newest[request] = response
            return response


def _frames(sock: socket.socket, other: socket.socket) -> Iterator[bytes]:
    """Yield frames until one of the connections ends; then close both."""
    with suppress(OSError), sock, other, sock.makefile("rb") as stream:
        while head := stream.read(_SIZE.size):
            (size,) = _SIZE.unpack(head)
            frame = stream.read(size)
            if len(frame) < size:
                return
            yield frame
