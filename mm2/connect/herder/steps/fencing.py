"""Exactly-once source support of the herder (KIP-618): write privileges, zombie fencing and ownership of tasks.

Once tasks of a new generation run, no task of an older one can write. Only the leader fences, and with exactly-once
support only one worker can write to the config topic as the leader. Tasks that are about to start request a round: on
the leader directly, on other workers through its REST interface, ``PUT /connectors/{connector}/fence``. In a group
without REST (MirrorMaker's dedicated mode) the leader begins a round after every rebalance, and the other members wait
until the config topic shows that it is complete.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from dataclasses import dataclass
from typing import Final, Protocol

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.errors import BadRequest, NotFound, NotLeader
from mm2.connect.herder.answers import ConnectorInfo, ConnectorType
from mm2.connect.herder.internal_requests import RequestRefused
from mm2.connect.herder.reconfiguration import backoff_s
from mm2.connect.herder.request_queue import StagedFuture, StageTracker, Steps
from mm2.connect.herder.steps.config_view import ConfigView
from mm2.connect.request_signing import SessionKey
from mm2.connect.runtime.tasks import OwnershipGuard
from mm2.connect.runtime.worker import FENCING_S, Worker
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId, Props, RestartRequest, TargetState
from mm2.connect.stores.config_store import ConfigStore, PrivilegedWriteError
from mm2.kafka.errors import KafkaFailure

log = structlog.get_logger("mm2.connect.herder.fencing")

_CLAIM_RETRY_S: Final = 0.25


class LeaderPrivileges:
    """Writes as the leader, and reclaims the right to do so after being fenced. Herder's thread.

    The writes raise ConnectError. If another worker has fenced this one, `fenced` is set, and the next tick calls
    `reclaim`.
    """

    def __init__(self, store: ConfigStore, stages: StageTracker, stopping: threading.Event) -> None:
        self._store = store
        self._stages = stages
        self._stopping = stopping
        self.fenced = False
        self._unclaimed_reason = ""  # logged last, if the privileges are not claimed

    def put_connector_config(self, name: str, config: Props, target_state: TargetState | None) -> None:
        """Create or replace a connector."""
        self._write(
            f"writing a config for connector {name} to the config topic",
            lambda: self._store.put_connector_config(name, config, target_state),
        )

    def remove_connector_config(self, name: str) -> None:
        """Delete a connector and its tasks."""
        self._write(
            f"removing the config for connector {name} from the config topic",
            lambda: self._store.remove_connector_config(name),
        )

    def put_task_configs(self, name: str, configs: Sequence[Props]) -> None:
        """Replace the task configs of a connector. Raises BadRequest for tasks of a stopped connector."""
        if configs and self._store.snapshot().target_state(name) is TargetState.STOPPED:
            raise BadRequest(f"Cannot submit non-empty set of task configs for stopped connector {name}")
        self._write(
            f"writing {len(configs)} task configs for connector {name} to the config topic",
            lambda: self._store.put_task_configs(name, configs),
        )

    def put_task_count(self, name: str, count: int) -> None:
        """Record that older tasks of a connector are fenced and ``count`` newer ones may run."""
        self._write(
            f"writing a task count record for connector {name} to the config topic",
            lambda: self._store.put_task_count(name, count),
        )

    def put_restart_request(self, request: RestartRequest) -> None:
        """Request all workers to restart parts of a connector."""
        self._write(
            f"writing restart request for connector {request.connector} to the config topic",
            lambda: self._store.put_restart_request(request),
        )

    def put_session_key(self, key: SessionKey) -> None:
        """Distribute a new key."""
        self._write("writing a new session key to the config topic", lambda: self._store.put_session_key(key))

    def _write(self, stage: str, write: Callable[[], None]) -> None:
        with self._stages.during(stage):
            try:
                write()
            except PrivilegedWriteError as error:
                log.warning("write to the config topic failed, reclaiming write privileges", reason=str(error))
                self.fenced = True
                raise

    def claim(self) -> bool:
        """Claim the exclusive right to write."""
        try:
            self._store.claim_write_privileges()
        except ConnectError as error:
            if str(error) != self._unclaimed_reason:  # it is tried again several times a second
                log.warning("write privileges for the config topic not claimed yet", reason=str(error))
            self._unclaimed_reason = str(error)
            self.fenced = True
            return False
        self._unclaimed_reason = ""
        self.fenced = False
        return True

    def reclaim(self, *, is_leader: bool) -> bool:
        """Claim the right again if this worker was fenced by a zombie leader; give up if a newer leader fenced it."""
        if not self.fenced:
            return True
        if not is_leader:
            self.fenced = False
            return True
        with self._stages.during("reclaiming write privileges for the config topic"):
            claimed = self.claim()
            if not claimed:
                self._stopping.wait(_CLAIM_RETRY_S)
            return claimed


class FencingConflict(ConnectError):
    """New task configs were committed during a round; their tasks must be fenced, too. HTTP status 409."""


@dataclass(frozen=True)
class FencingRound:
    """The steps required before tasks of a generation may run."""

    connector: str
    generation: int
    #: The producers of tasks 0 to ``fence`` - 1 are fenced; 0 when none has to be.
    fence: int
    #: The number of tasks that is then recorded as running; the next round fences that many.
    record: int


def due_round(configs: ClusterConfigState, connector: str) -> FencingRound | None:
    """The round that a connector's tasks need before they run; None when it has been completed."""
    if connector not in configs.pending_fencing:
        return None
    tasks = configs.task_counts.get(connector, 0)
    before = configs.task_count_records.get(connector)
    # A single task is fenced by its successor, which has the same transactional id.
    alone = before == 1 and tasks == 1
    return FencingRound(
        connector,
        configs.task_config_generations.get(connector, -1),
        fence=0 if before is None or alone else before,
        record=tasks,
    )


