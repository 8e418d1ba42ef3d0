"""The process of `proxy.Proxy`: relays bytes between clients and one upstream address under the given conditions.

Uses only the standard library, so that it starts in a tenth of a second. One asyncio loop; each direction of each
connection is a `_Stream`. Commands are JSON lines over an abstract Unix socket, each answered by one line.
"""

import asyncio
import json
import random
import socket
import struct
import sys
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import Any

_BUFFER_BYTES = 1 << 18
_BACKLOG = 1024
_SIZE = struct.Struct(">i")
_LINGER_NOT = struct.pack("ii", 1, 0)  # close() sends RST and discards unsent data
_REPEATABLE_BYTES = 1 << 16
_LARGEST_FRAME_BYTES = 1 << 28  # the first bytes of TLS, read as a frame size, are larger
_RETRANSMISSION_MS = 200.0  # Linux's minimum (TCP_RTO_MIN)


class Passage(StrEnum):
    """What happens to incoming bytes."""

    PASS = "pass"
    HOLD = "hold"
    """Bytes are delayed until the condition ends, as lost packets are retransmitted by TCP."""
    SWALLOW = "swallow"
    """Bytes are read and dropped; the connection never passes bytes in that direction again, even after `heal`."""


@dataclass(frozen=True)
class Conditions:
    """Network conditions. `up` is from the client to the broker, `down` the other direction.

    Zero means "not at all".
    """

    up: Passage = Passage.PASS
    down: Passage = Passage.PASS
    delay_up_ms: float = 0.0
    delay_down_ms: float = 0.0
    jitter_ms: float = 0.0
    """Maximum additional delay of each piece; the order is kept, as in TCP."""
    loss: float = 0.0
    """Share of pieces that wait for a retransmission, and all pieces behind them."""
    window_bytes: int = 200_000
    """Bytes in flight per connection and direction while there is a delay: until the acknowledgement is back."""
    rate_up_bytes_s: float = 0.0
    rate_down_bytes_s: float = 0.0
    """For all connections together."""
    refuse: bool = False
    """Refuse new connections. Open connections are not affected."""
    slice_bytes: int = 0
    """Write in pieces of that size."""
    corrupt_up_every_bytes: int = 0
    corrupt_down_every_bytes: int = 0
    """About one flipped bit in that many bytes, at random positions."""
    cut_after_bytes: int = 0
    """The next longer answer is cut after that many bytes, and its connection is closed."""
    cuts: int = 1
    """Number of answers to cut."""
    cut_by_fin: bool = False
    """Close with FIN instead of RST."""
    repeats: int = 0
    """Number of following answers (up to 64 KB) to send twice."""

    @property
    def delay_ms(self) -> float:
        """Round-trip delay."""
        return self.delay_up_ms + self.delay_down_ms

    @property
    def sees_answers(self) -> bool:
        return bool(self.cut_after_bytes or self.repeats)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> "Conditions":
        return cls(**{**data, "up": Passage(data["up"]), "down": Passage(data["down"])})


@dataclass(frozen=True)
class _Piece:
    due_s: float
    data: bytes
    ending: str = ""
    """End of the stream after the data: nothing, `fin` or `rst`."""


class _Frames:
    """Finds the frames of Kafka's protocol (a size of 4 bytes, then that many bytes) in a stream of bytes."""

    def __init__(self) -> None:
        self._size = b""
        self._left = 0
        self._total = 0

    def split(self, view: memoryview) -> Iterator[tuple[memoryview, int, int]]:
        """Parts of `view` within one frame, each with the position of its first byte and the frame's length.

        The length includes the 4 bytes of the size and is -1 while the size is unknown.
        """
        at = 0
        while at < len(view):
            if self._left == 0:
                position = len(self._size)
                taken = min(4 - position, len(view) - at)
                self._size += bytes(view[at : at + taken])
                known = len(self._size) == 4
                if known:
                    (self._left,) = _SIZE.unpack(self._size)
                    if not 0 <= self._left <= _LARGEST_FRAME_BYTES:
                        self._left = sys.maxsize  # not Kafka's protocol, or encrypted: there are no visible frames
                    self._total = self._left + 4
                    self._size = b""
                yield view[at : at + taken], position, self._total if known else -1
            else:
                taken = min(self._left, len(view) - at)
                position = self._total - self._left
                self._left -= taken
                yield view[at : at + taken], position, self._total
            at += taken


