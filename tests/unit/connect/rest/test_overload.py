"""Clients at another address that send too much, too slowly, or open too many connections."""

from __future__ import annotations

import contextlib
import json
import ssl
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support import certificates
from tests.support.slow_clients import Attack, answers_beside, connect, connected, withstand

MIB = 1024 * 1024
ROOT = Path(__file__).parents[4]


@contextmanager
def server(**props: str) -> Iterator[tuple[int, int]]:
    """Port and process id of a server in a process of its own, whose memory is that of the REST interface."""
    given = json.dumps(props)
    command = [sys.executable, "-m", "tests.unit.connect.rest.serving", given]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=ROOT) as process:
        assert process.stdout is not None
        yield int(process.stdout.readline()), process.pid
        assert process.poll() is None
        process.communicate(timeout=60)


def test_an_attack_neither_keeps_memory_nor_delays_the_health() -> None:
    limits = {"rest.request.max.bytes": 4 * MIB, "rest.bodies.max.bytes": 8 * MIB, "rest.connections.max": 64}
    with server(**{key: str(value) for key, value in limits.items()}) as (port, pid):
        withstand(port, pid, Attack(bodies=40, body_bytes=4 * MIB, connections=300, slow_s=1.0).run, connections=48)


@pytest.mark.slow
def test_an_attack_on_the_default_limits_neither_keeps_memory_nor_delays_the_health() -> None:
    with server() as (port, pid):
        withstand(port, pid, Attack(bodies=40, body_bytes=16 * MIB, connections=1500, slow_s=60.0).run, connections=300)


def test_slow_handshakes_and_requests_of_a_client_do_not_delay_others_with_tls(tmp_path: Path) -> None:
    """500 connections that never end their handshake, then 500 that send their request byte by byte; pages have the same listener."""
    trusted, _ = certificates.serving(tmp_path)
    keys = {"ssl.keystore.type": "PEM", "ssl.keystore.location": str(tmp_path / "server.pem")}
    context = ssl.create_default_context(cafile=trusted)

    def attack(port: int) -> None:
        hello = ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(ssl.MemoryBIO(), hello, server_hostname="127.0.0.1").do_handshake()
        first = hello.read()
        with connected(port, 500) as half:
            for sock in half:
                with contextlib.suppress(OSError):
                    sock.sendall(first[: len(first) // 2])
            for sock in half:
                with contextlib.suppress(OSError):
                    sock.sendall(first[len(first) // 2 : -1])
        slow = []
        with contextlib.ExitStack() as stack:
            for _ in range(500):
                with contextlib.suppress(OSError):
                    sock = stack.enter_context(connect(port))
                    slow.append(stack.enter_context(context.wrap_socket(sock, server_hostname="127.0.0.1")))
            assert len(slow) > 300
            for byte in b"GET /connectors":
                for tls in slow:
                    with contextlib.suppress(OSError):
                        tls.sendall(bytes((byte,)))

    listener = {f"listeners.https.{key}": value for key, value in keys.items()}
    with server(listeners="https://127.0.0.1:0", **listener) as (port, _):
        answers_beside(port, context, attack, 2.0)