class Leadership(Protocol):
    """What a round needs from the herder. Everything except `later` runs on the herder's thread."""

    def require_leader(self) -> None:
        """Raises NotLeader."""

    def refreshed(self) -> ClusterConfigState:
        """The current state of the config topic. Raises ConnectError or KafkaFailure."""

    def write_task_count(self, connector: str, count: int) -> None:
        """Write a tasks-fencing record. Raises ConnectError."""

    def later(self, action: Callable[[], None], stage: str) -> Future[None]:
        """Run an action on the herder's thread; the future fails when it is rejected. Any thread."""


class ZombieFencing:
    """Fencing rounds, at most one per connector at a time. ``fence(connector, count)`` blocks, and raises."""

    def __init__(self, leadership: Leadership, fence: Callable[[str, int], None]) -> None:
        self._leadership = leadership
        self._fence = fence
        self._lock = threading.Lock()
        self._active: dict[str, Future[None]] = {}

    def begin(self, connector: str) -> Future[None]:
        """Begin a round unless it has been completed; a round in progress is shared. On the herder's thread.

        The future fails with NotLeader, FencingConflict, ConnectError or KafkaFailure. Raises the same.
        """
        self._leadership.require_leader()
        due = due_round(self._leadership.refreshed(), connector)
        done: Future[None] = Future()
        if due is None:
            done.set_result(None)
            return done
        if not due.fence:
            self._leadership.write_task_count(connector, due.record)
            log.info("no older tasks to fence", connector=connector, tasks=due.record)
            done.set_result(None)
            return done
        with self._lock:
            running = self._active.get(connector)
            if running is not None:
                return running
            self._active[connector] = done
        log.info("fencing older tasks", connector=connector, older=due.fence, tasks=due.record)
        threading.Thread(target=self._run, args=(due, done), name=f"zombie-fencing-{connector}", daemon=True).start()
        return done

    def abort(self, connector: str) -> None:
        """New task configs were committed: a round in progress is outdated. Any thread."""
        with self._lock:
            running = self._active.pop(connector, None)
        if running is not None:
            _settle(running, _conflict(connector))

    def _run(self, due: FencingRound, done: Future[None]) -> None:
        try:
            self._fence(due.connector, due.fence)
        except Exception as error:  # noqa: BLE001 - reported through the future
            self._finish(due, done, error)
            return
        written = self._leadership.later(
            lambda: self._record(due, done), f"recording that older tasks of connector {due.connector} are fenced"
        )
        written.add_done_callback(lambda refused: self._give_up(due, done, refused))

    def _record(self, due: FencingRound, done: Future[None]) -> None:
        """Second part of a round, on the herder's thread."""
        try:
            if done.done():
                return
            self._leadership.require_leader()
            configs = self._leadership.refreshed()
            if configs.task_config_generations.get(due.connector, -1) != due.generation:
                raise _conflict(due.connector)
            self._leadership.write_task_count(due.connector, due.record)
        except Exception as error:  # noqa: BLE001 - reported through the future
            self._finish(due, done, error)
        else:
            log.info("older tasks are fenced", connector=due.connector, older=due.fence, tasks=due.record)
            self._finish(due, done, None)

    def _give_up(self, due: FencingRound, done: Future[None], refused: Future[None]) -> None:
        error = refused.exception()
        if isinstance(error, Exception):
            self._finish(due, done, error)

    def _finish(self, due: FencingRound, done: Future[None], error: Exception | None) -> None:
        with self._lock:
            if self._active.get(due.connector) is done:
                del self._active[due.connector]
        _settle(done, error)