class _Stream:
    """One direction of one connection."""

    def __init__(self, link: "_Link", source: socket.socket, sink: socket.socket, *, is_down: bool) -> None:
        self._link = link
        self._relay = link.relay
        self._loop = asyncio.get_running_loop()
        self._source = source
        self._sink = sink
        self._is_down = is_down
        self._line: deque[_Piece] = deque()
        self._undelivered = 0
        self._unacknowledged_bytes = 0
        self._filled = asyncio.Event()
        self._room = asyncio.Event()
        self._last_due_s = 0.0
        self._lost = False
        self._frames = _Frames()
        self._answer = bytearray()
        self._flip_in = 0
        self._every = 0

    async def carry(self) -> None:
        """Read until the end of the stream; `deliver` writes delayed pieces."""
        view = memoryview(bytearray(_BUFFER_BYTES))
        while True:
            count = await self._loop.sock_recv_into(self._source, view[: await self._readable()])
            while self._passage is Passage.HOLD:
                await self._relay.changed()
            if self._passage is Passage.SWALLOW:
                self._lost = True
            if count == 0:
                break
            self._relay.count(self._is_down, count)
            if not self._lost:
                await self._pass(view[:count])
        while self._passage is not Passage.PASS:
            await self._relay.changed()
        await self._put(b"", "rst" if self._lost else "fin")
        while self._undelivered:
            self._room.clear()
            await self._room.wait()

    async def deliver(self) -> None:
        """Write delayed pieces when they are due."""
        while True:
            while not self._line:
                self._filled.clear()
                await self._filled.wait()
            piece = self._line.popleft()
            wait_s = piece.due_s - self._loop.time()
            if wait_s > 0:
                await asyncio.sleep(wait_s)
            while self._passage is Passage.HOLD:
                await self._relay.changed()
            await self._write(memoryview(piece.data), piece.ending)
            self._undelivered -= 1
            # The acknowledgement of delivered bytes is still on its way: the window is full until it arrives.
            back_s = self._back_ms / 1000
            if back_s:
                self._loop.call_later(back_s, self._acknowledge, len(piece.data))
            else:
                self._acknowledge(len(piece.data))

    async def _readable(self) -> int:
        """Wait for space in the window; returns how many bytes may be read."""
        while True:
            conditions = self._relay.conditions
            room = conditions.window_bytes - self._unacknowledged_bytes
            if not self._unacknowledged_bytes or room > 0:
                break
            self._room.clear()
            await self._room.wait()
        rate = self._rate
        if not conditions.delay_ms and not rate and not conditions.jitter_ms and not conditions.loss:
            return _BUFFER_BYTES
        largest = max(1, int(rate / 50)) if rate else _BUFFER_BYTES
        return max(1, min(room, largest, _BUFFER_BYTES))

    def _acknowledge(self, count: int) -> None:
        self._unacknowledged_bytes -= count
        self._room.set()

    async def _pass(self, view: memoryview) -> None:
        self._flip(view)
        if not self._is_down:
            await self._put(view)
            return
        if not self._relay.conditions.sees_answers:
            for _ in self._frames.split(view):
                pass  # keeps track of frame boundaries, in case a later condition needs them
            self._answer.clear()
            await self._put(view)
            return
        for part, position, total in self._frames.split(view):
            cut = self._relay.conditions.cut_after_bytes
            if cut and position + len(part) > cut and total > cut and self._relay.take("cuts"):
                await self._put(part[: max(0, cut - position)], "fin" if self._relay.conditions.cut_by_fin else "rst")
                self._lost = True
                return
            await self._put(part)
            await self._repeat(part, position, total)

    async def _repeat(self, part: memoryview, position: int, total: int) -> None:
        if position == 0:
            self._answer.clear()
        if len(self._answer) != position or total > _REPEATABLE_BYTES:
            return  # the beginning of the answer was not seen
        self._answer += part
        if len(self._answer) == total and self._relay.take("repeats"):
            await self._put(memoryview(bytes(self._answer)))

    async def _put(self, view: memoryview | bytes, ending: str = "") -> None:
        due_s = self._due_s(len(view))
        if not self._undelivered and due_s <= self._loop.time():
            await self._write(memoryview(view), ending)
            return
        self._undelivered += 1
        self._unacknowledged_bytes += len(view)
        self._line.append(_Piece(due_s, bytes(view), ending))
        self._filled.set()

    def _due_s(self, count: int) -> float:
        conditions, now_s = self._relay.conditions, self._loop.time()
        delay_ms = conditions.delay_down_ms if self._is_down else conditions.delay_up_ms
        if conditions.jitter_ms:
            delay_ms += self._relay.random.random() * conditions.jitter_ms
        if conditions.loss and self._relay.random.random() < conditions.loss:
            delay_ms += max(_RETRANSMISSION_MS, 2 * conditions.delay_ms)
        due_s = now_s
        if self._rate:
            due_s = self._relay.take_turn(self._is_down, count / self._rate)
        # In a real network, a connection exists only after a round trip.
        due_s = max(due_s, self._link.open_from_s) + delay_ms / 1000
        self._last_due_s = max(due_s, self._last_due_s)
        return self._last_due_s

    async def _write(self, view: memoryview, ending: str) -> None:
        size = self._relay.conditions.slice_bytes
        if size:
            for at in range(0, len(view), size):
                await self._loop.sock_sendall(self._sink, view[at : at + size])
                await asyncio.sleep(0)
        elif len(view):
            await self._loop.sock_sendall(self._sink, view)
        if ending == "fin":
            self._sink.shutdown(socket.SHUT_WR)
        elif ending == "rst":
            raise ConnectionResetError("ordered")

    def _flip(self, view: memoryview) -> None:
        conditions = self._relay.conditions
        every = conditions.corrupt_down_every_bytes if self._is_down else conditions.corrupt_up_every_bytes
        if every != self._every:
            self._every = every
            self._flip_in = self._relay.random.randrange(2 * every) if every else 0
        if not every:
            return
        at = self._flip_in
        while at < len(view):
            view[at] ^= 1 << self._relay.random.randrange(8)
            self._relay.flipped += 1
            at += 1 + self._relay.random.randrange(2 * every)
        self._flip_in = at - len(view)

    @property
    def _passage(self) -> Passage:
        return self._relay.conditions.down if self._is_down else self._relay.conditions.up

    @property
    def _rate(self) -> float:
        return self._relay.conditions.rate_down_bytes_s if self._is_down else self._relay.conditions.rate_up_bytes_s

    @property
    def _back_ms(self) -> float:
        return self._relay.conditions.delay_up_ms if self._is_down else self._relay.conditions.delay_down_ms


