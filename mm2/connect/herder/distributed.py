"""The herder of a cluster of workers: one thread makes all changes to this worker's work.

This module contains the requests, which run on the herder's thread between two ticks. The tick and its steps have their
own modules:

  tick               the order of the steps
  config_view        reading the config topic to its end, and what happens while that fails
  rebalances         the assignment, from the response of the group to the work that runs
  fencing            the leader's right to write to the config topic, and the fencing rounds that it begins
  internal_requests  the key that signs requests between workers
  config_changes     what the config topic announces: restart requests, new configurations, target states
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.connect.api import ConnectError
from mm2.connect.errors import NotAssigned, NotFound, NotLeader, RebalanceNeeded, RequestError
from mm2.connect.group.assignor import CooperativeAssignor
from mm2.connect.group.membership import GroupMember, WorkerRebalanceListener
from mm2.connect.group.protocol import URL_NOT_USED, WorkerAssignment
from mm2.connect.herder.answers import ConnectorInfo, ConnectorStateInfo, ConnectorType, Created
from mm2.connect.herder.base import AbstractHerder
from mm2.connect.herder.connector_offsets import ConnectorOffsetsAccess, require_stopped
from mm2.connect.herder.internal_requests import InternalRequests, SessionKeys
from mm2.connect.herder.request_queue import StagedFuture, StageTracker, Steps, failed, run_apart
from mm2.connect.herder.steps.config_changes import ConfigChanges, ConfigTopicListener, PendingChanges
from mm2.connect.herder.steps.config_view import ConfigView
from mm2.connect.herder.steps.fencing import LeaderFencing, LeaderPrivileges, TaskOwnership
from mm2.connect.herder.steps.rebalances import AssignedWork, Rebalances
from mm2.connect.herder.steps.tick import HerderTick
from mm2.connect.herder.validation import ConnectorValidation
from mm2.connect.request_signing import RequestSignature, SessionKey
from mm2.connect.runtime.counters import RebalanceCounters
from mm2.connect.runtime.tasks import OwnershipGuard
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId, Props, RestartRequest, TargetState
from mm2.connect.stores.config_store import ConfigStore
from mm2.connect.stores.status_store import Status, StatusStore
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.group.classic_member import GroupTimings
from mm2.kafka.readers.log import LogProgress

log = structlog.get_logger(__name__)


class DistributedHerder(AbstractHerder):
    """One worker of a Connect cluster.

    Deviation from Java in MirrorMaker's dedicated mode without internal REST (``rest_url`` NOTUSED everywhere): there a
    follower cannot send task configs to the leader (KAFKA-9981), so the leader's assignor places all connectors on the
    leader; see :class:`mm2.connect.group.assignor.CooperativeAssignor`.

    ``on_leader_ready`` is called on the herder's thread after each rebalance in which this worker became the leader; it
    may read :meth:`configs` and queue requests. ``cluster_id`` is called when the id is needed, ``loading`` for the
    progress of reading the source offsets during startup.
    """

    def __init__(
        self,
        worker: Worker,
        config_store: ConfigStore,
        status_store: StatusStore,
        cluster: Cluster,
        *,
        offsets: ConnectorOffsetsAccess,
        validation: ConnectorValidation,
        cluster_id: Callable[[], str],
        loading: Callable[[], LogProgress | None] = lambda: None,
        rest_url: str = URL_NOT_USED,
        rest_namespace: Sequence[str] = (),
        rest_props: Mapping[str, str] | None = None,
        on_leader_ready: Callable[[DistributedHerder], None] | None = None,
    ) -> None:
        super().__init__(
            worker, config_store, status_store, offsets=offsets, validation=validation, cluster_id=cluster_id
        )
        config = worker.config
        self.group_id = config.str("group.id")
        self._config = config
        self._loading = loading
        self._on_leader_ready = on_leader_ready
        self._sync_timeout_s = config.int("worker.sync.timeout.ms") / 1000
        self._member = _group_member(
            config, cluster, rest_url, configs=config_store.snapshot, listener=self, stages=self._stages
        )
        self._rest_url = rest_url
        self._internal_requests = InternalRequests.of(config, rest_props, namespace=rest_namespace, own_url=rest_url)
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"herder-{self.group_id}", daemon=True)

        # Any thread may use these.
        self._pending = PendingChanges(lambda name: name in self._view.configs)
        self._session_keys = SessionKeys(
            config, lambda: self._view.configs.session_key, lambda: self._member.signs_requests
        )
        self._ownership = TaskOwnership(self, config_store, self._sync_timeout_s)

        # These belong to the herder's thread; other threads may only read what their classes allow.
        self._view = ConfigView(config_store, self._member, self._stages, self._stopping, config)
        self._privileges = LeaderPrivileges(config_store, self._stages, self._stopping)
        self._fencing = LeaderFencing(self, worker, config_store, self._view, self._privileges)
        self._work = AssignedWork(
            worker, self._starts, self._stages, name=self.group_id, log_context=worker.log_context
        )
        self._rebalances = self._build_rebalances()
        self._tick = self._build_tick()

    def _build_rebalances(self) -> Rebalances:
        return Rebalances(
            self._member,
            self._view,
            self._work,
            self._reports,
            self._privileges,
            self._config_store,
            self._status_store,
            on_started=self._begin_fencing_without_rest,
            on_leading=self._announce_leadership,
        )

    def _build_tick(self) -> HerderTick:
        changes = ConfigChanges(
            self._pending,
            self._view,
            self._member,
            self._rebalances,
            self._work,
            self._starts,
            self._stages,
            self.connector_status,
        )
        return HerderTick(
            self._member,
            self._view,
            self._rebalances,
            self._privileges,
            self._session_keys,
            self._requests,
            changes,
            self._stages,
            self._ready,
        )

    # -- lifecycle

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._member.wakeup()
        # The herder may be waiting for a write to the config topic; from here on nothing is written to it.
        self._config_store.stop()
        if not self._ready.is_set():
            # Startup may be waiting for a broker.
            self._status_store.stop(0.0)
            self.worker.stop()
        if self._thread.is_alive():
            grace_s = self._config.int("task.shutdown.graceful.timeout.ms") / 1000
            self._thread.join(self._sync_timeout_s + grace_s + 15.0)
        self._work.close()

    def await_stopped(self, timeout_s: float | None = None) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def await_ready(self, timeout_s: float) -> bool:
        """Wait until internal topics are read, the group is joined and the first assignment has been started."""
        return self._ready.wait(timeout_s)

    @property
    def failure(self) -> BaseException | None:
        return self._failure

    @property
    def is_leader(self) -> bool:
        """Whether this worker is the group's leader, as of the last rebalance."""
        return self._rebalances.is_leader

    @property
    def assigned(self) -> tuple[tuple[str, ...], tuple[ConnectorTaskId, ...]]:
        """Connectors and tasks that the group has assigned to this worker."""
        assignment = self._rebalances.assignment
        return ((), ()) if assignment is None else (tuple(assignment.connectors), tuple(assignment.tasks))

    @property
    def rebalance_counters(self) -> RebalanceCounters:
        """Counters of this worker's rebalances."""
        return self._rebalances.counters

    @property
    def leader_url(self) -> str | None:
        """REST URL of the leader, None when it is unknown."""
        return self._rebalances.leader_url

    @property
    def generation(self) -> int:
        """Generation of the group as of the last rebalance, -1 before the first."""
        return self._rebalances.generation

    def configs(self) -> ClusterConfigState:
        """The view of the config topic that this herder acts on."""
        return self._view.configs

    def owns(self, work: str | ConnectorTaskId) -> bool:
        """Whether a connector or a task is assigned to this worker."""
        return self._rebalances.owns(work)

    def status(self) -> dict[str, Any]:
        """A snapshot for pages and logs: JSON-compatible, without any configuration."""
        assignment, configs = self._rebalances.assignment, self.configs()
        return {
            "group": self.group_id,
            "worker_id": self.worker.worker_id,
            "ready": self.is_ready,
            "stage": self._stages.current.description,
            "failure": None if self._failure is None else str(self._failure),
            "member_id": self._member.member_id,
            "leader": self.is_leader,
            "generation": self.generation,
            "assigned_connectors": sorted(assignment.connectors) if assignment is not None else [],
            "assigned_tasks": sorted(map(str, assignment.tasks)) if assignment is not None else [],
            "connectors": _connector_statuses(configs, self._status_store, self.worker.task_details()),
        }

    def _wakeup(self) -> None:
        self._member.wakeup()

    def _ping(self) -> StagedFuture[None]:
        return self.later(lambda: None, "answering a health check")

    # -- connectors: changing

    def _put(
        self, steps: Steps[Created], name: str, config: Props, *, allow_replace: bool, target_state: TargetState | None
    ) -> None:
        def put() -> Created:
            self.require_leader("set connector configs")
            new = self._is_new(name, allow_replace=allow_replace)
            self._privileges.put_connector_config(name, config, target_state)
            log.info("connector config written", connector=name, created=new)
            tasks = tuple(self._config_store.snapshot().tasks(name))
            return Created(new, ConnectorInfo(name, config, tasks, self.connector_type(config)))

        steps.after(self.later(put, f"putting the config of connector {name}"), steps.end)

    def delete_connector_config(self, name: str) -> StagedFuture[None]:
        def delete() -> None:
            self.require_leader("delete connector configs")
            self._known(name)
            self._privileges.remove_connector_config(name)

        return self.later(delete, f"deleting connector {name}")

    def _put_target_state(self, name: str, state: TargetState) -> StagedFuture[None]:
        try:
            self._known(name, f"Unknown connector {name}")
        except NotFound as error:
            return failed(error, lambda: self._stages.current)

        def put(stages: StageTracker) -> None:
            with stages.during(f"writing the {state.value} target state for connector {name} to the config topic"):
                self._config_store.put_target_state(name, state)

        return run_apart(put, f"target-state-{name}", "waiting for a thread")

    def stop_connector(self, name: str) -> StagedFuture[None]:
        def stop() -> None:
            self._known(name, f"Unknown connector {name}")
            self.require_leader("transition connectors to the STOPPED state")
            # If the second write fails, a running connector without tasks is better than a stopped one with tasks.
            self._privileges.put_task_configs(name, [])
            with self._stages.during(f"writing the STOPPED target state for connector {name} to the config topic"):
                self._config_store.put_target_state(name, TargetState.STOPPED)
            self._view.refresh_or_doubt()

        return self.later(stop, f"stopping connector {name}")

    def _require_own_connector(self, name: str) -> None:
        self._require_stable()
        self._known(name, f"Unknown connector: {name}")
        if not self.owns(name):
            raise self._not_assigned("restart connector", self._owner_url(name))

    def _require_own_task(self, task: ConnectorTaskId) -> None:
        self._require_stable()
        if task.connector not in self.configs():
            raise NotFound(f"Unknown connector: {task.connector}")
        if self.configs().task_config(task) is None:
            raise NotFound(f"Unknown task: {task}")
        if not self.owns(task):
            raise self._not_assigned("restart task", self._owner_url(task))

    def restart_connector_and_tasks(self, request: RestartRequest) -> StagedFuture[ConnectorStateInfo]:
        name = request.connector

        def restart() -> ConnectorStateInfo:
            self._require_stable()
            self._known(name, f"Unknown connector: {name}")
            self.require_leader("process restart requests")
            self._privileges.put_restart_request(request)
            return self._restart_plan(request).states

        return self.later(restart, f"restarting connector {name} and its tasks")

    # -- between workers

    @property
    def session_key(self) -> SessionKey | None:
        return self._session_keys.current if self.verifies_signatures else None

    @property
    def verifies_signatures(self) -> bool:
        return self._member.signs_requests

    def require_signature(self) -> None:
        self._session_keys.verify(None, is_permitted=True)

    def put_task_configs(
        self, name: str, configs: Callable[[], Sequence[Props]], signature: RequestSignature | None, is_permitted: bool
    ) -> StagedFuture[None]:
        def begin() -> StagedFuture[None]:
            parsed = configs()

            def put() -> None:
                self.require_leader("write task configurations")
                self._known(name)
                self._privileges.put_task_configs(name, parsed)

            return self.later(put, f"writing the task configs of connector {name}")

        return self._if_signed(signature, is_permitted, begin)

    def fence_zombies(self, name: str, signature: RequestSignature | None, is_permitted: bool) -> StagedFuture[None]:
        return self._if_signed(signature, is_permitted, lambda: self.begin_fencing(name))

    def begin_fencing(self, name: str) -> StagedFuture[None]:
        """`fence_zombies` without a signature, for this worker's own tasks."""
        return self._fencing.begin(name)

    def _if_signed(
        self, signature: RequestSignature | None, is_permitted: bool, then: Callable[[], StagedFuture[None]]
    ) -> StagedFuture[None]:
        try:
            self._session_keys.verify(signature, is_permitted=is_permitted)
        except ConnectError as error:
            return failed(error, lambda: self._stages.current)
        return then()

    # -- offsets

    def _stopped_config(self, name: str) -> StagedFuture[Props]:
        what = f"modifying offsets for connector {name}"
        steps: Steps[Props] = Steps(what)

        def look_up() -> Props:
            self._require_stable()
            self.require_leader("process external offsets modification requests")
            self._view.refresh()
            raw = self.configs().connector_config(name)
            if raw is None:
                raise NotFound(f"Connector {name} not found")
            require_stopped(name, self.configs())
            return raw

        def fence_or_retry(_fenced: None) -> None:
            # Fencing takes time, and the connector may have been resumed meanwhile.
            steps.after(self.later(look_up, what), steps.end)

        def fence(raw: Props) -> None:
            if self.worker.exactly_once and self.connector_type(raw) is ConnectorType.SOURCE:
                steps.after(self.begin_fencing(name), fence_or_retry)
            else:
                steps.end(raw)

        steps.after(self.later(look_up, what), fence)
        return steps.outcome

    # -- loggers

    def set_cluster_logger_level(self, namespace: str, level: str) -> StagedFuture[None]:
        try:
            self._loggers.check(namespace, level)
        except RequestError as error:
            return failed(error, lambda: self._stages.current)
        return run_apart(
            lambda _stages: self._config_store.put_logger_level(namespace, level.upper()),
            "logger-level",
            f"writing the level of logger {namespace} to the config topic",
        )

    # -- task configs of connectors that run here (Publisher)

    def publish_task_configs(self, connector: str, configs: Sequence[Props]) -> Future[None]:
        """On the herder's thread: write them as the leader, or send them to the leader without waiting for it."""
        done: Future[None] = Future()
        if self.is_leader:
            self._privileges.put_task_configs(connector, configs)
            done.set_result(None)
            return done
        url = self.leader_url
        if url is None:
            raise NotLeader(
                f"Worker {self.worker.worker_id} is not the leader of group {self.group_id} and cannot send it the "
                f"task configs of connector {connector}: enable internal REST on all workers (MirrorMaker: "
                "dedicated.mode.enable.internal.rest)",
                url,
            )
        return run_apart(
            lambda _stages: self._internal_requests.put_task_configs(
                url, connector, configs, self._session_keys.signing_key(url)
            ),
            f"publish-{connector}",
            f"forwarding task configurations to the leader at {url}",
        )

    def ask_leader_to_fence(self, leader_url: str, connector: str) -> None:
        """Request the leader to fence a connector's older tasks; waits. Raises RequestRefused."""
        self._internal_requests.fence(leader_url, connector, self._session_keys.signing_key(leader_url))

    # -- the herder's thread

    def _run(self) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**self.worker.log_context)
        try:
            with self._stages.during("initializing and reading to the end of internal topics", self._loaded):
                self.worker.start()
                self._status_store.start()
                self._config_store.start(
                    ConfigTopicListener(
                        self._pending, self._session_keys, self._fencing, self._loggers, self._member.wakeup
                    )
                )
                self._view.take()
            self._member.start()
            while not self._stopping.is_set():
                self._tick.run()
        except Exception as error:
            if not self._stopping.is_set():
                self._failure = error
                log.exception("herder failed, stopping")
        finally:
            self._halt()

    def _loaded(self) -> str:
        progress = self._loading()
        if progress is None or progress.is_complete:
            return ""
        return f"{progress.read} of {progress.total} offsets of the offsets topic read"

    def _halt(self) -> None:
        with self._stages.during("stopping connectors and tasks"):
            self._stop_all(
                lambda: self.worker.stop_connectors(self.worker.connector_names()),
                lambda: self.worker.stop_tasks(self.worker.task_ids()),
            )
        self._requests.close()
        with self._stages.during("closing stores and leaving the group"):
            self._stop_all(
                self._status_store.stop,
                self._config_store.stop,
                self.worker.stop,
                self._member.stop,
                self._validation.close,
            )
        log.info("herder stopped")

    def _begin_fencing_without_rest(self) -> None:
        if self.is_leader and self.worker.transactional_leader and self._rest_url == URL_NOT_USED:
            self._fencing.begin_unasked(self.configs())

    def _announce_leadership(self) -> None:
        if self._on_leader_ready is not None:
            self._on_leader_ready(self)

    # -- RebalanceListener

    def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        """See WorkerRebalanceListener."""
        self._rebalances.on_assigned(assignment, generation)

    def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[ConnectorTaskId]) -> None:
        """See WorkerRebalanceListener."""
        self._rebalances.on_revoked(leader, connectors, tasks)

    # -- what requests need

    def require_leader(self, what: str) -> None:
        """Raises NotLeader, with the URL of the leader. On the herder's thread."""
        if not self.is_leader:
            raise NotLeader(
                f"Only the leader can {what}, and worker {self.worker.worker_id} is not the leader", self.leader_url
            )

    def _require_stable(self) -> None:
        """While a rebalance is expected, the worker to forward to is unknown."""
        if self._pending.need_rebalance:
            raise RebalanceNeeded

    def _not_assigned(self, what: str, owner_url: str | None) -> NotAssigned | NotLeader:
        message = f"Cannot {what} since it is not assigned to worker {self.worker.worker_id}"
        return NotAssigned(message, owner_url) if self.is_leader else NotLeader(message, self.leader_url)

    def _owner_url(self, work: str | ConnectorTaskId) -> str | None:
        return self._member.owner_url(work) if self.is_leader else None

    # -- what starts of tasks need

    def _guard(self, task: ConnectorTaskId, generation: int | None) -> OwnershipGuard | None:
        return self._ownership.guard(task, generation)

    def _is_ours(self) -> bool:
        return self._member.is_ours()


