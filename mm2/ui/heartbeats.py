"""The heartbeats of each flow over the last minutes, which a snapshot does not contain. Pure.

Recording starts with the first client.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from typing import Final

from mm2.observer.views import FlowView, HeartbeatView, Snapshot

#: Interval of a mark in the heartbeat strip, and the number of marks: five minutes.
BEAT_STEP_MS: Final = 5_000
BEATS: Final = 60
#: A heartbeat is missed after this number of intervals without one.
_MISSED_AFTER_INTERVALS: Final = 3
_MIN_MISSED_AFTER_MS: Final = 5_000
_INTERVALS: Final = 20


@dataclass(frozen=True, slots=True)
class Beat:
    """Whether there was a heartbeat in this interval of five seconds; None: not recorded."""

    at_ms: int
    received: bool | None


@dataclass
class FlowHeartbeats:
    """The heartbeats of one flow."""

    _received: dict[int, bool] = field(default_factory=dict)
    _newest_beat_ms: int | None = None
    _intervals: deque[int] = field(default_factory=lambda: deque(maxlen=_INTERVALS))

    def beats(self, at_ms: int) -> list[Beat]:
        """The last five minutes, oldest first."""
        newest = at_ms // BEAT_STEP_MS
        return [Beat(step * BEAT_STEP_MS, self._received.get(step)) for step in range(newest - BEATS + 1, newest + 1)]

    @property
    def missed_after_ms(self) -> int:
        """The age from which the newest heartbeat counts as missed: three intervals, as far as intervals are known."""
        if not self._intervals:
            return _MIN_MISSED_AFTER_MS
        middle = sorted(self._intervals)[len(self._intervals) // 2]
        return max(_MIN_MISSED_AFTER_MS, _MISSED_AFTER_INTERVALS * middle)

    def add(self, at_ms: int, flow: FlowView) -> None:
        """Add a snapshot of the flow."""
        newest = heartbeat_of(flow)
        if newest is None and self._newest_beat_ms is None:
            return  # none received yet, so none is missed
        if newest is not None:
            beat_ms = at_ms - newest.age_ms
            before = self._newest_beat_ms
            if before is not None and beat_ms > before:
                self._intervals.append(beat_ms - before)
            self._newest_beat_ms = max(beat_ms, before or beat_ms)
        step = at_ms // BEAT_STEP_MS
        received = self._newest_beat_ms is not None and at_ms - self._newest_beat_ms <= self.missed_after_ms
        # One snapshot without a heartbeat suffices: the mark stays missed.
        self._received[step] = received and self._received.get(step, True)
        for old in [known for known in self._received if known <= step - BEATS]:
            del self._received[old]


class Heartbeats:
    """The heartbeats of all flows, by name."""

    def __init__(self) -> None:
        self._flows: dict[str, FlowHeartbeats] = {}

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        names = {flow.name for flow in snapshot.flows}
        for removed in self._flows.keys() - names:
            del self._flows[removed]
        for flow in snapshot.flows:
            self.flow(flow.name).add(snapshot.at_ms, flow)

    def flow(self, name: str) -> FlowHeartbeats:
        """The heartbeats of a flow; empty for an unknown one."""
        return self._flows.setdefault(name, FlowHeartbeats())


def heartbeat_of(flow: FlowView) -> HeartbeatView | None:
    """The newest heartbeat that the flow has copied.

    If it copies none, since there are none on its source, the newest one that its own worker has written on the target.
    None if there is neither. The worker writes its own without the source, so that one does not count while the source
    does not answer.
    """
    copied = [beat for beat in flow.heartbeats if beat.route[:1] == (flow.source,)]
    own = [
        beat for beat in flow.heartbeats if not beat.route and (beat.source, beat.target) == (flow.source, flow.target)
    ]
    own = [] if flow.source_error else own
    return min(copied or own, key=lambda beat: beat.age_ms, default=None)
