"""Ports for brokers that keep them across restarts."""

import random
import socket

# Below Linux's range for outgoing connections (32768 and up), so that no client socket takes the port of a broker that
# is restarting.
_RANGE = range(20000, 32000)


def free_ports(count: int) -> list[int]:
    """`count` different free TCP ports of 127.0.0.1, chosen at random so that parallel runs differ."""
    held: list[socket.socket] = []
    try:
        for port in random.sample(_RANGE, len(_RANGE)):
            candidate = socket.socket()
            held.append(candidate)  # kept open until all are found, so that no port is returned twice
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
