"""The share of WebSockets in the connections of a process.

A WebSocket is never idle for the limits of connections, so one client could hold all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from mm2.connect.rest.access.principal import Principal

#: A quarter of the connections.
SHARE = 4

T = TypeVar("T")


def oldest_of_greediest(held: Mapping[T, Principal]) -> T:
    """The first of those that the client with the most of them holds; ``held`` has the oldest first."""
    ((greedy, _),) = Counter(held.values()).most_common(1)
    return next(one for one, principal in held.items() if principal == greedy)


class WebSockets:
    """The open WebSockets, at most ``limit``. At the limit, the client with the most of them loses its oldest one."""

    def __init__(self, limit: int = sys.maxsize) -> None:
        self._limit = limit
        #: Oldest first.
        self._open: dict[asyncio.Timeout, Principal] = {}

    async def run(self, principal: Principal, call: Callable[[], Awaitable[object]]) -> None:
        """Serve one WebSocket of a client until it ends, or until it is closed for another one."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as own:
                self._open[own] = principal
                try:
                    if len(self._open) > self._limit:
                        self._close_one()
                    await call()
                finally:
                    self._open.pop(own, None)

    def _close_one(self) -> None:
        oldest = oldest_of_greediest(self._open)
        del self._open[oldest]
        oldest.reschedule(asyncio.get_running_loop().time())
