"""The leader's part in exactly-once: for whom it begins rounds of fencing, and what they need of it (spec connect D.12)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Protocol

import structlog

from mm2.connect.errors import BadRequest, NotFound, NotLeader
from mm2.connect.herder.answers import ConnectorInfo, ConnectorType
from mm2.connect.herder.config_view import ConfigView
from mm2.connect.herder.fencing import FencingConflict, ZombieFencing
from mm2.connect.herder.privileges import LeaderPrivileges
from mm2.connect.herder.reconfiguration import backoff_s
from mm2.connect.herder.stages import StagedFuture, Steps
from mm2.connect.runtime.worker import Worker
from mm2.connect.stores.config_state import ClusterConfigState
from mm2.connect.stores.config_store import ConfigStore

log = structlog.get_logger(__name__)


class Leader(Protocol):
    """The herder as its fencing sees it."""

    @property
    def is_leader(self) -> bool:
        """Whether this worker leads."""

    def require_leader(self, what: str) -> None:
        """Raises NotLeader."""

    def known_connector_info(self, name: str) -> ConnectorInfo:
        """Raises NotFound."""

    def later(self, action: Callable[[], None], stage: str, *, delay_s: float = 0.0) -> StagedFuture[None]:
        """Have the herder's thread do something."""


class LeaderFencing:
    """Begins rounds for tasks that ask, on this worker or through REST, and where nobody can ask. It is what a round sees of
    the herder, too (Leadership)."""

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
        """Fence a connector's older tasks. Any thread. Fails as `Herder.fence_zombies`."""
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
        """For a group without REST, when a rebalance is over: all members have stopped their older tasks, so it hits zombies
        only. While exactly-once is being prepared, too: members that have it enabled already would wait in vain."""
        for name in configs.pending_fencing:
            if configs.tasks(name):
                self._begin_unasked(name, 0)

    def _begin_unasked(self, name: str, attempts: int) -> None:
        """Begin a round, again and again while it fails: no follower can ask for another one."""
        if not self._leader.is_leader or not self._store.is_pending_fencing(name):
            return

        def on_done(done: Future[None]) -> None:
            error = done.exception()
            if error is None or isinstance(error, NotLeader | NotFound | FencingConflict):
                return  # what comes next brings a rebalance, and with it another round
            delay_s = backoff_s(attempts)
            log.warning("older tasks not fenced", connector=name, reason=str(error), again_in_s=delay_s)
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
        stage = f"writing a task count record for connector {connector} to the config topic"
        self._privileges.write(stage, lambda: self._store.put_task_count(connector, count))

    def later(self, action: Callable[[], None], stage: str) -> Future[None]:
        """See Leadership."""
        return self._leader.later(action, stage)
