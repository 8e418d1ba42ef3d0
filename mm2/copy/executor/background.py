"""Coroutines that run beside the copying of a micro-batch. An error in one of them ends the micro-batch."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from mm2.copy.executor.link import DriverLink


class BackgroundTasks:
    """Keeps a reference to each task until it has ended, because the event loop keeps only weak ones."""

    def __init__(self, link: DriverLink) -> None:
        self._link = link
        self._running: set[asyncio.Task[None]] = set()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine."""
        task = asyncio.get_running_loop().create_task(work)
        self._running.add(task)
        task.add_done_callback(self._on_done)

    def _on_done(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._link.fail(error)
