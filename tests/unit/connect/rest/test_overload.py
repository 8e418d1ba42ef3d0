"""Clients at another address that send too much, too slowly, or open too many connections."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.slow_clients import Attack, withstand

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
