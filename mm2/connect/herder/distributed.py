"""The herder of a cluster of workers: one thread through which everything that changes this worker's part goes (spec connect D).

What each tick does, and in which order, is that of org.apache.kafka.connect.runtime.distributed.DistributedHerder 4.3.0.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, Final

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.errors import BadRequest, NotAssigned, NotFound, NotLeader, RebalanceNeeded
from mm2.connect.group.assignor import CooperativeAssignor
from mm2.connect.group.membership import GroupMember
from mm2.connect.group.protocol import URL_NOT_USED, Assignment, ConnectorTaskId
from mm2.connect.herder.answers import ConnectorInfo, ConnectorStateInfo, ConnectorType, Created
from mm2.connect.herder.assigned_work import AssignedWork
from mm2.connect.herder.base import AbstractHerder
from mm2.connect.herder.changes import PendingChanges
from mm2.connect.herder.connector_offsets import ConnectorOffsetsAccess, require_stopped
from mm2.connect.herder.fencing import FencingConflict, ZombieFencing
from mm2.connect.herder.internal_requests import InternalRequests, RequestRefused
from mm2.connect.herder.loggers import require_level
from mm2.connect.herder.ownership import TaskOwnership
from mm2.connect.herder.privileges import LeaderPrivileges
from mm2.connect.herder.reconfiguration import backoff_s
from mm2.connect.herder.requests import NEVER
from mm2.connect.herder.restarts import restart_plan
from mm2.connect.herder.session_keys import SessionKeys
from mm2.connect.herder.sessions import RequestSignature, SessionKey
from mm2.connect.herder.stages import StagedFuture, StageTracker, Steps, failed, run_apart
from mm2.connect.herder.validation import ConnectorValidation
from mm2.connect.runtime.tasks import OwnershipGuard
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ClusterConfigState, Props, RestartRequest, TargetState
from mm2.connect.stores.config_store import ConfigStore
from mm2.connect.stores.status_store import StatusStore
from mm2.connect.stores.statuses import Status
from mm2.kafka.classic_member import GroupTimings
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.log import LogProgress

log = structlog.get_logger(__name__)

_BACKOFF_RETRIES: Final = 5
#: The least pause between two tries to read the config topic; some failures come at once.
_BACKOFF_FLOOR_S = 1.0
_STATUS_FLUSH_S: Final = 5.0
_SESSIONED: Final = 2


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
        stage = f"writing a task count record for connector {connector} to the config topic"
        self._herder._privileges.write(stage, lambda: store.put_task_count(connector, count))  # noqa: SLF001

    def later(self, action: Callable[[], None], stage: str) -> Future[None]:
        return self._herder.later(action, stage)


class DistributedHerder(AbstractHerder):
    """One worker of a Connect cluster.

    Deviation from Java in MirrorMaker's dedicated mode without internal REST (``rest_url`` NOTUSED everywhere): there a
    follower has no way to hand task configs to the leader (KAFKA-9981), so the leader's assignor keeps the connectors
    for itself; see :class:`mm2.connect.group.assignor.CooperativeAssignor`.

    ``on_leader_ready`` is called on the herder's thread after each rebalance in which this worker became the leader; it
    may look at :meth:`configs` and queue requests. ``cluster_id`` is asked when somebody wants to know,
    ``loading`` how far the source offsets are read while it starts.
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
        self._max_delay_ms = config.int("scheduled.rebalance.max.delay.ms")
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
            stage=lambda: self._stages.current.description,
        )
        self._rest_url = rest_url
        self._internal_requests = InternalRequests(
            {key: str(value) for key, value in config.originals.items()},
            namespace=rest_namespace,
            algorithm=config.str("inter.worker.signature.algorithm"),
        )
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"herder-{self.group_id}", daemon=True)

        self._pending = PendingChanges(lambda name: name in self._configs)
        self._privileges = LeaderPrivileges(config_store, self._stages, self._stopping)
        self._session_keys = SessionKeys(config, lambda: self._configs.session_key)
        self._fencing = ZombieFencing(_Leadership(self), self._fence_producers)
        self._ownership = TaskOwnership(self, config_store, self._sync_timeout_s)
        self._work = AssignedWork(
            worker, self._starts, self._stages, name=self.group_id, log_context=worker.log_context
        )

        # Written by the herder's thread only.
        self._configs = ClusterConfigState()
        self._assignment: Assignment | None = None
        self._generation = -1
        self._rebalance_resolved = True
        self._can_read_configs = True
        self._scheduled_rebalance_s = NEVER
        self._backoff_retries = _BACKOFF_RETRIES
        self._led_as = ""
        self._protocol_version: int | None = None

    # -- life

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
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
        assignment = self._assignment
        return assignment is not None and bool(assignment.leader) and assignment.leader == self._member.member_id

    @property
    def leader_url(self) -> str | None:
        """REST URL of the leader, None when it is not known."""
        url = "" if self._assignment is None else self._assignment.leader_url
        return None if url in {"", URL_NOT_USED} else url

    @property
    def generation(self) -> int:
        """Generation of the group as of the last rebalance, -1 before the first."""
        return self._generation

    def configs(self) -> ClusterConfigState:
        """The view of the config topic that this herder acts on."""
        return self._configs

    def owns(self, task: ConnectorTaskId) -> bool:
        """Whether a task is assigned to this worker."""
        return self._assignment is not None and task in self._assignment.tasks

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
            "ready": self.is_ready,
            "stage": self._stages.current.description,
            "failure": None if self._failure is None else str(self._failure),
            "member_id": self._member.member_id,
            "leader": self.is_leader,
            "generation": self._generation,
            "assigned_connectors": sorted(assignment.connectors) if assignment is not None else [],
            "assigned_tasks": sorted(map(str, assignment.tasks)) if assignment is not None else [],
            "connectors": connectors,
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
            self._require_leader("set connector configs")
            new = self._is_new(name, allow_replace=allow_replace)
            self._privileges.write(
                f"writing a config for connector {name} to the config topic",
                lambda: self._config_store.put_connector_config(name, config, target_state),
            )
            log.info("connector config written", connector=name, created=new)
            tasks = tuple(self._config_store.snapshot().tasks(name))
            return Created(new, ConnectorInfo(name, config, tasks, self.connector_type(config)))

        steps.after(self.later(put, f"putting the config of connector {name}"), steps.end)

    def delete_connector_config(self, name: str) -> StagedFuture[None]:
        def delete() -> None:
            self._require_leader("delete connector configs")
            self._known(name)
            self._privileges.write(
                f"removing the config for connector {name} from the config topic",
                lambda: self._config_store.remove_connector_config(name),
            )

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
            self._require_leader("transition connectors to the STOPPED state")
            # Should we fail in between, a running connector without tasks is better than a stopped one that has some.
            self._write_task_configs(name, [])
            with self._stages.during(f"writing the STOPPED target state for connector {name} to the config topic"):
                self._config_store.put_target_state(name, TargetState.STOPPED)
            self._refresh_configs()

        return self.later(stop, f"stopping connector {name}")

    def _require_own_connector(self, name: str) -> None:
        self._require_stable()
        self._known(name, f"Unknown connector: {name}")
        assignment = self._assignment
        if assignment is None or name not in assignment.connectors:
            raise self._not_ours("restart connector", self._owner_url(name))

    def _require_own_task(self, task: ConnectorTaskId) -> None:
        self._require_stable()
        if task.connector not in self._configs:
            raise NotFound(f"Unknown connector: {task.connector}")
        if self._configs.task_config(task) is None:
            raise NotFound(f"Unknown task: {task}")
        if not self.owns(task):
            raise self._not_ours("restart task", self._owner_url(task))

    def restart_connector_and_tasks(self, request: RestartRequest) -> StagedFuture[ConnectorStateInfo]:
        name = request.connector

        def restart() -> ConnectorStateInfo:
            self._require_stable()
            self._known(name, f"Unknown connector: {name}")
            self._require_leader("process restart requests")
            self._privileges.write(
                f"writing restart request for connector {name} to the config topic",
                lambda: self._config_store.put_restart_request(request),
            )
            return restart_plan(request, self.connector_status(name)).states

        return self.later(restart, f"restarting connector {name} and its tasks")

    # -- between workers

    def put_task_configs(
        self, name: str, configs: Sequence[Props], signature: RequestSignature | None
    ) -> StagedFuture[None]:
        def put() -> None:
            self._require_leader("write task configurations")
            self._known(name)
            self._write_task_configs(name, configs)

        return self._signed(signature, lambda: self.later(put, f"writing the task configs of connector {name}"))

    def fence_zombies(self, name: str, signature: RequestSignature | None) -> StagedFuture[None]:
        return self._signed(signature, lambda: self.begin_fencing(name))

    def begin_fencing(self, name: str) -> StagedFuture[None]:
        """`fence_zombies` for those who need no signature: this worker's own tasks."""
        steps: Steps[None] = Steps(f"fencing older tasks of connector {name}")

        def pass_on(done: Future[None]) -> None:
            error = done.exception()
            if error is None:
                steps.end(None)
            else:
                steps.fail(error)

        def begin() -> None:
            self._require_leader("fence older tasks of a connector")
            if self.known_connector_info(name).type is not ConnectorType.SOURCE:
                raise BadRequest(f"Connector {name} is not a source connector")
            self._fencing.begin(name).add_done_callback(pass_on)

        begun = self.later(begin, f"fencing older tasks of connector {name}")
        steps.after(begun, lambda _begun: None)
        return steps.outcome

    def _signed(self, signature: RequestSignature | None, then: Callable[[], StagedFuture[None]]) -> StagedFuture[None]:
        try:
            self._session_keys.verify(signature, self._member.protocol_version)
        except ConnectError as error:
            return failed(error, lambda: self._stages.current)
        return then()

    # -- offsets

    def _stopped_config(self, name: str) -> StagedFuture[Props]:
        what = f"modifying offsets for connector {name}"
        steps: Steps[Props] = Steps(what)

        def look_up() -> Props:
            self._require_stable()
            self._require_leader("process external offsets modification requests")
            self._refresh_configs()
            raw = self._configs.connector_config(name)
            if raw is None:
                raise NotFound(f"Connector {name} not found")
            require_stopped(name, self._configs)
            return raw

        def look_again(_fenced: None) -> None:
            # Fencing takes its time, and the connector may have been resumed meanwhile.
            steps.after(self.later(look_up, what), steps.end)

        def fence(raw: Props) -> None:
            if self.worker.exactly_once and self.connector_type(raw) is ConnectorType.SOURCE:
                steps.after(self.begin_fencing(name), look_again)
            else:
                steps.end(raw)

        steps.after(self.later(look_up, what), fence)
        return steps.outcome

    # -- loggers

    def set_cluster_logger_level(self, namespace: str, level: str) -> StagedFuture[None]:
        try:
            require_level(level)
        except NotFound as error:
            return failed(error, lambda: self._stages.current)
        return run_apart(
            lambda _stages: self._config_store.put_logger_level(namespace, level.upper()),
            "logger-level",
            f"writing the level of logger {namespace} to the config topic",
        )

    # -- task configs of connectors that run here (Publisher)

    def publish_task_configs(self, connector: str, configs: Sequence[Props]) -> Future[None]:
        """On the herder's thread: write them as the leader, or hand them to the leader without waiting for it."""
        done: Future[None] = Future()
        if self.is_leader:
            self._write_task_configs(connector, configs)
            done.set_result(None)
            return done
        url = self.leader_url
        if url is None:
            raise NotLeader(
                f"Worker {self.worker.worker_id} is not the leader of group {self.group_id} and has no way to hand it the "
                f"task configs of connector {connector}: enable internal REST on all workers (MirrorMaker: "
                "dedicated.mode.enable.internal.rest)",
                url,
            )
        return run_apart(
            lambda _stages: self._internal_requests.put_task_configs(url, connector, configs, self._key_for(url)),
            f"publish-{connector}",
            f"forwarding task configurations to the leader at {url}",
        )

    def ask_leader_to_fence(self, leader_url: str, connector: str) -> None:
        """Have the leader fence a connector's older tasks; waits. Raises RequestRefused."""
        self._internal_requests.fence(leader_url, connector, self._key_for(leader_url))

    def _key_for(self, url: str) -> SessionKey | None:
        """The key to sign a request with, None in a group that does not sign."""
        key = self._session_keys.current
        if key is None and self._member.protocol_version >= _SESSIONED:
            raise RequestRefused(f"There is no session key yet to sign a request to {url} with", 503)
        return key

    def _write_task_configs(self, name: str, configs: Sequence[Props]) -> None:
        if configs and self._config_store.snapshot().target_state(name) is TargetState.STOPPED:
            raise BadRequest(f"Cannot submit non-empty set of task configs for stopped connector {name}")
        self._privileges.write(
            f"writing {len(configs)} task configs for connector {name} to the config topic",
            lambda: self._config_store.put_task_configs(name, configs),
        )

    # -- the herder's thread

    def _run(self) -> None:
        structlog.contextvars.clear_contextvars()
        structlog.contextvars.bind_contextvars(**self.worker.log_context)
        try:
            with self._stages.during("initializing and reading to the end of internal topics", self._loaded):
                self.worker.start()
                self._status_store.start()
                self._config_store.start(self)
                self._configs = self._config_store.snapshot()
            self._member.start()
            while not self._stopping.is_set():
                self._tick()
        except Exception as error:
            if not self._stopping.is_set():
                self._failure = error
                log.exception("the herder failed and stops")
        finally:
            self._halt()

    def _loaded(self) -> str:
        progress = self._loading()
        if progress is None or progress.is_complete:
            return ""
        return f"{progress.read} of {progress.total} offsets of the offsets topic read"

    def _halt(self) -> None:
        with self._stages.during("stopping connectors and tasks"):
            self._guarded(lambda: self.worker.stop_connectors(self.worker.connector_names()))
            self._guarded(lambda: self.worker.stop_tasks(self.worker.task_ids()))
        self._requests.close()
        with self._stages.during("closing stores and leaving the group"):
            for close in (
                self._status_store.stop,
                self._config_store.stop,
                self.worker.stop,
                self._member.stop,
                self._validation.close,
            ):
                self._guarded(close)
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
        with self._stages.during("ensuring membership in the cluster"):
            if not self._member.ensure_active():
                return
        if not self._handle_rebalance_completed():
            return
        if not self._privileges.reclaim(is_leader=self.is_leader) or not self._rotate_session_key():
            return
        self._ready.set()
        next_due_s = self._requests.run_due(lambda: self._privileges.fenced)
        self._process_restarts()
        if self._scheduled_rebalance_s < NEVER:
            next_due_s = min(next_due_s, self._scheduled_rebalance_s)
            self._rebalance_resolved = False
        if self.is_leader and self._member.protocol_version >= _SESSIONED:
            next_due_s = min(next_due_s, self._session_keys.due_s())
        if self._apply_config_changes():
            return
        left_s = None if next_due_s == NEVER else max(0.0, next_due_s - time.monotonic())
        until = "" if left_s is None else f"for up to {left_s * 1000:.0f}ms or "
        with self._stages.during(f"polling the group coordinator {until}until interrupted"):
            self._member.poll(left_s)
        self._handle_rebalance_completed()

    # -- rebalances (RebalanceListener)

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
        self._note_protocol()
        self._assignment = assignment
        self._generation = generation
        self._scheduled_rebalance_s = (
            time.monotonic() + assignment.delay_ms / 1000 if assignment.delay_ms > 0 else NEVER
        )
        self._rebalance_resolved = False
        if self.is_leader:
            self._reports.clean_up(self._config_store.snapshot())
            self._privileges.claim()

    def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[ConnectorTaskId]) -> None:
        """See RebalanceListener. When this returns, everything has stopped or is cancelled."""
        if not self._rebalance_resolved and self._member.protocol_version == 0:
            log.info("nothing was started since the last rebalance, nothing to stop")
            return
        log.info("revoked", connectors=list(connectors), tasks=[str(task) for task in tasks])
        self._work.revoke(connectors, tasks)
        configured = self._config_store.snapshot().connectors()
        self._reports.forget_topics({*connectors, *(task.connector for task in tasks)} - configured)
        # What is written after the rebalance must not be overtaken by what was said before it.
        self._status_store.flush(_STATUS_FLUSH_S)

    def _note_protocol(self) -> None:
        before, self._protocol_version = self._protocol_version, self._member.protocol_version
        if before is None or (before >= _SESSIONED) == (self._protocol_version >= _SESSIONED):
            return
        if self._protocol_version >= _SESSIONED:
            log.info("internal requests between workers are signed and checked from now on")
        else:
            log.warning(
                "the group's protocol was downgraded, probably since a worker with an older connect.protocol has joined; "
                "internal requests between workers are no longer checked (KIP-507)",
                version=self._protocol_version,
            )

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
            self._scheduled_rebalance_s = NEVER
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

    def _start_work(self, assignment: Assignment) -> None:
        self._work.start(assignment, eager=self._member.protocol_version == 0)
        if self.is_leader and self.worker.transactional_leader and self._rest_url == URL_NOT_USED:
            # Nobody can ask for it. Only now, when all members have stopped their older tasks, so that it hits zombies only.
            # While exactly-once is being prepared, too: members that have it enabled already would wait in vain.
            for name in self._configs.pending_fencing:
                if self._configs.tasks(name):
                    self._fence_unasked(name, 0)

    def _announce_leadership(self) -> None:
        # By member id: a leader that fell out of the group and leads it again may have missed what it had to do.
        led_as, self._led_as = self._led_as, self._member.member_id if self.is_leader else ""
        if self._led_as not in {"", led_as}:
            log.info("this worker is now the leader")
            if self._on_leader_ready is not None:
                self._on_leader_ready(self)

    # -- reading the config topic

    def _read_configs_to_end(self) -> bool:
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
        with self._stages.during("reading to the end of the config topic"):
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
        with self._stages.during(f"sleeping for a backoff duration of {pause_s * 1000:.0f}ms"):
            self._stopping.wait(pause_s)

    # -- configuration changes

    def _apply_config_changes(self) -> bool:
        """See to what the config topic has announced; True = a rebalance comes first."""
        changes = self._pending.take()
        if not changes:
            return False
        self._configs = self._config_store.snapshot()
        if changes.rebalance:
            self._member.request_rejoin("connectors or tasks have changed")
            if self._member.protocol_version == 0:
                # Everything restarts in an eager rebalance, so nothing is left to be done one by one.
                return True
        mine = self._assignment
        if changes.connectors and mine is not None:
            self._restart_changed_connectors(changes.connectors & set(mine.connectors))
        for name in changes.targets:
            self._apply_target_state(name)
        if changes.tasks and mine is not None:
            changed = {task.connector for task in changes.tasks}
            self._work.stop_reconfigured([task for task in mine.tasks if task.connector in changed])
        return changes.rebalance

    def _restart_changed_connectors(self, names: set[str] | frozenset[str]) -> None:
        if not names:
            return
        with self._stages.during(f"stopping {len(names)} reconfigured connector(s): {', '.join(sorted(names))}"):
            self.worker.stop_connectors(names)
        left = [name for name in names if name in self._configs]
        self._work.start_all(left, [], f"restarting {len(left)} reconfigured connectors")

    def _apply_target_state(self, name: str) -> None:
        state = self._configs.target_state(name)
        if state is None or name not in self._configs:
            return
        log.info("target state", connector=name, state=state.value)
        self.worker.set_target_state(name, state, self._starts.on_transition(name))

    def _process_restarts(self) -> None:
        for request in self._pending.take_restarts():
            with self._stages.during(f"handling restart request for connector {request.connector}"):
                try:
                    self._restart(request)
                except Exception:
                    log.exception("restart failed", connector=request.connector)

    def _restart(self, request: RestartRequest) -> None:
        """Restart what the request means and this worker owns."""
        name, assignment = request.connector, self._assignment
        if assignment is None or self._status_store.connector(name) is None:
            return
        plan = restart_plan(request, self.connector_status(name))
        connector = plan.connector and name in assignment.connectors
        tasks = [task for task in plan.tasks if task in assignment.tasks]
        log.info("restarting", connector=name, itself=connector, tasks=[str(task) for task in tasks])
        if connector:
            with self._stages.during(f"stopping to-be-restarted connector {name}"):
                self.worker.stop_connectors([name])
            self._reports.restarting(name)
        if tasks:
            with self._stages.during(f"stopping {len(tasks)} to-be-restarted tasks for connector {name}"):
                self.worker.stop_tasks(tasks)
            for task in tasks:
                self._reports.restarting(task)
        self._work.start_all([name] if connector else [], tasks, f"restarting connector {name} and {len(tasks)} tasks")

    # -- what requests need

    def _require_leader(self, what: str) -> None:
        if not self.is_leader:
            raise NotLeader(
                f"Only the leader can {what}, and worker {self.worker.worker_id} is not the leader", self.leader_url
            )

    def _require_stable(self) -> None:
        """Whom to forward to is not known while a rebalance is to be expected."""
        if self._pending.need_rebalance:
            raise RebalanceNeeded

    def _not_ours(self, what: str, owner_url: str | None) -> NotAssigned | NotLeader:
        message = f"Cannot {what} since it is not assigned to worker {self.worker.worker_id}"
        return NotAssigned(message, owner_url) if self.is_leader else NotLeader(message, self.leader_url)

    def _owner_url(self, work: str | ConnectorTaskId) -> str | None:
        return self._member.owner_url(work) if self.is_leader else None

    # -- exactly-once

    def _guard(self, task: ConnectorTaskId, generation: int | None) -> OwnershipGuard | None:
        return self._ownership.guard(task, generation)

    def _is_ours(self) -> bool:
        return self._member.is_ours()

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
            delay_s = backoff_s(attempts)
            log.warning("older tasks not fenced", connector=name, reason=str(error), again_in_s=delay_s)
            self.later(
                lambda: self._fence_unasked(name, attempts + 1),
                f"fencing older tasks of connector {name}",
                delay_s=delay_s,
            )

        self.begin_fencing(name).add_done_callback(on_done)

    # -- session keys

    def _rotate_session_key(self) -> bool:
        """As leader of a group that signs its requests, see that there is a fresh key. False: writing one failed."""
        if not self.is_leader or self._member.protocol_version < _SESSIONED:
            return True
        key = self._session_keys.replacement()
        if key is None:
            return True
        try:
            self._privileges.write(
                "writing a new session key to the config topic", lambda: self._config_store.put_session_key(key)
            )
        except ConnectError as error:
            log.warning("session key not written", reason=str(error))
            self._can_read_configs = False
            return False
        self._session_keys.accept(key)
        return True

    # -- ConfigListener, on the config log's thread

    def on_connector_config_update(self, connector: str) -> None:
        """See ConfigListener."""
        self._pending.connector_updated(connector)
        self._member.wakeup()

    def on_connector_config_remove(self, connector: str) -> None:
        """See ConfigListener."""
        self._pending.connector_removed(connector)
        self._member.wakeup()

    def on_task_config_update(self, tasks: list[ConnectorTaskId]) -> None:
        """See ConfigListener."""
        self._pending.tasks_updated(tasks)
        for name in {task.connector for task in tasks}:
            self._fencing.abort(name)
        self._member.wakeup()

    def on_target_state_change(self, connector: str) -> None:
        """See ConfigListener."""
        self._pending.target_changed(connector)
        self._member.wakeup()

    def on_session_key_update(self, key: SessionKey) -> None:
        """See ConfigListener."""
        self._session_keys.accept(key)

    def on_restart_request(self, request: RestartRequest) -> None:
        """See ConfigListener."""
        self._pending.restart_requested(request)
        self._member.wakeup()

    def on_logging_level_update(self, namespace: str, level: str) -> None:
        """See ConfigListener."""
        try:
            self._loggers.set_level(namespace, level)
        except NotFound as error:
            log.warning("the level of a logger was not changed", namespace=namespace, reason=str(error))


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
