"""How states are to be shown: the tone of each state of flows, partitions, connectors and tasks, for terminals and pages."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from mm2.copy.states import HEALTHY, PartitionState
from mm2.observer.views import FlowState


class Tone(StrEnum):
    """Tones, worst first. The dashboard's stylesheet has a shape for each."""

    CRITICAL = "critical"
    BAD = "bad"
    UNKNOWN = "unknown"
    WARNING = "warning"
    PAUSED = "paused"
    BUSY = "busy"
    OK = "ok"


STATE_TONES: Final[Mapping[str, Tone]] = {
    FlowState.RUNNING: Tone.OK,
    FlowState.CATCHING_UP: Tone.BUSY,
    FlowState.PAUSED: Tone.PAUSED,
    FlowState.NO_TOPICS: Tone.WARNING,
    FlowState.DEGRADED: Tone.BAD,
    FlowState.STOPPED: Tone.CRITICAL,
    FlowState.UNKNOWN: Tone.UNKNOWN,
    **dict.fromkeys(PartitionState, Tone.BAD),
    **dict.fromkeys(HEALTHY, Tone.OK),
    PartitionState.CATCHING_UP: Tone.BUSY,
    PartitionState.PREPARING: Tone.BUSY,
    PartitionState.THROTTLED: Tone.WARNING,
    PartitionState.BLOCKED_BY_OPEN_TXN: Tone.WARNING,
    PartitionState.PAUSED: Tone.PAUSED,
    # Of connectors and tasks. Their STOPPED is requested by a user, unlike that of a flow (`mm2/ui/views/connectors.py`).
    "RESTARTING": Tone.BUSY,
    "UNASSIGNED": Tone.WARNING,
    "FAILED": Tone.BAD,
    "DESTROYED": Tone.UNKNOWN,
}