class _Link:
    """A client's connection and its upstream connection."""

    def __init__(self, relay: "Relay", client: socket.socket) -> None:
        self.relay = relay
        self.open_from_s = asyncio.get_running_loop().time() + relay.conditions.delay_ms / 1000
        self._client = client
        self._upstream = socket.socket()

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        streams: list[asyncio.Task[None]] = []
        try:
            for sock in (self._client, self._upstream):
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            await loop.sock_connect(self._upstream, self.relay.upstream)
            up = _Stream(self, self._client, self._upstream, is_down=False)
            down = _Stream(self, self._upstream, self._client, is_down=True)
            streams = [loop.create_task(work) for work in (up.carry(), down.carry(), up.deliver(), down.deliver())]
            await _both_ended(*streams)
        except OSError:
            for sock in (self._client, self._upstream):
                with suppress(OSError):
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        except asyncio.CancelledError:  # the command `reset`
            for sock in (self._client, self._upstream):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
        finally:
            for stream in streams:
                stream.cancel()
            if streams:
                await asyncio.gather(*streams, return_exceptions=True)
            self._client.close()
            self._upstream.close()


async def _both_ended(up: "asyncio.Task[None]", down: "asyncio.Task[None]", *deliveries: "asyncio.Task[None]") -> None:
    """Return when both directions have ended; raise when one of the tasks fails."""
    waiting = {up, down}
    while waiting:
        done, _ = await asyncio.wait({*waiting, *deliveries}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        waiting -= done


class Relay:
    """All connections, the listener and the current conditions."""

    def __init__(self, listen: tuple[str, int], upstream: tuple[str, int], seed: int) -> None:
        self.conditions = Conditions()
        self.upstream = upstream
        self.random = random.Random(seed)
        self.flipped = 0
        self._listen = listen
        self._listener: asyncio.Task[None] | None = None
        self._links: set[asyncio.Task[None]] = set()
        self._changed = asyncio.Event()
        self._accepted = 0
        self._bytes = {False: 0, True: 0}
        self._turns_s = {False: 0.0, True: 0.0}
        self._left = {"cuts": 0, "repeats": 0}
        self._taken = {"cuts": 0, "repeats": 0}

    def open(self) -> None:
        """Listen. Raises OSError when the port is in use."""
        if self._listener is None:
            sock = socket.create_server(self._listen, backlog=_BACKLOG)
            sock.setblocking(False)
            self._listener = asyncio.get_running_loop().create_task(self._accept(sock))

    async def execute(self, order: dict[str, Any]) -> dict[str, Any]:
        if order["do"] == "set":
            await self._set(Conditions.from_json(order["conditions"]))
        elif order["do"] == "reset":
            links = list(self._links)
            for link in links:
                link.cancel()
            await asyncio.gather(*links, return_exceptions=True)
            return {"reset": len(links)}
        return {
            "open": len(self._links),
            "accepted": self._accepted,
            "bytes_up": self._bytes[False],
            "bytes_down": self._bytes[True],
            "flipped": self.flipped,
            "cut": self._taken["cuts"],
            "repeated": self._taken["repeats"],
        }

    async def changed(self) -> None:
        """Wait for a change of the conditions."""
        await self._changed.wait()

    def count(self, is_down: bool, count: int) -> None:
        self._bytes[is_down] += count

    def take(self, what: str) -> bool:
        """Take one of a limited number of cuts or repeats; False when none is left."""
        if not self._left[what]:
            return False
        self._left[what] -= 1
        self._taken[what] += 1
        return True

    def take_turn(self, is_down: bool, lasts_s: float) -> float:
        """The time at which bytes that take `lasts_s` have been sent on the line, which all connections share."""
        begin_s = max(self._turns_s[is_down], asyncio.get_running_loop().time())
        self._turns_s[is_down] = begin_s + lasts_s
        return self._turns_s[is_down]

    async def _set(self, conditions: Conditions) -> None:
        self.conditions = conditions
        self._left = {"cuts": conditions.cuts if conditions.cut_after_bytes else 0, "repeats": conditions.repeats}
        if conditions.refuse:
            if self._listener is not None:
                self._listener.cancel()
                await asyncio.gather(self._listener, return_exceptions=True)
                self._listener = None
        else:
            self.open()
        self._changed.set()
        self._changed = asyncio.Event()

    async def _accept(self, listener: socket.socket) -> None:
        loop = asyncio.get_running_loop()
        try:
            while True:
                client, _ = await loop.sock_accept(listener)
                self._accepted += 1
                link = loop.create_task(_Link(self, client).run())
                self._links.add(link)
                link.add_done_callback(self._links.discard)
        finally:
            listener.close()


async def _serve(listen: tuple[str, int], upstream: tuple[str, int], control: str, seed: int) -> None:
    relay = Relay(listen, upstream, seed)
    relay.open()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while line := await reader.readline():
                writer.write(json.dumps(await relay.execute(json.loads(line))).encode() + b"\n")
                await writer.drain()
        writer.close()

    server = await asyncio.start_unix_server(serve, "\0" + control)
    await server.serve_forever()


def _address(text: str) -> tuple[str, int]:
    host, port = text.rsplit(":", 1)
    return host, int(port)


if __name__ == "__main__":
    asyncio.run(_serve(_address(sys.argv[1]), _address(sys.argv[2]), sys.argv[3], int(sys.argv[4])))
