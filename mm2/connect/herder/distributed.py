"""The herder: one thread through which everything that changes the worker's part of the cluster goes (spec connect D).

What each tick does, and in which order, is that of org.apache.kafka.connect.runtime.distributed.DistributedHerder 4.3.0.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

import structlog

from mm2.connect.api import ConnectError, RetriableError
from mm2.connect.group.assignor import CooperativeAssignor
from mm2.connect.group.membership import GroupMember, GroupTimings
from mm2.connect.group.protocol import URL_NOT_USED, Assignment, ConnectorTaskId
from mm2.connect.herder import loggers, sessions
from mm2.connect.herder.fencing import FencingConflict, ZombieFencing
from mm2.connect.herder.internal_requests import InternalRequests, RequestRefused
from mm2.connect.herder.sessions import SessionKey
from mm2.connect.runtime.lifecycle import WorkId
from mm2.connect.runtime.tasks import OwnershipGuard
from mm2.connect.runtime.worker import FENCING_S, TaskStart, TooManyTasks, Worker
from mm2.connect.stores.config_state import ClusterConfigState, Props, RestartRequest, TargetState
from mm2.connect.stores.config_store import ConfigStore, PrivilegedWriteError
from mm2.connect.stores.status_store import StatusStore, now_ms
from mm2.connect.stores.statuses import State, Status, TopicStatus
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure

log = structlog.get_logger(__name__)

T = TypeVar("T")

_START_THREADS = 8
_BACKOFF_RETRIES = 5
#: The least pause between two tries to read the config topic; some failures come at once.
_BACKOFF_FLOOR_S = 1.0
_RECONFIGURE_BACKOFF_S = 0.25
_RECONFIGURE_BACKOFF_MAX_S = 60.0
#: How long requests may keep the herder from its group, the last one's own time excluded.
_REQUESTS_S = 5.0
_NEVER = float("inf")
_STATUS_FLUSH_S = 5.0
_CLAIM_AGAIN_S = 0.25
#: How long a task waits for its predecessors to be fenced; longer than a round of it may take.
_FENCING_PATIENCE_S = FENCING_S + 30.0
_LOOK_S = 0.1
#: HTTP answers to a signed request after which it is sent again: no answer, our key is old, the leader has none yet.
_ASK_AGAIN = (None, 403, 503)
_CONFLICT = 409
_STARTING = "initializing and reading internal topics"


class NotLeader(ConnectError):
    """Only the leader of the group can do this; ``leader_url`` says where it is."""

    def __init__(self, message: str, leader_url: str | None) -> None:
        super().__init__(message)
        self.leader_url = leader_url


class AlreadyExists(ConnectError):
    """A connector of that name exists and was not to be replaced."""


class NotFound(ConnectError):
    """There is no such connector."""


@dataclass(order=True)
class _Request:
    due_s: float
    sequence: int
    stage: str = field(compare=False)
    action: Callable[[], Any] = field(compare=False)
    future: Future[Any] = field(compare=False)


@dataclass
class _Pending:
    """What the config topic has announced and no tick has seen to yet."""

    connectors: set[str] = field(default_factory=set)
    tasks: set[ConnectorTaskId] = field(default_factory=set)
    targets: set[str] = field(default_factory=set)
    restarts: dict[str, RestartRequest] = field(default_factory=dict)
    rebalance: bool = False

    @property
    def any(self) -> bool:
        return self.rebalance or bool(self.connectors or self.tasks or self.targets)


class _Leadership:
    """The herder as rounds of fencing see it."""

    def __init__(self, herder: DistributedHerder) -> None:
        self._herder = herder

    def require_leader(self) -> None:
        self._herder._require_leader("fence older tasks of a connector")  # noqa: SLF001 - a part of it

    def refreshed(self) -> ClusterConfigState:
        self._herder._refresh_configs()  # noqa: SLF001
        return self._herder.configs()

    def write_task_count(self, connector: str, count: int) -> None:
        store = self._herder._config_store  # noqa: SLF001
        self._herder._as_leader(lambda: store.put_task_count(connector, count))  # noqa: SLF001

    def later(self, action: Callable[[], None], stage: str) -> Future[None]:
        return self._herder._submit(action, stage)  # noqa: SLF001


class DistributedHerder:
    """One worker of a Connect cluster, without REST. What the REST server of a worker will call is public here:
    `put_connector_config` … `restart_connector`, and `fence_zombies` for ``PUT /connectors/{connector}/fence``.

    Deviation from Java in MirrorMaker's dedicated mode without internal REST (``rest_url`` NOTUSED everywhere): there a
    follower has no way to hand task configs to the leader (KAFKA-9981), so the leader's assignor keeps the connectors
    for itself; see :class:`mm2.connect.group.assignor.CooperativeAssignor`.

    ``on_leader_ready`` is called on the herder's thread after each rebalance in which this worker became the leader; it
    may look at :meth:`configs` and queue requests.
    """

    def __init__(
        self,
        worker: Worker,
        config_store: ConfigStore,
        status_store: StatusStore,
        cluster: Cluster,
        *,
        rest_url: str = URL_NOT_USED,
        rest_namespace: Sequence[str] = (),
        on_leader_ready: Callable[[DistributedHerder], None] | None = None,
    ) -> None:
        config = worker.config
        self.worker = worker
        self.group_id = config.str("group.id")
        self.failure: BaseException | None = None
        self._config = config
        self._config_store = config_store
        self._status_store = status_store
        self._on_leader_ready = on_leader_ready
        self._sync_timeout_s = config.int("worker.sync.timeout.ms") / 1000
        self._max_delay_ms = config.int("scheduled.rebalance.max.delay.ms")
        self._track_topics = config.bool("topic.tracking.enable")
        self._member = GroupMember(
            cluster,
            group_id=self.group_id,
            timings=GroupTimings(
                config.int("session.timeout.ms"),
                config.int("rebalance.timeout.ms"),
                config.int("heartbeat.interval.ms"),
            ),
            connect_protocol=config.str("connect.protocol"),
            url=rest_url,
            assignor=CooperativeAssignor(self._max_delay_ms, lambda: int(time.monotonic() * 1000)),
            configs=config_store.snapshot,
            listener=self,
            stage=lambda: self.stage,
        )
        self._rest_url = rest_url
        self._internal_requests = InternalRequests(
            {key: str(value) for key, value in config.originals.items()},
            namespace=rest_namespace,
            algorithm=config.str("inter.worker.signature.algorithm"),
        )
        self._fencing = ZombieFencing(_Leadership(self), self._fence_producers)
        self._starter = ThreadPoolExecutor(
            _START_THREADS,
            thread_name_prefix=f"start-{self.group_id}",
            initializer=lambda: structlog.contextvars.bind_contextvars(**worker.log_context),
        )
        self._thread = threading.Thread(target=self._run, name=f"herder-{self.group_id}", daemon=True)
        self._stopping = threading.Event()
        self._ready = threading.Event()

        self._lock = threading.Lock()
        # Guarded by the lock.
        self._pending = _Pending()
        self._requests: list[_Request] = []
        self._sequence = itertools.count()
        self._session_key: SessionKey | None = None
        self._accepting = True

        # Written by the herder's thread only.
        self.stage = _STARTING
        self._configs = ClusterConfigState()
        self._assignment: Assignment | None = None
        self._generation = -1
        self._running_connectors: set[str] = set()
        self._running_tasks: set[ConnectorTaskId] = set()
        self._tasks_to_restart: set[ConnectorTaskId] = set()
        self._rebalance_resolved = True
        self._can_read_configs = True
        self._scheduled_rebalance_s = _NEVER
        self._backoff_retries = _BACKOFF_RETRIES
        self._led_as = ""
        self._fenced_from_config_topic = False

    # -- for the embedding program

    def start(self) -> None:
        """Start the herder's thread and return. Progress is in :meth:`status`, a failure in ``failure``."""
        self._thread.start()

    def stop(self) -> None:
        """Stop connectors and tasks, leave the group, close the stores. Waits; may be called twice."""
        self._stopping.set()
        self._member.wakeup()
        # The herder may be waiting for a write to the config topic; nothing is written to it from now on.
        self._config_store.stop()
        if not self._ready.is_set():
            # Start-up may be waiting for a broker.
            self._status_store.stop(0.0)
            self.worker.stop()
        if self._thread.is_alive():
            grace_s = self._config.int("task.shutdown.graceful.timeout.ms") / 1000
            self._thread.join(self._sync_timeout_s + grace_s + 15.0)
        self._starter.shutdown(wait=False, cancel_futures=True)

    def await_stopped(self, timeout_s: float | None = None) -> bool:
        """Wait until the herder's thread has ended, of itself (``failure`` says why) or by :meth:`stop`."""
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def await_ready(self, timeout_s: float) -> bool:
        """Wait until internal topics are read, the group is joined and the first assignment has been started."""
        return self._ready.wait(timeout_s)

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the group's leader, as of the last rebalance."""
        assignment = self._assignment
        return assignment is not None and bool(assignment.leader) and assignment.leader == self._member.member_id

    @property
    def generation(self) -> int:
        """Generation of the group as of the last rebalance, -1 before the first."""
        return self._generation

    def configs(self) -> ClusterConfigState:
        """The view of the config topic that this herder acts on."""
        return self._configs

    def put_connector_config(
        self,
        name: str,
        config: Props,
        allow_replace: bool,
        target_state: TargetState | None = None,
    ) -> Future[bool]:
        """Create or replace a connector; True = created.

        The future fails with NotLeader, AlreadyExists, or a ConnectError that lists what is wrong with ``config``.
        """

        def put() -> bool:
            self._require_leader("create or change a connector")
            exists = name in self._configs
            if exists and not allow_replace:
                raise AlreadyExists(f"Connector {name} already exists")
            self._as_leader(lambda: self._config_store.put_connector_config(name, config, target_state))
            log.info("connector config written", connector=name, created=not exists)
            return not exists

        try:
            self._validate(name, config)
        except Exception as error:  # noqa: BLE001 - whatever a plugin raises is the caller's answer
            refused: Future[bool] = Future()
            refused.set_exception(error)
            return refused
        return self._submit(put, f"writing the config of connector {name}")

    def delete_connector_config(self, name: str) -> Future[None]:
        """Delete a connector. Fails with NotLeader or NotFound."""

        def delete() -> None:
            self._require_leader("delete a connector")
            self._require_known(name)
            self._as_leader(lambda: self._config_store.remove_connector_config(name))

        return self._submit(delete, f"removing the config of connector {name}")

    def pause_connector(self, name: str) -> Future[None]:
        """Have a connector and its tasks pause."""
        return self._submit(lambda: self._put_target_state(name, TargetState.PAUSED), f"pausing connector {name}")

    def resume_connector(self, name: str) -> Future[None]:
        """Have a paused or stopped connector run again."""
        return self._submit(lambda: self._put_target_state(name, TargetState.STARTED), f"resuming connector {name}")

    def stop_connector(self, name: str) -> Future[None]:
        """Stop a connector and take its tasks away; its config and offsets stay. Fails with NotLeader or NotFound."""

        def stop() -> None:
            self._require_leader("stop a connector")
            self._refresh_configs()
            self._put_target_state(name, TargetState.STOPPED)
            self._as_leader(lambda: self._config_store.put_task_configs(name, []))

        return self._submit(stop, f"stopping connector {name}")

    def restart_connector(self, name: str, *, only_failed: bool = False, include_tasks: bool = False) -> Future[None]:
        """Have all workers restart what they run of a connector (KIP-745). Fails with NotLeader or NotFound."""

        def restart() -> None:
            self._require_leader("restart a connector")
            self._require_known(name)
            request = RestartRequest(name, only_failed, include_tasks)
            self._as_leader(lambda: self._config_store.put_restart_request(request))

        return self._submit(restart, f"restarting connector {name}")

    def fence_zombies(self, name: str) -> Future[None]:
        """As leader, see that no producer of a connector's older task configs can write any more (KIP-618).

        Done when that is so and written down. Fails with NotLeader, NotFound, FencingConflict (HTTP 409), or another
        ConnectError or KafkaFailure.
        The handler of ``PUT /connectors/{connector}/fence`` calls it once it has checked the request's signature.
        """
        outcome: Future[None] = Future()

        def pass_on(done: Future[None]) -> None:
            error = done.exception()
            if error is None:
                outcome.set_result(None)
            else:
                outcome.set_exception(error)

        def begin() -> None:
            self._require_leader("fence older tasks of a connector")
            self._require_known(name)
            self._fencing.begin(name).add_done_callback(pass_on)

        begun = self._submit(begin, f"fencing older tasks of connector {name}")
        begun.add_done_callback(lambda done: pass_on(done) if done.exception() is not None else None)
        return outcome

    def request_task_reconfiguration(self, name: str) -> None:
        """Ask a connector that runs here for its task configs, and publish them if they have changed. Any thread."""
        self._submit(lambda: self._reconfigure(name, 0), f"reconfiguring the tasks of connector {name}")

    def status(self) -> dict[str, Any]:
        """A snapshot for pages and logs: JSON-able, without any configuration."""
        assignment = self._assignment
        details = self.worker.task_details()
        connectors: dict[str, Any] = {}
        for name in sorted(self._configs.connectors() | self._status_store.connectors()):
            connectors[name] = {
                "connector": _shown(self._status_store.connector(name)),
                "target_state": self._configs.target_state(name),
                "tasks": [
                    {"id": task.id.task, **_shown(task), "detail": details.get(task.id, {})}
                    for task in self._status_store.tasks(name)
                    if isinstance(task.id, ConnectorTaskId)
                ],
            }
        return {
            "group": self.group_id,
            "worker_id": self.worker.worker_id,
            "ready": self._ready.is_set(),
            "stage": self.stage,
            "failure": None if self.failure is None else str(self.failure),
            "member_id": self._member.member_id,
            "leader": self.is_leader,
            "generation": self._generation,
            "assigned_connectors": sorted(assignment.connectors) if assignment is not None else [],
            "assigned_tasks": sorted(map(str, assignment.tasks)) if assignment is not None else [],
            "connectors": connectors,
        }

    # -- the herder's thread

    def _run(self) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**self.worker.log_context)
        try:
            self.worker.start()
            self._status_store.start()
            self._config_store.start(self)
            self._configs = self._config_store.snapshot()
            self._member.start()
            while not self._stopping.is_set():
                self._tick()
        except Exception as error:
            if not self._stopping.is_set():
                self.failure = error
                log.exception("the herder failed and stops")
        finally:
            self._halt()

    def _halt(self) -> None:
        with self._in_stage("stopping connectors and tasks"):
            self._guarded(lambda: self.worker.stop_connectors(self.worker.connector_names()))
            self._guarded(lambda: self.worker.stop_tasks(self.worker.task_ids()))
        with self._lock:
            self._accepting = False
            refused, self._requests = self._requests, []
        for request in refused:
            request.future.set_exception(ConnectError("Worker is shutting down"))
        with self._in_stage("closing stores and leaving the group"):
            for close in (self._status_store.stop, self._config_store.stop, self.worker.stop, self._member.stop):
                self._guarded(close)
        self.stage = "stopped"
        log.info("herder stopped")

    @staticmethod
    def _guarded(step: Callable[[], object]) -> None:
        try:
            step()
        except Exception:
            log.exception("a step of stopping failed")

    def _tick(self) -> None:
        if not self._can_read_configs:
            if not self._read_configs_to_end():
                return
            self._can_read_configs = True
        with self._in_stage("ensuring membership in the cluster"):
            if not self._member.ensure_active():
                return
        if not self._handle_rebalance_completed():
            return
        self._ready.set()
        if not self._reclaim_write_privileges() or not self._rotate_session_key():
            return
        next_due_s = self._run_requests()
        self._process_restarts()
        if self._scheduled_rebalance_s < _NEVER:
            next_due_s = min(next_due_s, self._scheduled_rebalance_s)
            self._rebalance_resolved = False
        next_due_s = min(next_due_s, self._key_due_s())
        if self._apply_config_changes():
            return
        with self._in_stage("polling the group"):
            self._member.poll(None if next_due_s == _NEVER else max(0.0, next_due_s - time.monotonic()))
        self._handle_rebalance_completed()

    @contextmanager
    def _in_stage(self, stage: str) -> Iterator[None]:
        before, self.stage = self.stage, stage
        try:
            yield
        finally:
            self.stage = before if before != _STARTING or not self._ready.is_set() else "running"

    # -- rebalances

    def on_assigned(self, assignment: Assignment, generation: int) -> None:
        """See RebalanceListener. Work starts later, in the tick, where it may take its time."""
        log.info(
            "assigned",
            generation=generation,
            connectors=list(assignment.connectors),
            tasks=[str(task) for task in assignment.tasks],
            revoked=[*assignment.revoked_connectors, *map(str, assignment.revoked_tasks)],
            delay_ms=assignment.delay_ms,
            failed=assignment.failed,
        )
        self._assignment = assignment
        self._generation = generation
        self._scheduled_rebalance_s = (
            time.monotonic() + assignment.delay_ms / 1000 if assignment.delay_ms > 0 else _NEVER
        )
        self._rebalance_resolved = False
        if self.is_leader:
            self._clean_statuses()
            self._claim_write_privileges()

    def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[ConnectorTaskId]) -> None:
        """See RebalanceListener. When this returns, everything has stopped or is cancelled."""
        if not self._rebalance_resolved and self._member.protocol_version == 0:
            log.info("nothing was started since the last rebalance, nothing to stop")
            return
        with self._in_stage("stopping revoked connectors and tasks"):
            log.info("revoked", connectors=list(connectors), tasks=[str(task) for task in tasks])
            self.worker.stop_connectors(connectors)
            self.worker.stop_tasks(tasks)
            self._running_connectors.difference_update(connectors)
            self._running_tasks.difference_update(tasks)
            if self._track_topics:
                configs = self._config_store.snapshot()
                for name in {*connectors, *(task.connector for task in tasks)} - configs.connectors():
                    for topic in self._status_store.topics(name):
                        self._status_store.delete_topic(name, topic)
            # What is written after the rebalance must not be overtaken by what was said before it.
            self._status_store.flush(_STATUS_FLUSH_S)

    def _handle_rebalance_completed(self) -> bool:
        """Catch up with the configs the assignment was made from, then start what is new. False: rejoin first."""
        if self._rebalance_resolved:
            return True
        assignment = self._assignment
        if assignment is None:
            return False
        behind = self._configs.offset < assignment.config_offset
        rejoin = assignment.failed
        read = behind or (assignment.failed and self.is_leader)
        if self._scheduled_rebalance_s <= time.monotonic():
            log.info("the scheduled rebalance is due")
            rejoin = True
            self._scheduled_rebalance_s = _NEVER
        if read and not self._read_configs_to_end():
            self._can_read_configs = False
            rejoin = True
        if rejoin:
            self._member.request_rejoin("the assignment cannot be used" if assignment.failed else "rebalance due")
            return False
        if self._configs.offset != assignment.config_offset:
            log.info("already past the assignment's configs", mine=self._configs.offset, its=assignment.config_offset)
            self._member.request_rejoin("config offsets differ")
            return False
        self._start_work(assignment)
        self._rebalance_resolved = True
        self._announce_leadership()
        if self._member.clear_revocations():
            # Second half of the hand-over: what was given up can now be given to others.
            self._member.request_rejoin("work was revoked")
            return False
        return True

    def _announce_leadership(self) -> None:
        # By member id: a leader that fell out of the group and leads it again may have missed what it had to do.
        led_as, self._led_as = self._led_as, self._member.member_id if self.is_leader else ""
        if self._led_as not in {"", led_as}:
            log.info("this worker is now the leader")
            if self._on_leader_ready is not None:
                self._on_leader_ready(self)

    def _read_configs_to_end(self) -> bool:
        with self._in_stage("reading to the end of the config topic"):
            try:
                self._refresh_configs()
            except KafkaFailure as failure:
                if not self._stopping.is_set():
                    log.warning("config topic was not read to its end in time", reason=str(failure))
                    self._back_off()
                return False
        self._backoff_retries = _BACKOFF_RETRIES
        return True

    def _refresh_configs(self) -> None:
        self._config_store.refresh(self._sync_timeout_s)
        self._configs = self._config_store.snapshot()

    def _back_off(self) -> None:
        """Pause before the config topic is read again, out of the group where that lets the others go on.

        Work goes on meanwhile, for which the group has to wait for us. With a delay of 0 it does not: it would give the
        work to others while it still runs here. Then we leave only when everything has been stopped.
        """
        reason = "taking too long to read the config topic"
        pause_s = _BACKOFF_FLOOR_S
        if self._member.protocol_version == 0:
            self._member.leave(reason)
            pause_s = self._config.int("worker.unsync.backoff.ms") / 1000
        elif self._backoff_retries > 0:
            if self._max_delay_ms > 0:
                self._member.leave(reason)
            pause_s = max(pause_s, self._max_delay_ms // 10 // self._backoff_retries / 1000)
            self._backoff_retries -= 1
        else:
            self._member.revoke_all("could not catch up with the config topic")
            self._member.leave(reason)
            self._backoff_retries = _BACKOFF_RETRIES
        self._stopping.wait(pause_s)

    def _start_work(self, assignment: Assignment) -> None:
        with self._in_stage("starting assigned connectors and tasks"):
            self._running_tasks -= self._tasks_to_restart
            self._tasks_to_restart.clear()
            connectors = [name for name in assignment.connectors if name not in self._running_connectors]
            tasks = [task for task in assignment.tasks if task not in self._running_tasks]
            self._start_all(connectors, tasks)
            eager = self._member.protocol_version == 0
            self._running_connectors = set() if eager else set(assignment.connectors)
            self._running_tasks = set() if eager else set(assignment.tasks)
        if self.is_leader and self.worker.transactional_leader and self._rest_url == URL_NOT_USED:
            # Nobody can ask for it. Only now, when all members have stopped their older tasks, so that it hits zombies only.
            # While exactly-once is being prepared, too: members that have it enabled already would wait in vain.
            for name in self._configs.pending_fencing:
                if self._configs.tasks(name):
                    self._fence_unasked(name, 0)

    def _start_all(self, connectors: Iterable[str], tasks: Iterable[ConnectorTaskId]) -> None:
        jobs: list[Callable[[], None]] = [lambda name=name: self._start_connector(name) for name in connectors]  # type: ignore[misc]
        jobs += [lambda task=task: self._start_task(task) for task in tasks]  # type: ignore[misc]
        if jobs:
            done, _ = wait([self._starter.submit(job) for job in jobs])
            for future in done:
                future.result()

    def _start_connector(self, name: str) -> None:
        raw, state = self._configs.connector_config(name), self._configs.target_state(name)
        if raw is None or state is None:
            log.warning("an assigned connector has no config", connector=name)
            return
        self.worker.start_connector(
            name,
            raw,
            listener=self,
            request_reconfiguration=lambda: self.request_task_reconfiguration(name),
            stored_task_configs=lambda: self._configs.all_task_configs(name),
            state=state,
            on_transition=self._reconfigure_when_started(name),
        )

    def _start_task(self, task: ConnectorTaskId) -> None:
        connector_raw, task_raw = self._configs.connector_config(task.connector), self._configs.task_config(task)
        state = self._configs.target_state(task.connector)
        if connector_raw is None or task_raw is None or state is None:
            log.warning("an assigned task has no config", task_id=str(task))
            return
        self.worker.start_task(
            TaskStart(
                task,
                connector_raw,
                task_raw,
                count=len(self._configs.tasks(task.connector)),
                state=state,
                listener=self,
                on_topic=lambda topic: self._note_topic(topic, task),
                guard=self._guard(task, self._configs.task_config_generations.get(task.connector)),
            )
        )

    def _reconfigure_when_started(self, name: str) -> Callable[[Exception | None], None]:
        def on_transition(error: Exception | None) -> None:
            if error is None and self.worker.is_running(name):
                self.request_task_reconfiguration(name)

        return on_transition

    # -- configuration changes

    def _apply_config_changes(self) -> bool:
        """See to what the config topic has announced; True = a rebalance comes first."""
        with self._lock:
            pending = self._pending
            if not pending.any:
                return False
            self._pending = _Pending(restarts=pending.restarts)
        self._configs = self._config_store.snapshot()
        if pending.rebalance:
            self._member.request_rejoin("connectors or tasks have changed")
            if self._member.protocol_version == 0:
                # Everything restarts in an eager rebalance, so nothing is left to be done one by one.
                return True
        if pending.connectors:
            self._restart_changed_connectors(pending.connectors)
        for name in pending.targets:
            self._apply_target_state(name)
        if pending.tasks:
            self._stop_reconfigured_tasks({task.connector for task in pending.tasks})
        return pending.rebalance

    def _restart_changed_connectors(self, changed: set[str]) -> None:
        mine = set(self._assignment.connectors) if self._assignment is not None else set()
        with self._in_stage("restarting reconfigured connectors"):
            affected = changed & mine
            self.worker.stop_connectors(affected)
            self._start_all([name for name in affected if name in self._configs], [])

    def _apply_target_state(self, name: str) -> None:
        state = self._configs.target_state(name)
        if state is None or name not in self._configs:
            return
        log.info("target state", connector=name, state=state.value)
        self.worker.set_target_state(name, state, self._reconfigure_when_started(name))

    def _stop_reconfigured_tasks(self, connectors: set[str]) -> None:
        mine = self._assignment.tasks if self._assignment is not None else ()
        affected = [task for task in mine if task.connector in connectors]
        if affected:
            with self._in_stage("stopping reconfigured tasks"):
                log.info(
                    "task configs changed, tasks start again after the rebalance", tasks=[str(t) for t in affected]
                )
                self.worker.stop_tasks(affected)
                self._tasks_to_restart.update(affected)

    def _reconfigure(self, name: str, attempts: int) -> None:
        """Publish a connector's task configs if they differ from the stored ones; on failure try again, later and later."""
        try:
            self._publish_task_configs(name)
        except TooManyTasks as error:
            self.on_failure(name, error, None)
        except Exception as error:
            delay_s = min(_RECONFIGURE_BACKOFF_MAX_S, _RECONFIGURE_BACKOFF_S * 2**attempts)
            if isinstance(error, NotLeader):
                log.warning("task configs not published", connector=name, reason=str(error), again_in_s=delay_s)
            elif isinstance(error, RetriableError):
                log.info("task configs not known yet", connector=name, reason=str(error), again_in_s=delay_s)
            else:
                log.exception("task configs not published", connector=name, again_in_s=delay_s)
            self._submit(
                lambda: self._reconfigure(name, attempts + 1),
                f"reconfiguring the tasks of connector {name}",
                delay_s=delay_s,
            )

    def _publish_task_configs(self, name: str) -> None:
        raw = self._configs.connector_config(name)
        if (
            raw is None
            or not self.worker.is_running(name)
            or self._configs.target_state(name) is not TargetState.STARTED
        ):
            log.info("connector does not run here, its tasks are not reconfigured", connector=name)
            return
        configs = self.worker.task_configs(name, raw)
        known = [dict(props) for props in self._configs.all_task_configs(name)]
        if configs == known and self._configs.applied_connector_configs.get(name) == raw:
            return
        if not self.is_leader:
            raise NotLeader(
                f"Worker {self.worker.worker_id} is not the leader of group {self.group_id} and has no way to hand it the "
                f"task configs of connector {name}: enable internal REST on all workers (MirrorMaker: "
                "dedicated.mode.enable.internal.rest)",
                self._leader_url(),
            )
        log.info("task configs changed", connector=name, tasks=len(configs), before=len(known))
        self._as_leader(lambda: self._config_store.put_task_configs(name, configs))

    def _put_target_state(self, name: str, state: TargetState) -> None:
        self._require_known(name)
        self._config_store.put_target_state(name, state)

    # -- requests

    def _submit(self, action: Callable[[], T], stage: str, *, delay_s: float = 0.0) -> Future[T]:
        future: Future[T] = Future()
        with self._lock:
            accepted = self._accepting
            if accepted:
                due_s = time.monotonic() + delay_s
                heapq.heappush(self._requests, _Request(due_s, next(self._sequence), stage, action, future))
        if accepted:
            self._member.wakeup()
        else:
            future.set_exception(ConnectError("Worker is shutting down"))
        return future

    def _run_requests(self) -> float:
        """Run the requests that are due; when the next one will be. After slow ones the group is looked at first, and
        after one that was fenced from the config topic that is claimed first, so that the others need not fail, too."""
        enough_s = time.monotonic() + _REQUESTS_S
        while True:
            with self._lock:
                if not self._requests:
                    return _NEVER
                now = time.monotonic()
                if self._requests[0].due_s > now or now > enough_s or self._fenced_from_config_topic:
                    return self._requests[0].due_s
                request = heapq.heappop(self._requests)
            if not request.future.set_running_or_notify_cancel():
                continue
            with self._in_stage(request.stage):
                try:
                    request.future.set_result(request.action())
                except Exception as error:  # noqa: BLE001 - goes to whoever asked
                    log.info("request failed", stage=request.stage, reason=str(error))
                    request.future.set_exception(error)

    def _require_leader(self, what: str) -> None:
        if not self.is_leader:
            raise NotLeader(
                f"Cannot {what} because worker {self.worker.worker_id} is not the leader", self._leader_url()
            )

    def _require_known(self, name: str) -> None:
        if name not in self._configs:
            raise NotFound(f"Connector {name} not found")

    def _leader_url(self) -> str | None:
        return None if self._assignment is None else self._assignment.leader_url

    def _validate(self, name: str, raw: Props) -> None:
        if raw.get("name", name) != name:
            raise ConnectError(f"Connector name {name} does not match the name in its config ({raw['name']})")
        problems = self.worker.validate(raw)
        if problems:
            told = "\n".join(f"{key}: {message}" for key, message in problems)
            raise ConnectError(
                f"The configuration of connector {name} is invalid and contains the following {len(problems)} error(s):\n{told}"
            )

    def _process_restarts(self) -> None:
        with self._lock:
            requests, self._pending.restarts = list(self._pending.restarts.values()), {}
        for request in requests:
            with self._in_stage(f"restarting connector {request.connector}"):
                try:
                    self._restart(request)
                except Exception:
                    log.exception("restart failed", connector=request.connector)

    def _restart(self, request: RestartRequest) -> None:
        """Restart what the request means and this worker owns."""
        name, assignment = request.connector, self._assignment
        status = self._status_store.connector(name)
        if status is None or assignment is None:
            return
        failed_tasks = {task.id for task in self._status_store.tasks(name) if task.state is State.FAILED}
        connector = name in assignment.connectors and (not request.only_failed or status.state is State.FAILED)
        tasks = [
            task
            for task in assignment.tasks
            if request.include_tasks and task.connector == name and (not request.only_failed or task in failed_tasks)
        ]
        log.info("restarting", connector=name, itself=connector, tasks=[str(task) for task in tasks])
        if connector:
            self.worker.stop_connectors([name])
            self._put_status(name, State.RESTARTING)
        if tasks:
            self.worker.stop_tasks(tasks)
            for task in tasks:
                self._put_status(task, State.RESTARTING)
        self._start_all([name] if connector else [], tasks)

    # -- exactly-once

    def _as_leader(self, write: Callable[[], None]) -> None:
        """Write to the config topic what only a leader may; when another one has fenced us, claim it again in the next tick."""
        try:
            write()
        except PrivilegedWriteError as error:
            log.warning("the leader could not write to the config topic and claims it again", reason=str(error))
            self._fenced_from_config_topic = True
            raise

    def _claim_write_privileges(self) -> bool:
        try:
            self._config_store.claim_write_privileges()
        except ConnectError as error:
            log.warning("no right to write the config topic yet", reason=str(error))
            self._fenced_from_config_topic = True
            return False
        self._fenced_from_config_topic = False
        return True

    def _reclaim_write_privileges(self) -> bool:
        """After having been fenced: by a zombie that has led before us, or rightly, by a newer leader."""
        if not self._fenced_from_config_topic:
            return True
        if not self.is_leader:
            self._fenced_from_config_topic = False
            return True
        with self._in_stage("claiming the right to write the config topic"):
            claimed = self._claim_write_privileges()
            if not claimed:
                self._stopping.wait(_CLAIM_AGAIN_S)
            return claimed

    def _fence_producers(self, name: str, tasks: int) -> None:
        raw = self._config_store.snapshot().connector_config(name)
        if raw is None:
            raise NotFound(f"Connector {name} not found")
        self.worker.fence_zombies(name, tasks, raw)

    def _fence_unasked(self, name: str, attempts: int) -> None:
        """Begin a round, again and again while it fails: no follower can ask for another one."""
        if not self.is_leader or not self._config_store.is_pending_fencing(name):
            return

        def on_done(done: Future[None]) -> None:
            error = done.exception()
            if error is None or isinstance(error, NotLeader | NotFound | FencingConflict):
                return  # what comes next brings a rebalance, and with it another round
            delay_s = min(_RECONFIGURE_BACKOFF_MAX_S, _RECONFIGURE_BACKOFF_S * 2**attempts)
            log.warning("older tasks not fenced", connector=name, reason=str(error), again_in_s=delay_s)
            self._submit(
                lambda: self._fence_unasked(name, attempts + 1),
                f"fencing older tasks of connector {name}",
                delay_s=delay_s,
            )

        self.fence_zombies(name).add_done_callback(on_done)

    def _guard(self, task: ConnectorTaskId, generation: int | None) -> OwnershipGuard:
        return OwnershipGuard(
            fence=lambda stopping: self._await_fencing(task, stopping),
            confirm=lambda stopping: self._confirm_ownership(task, generation, stopping),
        )

    def _await_fencing(self, task: ConnectorTaskId, stopping: Callable[[], bool]) -> None:
        """On a task's thread: return when its predecessors are fenced, or at once when it is to stop. Raises ConnectError."""
        name, deadline = task.connector, time.monotonic() + _FENCING_PATIENCE_S
        outdated = False
        while not stopping() and self._config_store.is_pending_fencing(name):
            leader_url = self._leader_url()
            try:
                if outdated:
                    pass  # newer task configs are on their way to us, and this task is about to be stopped
                elif self.is_leader:
                    if self._wait_for(self.fence_zombies(name), stopping):
                        return
                elif leader_url and leader_url != URL_NOT_USED:
                    self._ask_leader_to_fence(leader_url, name)
                    return
            except ConnectError as error:
                refused = error.status if isinstance(error, RequestRefused) else None
                outdated = isinstance(error, FencingConflict) or refused == _CONFLICT
                # The leader may have changed, or is about to; then somebody else has to be asked.
                moved = isinstance(error, NotLeader) or self._leader_url() != leader_url
                passing = isinstance(error, RequestRefused) and refused in _ASK_AGAIN
                if not (moved or passing or outdated) or time.monotonic() > deadline:
                    raise ConnectError(f"Older tasks of connector {name} are not fenced: {error}") from error
            if time.monotonic() > deadline:
                raise ConnectError(
                    f"Task {task} was not started: exactly-once needs older tasks of connector {name} to be fenced, and the "
                    f"leader of group {self.group_id} has not written within {_FENCING_PATIENCE_S:.0f} s that it has done "
                    "so; see the leader's log"
                )
            time.sleep(_LOOK_S)

    def _ask_leader_to_fence(self, leader_url: str, name: str) -> None:
        key = self._current_key()
        if key is None:
            raise RequestRefused(f"There is no session key yet to sign a request to {leader_url} with", 503)
        self._internal_requests.fence(leader_url, name, key)

    def _confirm_ownership(self, task: ConnectorTaskId, generation: int | None, stopping: Callable[[], bool]) -> None:
        """On a task's thread: raises ConnectError when the task is not this worker's any more or has newer configs."""
        while not stopping():
            try:
                self._config_store.refresh(self._sync_timeout_s)
                break
            except KafkaFailure as failure:
                if not failure.retriable:
                    raise ConnectError(
                        f"Task {task} was not started, the config topic cannot be read: {failure}"
                    ) from failure
                log.warning("config topic not read to its end, trying on", task_id=str(task), reason=str(failure))
                time.sleep(_LOOK_S)

        def check() -> None:
            now = self._config_store.snapshot().task_config_generations.get(task.connector)
            if now != generation:
                raise ConnectError(f"Task {task} was not started: its connector has newer task configs")
            if self._assignment is None or task not in self._assignment.tasks:
                raise ConnectError(f"Task {task} was not started: it is no longer assigned to this worker")

        # The herder's thread answers requests only while it is a member of its group.
        self._wait_for(self._submit(check, f"confirming that task {task} is still ours"), stopping)

    @staticmethod
    def _wait_for(future: Future[None], stopping: Callable[[], bool]) -> bool:
        """False when it is to stop first. Raises what the future fails with, as ConnectError."""
        while not stopping():
            try:
                future.result(_LOOK_S)
            except TimeoutError:
                continue
            except KafkaFailure as failure:
                raise ConnectError(str(failure)) from failure
            return True
        return False

    # -- session keys

    def _rotate_session_key(self) -> bool:
        """As leader of a group that signs its requests, see that there is a fresh key. False: writing one failed."""
        if not self.is_leader or self._member.protocol_version < 2:
            return True
        algorithm = self._config.str("inter.worker.key.generation.algorithm")
        size_bits = self._config.get("inter.worker.key.size")
        now = now_ms()
        due = sessions.key_is_due(
            self._current_key(),
            algorithm=algorithm,
            size_bits=size_bits,
            ttl_ms=self._config.int("inter.worker.key.ttl.ms"),
            now_ms=now,
        )
        if not due:
            return True
        key = sessions.generate_key(algorithm, size_bits, now)
        with self._in_stage("writing a session key to the config topic"):
            try:
                self._as_leader(lambda: self._config_store.put_session_key(key))
            except ConnectError as error:
                log.warning("session key not written", reason=str(error))
                self._can_read_configs = False
                return False
        with self._lock:
            self._session_key = key
        return True

    def _current_key(self) -> SessionKey | None:
        with self._lock:
            return self._session_key or self._configs.session_key

    def _key_due_s(self) -> float:
        key, ttl_ms = self._current_key(), self._config.int("inter.worker.key.ttl.ms")
        if not self.is_leader or self._member.protocol_version < 2 or key is None or ttl_ms <= 0:
            return _NEVER
        return time.monotonic() + max(0, key.creation_timestamp_ms + ttl_ms - now_ms()) / 1000

    # -- ConfigListener, on the config log's thread

    def on_connector_config_update(self, connector: str) -> None:
        """See ConfigListener."""
        with self._lock:
            self._pending.rebalance |= connector not in self._configs
            self._pending.connectors.add(connector)
        self._member.wakeup()

    def on_connector_config_remove(self, connector: str) -> None:
        """See ConfigListener."""
        with self._lock:
            self._pending.rebalance |= connector in self._configs
            self._pending.connectors.add(connector)
        self._member.wakeup()

    def on_task_config_update(self, tasks: list[ConnectorTaskId]) -> None:
        """See ConfigListener."""
        with self._lock:
            self._pending.rebalance = True
            self._pending.tasks.update(tasks)
        for name in {task.connector for task in tasks}:
            self._fencing.abort(name)
        self._member.wakeup()

    def on_target_state_change(self, connector: str) -> None:
        """See ConfigListener."""
        with self._lock:
            self._pending.targets.add(connector)
        self._member.wakeup()

    def on_session_key_update(self, key: SessionKey) -> None:
        """See ConfigListener."""
        with self._lock:
            self._session_key = key

    def on_restart_request(self, request: RestartRequest) -> None:
        """See ConfigListener."""
        with self._lock:
            known = self._pending.restarts.get(request.connector)
            if known is None or request.impact > known.impact:
                self._pending.restarts[request.connector] = request
        self._member.wakeup()

    def on_logging_level_update(self, namespace: str, level: str) -> None:
        """See ConfigListener."""
        loggers.set_level(namespace, level)

    # -- StatusListener, on any thread

    def on_startup(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put_status(work, State.RUNNING, version)

    def on_resume(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put_status(work, State.RUNNING, version)

    def on_pause(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put_status(work, State.PAUSED, version)

    def on_stop(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._put_status(work, State.STOPPED, version)

    def on_shutdown(self, work: WorkId, version: str | None) -> None:
        """See StatusListener."""
        self._status_store.put_safe(self._status(work, State.UNASSIGNED, version))

    def on_failure(self, work: WorkId, error: BaseException, version: str | None) -> None:
        """See StatusListener."""
        trace = "".join(traceback.format_exception(error))
        self._status_store.put_safe(self._status(work, State.FAILED, version, trace))

    def _put_status(self, work: WorkId, state: State, version: str | None = None) -> None:
        self._status_store.put(self._status(work, state, version))

    def _status(self, work: WorkId, state: State, version: str | None, trace: str | None = None) -> Status:
        return Status(work, state, self.worker.worker_id, self._generation, trace, version)

    def _note_topic(self, topic: str, task: ConnectorTaskId) -> None:
        if self._track_topics and self._status_store.topic(task.connector, topic) is None:
            self._status_store.put_topic(TopicStatus(topic, task.connector, task.task, now_ms()))

    def _clean_statuses(self) -> None:
        """As leader, take away the statuses of what is no longer configured."""
        configs = self._config_store.snapshot()
        for name in self._status_store.connectors():
            tasks = set(configs.tasks(name))
            for status in self._status_store.tasks(name):
                if status.id not in tasks:
                    self._put_status(status.id, State.DESTROYED)
            if name not in configs and self._status_store.connector(name) is not None:
                self._put_status(name, State.DESTROYED)


def _shown(status: Status | None) -> Mapping[str, Any]:
    if status is None:
        return {"state": None}
    return {
        "state": status.state.value,
        "worker_id": status.worker_id,
        "generation": status.generation,
        "trace": status.trace,
        "version": status.version,
    }