def _conflict(connector: str) -> FencingConflict:
    return FencingConflict(f"New task configs of connector {connector} were written while its older tasks were fenced")


def _settle(done: Future[None], error: Exception | None) -> None:
    with contextlib.suppress(InvalidStateError):  # an abort and the end of a round can coincide
        if error is None:
            done.set_result(None)
        else:
            done.set_exception(error)


class Leader(Protocol):
    """What leader fencing needs from the herder."""

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the leader."""

    def require_leader(self, what: str) -> None:
        """Raises NotLeader."""

    def known_connector_info(self, name: str) -> ConnectorInfo:
        """Raises NotFound."""

    def later(self, action: Callable[[], None], stage: str, *, delay_s: float = 0.0) -> StagedFuture[None]:
        """Run an action on the herder's thread."""


class LeaderFencing:
    """Begins rounds on request of tasks, local or through REST, and automatically in groups without REST.

    Also implements Leadership for the rounds.
    """

    def __init__(
        self, leader: Leader, worker: Worker, store: ConfigStore, view: ConfigView, privileges: LeaderPrivileges
    ) -> None:
        self._leader = leader
        self._worker = worker
        self._store = store
        self._view = view
        self._privileges = privileges
        self._rounds = ZombieFencing(self, self._fence_producers)

    def begin(self, name: str) -> StagedFuture[None]:
        """Fence a connector's older tasks. Any thread. Fails like `Herder.fence_zombies`."""
        steps: Steps[None] = Steps(f"fencing older tasks of connector {name}")

        def pass_on(done: Future[None]) -> None:
            error = done.exception()
            if error is None:
                steps.end(None)
            else:
                steps.fail(error)

        def begin() -> None:
            self.require_leader()
            if self._leader.known_connector_info(name).type is not ConnectorType.SOURCE:
                raise BadRequest(f"Connector {name} is not a source connector")
            self._rounds.begin(name).add_done_callback(pass_on)

        begun = self._leader.later(begin, f"fencing older tasks of connector {name}")
        steps.after(begun, lambda _begun: None)
        return steps.outcome

    def begin_unasked(self, configs: ClusterConfigState) -> None:
        """Begin rounds after a rebalance, for a group without REST.

        All members have stopped their older tasks by then, so only zombies are fenced. Also needed while exactly-once
        support is "preparing": members that have already enabled it would otherwise wait indefinitely.
        """
        for name in configs.pending_fencing:
            if configs.tasks(name):
                self._begin_unasked(name, 0)

    def _begin_unasked(self, name: str, attempts: int) -> None:
        """Begin a round and retry it while it fails: no follower can request another one."""
        if not self._leader.is_leader or not self._store.is_pending_fencing(name):
            return

        def on_done(done: Future[None]) -> None:
            error = done.exception()
            if error is None or isinstance(error, NotLeader | NotFound | FencingConflict):
                return  # the next change causes a rebalance, and with it another round
            delay_s = backoff_s(attempts)
            log.warning("older tasks not fenced", connector=name, reason=str(error), retry_in_s=delay_s)
            self._leader.later(
                lambda: self._begin_unasked(name, attempts + 1),
                f"fencing older tasks of connector {name}",
                delay_s=delay_s,
            )

        self.begin(name).add_done_callback(on_done)

    def abort(self, name: str) -> None:
        """New task configs were committed. Any thread."""
        self._rounds.abort(name)

    def _fence_producers(self, name: str, tasks: int) -> None:
        raw = self._store.snapshot().connector_config(name)
        if raw is None:
            raise NotFound(f"Connector {name} not found")
        self._worker.fence_zombies(name, tasks, raw)

    # -- Leadership

    def require_leader(self) -> None:
        """See Leadership."""
        self._leader.require_leader("fence older tasks of a connector")

    def refreshed(self) -> ClusterConfigState:
        """See Leadership."""
        self._view.refresh()
        return self._view.configs

    def write_task_count(self, connector: str, count: int) -> None:
        """See Leadership."""
        self._privileges.put_task_count(connector, count)

    def later(self, action: Callable[[], None], stage: str) -> Future[None]:
        """See Leadership."""
        return self._leader.later(action, stage)


#: How long a task waits until its predecessors are fenced; longer than a fencing round may take.
_FENCING_TIMEOUT_S = FENCING_S + 30.0
_POLL_S = 0.1
#: HTTP results of a signed request that are retried: no response, our key is outdated, the leader has no key yet.
_RETRIABLE_STATUSES: Final = (None, 403, 503)
#: The leader has newer task configs, or it is unknown or another worker.
_CONFLICT: Final = 409


