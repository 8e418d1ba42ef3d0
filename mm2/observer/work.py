"""Connectors, tasks and workers of a flow, from this process's herder or from the worker's topics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

from mm2.config.keys.mirror_keys import SOURCE_CONNECTOR
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.stores.config_state import ClusterConfigState, ConfigFold, ConnectorTaskId, TargetState
from mm2.connect.stores.internal_topic import deleted_in_use
from mm2.connect.stores.status_store import State, Status, StatusFold
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure, value_of
from mm2.kafka.readers.log import KafkaBasedLog, LogRecord
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.discovery import vanished
from mm2.mirror.groups.group_offsets import group_state
from mm2.mirror.process.plans import absent_connectors
from mm2.mirror.source.assigned_partitions import ASSIGNED_PARTITIONS_KEY, decode_partitions
from mm2.observer.traces import reason_of
from mm2.observer.views import ConnectorView, GroupProcess, TaskView

SOURCE_NAME: Final = SOURCE_CONNECTOR.rpartition(".")[2]
_ON: Final = State.RUNNING.value
_NO_WORKER: Final = "no worker is in the flow's group"
_HELD: Final = {TargetState.PAUSED: "paused", TargetState.STOPPED: "stopped"}


@dataclass(frozen=True, slots=True)
class Work:
    """The state of the flow's group of workers.

    ``tasks`` is the task of each partition; None while not known. ``failed`` are the errors. ``held`` is "paused" or
    "stopped" if a user has requested this. ``idle_reason`` is why nothing is copied although no user has requested
    this. ``absent``: connectors of the flow that do not exist (a message; "" if all exist, or this is not known).
    """

    connectors: tuple[ConnectorView, ...] = ()
    workers: tuple[GroupProcess, ...] = ()
    tasks: Mapping[TopicPartition, int] | None = None
    failed: Mapping[int, str] = field(default_factory=dict)
    held: str = ""
    idle_reason: str = ""
    absent: str = ""

    @property
    def failures(self) -> int:
        """The number of failed connectors and tasks."""
        own = sum(one.state == State.FAILED for one in self.connectors)
        return own + sum(task.state == State.FAILED for one in self.connectors for task in one.tasks)


class Works(Protocol):
    """A source of this state."""

    def read(self) -> Work:
        """The current state; sends no requests to a cluster."""


class HerderWork:
    """Reads the state from the herder of this process."""

    def __init__(self, herder: DistributedHerder, source: str) -> None:
        self._herder = herder
        self._assigned = AssignedTasks(source)

    def read(self) -> Work:
        """See Works."""
        herder = self._herder
        status = herder.status()
        here = status["worker_id"]
        leader = here if status["leader"] else None
        failure = status["failure"]
        idle = f"the worker has ended: {failure}" if failure else ""
        statuses = {
            name: (one["connector"], one["target_state"], one["tasks"]) for name, one in status["connectors"].items()
        }
        absent = absent_connectors(statuses) if status["ready"] else ""
        return _work(statuses, herder.configs(), self._assigned, here=here, leader=leader, idle=idle, absent=absent)


class NoWork:
    """The state of a flow without a worker in this process: it waits for its target."""

    def read(self) -> Work:
        """See Works."""
        return Work()


class StoredWork:
    """Reads the group's config and status topics on the target once, from outside of its workers."""

    def __init__(
        self, cluster: Cluster, admin: Admin, worker: Mapping[str, str], source: str, timeout_s: float
    ) -> None:
        """``worker`` are the settings of the flow's workers. Raises KafkaFailure.

        A topic that does not exist shows nothing, as it may have been deleted: only the group shows that no worker runs.
        """
        self._configs, self._statuses = ConfigFold(), StatusFold()
        self._assigned = AssignedTasks(source)
        configs, statuses = worker["config.storage.topic"], worker["status.storage.topic"]
        group = worker["group.id"]
        self._members: int | None = None
        described = admin.describe_groups([group])[group]
        if not isinstance(described, KafkaFailure):
            self._members = None if described.members is None else len(described.members)
        elif group_state(described) == "dead":
            self._members = 0
        else:
            # Statuses outlive their workers: without the group, a killed worker would look like a running one.
            raise described
        answers = admin.describe_topics([configs, statuses])
        self._exists = not any(vanished(answer) for answer in answers.values())
        if not self._exists and self._members == 0:
            return
        for topic, answer in answers.items():
            if vanished(answer):
                raise deleted_in_use(topic, cluster.name)
            value_of(answer)

        def config(record: LogRecord) -> None:
            self._configs.apply(record.offset, record.key, record.value)

        def status(record: LogRecord) -> None:
            self._statuses.apply(record.key, record.value)

        for topic, take in ((configs, config), (statuses, status)):
            log = KafkaBasedLog(cluster, topic, on_record=take)
            try:
                log.start(timeout_s)
            finally:
                log.stop()

    def read(self) -> Work:
        """See Works."""
        if not self._exists:
            return Work(idle_reason=_NO_WORKER)
        configs = self._configs.snapshot()
        # Statuses outlive their workers: when the last worker is killed, none is left to update them.
        has_workers = self._members != 0
        statuses = {
            name: (
                _shown(self._statuses.connector(name), has_workers=has_workers),
                configs.target_state(name),
                [
                    {"id": one.id.task, **_shown(one, has_workers=has_workers)}
                    for one in self._statuses.tasks(name)
                    if isinstance(one.id, ConnectorTaskId)
                ],
            )
            for name in sorted(configs.connectors())
        }
        idle = "" if has_workers else _NO_WORKER
        absent = absent_connectors(statuses)
        return _work(statuses, configs, self._assigned, here=None, leader=None, idle=idle, absent=absent)


