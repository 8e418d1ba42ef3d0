"""The Python daemon that Spark starts."""

from __future__ import annotations

import socket

import pytest

from mm2.copy.executor import daemon


def test_a_worker_that_cannot_answer_ends_without_a_stack_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    def flush(sock: socket.socket, _authenticated: bool) -> int:
        sock.sendall(bytes(1 << 20))
        return 0

    ours, theirs = socket.socketpair()
    theirs.close()
    monkeypatch.setattr(daemon, "_worker", flush)
    with ours:
        assert daemon.worker(ours, True) == 1
