"""Calls between two processes, in both directions.

Each calling thread has its own conversation. A thread that waits for an answer also serves the other side's calls in
the same conversation. Therefore a context is used on the thread that called the plugin, and the plugin sees a single
thread for each caller.
"""

from __future__ import annotations

import itertools
import queue
import threading
from collections.abc import Callable
from typing import Any, Final

import structlog

from mm2.connect.errors import ConnectError
from mm2.connect.plugins.process.frames import FrameSocket, PeerGone

log = structlog.get_logger(__name__)

CALL, RETURN, RAISE, TELL = "call", "return", "raise", "tell"

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

    def tell(self, method: str, *args: Any) -> None:
        """Send a message that needs no answer. Raises PeerGone."""
        self._send([-1, TELL, method, list(args)])

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
            log.exception("conversation with a plugin's process is broken", peer=self._name)
            self._gone = str(error)
        with self._changing:
            inboxes = list(self._inboxes.values())
        for inbox in inboxes:
            inbox.put(None)
        self._on_end()

    def _deliver(self, message: list[Any]) -> None:
        number, kind, *rest = message
        if kind == TELL:
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
                self._send([number, RAISE, error])
        except PeerGone:
            # The other side has ended; the reader detects it, too.
            return
