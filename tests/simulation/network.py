"""Sockets between the product and simulated brokers: bytes in order, delays, resets."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from mm2.kafka.client.stream import Stream
from mm2.kafka.errors import RefusedFailure, TimeoutFailure
from mm2.kafka.settings.client_settings import ClientSettings
from tests.simulation.world import Owner, Waiter, World

if TYPE_CHECKING:
    from tests.simulation.process import Process

Bytes = bytes | bytearray | memoryview
_SLOW_PACKET_S = 0.3  # at most


class Listener(Protocol):
    """The server side of connections: a broker."""

    host: str

    def reachable(self) -> bool:
        """Whether connections are accepted."""

    def hold_s(self) -> float:
        """How long packets are currently delayed."""

    def accept(self, link: Link) -> None:
        """A connection was opened."""

    def received(self, link: Link, data: bytes) -> None:
        """Bytes have arrived."""

    def closed(self, link: Link) -> None:
        """The client has closed its end."""


class Link:
    """One connection. ``socket`` is the client's end."""

    def __init__(self, network: Network, owner: Owner, listener: Listener) -> None:
        self.network = network
        self.owner = owner
        self.listener = listener
        self.socket = Socket(self)
        self.is_open = True
        self.late_s = 0.0  # additional delay of this connection
        self._up_s = 0.0
        self._down_s = 0.0

    def to_broker(self, data: bytes) -> None:
        world = self.network.world
        self._up_s = max(self._up_s, world.now + self.late_s + self.listener.hold_s() + self.network.delay_s())
        world.after(self._up_s - world.now, self.listener.received, self, data)

    def to_client(self, data: bytes) -> None:
        if not self.is_open:
            return
        world = self.network.world
        self._down_s = max(self._down_s, world.now + self.listener.hold_s() + self.network.delay_s())
        world.after(self._down_s - world.now, self.socket.deliver, data)

    def reset(self) -> None:
        """Break the connection for both ends; bytes in flight to the broker still arrive."""
        if self.is_open:
            self.is_open = False
            self.network.world.after(self.network.delay_s(), self.socket.broken)
            self.network.links.discard(self)

    def client_closed(self) -> None:
        if self.is_open:
            self.is_open = False
            self.network.links.discard(self)
            self.network.world.after(self.network.delay_s(), self.listener.closed, self)


class Socket:
    """What `Stream` and `Channel` use of a non-blocking socket."""

    def __init__(self, link: Link) -> None:
        self.link = link
        self._buffer = bytearray()
        self._broken = False
        self._closed = False
        self._number = link.network.number()
        self._waiters: list[Waiter] = []
        self._reader: Callable[[], None] | None = None
        self._told = False

    def fileno(self) -> int:
        if self._closed:
            return -1
        self.link.network.sockets[self._number] = self
        return self._number

    def sendmsg(self, buffers: Iterable[Bytes]) -> int:
        data = b"".join(buffers)
        if self._closed:
            raise OSError(errno.EBADF, "closed")
        if self._broken:
            raise OSError(errno.EPIPE, "broken pipe")
        self.link.network.on_send(self.link, data)
        if self.link.is_open:
            self.link.to_broker(data)
        return len(data)

    def recv_into(self, view: memoryview) -> int:
        if self._closed:
            raise OSError(errno.EBADF, "closed")
        if not self._buffer:
            if self._broken:
                return 0
            raise BlockingIOError
        count = min(len(view), len(self._buffer))
        view[:count] = self._buffer[:count]
        del self._buffer[:count]
        return count

    def recv(self, count: int) -> bytes:
        data = bytearray(count)
        return bytes(data[: self.recv_into(memoryview(data))])

    def shutdown(self, _how: int) -> None:
        self.broken()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self.link.network.sockets.pop(self._number, None)
            self.link.client_closed()
            self._wake()

    # -- for the simulation

    def deliver(self, data: bytes) -> None:
        if not self._broken and not self._closed:
            self._buffer += data
            self._wake()

    def broken(self) -> None:
        self._broken = True
        self._wake()

    @property
    def readable(self) -> bool:
        return bool(self._buffer) or self._broken or self._closed

    def wait(self, timeout_s: float, world: World) -> bool:
        return self.readable or world.block(self._waiters.append, timeout_s) or self.readable

    def watch(self, reader: Callable[[], None] | None) -> None:
        """Call a callback of an event loop while there are bytes to read."""
        self._reader = reader
        if reader is not None and self.readable:
            self._wake()

    def _wake(self) -> None:
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter.wake()
        if self._reader is not None and not self._told:
            self._told = True
            process: Process = self.link.owner  # type: ignore[assignment]
            process.socket_ready(self._read)

    def _read(self) -> None:
        self._told = False
        if self._reader is not None and not self._closed and self.readable:
            self._reader()
            if self._reader is not None and not self._closed and self.readable:
                self._wake()


class SimulatedStream(Stream):
    """A blocking stream over a simulated socket."""

    def __init__(self, socket: Socket, who: str, world: World) -> None:
        self.sock: Any = socket
        self._tls = None
        self._who = who
        self.closed = False
        self._world = world

    def abort(self) -> None:
        self.sock.shutdown(2)

    def _wait(self, events: int, deadline: float) -> bool:
        return bool(self.sock.wait(deadline - self._world.monotonic(), self._world))


class Network:
    """All connections. ``on_send(link, data)`` sees what clients hand to their sockets."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.hosts: dict[str, Listener] = {}
        self.links: set[Link] = set()  # iterated over in the order of their numbers
        self.sockets: dict[int, Socket] = {}
        self.slow = 0.0  # probability that a packet is delayed
        self.on_send: Callable[[Link, bytes], None] = lambda _link, _data: None
        self._numbers = 100

    def number(self) -> int:
        self._numbers += 1
        return self._numbers

    def delay_s(self) -> float:
        random = self.world.random.random
        if self.slow and random() < self.slow:
            return random() * _SLOW_PACKET_S
        return 0.0001 + random() * 0.001

    @property
    def mean_delay_s(self) -> float:
        """The mean of `delay_s`."""
        return self.slow * _SLOW_PACKET_S / 2 + (1 - self.slow) * 0.0006

    def dial(
        self, host: str, port: int, settings: ClientSettings, *, deadline: float, who: str, failures: int = 0
    ) -> Stream:
        """Replaces `mm2.kafka.client.dial.dial`."""
        del port, settings, failures  # a host has one address
        world = self.world
        listener = self.hosts[host]
        wait_s = listener.hold_s() + 2 * self.delay_s()
        left_s = deadline - world.monotonic()
        world.sleep(min(wait_s, max(0.0, left_s)))
        if wait_s >= left_s:
            raise TimeoutFailure(f"The {who} did not accept a connection before the timeout.")
        if not listener.reachable():
            raise RefusedFailure(f"The {who} cannot be reached: no process listens there.")
        link = Link(self, world.owner, listener)
        self.links.add(link)
        listener.accept(link)
        return SimulatedStream(link.socket, who, world)

    def of(self, owner: Owner) -> Sequence[Link]:
        """The open connections of a process, in the order in which they were opened."""
        return sorted((link for link in self.links if link.owner is owner), key=lambda link: link.socket._number)
