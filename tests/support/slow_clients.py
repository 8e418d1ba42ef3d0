"""Clients that are slow, silent or too many, from an address of their own, and the health that others see meanwhile."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.support.waiting import PATIENCE, wait_until

#: Another address of this machine, which counts as another client.
OTHER_ADDRESS = "127.0.0.2"
TIMEOUT_S = 60.0
#: What may stay after an attack of more than 160 MiB: after each of six attacks the allocator held 11 to 22 MiB more than before the first.
_KEPT_KB: Final = 40 << 10
#: Rejected and closed connections are expected.
_REJECTED = contextlib.suppress(OSError)


def connect(port: int, address: str = OTHER_ADDRESS) -> socket.socket:
    return socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S, source_address=(address, 0))


@contextlib.contextmanager
def connected(port: int, count: int = 1, address: str = OTHER_ADDRESS) -> Iterator[list[socket.socket]]:
    """So many connections, closed at the end."""
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(connect(port, address)) for _ in range(count)]


def everything(sock: socket.socket) -> bytes:
    """What the server still sends, until it closes the connection."""
    received = b""
    with contextlib.suppress(ConnectionResetError, BrokenPipeError):
        while part := sock.recv(65536):
            received += part
    return received


def is_closed(sock: socket.socket) -> bool:
    """Whether the server has closed it, without waiting."""
    sock.setblocking(False)
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
    finally:
        sock.settimeout(TIMEOUT_S)


def head(method: str, path: str, length: int, *more: str) -> bytes:
    """The header of a request with a JSON body."""
    lines = [f"{method} {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *more]
    return "\r\n".join([*lines, f"Content-Length: {length}", "", ""]).encode()


@dataclass(frozen=True)
class Attack:
    """How much an unauthenticated client sends."""

    bodies: int
    body_bytes: int
    connections: int
    #: Time in which headers and bodies trickle.
    slow_s: float

    def run(self, port: int) -> None:
        """Unfinished bodies, then connections with unfinished headers, then both byte by byte."""
        with connected(port, self.bodies) as large:
            for sock in large:
                sock.settimeout(2.0)
                with _REJECTED:
                    sock.sendall(head("POST", "/connectors", self.body_bytes) + b" " * (self.body_bytes - 1))
        with connected(port, self.connections) as many:
            for sock in many:
                with _REJECTED:
                    sock.sendall(b"GET /connectors HTTP/1.1\r\nHost: ")
        end_s = time.monotonic() + self.slow_s
        with connected(port, 20) as headers, connected(port, 20) as bodies:
            for sock in bodies:
                with _REJECTED:
                    sock.sendall(head("POST", "/connectors", self.body_bytes))
            while time.monotonic() < end_s:
                for sock in [*headers, *bodies]:
                    with _REJECTED:
                        sock.sendall(b"G")
                time.sleep(0.1)


@dataclass
class HealthProbe:
    """Asks for a path from the first address of this machine until the end of its context."""

    port: int
    path: str = "/health"
    #: None: without TLS.
    context: ssl.SSLContext | None = None
    statuses: list[int] = field(default_factory=list)
    took_s: list[float] = field(default_factory=list)
    _stopping: threading.Event = field(default_factory=threading.Event)

    def ask(self) -> None:
        began_s = time.monotonic()
        if self.context is None:
            connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=TIMEOUT_S)
        else:
            connection = http.client.HTTPSConnection("127.0.0.1", self.port, timeout=TIMEOUT_S, context=self.context)
        try:
            connection.request("GET", self.path)
            self.statuses.append(connection.getresponse().status)
        finally:
            connection.close()
        self.took_s.append(time.monotonic() - began_s)

    @property
    def slowest_s(self) -> float:
        return max(self.took_s)

    @property
    def median_s(self) -> float:
        return statistics.median(self.took_s)

    @contextlib.contextmanager
    def asking(self) -> Iterator[None]:
        thread = threading.Thread(target=self._run, name="health-probe")
        thread.start()
        try:
            yield
        finally:
            self._stopping.set()
            thread.join()

    def _run(self) -> None:
        while not self._stopping.wait(0.02):
            self.ask()


@contextlib.contextmanager
def idle_server() -> Iterator[int]:
    """The port of a process that has nothing to do but answer ``GET /``: how slow it is shows how busy the machine is."""
    program = [sys.executable, "-u", "-m", "http.server", "--bind", "127.0.0.1", "0"]
    with (
        tempfile.TemporaryDirectory() as folder,
        subprocess.Popen(program, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process,
    ):
        try:
            assert process.stdout is not None
            yield int(process.stdout.readline().split(" port ")[1].split()[0])
        finally:
            process.kill()


def resident_kb(pid: int) -> int:
    """The resident memory of a process."""
    (line,) = (one for one in Path(f"/proc/{pid}/status").read_text().splitlines() if one.startswith("VmRSS:"))
    return int(line.split()[1])


def answers_beside(port: int, context: ssl.SSLContext | None, attack: Callable[[int], None], within_s: float) -> None:
    """Assert that ``/health`` answers in this time during an attack.

    Half of the answers do, counted from where another process of this machine, which is not attacked, would have answered: other
    tests run beside this one and suspend any of the three processes for seconds. ``attack`` is called with the port of the server.
    """
    probe = HealthProbe(port, context=context)
    with idle_server() as idle_port:
        beside = HealthProbe(idle_port, "/")
        with beside.asking(), probe.asking():
            attack(port)
    assert set(probe.statuses) == set(beside.statuses) == {200}
    within_s = within_s * PATIENCE + beside.median_s
    assert probe.median_s < within_s, f"{probe.took_s}, {beside.took_s} of an idle process"


def withstand(port: int, pid: int, attack: Callable[[int], None], connections: int) -> None:
    """Assert that ``/health`` answers within a second during an attack, and that the memory is returned afterwards.

    ``attack`` is called with the port of the server, ``pid`` is its process.
    ``connections`` is the limit of one address. The memory of that many connections, and of what is loaded for the first
    slow client, is normal operation.
    """
    Attack(bodies=2, body_bytes=100_000, connections=connections, slow_s=0.2).run(port)
    for count in (connections, 1):
        with connected(port, count) as usual:
            for sock in usual:
                sock.sendall(head("POST", "/connectors", 100_000) + b" " * 100_000)
                sock.recv(4096)
    before_kb = resident_kb(pid)
    answers_beside(port, None, attack, 1.0)
    wait_until(
        lambda: resident_kb(pid) < before_kb + _KEPT_KB,
        20,
        detail=lambda: f"{before_kb} kB before, {resident_kb(pid)} after",
    )