def _group_member(
    config: AbstractConfig,
    cluster: Cluster,
    url: str,
    *,
    configs: Callable[[], ClusterConfigState],
    listener: WorkerRebalanceListener,
    stages: StageTracker,
) -> GroupMember:
    """The member of a worker with this configuration."""
    max_delay_ms = config.int("scheduled.rebalance.max.delay.ms")
    return GroupMember(
        cluster,
        group_id=config.str("group.id"),
        timings=GroupTimings(
            config.int("session.timeout.ms"), config.int("rebalance.timeout.ms"), config.int("heartbeat.interval.ms")
        ),
        connect_protocol=config.str("connect.protocol"),
        url=url,
        assignor=CooperativeAssignor(max_delay_ms, lambda: int(time.monotonic() * 1000)),
        configs=configs,
        listener=listener,
        stage=lambda: stages.current.description,
    )


def _connector_statuses(
    configs: ClusterConfigState, statuses: StatusStore, details: Mapping[ConnectorTaskId, Mapping[str, Any]]
) -> dict[str, Any]:
    """Statuses of all connectors and their tasks; ``details`` are what this worker's tasks have reported."""
    return {
        name: {
            "connector": _status_fields(statuses.connector(name)),
            "target_state": configs.target_state(name),
            "tasks": [
                {"id": task.id.task, **_status_fields(task), "detail": details.get(task.id, {})}
                for task in statuses.tasks(name)
                if isinstance(task.id, ConnectorTaskId)
            ],
        }
        for name in sorted(configs.connectors() | statuses.connectors())
    }


def _status_fields(status: Status | None) -> Mapping[str, Any]:
    if status is None:
        return {"state": None}
    return {
        "state": status.state.value,
        "worker_id": status.worker_id,
        "generation": status.generation,
        "trace": status.trace,
        "version": status.version,
    }
