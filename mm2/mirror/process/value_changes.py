"""Restarts connectors whose configuration contains changed values of config providers."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Final

import structlog

from mm2.connect.errors import NotAssigned, NotLeader, RebalanceNeeded
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.stores.config_state import RestartRequest

log = structlog.get_logger("mm2.mirror.value_changes")

_AGAIN_S: Final = 2.0


def restart_with_new_values(herder: DistributedHerder, name: str) -> None:
    """Restart a connector and its tasks: as the leader those of all workers, otherwise those of this worker.

    Each process reads the values itself. The leader may have done so, and restarted all tasks, before the values of this
    process changed: Kubernetes replaces the files of a Secret in each pod at another time.
    """
    if herder.is_leader:
        _request(name, functools.partial(_restart_all, herder, name), lambda: restart_with_new_values(herder, name))
        return
    connectors, tasks = herder.assigned
    for call in (
        *(functools.partial(herder.restart_connector, one) for one in connectors if one == name),
        *(functools.partial(herder.restart_task, task) for task in tasks if task.connector == name),
    ):
        _request(name, call)


def _restart_all(herder: DistributedHerder, name: str) -> Future[Any]:
    return herder.restart_connector_and_tasks(RestartRequest(name, only_failed=False, include_tasks=True))


def _request(name: str, call: Callable[[], Future[Any]], if_not_leader: Callable[[], None] | None = None) -> None:
    """Send a request to the herder, again if it does not know the owners because a rebalance follows."""

    def on_done(future: Future[Any]) -> None:
        error = future.exception()
        if isinstance(error, RebalanceNeeded):
            again = threading.Timer(_AGAIN_S, _request, (name, call, if_not_leader))
            again.daemon = True
            again.start()
        elif isinstance(error, NotLeader) and if_not_leader is not None:
            if_not_leader()
        elif error is not None and not isinstance(error, (NotLeader, NotAssigned)):
            log.warning("Failed to restart with the changed values.", connector=name, reason=str(error))

    call().add_done_callback(on_done)
