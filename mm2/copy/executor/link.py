"""The executor's end of the progress channel: authentication, the lease, and the driver's messages."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import weakref
from collections import deque
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from mm2.codec import decode
from mm2.copy import channel
from mm2.copy.spec import Assignment, CopySpec

_OPEN_TIMEOUT_S = 10
_UNANSWERED = ("log", "final", "failed")


class DriverLink:
    """``stop`` is set when the micro-batch has to end, with its ``reason`` and the time ``drain_s`` for the end.
    ``stop_requested`` is true when the driver requested it, ``healthy`` is false after an internal error.

    `lease` and the first `start` are awaited; ``on_message`` is called for all other messages.
    """

    def __init__(self, assignment: Assignment, attempt: int, drain_s: float) -> None:
        self.stop = asyncio.Event()
        self.reason = ""
        self.stop_requested = False
        self.healthy = True
        self._released = False
        self.drain_s = drain_s
        self.on_message: Callable[[dict[str, Any]], None] = lambda _message: None
        self._assignment = assignment
        self._attempt = attempt
        self._renewed_at = self._asked_at = channel.now_s()
        self._asked: deque[float] = deque()  # send times of unanswered messages

    async def open(self) -> CopySpec:
        """Connect and return the job. Raises OSError or ValueError when the driver cannot be reached or
        authenticated.
        """
        host, port = self._assignment.host, self._assignment.port
        try:
            return await self._open(host, port, self._assignment.fingerprint)
        except TimeoutError:  # has no text
            raise TimeoutError(
                f"the executor had no answer of the progress channel at {host}:{port} within {_OPEN_TIMEOUT_S:.0f} s"
            ) from None

    async def _open(self, host: str, port: int, pin: str) -> CopySpec:
        tls = channel.client_tls() if pin else None
        reader, self._writer = await asyncio.wait_for(
            asyncio.open_connection(host, port, limit=channel.MAX_LINE_BYTES, ssl=tls), _OPEN_TIMEOUT_S
        )
        if pin:
            channel.verify_pin(self._writer.get_extra_info("ssl_object"), pin)
        spec = await asyncio.wait_for(self._authenticate(reader), _OPEN_TIMEOUT_S)
        loop = asyncio.get_running_loop()
        self.lease: asyncio.Future[dict[str, Any]] = loop.create_future()
        self.start: asyncio.Future[dict[str, Any]] = loop.create_future()
        self._listener = loop.create_task(self._listen(reader))
        return spec

    def close(self) -> None:
        """Close the connection."""
        if hasattr(self, "_listener"):
            self._listener.cancel()
        if hasattr(self, "_writer"):
            self._writer.close()

    def send(self, message: dict[str, Any]) -> None:
        """Send a message to the driver."""
        if not self._writer.is_closing():
            if message.get("type", "log") not in _UNANSWERED:
                self._asked.append(channel.now_s())
            self._writer.write(channel.encode(message))

    def ask(self, message: dict[str, Any]) -> None:
        """Send a message whose answer renews the lease."""
        self._asked_at = channel.now_s()
        self.send(message)

    async def flush(self, timeout_s: float) -> None:
        """Wait until sent messages are written to the socket."""
        with contextlib.suppress(OSError, asyncio.TimeoutError):
            await asyncio.wait_for(self._writer.drain(), timeout_s)

    def end(self, reason: str) -> None:
        """End the micro-batch; the first reason is kept."""
        if not self.stop.is_set():
            self.reason = reason
            self.stop.set()

    def fail(self, error: BaseException | None, what: str = "") -> None:
        """An internal error, or ``what`` without an exception. Its consequences are unknown, so this micro-batch ends
        and the next one starts with a new process.
        """
        log = structlog.get_logger(__name__)  # here, because a logger keeps the configuration of its first use
        log.error(
            "micro-batch ended by an internal error",
            batch=self._assignment.batch,
            error=what or str(error),
            exc_info=error,
        )
        self.healthy = False
        self.end(f"internal error: {error or what}")

    @property
    def unanswered_s(self) -> float:
        """How long the driver has not answered: above `channel.LEASE_TIMEOUT_S` the lease has expired."""
        return channel.now_s() - self._renewed_at

    @property
    def asked_s(self) -> float:
        """Seconds since the last `ask`."""
        return channel.now_s() - self._asked_at

    def may_write(self) -> bool:
        """Whether the lease is valid (rule S5): after it has expired another executor may copy the same partitions."""
        return not self._released and self.unanswered_s <= channel.LEASE_TIMEOUT_S

    def release(self, final: dict[str, Any]) -> None:
        """Send the final report, with which the lease ends: the driver grants the next one as soon as it receives it."""
        self._released = True
        self.send(final)

    async def until_stop(self, other: asyncio.Future[Any]) -> bool:
        """Wait for ``other`` or the stop, whichever comes first; False for the stop."""
        stop = asyncio.ensure_future(self.stop.wait())
        await asyncio.wait({other, stop}, return_when=asyncio.FIRST_COMPLETED)
        stop.cancel()
        return other.done() and not self.stop.is_set()

    async def pause(self, seconds: float) -> None:
        """Sleep until the stop at most."""
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self.stop.wait(), seconds)

    def forward_logs(self) -> None:
        """Send this process's log events to the driver, which writes them in its format and with its context."""
        # The configuration stays until the next micro-batch. Weak references let this one's objects be freed.
        known_send, known_loop = weakref.WeakMethod(self.send), weakref.ref(asyncio.get_running_loop())

        def forward(_logger: Any, method: str, event: MutableMapping[str, Any]) -> Any:
            text = str(event.pop("event", ""))
            fields = {name: value if isinstance(value, int | float) else str(value) for name, value in event.items()}
            line = {"type": "log", "level": method, "event": text, "fields": fields}
            send, loop = known_send(), known_loop()
            if send is not None and loop is not None:
                with contextlib.suppress(RuntimeError):  # the loop and the channel are closed
                    loop.call_soon_threadsafe(send, line)
            raise structlog.DropEvent

        structlog.configure(
            processors=[structlog.processors.format_exc_info, forward],
            wrapper_class=structlog.make_filtering_bound_logger(logging.INFO),
            cache_logger_on_first_use=False,
        )

    async def _authenticate(self, reader: asyncio.StreamReader) -> CopySpec:
        secret, batch = self._assignment.secret, self._assignment.batch
        challenge = channel.decode(await reader.readline())["nonce"]
        own = channel.nonce()
        mac = channel.proof(secret, "executor", challenge, batch, self._attempt)
        self.send({"batch": batch, "attempt": self._attempt, "nonce": own, "mac": mac})
        answer = channel.decode(await reader.readline())
        if not channel.proves(answer.get("mac"), secret, "driver", own):
            message = "the progress channel was answered by another process than the driver"
            raise ValueError(message)
        return decode(CopySpec, answer["spec"])

    async def _listen(self, reader: asyncio.StreamReader) -> None:
        try:
            while line := await reader.readline():
                self._hear(channel.decode(line))
            self.end("the driver closed the progress channel")
        except (OSError, ValueError, KeyError) as error:
            self.end(f"the progress channel failed: {error}")

    def _hear(self, message: dict[str, Any]) -> None:
        kind = message["type"]
        if kind == "go":
            # An answer may stay unread while the process is frozen, and the driver counts from when it received the message. So
            # the lease counts from the message that is answered, and from no other message of the driver.
            if self._asked:
                self._renewed_at = max(self._renewed_at, self._asked.popleft())
        elif kind == "lease":
            if not self.lease.done():
                self.lease.set_result(message)
        elif kind == "start" and not self.start.done():
            self.start.set_result(message)
        elif kind == "stop":
            self.drain_s = float(message["drain_s"])
            if not self.stop.is_set():
                self.stop_requested = True
                self.end("the driver requested the stop")
        else:
            self.on_message(message)