class AssignedTasks:
    """The task of each partition; rebuilt when the task configs change."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._seen: tuple[object, dict[TopicPartition, int]] | None = None

    def of(self, configs: ClusterConfigState) -> dict[TopicPartition, int] | None:
        """By the task configs; None if there are none yet, or they are not readable."""
        ids = configs.tasks(SOURCE_NAME)
        lists = [(one.task, (configs.task_config(one) or {}).get(ASSIGNED_PARTITIONS_KEY) or "") for one in ids]
        if not lists:
            return None
        if self._seen is None or self._seen[0] != lists:
            try:
                assigned = {tp: task for task, text in lists if text for tp in decode_partitions(text)}
            except ValueError:
                return None
            self._seen = (lists, assigned)
        return self._seen[1]


def _work(
    statuses: Mapping[str, tuple[Mapping[str, Any], TargetState | None, list[dict[str, Any]]]],
    configs: ClusterConfigState,
    assigned: AssignedTasks,
    *,
    here: str | None,
    leader: str | None,
    idle: str,
    absent: str,
) -> Work:
    connectors = tuple(_connector(name, *one) for name, one in statuses.items())
    source = next((one for one in connectors if one.name == SOURCE_NAME), None)
    held = _HELD.get(configs.target_state(SOURCE_NAME) or TargetState.STARTED, "")
    failed = (
        {} if source is None else {task.id: _reason(task.trace) for task in source.tasks if task.state == State.FAILED}
    )
    if not idle and not held:
        disabled = (configs.connector_config(SOURCE_NAME) or {}).get("enabled") == "false"
        idle = (
            absent
            if source is None
            else "the source connector is disabled: enabled = false"
            if disabled
            else _idle(source)
        )
    tasks = assigned.of(configs)
    return Work(connectors, _workers(connectors, here, leader), tasks, failed, held, idle, absent)


def _idle(source: ConnectorView) -> str:
    """Why nothing is copied, from the states of the source connector and its tasks."""
    if any(task.state in {_ON, State.RESTARTING, State.PAUSED} for task in source.tasks):
        return ""
    if source.state == State.FAILED:
        return f"the source connector has failed: {_reason(source.trace)}"
    if source.tasks and all(task.state == State.FAILED for task in source.tasks):
        return f"all tasks have failed: {_reason(source.tasks[0].trace)}"
    if source.tasks and all(task.state == State.UNASSIGNED for task in source.tasks):
        return "its tasks are assigned to no worker"
    return ""


def _connector(
    name: str, own: Mapping[str, Any], target: TargetState | None, tasks: list[dict[str, Any]]
) -> ConnectorView:
    return ConnectorView(
        name,
        "source",
        own.get("state") or State.UNASSIGNED.value,
        own.get("worker_id") or "",
        own.get("trace") or "",
        tuple(TaskView(one["id"], one["state"], one["worker_id"] or "", one.get("trace") or "") for one in tasks),
        "" if target is None else str(getattr(target, "value", target)),
    )


def _workers(connectors: tuple[ConnectorView, ...], here: str | None, leader: str | None) -> tuple[GroupProcess, ...]:
    """Workers by their assignment; an idle worker is known only if it is this one."""
    names = {one.worker_id for one in connectors if one.state != State.UNASSIGNED}
    names |= {task.worker_id for one in connectors for task in one.tasks if task.state != State.UNASSIGNED}
    if here is not None:
        names.add(here)
    return tuple(
        GroupProcess(
            name,
            name == leader,
            name == here,
            sum(one.worker_id == name for one in connectors if one.state != State.UNASSIGNED),
            sum(t.worker_id == name for one in connectors for t in one.tasks if t.state != State.UNASSIGNED),
        )
        for name in sorted(names - {""})
    )


def _shown(status: Status | None, *, has_workers: bool) -> dict[str, Any]:
    if status is None:
        return {"state": None}
    if not has_workers and status.state is not State.FAILED:
        return {"state": State.UNASSIGNED.value, "worker_id": "", "trace": status.trace}
    return {"state": status.state.value, "worker_id": status.worker_id, "trace": status.trace}


def _reason(trace: str) -> str:
    return reason_of(trace) or "for an unknown reason"
