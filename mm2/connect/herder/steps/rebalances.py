"""The effect of a rebalance on this worker: assigned work, revoked work, and when work may start."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Final

import structlog

from mm2.connect.group.membership import GroupMember
from mm2.connect.group.protocol import URL_NOT_USED, WorkerAssignment
from mm2.connect.herder.lifecycle import Starts, StatusReports
from mm2.connect.herder.request_queue import NEVER, StageTracker
from mm2.connect.herder.steps.config_view import ConfigView
from mm2.connect.herder.steps.fencing import LeaderPrivileges
from mm2.connect.runtime.counters import RebalanceCounters
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.config_store import ConfigStore
from mm2.connect.stores.status_store import StatusStore

log = structlog.get_logger("mm2.connect.herder.rebalances")

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
        self.stages = stages
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
        with self.stages.during(stage):
            done, _ = wait([self._pool.submit(job) for job in jobs])
            for future in done:
                future.result()

    def revoke(self, connectors: Collection[str], tasks: Collection[ConnectorTaskId]) -> None:
        """Stop this work permanently: when this returns it has stopped or is cancelled."""
        with self.stages.during(f"stopping {len(connectors)} revoked connector(s) and {len(tasks)} task(s)"):
            self._worker.stop_connectors(connectors)
            self._worker.stop_tasks(tasks)
        self.connectors.difference_update(connectors)
        self.tasks.difference_update(tasks)

    def stop_reconfigured(self, tasks: Collection[ConnectorTaskId]) -> None:
        """Stop tasks that have newer configurations; the next assignment that contains them starts them again."""
        if not tasks:
            return
        with self.stages.during(f"stopping {len(tasks)} reconfigured tasks"):
            log.info("task configs changed, tasks restart after the rebalance", tasks=[str(t) for t in tasks])
            self._worker.stop_tasks(tasks)
        self._to_restart.update(tasks)

    def close(self) -> None:
        """Do not start any more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


_STATUS_FLUSH_S: Final = 5.0


class Rebalances:
    """The worker's assignment as of the last rebalance, and the tick's part in it.

    Written by the herder's thread only. ``on_started`` is called when the work of an assignment runs, ``on_leading``
    when this worker has become the leader.
    """

    def __init__(
        self,
        member: GroupMember,
        view: ConfigView,
        work: AssignedWork,
        reports: StatusReports,
        privileges: LeaderPrivileges,
        config_store: ConfigStore,
        status_store: StatusStore,
        *,
        on_started: Callable[[], None],
        on_leading: Callable[[], None],
    ) -> None:
        self._member = member
        self._view = view
        self._work = work
        self._reports = reports
        self._privileges = privileges
        self._config_store = config_store
        self._status_store = status_store
        self._on_started = on_started
        self._on_leading = on_leading

        self.assignment: WorkerAssignment | None = None
        #: Generation of the group, -1 before the first rebalance.
        self.generation = -1
        #: Rebalances of this worker.
        self.counters = RebalanceCounters()
        self._resolved = True
        self._scheduled_s = NEVER
        self._led_as = ""
        self._signed: bool | None = None

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the group's leader."""
        assignment = self.assignment
        return assignment is not None and bool(assignment.leader) and assignment.leader == self._member.member_id

    @property
    def leader_url(self) -> str | None:
        """REST URL of the leader, None when it is unknown."""
        url = "" if self.assignment is None else self.assignment.leader_url
        return None if url in {"", URL_NOT_USED} else url

    def owns(self, work: str | ConnectorTaskId) -> bool:
        """Whether a connector or a task is assigned to this worker."""
        assignment = self.assignment
        if assignment is None:
            return False
        return work in (assignment.connectors if isinstance(work, str) else assignment.tasks)

    # -- RebalanceListener

    def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        """See WorkerRebalanceListener. Work starts later, in `complete`, because starting may take time."""
        log.info(
            "assigned",
            generation=generation,
            connectors=list(assignment.connectors),
            tasks=[str(task) for task in assignment.tasks],
            revoked=[*assignment.revoked_connectors, *map(str, assignment.revoked_tasks)],
            delay_ms=assignment.delay_ms,
            failed=assignment.failed,
        )
        self._note_protocol()
        self.counters.begin()
        self.assignment = assignment
        self.generation = generation
        self._scheduled_s = time.monotonic() + assignment.delay_ms / 1000 if assignment.delay_ms > 0 else NEVER
        self._resolved = False
        if self.is_leader:
            if not assignment.failed:  # otherwise other workers may run what this one has not read yet
                self._reports.clean_up(self._config_store.snapshot())
            self._privileges.claim()

    def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[ConnectorTaskId]) -> None:
        """See WorkerRebalanceListener. When this returns, everything has stopped or is cancelled."""
        log.info("revoked", connectors=list(connectors), tasks=[str(task) for task in tasks])
        self._work.revoke(connectors, tasks)
        configured = self._config_store.snapshot().connectors()
        self._reports.forget_topics({*connectors, *(task.connector for task in tasks)} - configured)
        # Statuses written before the rebalance must not arrive after those written after it.
        with self._work.stages.during("flushing updates to the status topic"):
            self._status_store.flush(_STATUS_FLUSH_S)

    def _note_protocol(self) -> None:
        before, self._signed = self._signed, self._member.signs_requests
        if before is None or before == self._signed:
            return
        if self._signed:
            log.info("internal requests between workers are now signed and verified")
        else:
            log.warning(
                "the group's protocol was downgraded, probably since a worker with an older connect.protocol has joined; "
                "internal requests between workers are no longer checked (KIP-507)",
                version=self._member.protocol_version,
            )

    # -- the tick's part

    def due_s(self) -> float:
        """Monotonic time of the scheduled rebalance, or `NEVER`; the tick then checks the assignment again."""
        if self._scheduled_s < NEVER:
            self._resolved = False
        return self._scheduled_s

    def complete(self) -> bool:
        """Catch up with the configs that the assignment is based on, then start new work. False: rejoin first."""
        if self._resolved:
            return True
        assignment = self.assignment
        if assignment is None:
            return False
        behind = self._view.configs.offset < assignment.config_offset
        rejoin = assignment.failed
        read = behind or (assignment.failed and self.is_leader)
        if self._scheduled_s <= time.monotonic():
            log.info("the scheduled rebalance is due")
            rejoin = True
            self._scheduled_s = NEVER
        if read and not self._view.read_to_end():
            self._view.doubt()
            rejoin = True
        if rejoin:
            self._member.request_rejoin("the assignment cannot be used" if assignment.failed else "rebalance due")
            return False
        offset = self._view.configs.offset
        if offset != assignment.config_offset:
            log.info(
                "config offset is ahead of the assignment's",
                config_offset=offset,
                assignment_offset=assignment.config_offset,
            )
            self._member.request_rejoin("config offsets differ")
            return False
        self._work.start(assignment, eager=self._member.protocol_version == 0)
        self._on_started()
        self.counters.end()
        self._resolved = True
        self.announce_leadership()
        if self._member.clear_revocations():
            # Second step of cooperative rebalancing: revoked work can now be reassigned.
            self._member.request_rejoin("work was revoked")
            return False
        return True

    def announce_leadership(self) -> None:
        """Call ``on_leading`` if this worker has become the leader under its current member id."""
        # By member id: a leader that left the group and leads again may have missed its duties meanwhile.
        led_as, self._led_as = self._led_as, self._member.member_id if self.is_leader else ""
        if self._led_as not in {"", led_as}:
            log.info("this worker is now the leader")
            self._on_leading()
