"""Commits the offsets of all source tasks of a worker, each every ``offset.flush.interval.ms`` (SourceTaskOffsetCommitter)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import structlog

from mm2.connect.runtime.tasks.source import AbstractWorkerSourceTask
from mm2.connect.stores.config_state import ConnectorTaskId

log = structlog.get_logger(__name__)


class SourceTaskOffsetCommitter:
    """One thread for all tasks, so that commits of a worker are spread out. ``tasks`` returns the current tasks."""

    def __init__(
        self,
        interval_ms: int,
        tasks: Callable[[], Mapping[ConnectorTaskId, AbstractWorkerSourceTask]],
        log_context: Mapping[str, str],
    ) -> None:
        self._interval_s = interval_ms / 1000
        self._tasks = tasks
        self._log_context = log_context
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="source-offset-commits", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Stop the thread; a commit in progress has ``timeout_s`` to complete."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    def _run(self) -> None:
        structlog.contextvars.bind_contextvars(**self._log_context)
        due: dict[int, float] = {}
        while not self._stopping.wait(min(1.0, self._interval_s / 4)):
            tasks = list(self._tasks().values())
            now = time.monotonic()
            # By instance: a restarted task is a new one.
            due = {id(task): due.get(id(task), now + self._interval_s) for task in tasks}
            for task in tasks:
                if now >= due[id(task)] and task.is_polling and not self._stopping.is_set():
                    self._commit(task)
                    due[id(task)] = time.monotonic() + self._interval_s

    @staticmethod
    def _commit(task: AbstractWorkerSourceTask) -> None:
        try:
            task.commit_offsets()
        except Exception:
            log.exception("unhandled error when committing offsets", task_id=str(task.id))
