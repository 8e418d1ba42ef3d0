"""What an exactly-once task checks before it produces: its predecessors are fenced, and it is still assigned here."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final, Protocol

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.errors import NotLeader
from mm2.connect.herder.fencing import FencingConflict
from mm2.connect.herder.internal_requests import RequestRefused
from mm2.connect.herder.stages import StagedFuture
from mm2.connect.runtime.tasks import OwnershipGuard
from mm2.connect.runtime.worker import FENCING_S
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.config_store import ConfigStore
from mm2.kafka.errors import KafkaFailure

log = structlog.get_logger(__name__)

#: How long a task waits until its predecessors are fenced; longer than a fencing round may take.
_FENCING_PATIENCE_S = FENCING_S + 30.0
_LOOK_S = 0.1
#: HTTP results of a signed request that are retried: no response, our key is outdated, the leader has no key yet.
_ASK_AGAIN: Final = (None, 403, 503)
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
            fence=lambda stopping: self.await_fencing(task, stopping),
            confirm=lambda stopping: self.confirm(task, generation, stopping),
        )

    def await_fencing(self, task: ConnectorTaskId, stopping: Callable[[], bool]) -> None:
        """Wait until the task's predecessors are fenced or the task must stop. Raises ConnectError."""
        name, deadline = task.connector, time.monotonic() + _FENCING_PATIENCE_S
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
                outdated = isinstance(error, FencingConflict) or refused == _CONFLICT
                # The leader may have changed or be about to change; then the request goes to the new one.
                moved = isinstance(error, NotLeader) or self._group.leader_url != leader_url
                passing = isinstance(error, RequestRefused) and refused in _ASK_AGAIN
                if not (moved or passing or outdated) or time.monotonic() > deadline:
                    raise ConnectError(f"Older tasks of connector {name} are not fenced: {error}") from error
            if time.monotonic() > deadline:
                raise ConnectError(
                    f"Task {task} was not started: exactly-once needs older tasks of connector {name} to be fenced, and the "
                    f"leader of group {self._group.group_id} has not written within {_FENCING_PATIENCE_S:.0f} s that it has "
                    "done so; see the leader's log"
                )
            time.sleep(_LOOK_S)

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
                log.warning("config topic not read to its end, trying on", task_id=str(task), reason=str(failure))
                time.sleep(_LOOK_S)

        def check() -> None:
            now = self._store.snapshot().task_config_generations.get(task.connector)
            if now != generation:
                raise ConnectError(f"Task {task} was not started: its connector has newer task configs")
            if not self._group.owns(task):
                raise ConnectError(f"Task {task} was not started: it is no longer assigned to this worker")

        # The herder's thread handles requests only while it is a member of its group.
        wait_for(self._group.later(check, f"confirming that task {task} is still ours"), stopping)


def wait_for(future: Future[None], stopping: Callable[[], bool]) -> bool:
    """Wait for the future; False when the task must stop first. Raises the future's error as ConnectError."""
    while not stopping():
        try:
            future.result(_LOOK_S)
        except TimeoutError:
            continue
        except KafkaFailure as failure:
            raise ConnectError(str(failure)) from failure
        return True
    return False