class Group(Protocol):
    """What task guards need from the herder. Any thread."""

    group_id: str

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the leader."""

    @property
    def leader_url(self) -> str | None:
        """REST URL of the leader, None when there is none."""

    def begin_fencing(self, connector: str) -> Future[None]:
        """As leader, fence a connector's older tasks."""

    def ask_leader_to_fence(self, leader_url: str, connector: str) -> None:
        """Request the leader to fence them; waits. Raises RequestRefused."""

    def owns(self, task: ConnectorTaskId) -> bool:
        """Whether the task is assigned to this worker."""

    def later(self, action: Callable[[], None], stage: str, *, delay_s: float = 0.0) -> StagedFuture[None]:
        """Run an action on the herder's thread."""


class TaskOwnership:
    """Guards of this worker's tasks. They run on the tasks' threads."""

    def __init__(self, group: Group, store: ConfigStore, sync_timeout_s: float) -> None:
        self._group = group
        self._store = store
        self._sync_timeout_s = sync_timeout_s

    def guard(self, task: ConnectorTaskId, generation: int | None) -> OwnershipGuard:
        """The guard of a task that was created with task configs of ``generation``."""
        return OwnershipGuard(
            fence=lambda stopping: self.await_fencing(task, generation, stopping),
            confirm=lambda stopping: self.confirm(task, generation, stopping),
        )

    def await_fencing(self, task: ConnectorTaskId, generation: int | None, stopping: Callable[[], bool]) -> None:
        """Wait until the task's predecessors are fenced or the task must stop. Raises ConnectError."""
        name, deadline = task.connector, time.monotonic() + _FENCING_TIMEOUT_S
        outdated = False
        while not stopping() and self._store.is_pending_fencing(name):
            leader_url = self._group.leader_url
            try:
                if outdated:
                    pass  # newer task configs are on their way, and this task will be stopped
                elif self._group.is_leader:
                    if wait_for(self._group.begin_fencing(name), stopping):
                        return
                elif leader_url is not None:
                    self._group.ask_leader_to_fence(leader_url, name)
                    return
            except ConnectError as error:
                refused = error.status if isinstance(error, RequestRefused) else None
                # The leader may have changed or be about to change; then the request goes to the new one.
                moved = isinstance(error, NotLeader) or self._group.leader_url != leader_url
                passing = isinstance(error, RequestRefused) and refused in _RETRIABLE_STATUSES
                conflict = isinstance(error, FencingConflict) or refused == _CONFLICT
                outdated = conflict and self._generation(name) != generation
                if not (moved or passing or conflict) or time.monotonic() > deadline:
                    raise ConnectError(f"Older tasks of connector {name} are not fenced: {error}") from error
            if time.monotonic() > deadline:
                raise ConnectError(
                    f"Task {task} was not started: exactly-once needs older tasks of connector {name} to be fenced, and the "
                    f"leader of group {self._group.group_id} has not recorded this within {_FENCING_TIMEOUT_S:.0f} s; see the "
                    "log of the leader"
                )
            time.sleep(_POLL_S)

    def confirm(self, task: ConnectorTaskId, generation: int | None, stopping: Callable[[], bool]) -> None:
        """Raises ConnectError when the task is no longer assigned to this worker or has newer configs."""
        while not stopping():
            try:
                self._store.refresh(self._sync_timeout_s)
                break
            except KafkaFailure as failure:
                if failure.is_final:
                    raise ConnectError(
                        f"Task {task} was not started, the config topic cannot be read: {failure}"
                    ) from failure
                log.warning("config topic not read to its end, retrying", task_id=str(task), reason=str(failure))
                time.sleep(_POLL_S)

        def check() -> None:
            if self._generation(task.connector) != generation:
                raise ConnectError(f"Task {task} was not started: its connector has newer task configs")
            if not self._group.owns(task):
                raise ConnectError(f"Task {task} was not started: it is no longer assigned to this worker")

        # The herder's thread handles requests only while it is a member of its group.
        wait_for(self._group.later(check, f"confirming that task {task} is still assigned to this worker"), stopping)

    def _generation(self, connector: str) -> int | None:
        return self._store.snapshot().task_config_generations.get(connector)


def wait_for(future: Future[None], stopping: Callable[[], bool]) -> bool:
    """Wait for the future; False when the task must stop first. Raises the future's error as ConnectError."""
    while not stopping():
        try:
            future.result(_POLL_S)
        except TimeoutError:
            continue
        except KafkaFailure as failure:
            raise ConnectError(str(failure)) from failure
        return True
    return False
