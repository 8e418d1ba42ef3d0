"""What the herder says to start a task with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from mm2.connect.api import ConnectError
from mm2.connect.group.protocol import ConnectorTaskId
from mm2.connect.runtime.lifecycle import StatusListener
from mm2.connect.runtime.tasks.source import OwnershipGuard
from mm2.connect.stores.config_state import Props, TargetState


@dataclass(frozen=True)
class TaskStart:
    """Configurations are raw."""

    id: ConnectorTaskId
    connector_raw: Props = field(repr=False)
    task_raw: Props = field(repr=False)
    #: Number of tasks its connector has.
    count: int
    state: TargetState
    listener: StatusListener
    #: Called with each topic that the task has used for the first time.
    on_topic: Callable[[str], None]
    #: Used with exactly-once only.
    guard: OwnershipGuard | None = None
    #: Whether the task is still this worker's, as far as can be known: not after a session that ended unnoticed.
    is_ours: Callable[[], bool] = lambda: True


class TooManyTasks(ConnectError):
    """A connector wants more tasks than ``tasks.max`` and ``tasks.max.enforce`` let it have (KIP-1004)."""
