"""Spark's Python daemon with the copier imported in advance, so that every forked worker starts with it."""

from __future__ import annotations

import socket
from typing import Final

from pyspark import daemon

import mm2.copy.executor.task  # noqa: F401
from mm2.allocator import collect_less_often

_worker = daemon.worker
_ENDED: Final = 1


def worker(sock: socket.socket, authenticated: bool) -> int:
    """Run a worker until Spark closes the connection; returns its exit code.

    When Spark stops at the same moment as a task ends, its last answer cannot be written. PySpark would print a stack trace.
    """
    try:
        return int(_worker(sock, authenticated))
    except ConnectionError:
        return _ENDED


if __name__ == "__main__":
    collect_less_often()
    daemon.worker = worker
    daemon.manager()
