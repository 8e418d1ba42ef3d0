"""Ports for brokers that must keep them through restarts."""

import random
import socket

# Below the range Linux deals to outgoing connections (32768 and up): a broker that is down for a moment, or not yet
# up, cannot lose its port to somebody's client socket.
_RANGE = range(20000, 32000)


def free_ports(count: int) -> list[int]:
    """`count` different TCP ports that nobody listens on at 127.0.0.1, chosen at random so that parallel runs differ."""
    held: list[socket.socket] = []
    try:
        for port in random.sample(_RANGE, len(_RANGE)):
            candidate = socket.socket()
            held.append(candidate)  # kept open until all are found, so that none is dealt twice
            try:
                candidate.bind(("127.0.0.1", port))
            except OSError:
                held.pop().close()
            if len(held) == count:
                return [sock.getsockname()[1] for sock in held]
    finally:
        for sock in held:
            sock.close()
    raise OSError(f"no {count} free ports between {_RANGE.start} and {_RANGE.stop} on 127.0.0.1")
