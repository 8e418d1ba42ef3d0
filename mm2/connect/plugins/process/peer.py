"""Calls between the worker and the process of a plugin, in both directions, over a pair of sockets.

Each calling thread has its own conversation. A thread that waits for an answer also serves the other side's calls in
the same conversation. Therefore a context is used on the thread that called the plugin, and the plugin sees a single
thread for each caller.

A message is its length (4 bytes, big-endian) and a body in CBOR (RFC 8949), see `values`. It never contains code to
execute.
"""

from __future__ import annotations

import itertools
import queue
import socket
import struct
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog

from mm2.connect.errors import ConnectError
from mm2.connect.plugins.process.values import Decoding, Encoding

log = structlog.get_logger(__name__)

_LENGTH: Final = struct.Struct(">I")
_LARGEST: Final = 2**31 - 1


class PeerGone(Exception):
    """The other side has closed its end or has died."""


class FrameSocket:
    """One end of the pair: `send` is for one thread at a time, `receive` for another."""

    def __init__(self, sock: socket.socket) -> None:
        self._socket = sock
        self._reader = sock.makefile("rb", buffering=1 << 16)
        self._encoding = Encoding()
        self._decoding = Decoding()

    def send(self, message: list[Any]) -> None:
        """Raises PeerGone, and TypeError for a value that cannot be encoded; nothing is sent then."""
        body = self._encoding.encode(message)
        if len(body) > _LARGEST:
            raise TypeError(f"A message of {len(body)} bytes is too large for the process of a plugin")
        try:
            self._socket.sendall(_LENGTH.pack(len(body)) + body)
        except OSError as error:
            raise PeerGone(str(error)) from error

    def receive(self) -> list[Any]:
        """The next message. Raises PeerGone."""
        body = self._read(_LENGTH.unpack(self._read(_LENGTH.size))[0])
        try:
            message = self._decoding.decode(body)
        except ValueError as error:
            raise PeerGone(f"a message that cannot be read: {error}") from error
        if not isinstance(message, list):
            raise PeerGone("a message of an unknown kind")
        return message

    def _read(self, size: int) -> bytes:
        try:
            data: bytes = self._reader.read(size)
        except (OSError, ValueError) as error:
            raise PeerGone(str(error)) from error
        if len(data) < size:
            raise PeerGone("end of the connection")
        return data

    def close(self) -> None:
        """Close the connection; threads blocked in `receive` on both sides get PeerGone."""
        try:
            self._socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return
        finally:
            self._socket.close()


CALL, RETURN, RAISE, NOTIFY = "call", "return", "raise", "notify"

Handler = Callable[[str, list[Any]], Any]
"""Answers a call by name with its arguments."""

_Inbox = queue.SimpleQueue[list[Any] | None]


class Peer:
    """One side. ``handler`` answers the other side's calls, on the thread of the conversation."""

    def __init__(
        self, frames: FrameSocket, handler: Handler, *, name: str, first: int, on_end: Callable[[], None]
    ) -> None:
        """``first`` is 0 on one side and 1 on the other; ``on_end`` is called once when the other side has ended."""
        self._frames = frames
        self._handler = handler
        self._name = name
        self._on_end = on_end
        self._numbers = itertools.count(first, 2)
        self._own: Final = threading.local()
        self._sending = threading.Lock()
        self._inboxes: dict[int, _Inbox] = {}
        self._changing = threading.Lock()
        self._gone: str | None = None
        self._reader = threading.Thread(target=self._read, name=f"{name}-reader", daemon=True)

    def start(self) -> None:
        """Start to receive."""
        self._reader.start()

    def call(self, method: str, *args: Any) -> Any:
        """The answer of the other side.

        Raises what it raised, PeerGone when it has ended, ConnectError for arguments that cannot be sent.
        """
        number = getattr(self._own, "number", None)
        if number is None:
            number = self._own.number = next(self._numbers)
        inbox = self._inbox(number)
        self._send([number, CALL, method, list(args)])
        while True:
            message = inbox.get()
            if message is None:
                # For the next call.
                inbox.put(None)
                raise PeerGone(self._gone or "it has ended")
            kind, *rest = message[1:]
            if kind == RETURN:
                return rest[0]
            if kind == RAISE:
                raise rest[0]
            self._serve(number, rest[0], rest[1])

    def notify(self, method: str, *args: Any) -> None:
        """Send a message that needs no answer. Raises PeerGone."""
        self._send([-1, NOTIFY, method, list(args)])

    def join(self) -> None:
        """Wait until the other side has ended."""
        self._reader.join()

    def close(self) -> None:
        """Close the connection."""
        self._frames.close()

    def _send(self, message: list[Any]) -> None:
        try:
            with self._sending:
                self._frames.send(message)
        except TypeError as error:
            raise ConnectError(str(error)) from error

    def _inbox(self, number: int) -> _Inbox:
        with self._changing:
            inbox = self._inboxes.get(number)
            if inbox is None:
                inbox = self._inboxes[number] = queue.SimpleQueue()
                if self._gone is not None:
                    inbox.put(None)
            return inbox

    def _read(self) -> None:
        try:
            while True:
                self._deliver(self._frames.receive())
        except PeerGone as error:
            self._gone = str(error)
        except Exception as error:
            log.exception("connection to a plugin process failed", peer=self._name)
            self._gone = str(error)
        with self._changing:
            inboxes = list(self._inboxes.values())
        for inbox in inboxes:
            inbox.put(None)
        self._on_end()

    def _deliver(self, message: list[Any]) -> None:
        number, kind, *rest = message
        if kind == NOTIFY:
            self._handler(rest[0], rest[1])
            return
        with self._changing:
            inbox = self._inboxes.get(number)
        if inbox is None:
            inbox = self._inbox(number)
            name = f"{self._name}-{number}"
            threading.Thread(target=self._converse, args=(number, inbox), name=name, daemon=True).start()
        inbox.put(message)

    def _converse(self, number: int, inbox: _Inbox) -> None:
        """The body of the thread that serves one thread of the other side."""
        self._own.number = number
        while (message := inbox.get()) is not None:
            self._serve(number, message[2], message[3])

    def _serve(self, number: int, method: str, args: list[Any]) -> None:
        try:
            try:
                answer = [number, RETURN, self._handler(method, args)]
                self._send(answer)
            except PeerGone:
                raise
            except BaseException as error:  # noqa: BLE001 - passed to the caller
                self._raise_there(number, method, error)
        except PeerGone:
            # The other side has ended; the reader detects it, too.
            return

    def _raise_there(self, number: int, method: str, error: BaseException) -> None:
        """Let the caller raise the error. It would wait for ever for one that cannot be sent, such as one without a text."""
        try:
            self._send([number, RAISE, error])
        except ConnectError as refused:
            what = f"{method} has failed with {type(error).__qualname__}, which cannot be passed on: {refused}"
            self._send([number, RAISE, ConnectError(what)])
