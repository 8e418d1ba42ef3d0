"""Ports for brokers that keep them across restarts."""

import errno
import fcntl
import functools
import os
import random
import socket
from typing import Final

from mm2.sandbox.jars import cache_folder

# Below Linux's range for outgoing connections (32768 and up), so that no client socket takes the port of a broker that
# is restarting.
_RANGE: Final = range(20000, 32000)
_reserved: set[int] = set()


def free_ports(count: int) -> list[int]:
    """`count` different free TCP ports of 127.0.0.1, chosen at random.

    They are reserved until this process ends: a broker opens its port seconds later, and again after a restart.
    Meanwhile no other process gets it from this function. Raises OSError.
    """
    found: list[int] = []
    for port in random.sample(_RANGE, len(_RANGE)):
        if port not in _reserved and _reserve(port) and _is_free(port):
            found.append(port)
            if len(found) == count:
                return found
    raise OSError(f"no {count} free ports between {_RANGE.start} and {_RANGE.stop} on 127.0.0.1")


def _is_free(port: int) -> bool:
    with socket.socket() as candidate:
        try:
            candidate.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _reserve(port: int) -> bool:
    """Reserve a port for this process; False when another process has it."""
    try:
        fcntl.lockf(_lock_file(os.getpid()), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError as error:
        if error.errno in {errno.EACCES, errno.EAGAIN}:
            return False
        raise
    _reserved.add(port)
    return True


@functools.cache
def _lock_file(_process: int) -> int:
    """A file of which each byte stands for a port. A child process does not inherit the locks of its parent."""
    path = cache_folder() / "ports.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
