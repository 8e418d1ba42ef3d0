"""What the config topic has announced and no tick has seen to yet."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.stores.config_state import RestartRequest


@dataclass(frozen=True)
class Changes:
    """Changes that one tick sees to."""

    connectors: frozenset[str] = frozenset()
    tasks: frozenset[ConnectorTaskId] = frozenset()
    targets: frozenset[str] = frozenset()
    #: Whether the group has to rebalance for them.
    rebalance: bool = False

    def __bool__(self) -> bool:
        return self.rebalance or bool(self.connectors or self.tasks or self.targets)


@dataclass
class PendingChanges:
    """Collects what comes from the config log's thread until the herder's thread takes it.

    ``known`` says whether the herder knows a connector already: one that it does not, and the removal of one that it does, need
    a rebalance; a change of one needs a restart where it runs.
    """

    known: Callable[[str], bool]
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _connectors: set[str] = field(default_factory=set)
    _tasks: set[ConnectorTaskId] = field(default_factory=set)
    _targets: set[str] = field(default_factory=set)
    _restarts: dict[str, RestartRequest] = field(default_factory=dict)
    _rebalance: bool = False

    @property
    def need_rebalance(self) -> bool:
        """Whether a rebalance is to be expected, so that who owns what is not known."""
        with self._lock:
            return self._rebalance

    def connector_updated(self, connector: str) -> None:
        """A connector's configuration was written."""
        with self._lock:
            self._rebalance |= not self.known(connector)
            self._connectors.add(connector)

    def connector_removed(self, connector: str) -> None:
        """A connector was deleted."""
        with self._lock:
            self._rebalance |= self.known(connector)
            self._connectors.add(connector)

    def tasks_updated(self, tasks: list[ConnectorTaskId]) -> None:
        """A set of task configs was committed."""
        with self._lock:
            self._rebalance = True
            self._tasks.update(tasks)

    def target_changed(self, connector: str) -> None:
        """A connector shall be in another state."""
        with self._lock:
            self._targets.add(connector)

    def restart_requested(self, request: RestartRequest) -> None:
        """Of several requests for one connector the one with the higher impact wins."""
        with self._lock:
            other = self._restarts.get(request.connector)
            if other is None or request.impact > other.impact:
                self._restarts[request.connector] = request

    def take(self) -> Changes:
        """What there is, restart requests excepted; from now on it is the caller's to see to."""
        with self._lock:
            changes = Changes(
                frozenset(self._connectors), frozenset(self._tasks), frozenset(self._targets), self._rebalance
            )
            self._connectors, self._tasks, self._targets, self._rebalance = set(), set(), set(), False
            return changes

    def take_restarts(self) -> list[RestartRequest]:
        """The restart requests, one per connector."""
        with self._lock:
            requests, self._restarts = list(self._restarts.values()), {}
            return requests
