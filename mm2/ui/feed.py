"""Takes one snapshot per second for all clients."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Final

import structlog
from nicegui import Client

from mm2.observer.views import Snapshot
from mm2.ui.heartbeats import Heartbeats
from mm2.ui.source import PageData

log = structlog.get_logger(__name__)

PERIOD_S: Final = 1.0
#: After the last page was closed: a client that returns within this time sees curves without a gap.
IDLE_S: Final = 600.0


class UpdateStream:
    """Runs on the event loop of the REST server, from the first request until there has been no client for `IDLE_S`."""

    snapshot: Snapshot

    def __init__(self, source: PageData) -> None:
        self.heartbeats = Heartbeats()
        self._source = source
        self._viewers: dict[Client, Callable[[Snapshot], None]] = {}
        self._active_s = 0.0
        self._starting = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None

    async def ensure_running(self) -> None:
        """Ensure that there is a snapshot, and a new one every second. Raises what the source raises."""
        self._active_s = time.monotonic()
        async with self._starting:
            if self._task is None or self._task.done():
                await self._take()
                self._task = asyncio.create_task(self._run(), name="dashboard-feed")

    def show(self, client: Client, show: Callable[[Snapshot], None]) -> None:
        """Call ``show`` now and for each snapshot while the client's page is open."""
        show(self.snapshot)
        self._viewers[client] = show

        def remove() -> None:
            self._viewers.pop(client, None)

        client.on_delete(remove)

    async def _run(self) -> None:
        while self._viewers or time.monotonic() - self._active_s < IDLE_S:
            began_s = time.monotonic()
            if self._viewers:
                self._active_s = began_s
            try:
                if await self._take():
                    await self._publish()
            except Exception:
                log.exception("dashboard snapshot failed")
            await asyncio.sleep(max(0.1, PERIOD_S - (time.monotonic() - began_s)))

    async def _take(self) -> bool:
        """Take a snapshot; whether it differs from the previous one."""
        snapshot = await asyncio.to_thread(self._source.snapshot)
        if getattr(self, "snapshot", None) is snapshot:
            return False
        self.snapshot = snapshot
        self.heartbeats.add(snapshot)
        return True

    async def _publish(self) -> None:
        for client, show in list(self._viewers.items()):
            if not client.has_socket_connection:
                continue  # not connected yet, or disconnected
            try:
                with client:
                    show(self.snapshot)
            except Exception:
                log.exception("dashboard page update failed")
            await asyncio.sleep(0)  # let other requests run
