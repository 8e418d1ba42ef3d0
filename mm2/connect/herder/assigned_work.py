"""The work that the group has assigned to this worker, and the part of it that has been started."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

import structlog

from mm2.connect.group.protocol import WorkerAssignment
from mm2.connect.herder.stages import StageTracker
from mm2.connect.herder.starts import Starts
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ConnectorTaskId

log = structlog.get_logger(__name__)

_START_THREADS: Final = 8


class AssignedWork:
    """Starts assigned work and stops revoked work, in parallel. On the herder's thread."""

    def __init__(
        self, worker: Worker, starts: Starts, stages: StageTracker, *, name: str, log_context: Mapping[str, str]
    ) -> None:
        self.connectors: set[str] = set()
        self.tasks: set[ConnectorTaskId] = set()
        self._to_restart: set[ConnectorTaskId] = set()
        self._worker = worker
        self._starts = starts
        self._stages = stages
        self._pool = ThreadPoolExecutor(
            _START_THREADS,
            thread_name_prefix=f"start-{name}",
            initializer=lambda: structlog.contextvars.bind_contextvars(**log_context),
        )

    def start(self, assignment: WorkerAssignment, *, eager: bool) -> None:
        """Start assigned work that is not running yet. ``eager``: all of it is revoked before the next assignment."""
        self.tasks -= self._to_restart
        self._to_restart.clear()
        connectors = [name for name in assignment.connectors if name not in self.connectors]
        tasks = [task for task in assignment.tasks if task not in self.tasks]
        number = len(connectors) + len(tasks)
        self.start_all(connectors, tasks, f"starting {number} connector(s) and task(s) after a rebalance")
        self.connectors = set() if eager else set(assignment.connectors)
        self.tasks = set() if eager else set(assignment.tasks)

    def start_all(self, connectors: Iterable[str], tasks: Iterable[ConnectorTaskId], stage: str) -> None:
        """Start this work, and wait until each item has its own thread."""
        jobs: list[Callable[[], object]] = [lambda name=name: self._starts.connector(name) for name in connectors]  # type: ignore[misc]
        jobs += [lambda task=task: self._starts.task(task) for task in tasks]  # type: ignore[misc]
        if not jobs:
            return
        with self._stages.during(stage):
            done, _ = wait([self._pool.submit(job) for job in jobs])
            for future in done:
                future.result()

    def revoke(self, connectors: Collection[str], tasks: Collection[ConnectorTaskId]) -> None:
        """Stop this work permanently: when this returns it has stopped or is cancelled."""
        with self._stages.during(f"stopping {len(connectors)} revoked connector(s) and {len(tasks)} task(s)"):
            self._worker.stop_connectors(connectors)
            self._worker.stop_tasks(tasks)
        self.connectors.difference_update(connectors)
        self.tasks.difference_update(tasks)

    def stop_reconfigured(self, tasks: Collection[ConnectorTaskId]) -> None:
        """Stop tasks that have newer configurations; the next assignment that contains them starts them again."""
        if not tasks:
            return
        with self._stages.during(f"stopping {len(tasks)} reconfigured tasks"):
            log.info("task configs changed, tasks start again after the rebalance", tasks=[str(t) for t in tasks])
            self._worker.stop_tasks(tasks)
        self._to_restart.update(tasks)

    def close(self) -> None:
        """Do not start any more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)
