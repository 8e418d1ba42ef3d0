"""The values of each flow over the last minutes, which a snapshot does not contain. Pure.

Recording starts with the first client, so an unused dashboard stores nothing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from mm2.observer.views import FlowView, HeartbeatView, Latency, Snapshot

#: Interval between two points of the curves.
STEP_MS: Final = 5_000
POINTS: Final = 180
_GAP_MS: Final = 4 * STEP_MS
#: Interval of a mark in the heartbeat strip, and the number of marks: five minutes.
BEAT_STEP_MS: Final = 5_000
BEATS: Final = 60
QUANTILES: Final = (0.5, 0.95, 0.99)
#: A heartbeat is missed after this number of intervals without one.
_MISSED_AFTER_INTERVALS: Final = 3
_MIN_MISSED_AFTER_MS: Final = 5_000
_INTERVALS: Final = 20


@dataclass(frozen=True, slots=True)
class Point:
    """Records per second, and latency quantiles.

    The latter are the seconds until 50, 95 and 99 percent of the batches were visible on the target. None where nothing
    was copied.
    """

    at_ms: int
    records_per_s: float | None
    latency_s: tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True)
class Beat:
    """Whether there was a heartbeat in this interval of five seconds; None: not recorded."""

    at_ms: int
    received: bool | None


@dataclass
class FlowHistory:
    """The history of one flow."""

    points: deque[Point] = field(default_factory=lambda: deque(maxlen=POINTS))
    _counts: tuple[int, ...] = ()
    _records: int = 0
    _at_ms: int | None = None
    _received: dict[int, bool] = field(default_factory=dict)
    _newest_beat_ms: int | None = None
    _intervals: deque[int] = field(default_factory=lambda: deque(maxlen=_INTERVALS))

    def add(self, at_ms: int, flow: FlowView) -> None:
        """Add a snapshot of the flow."""
        self._add_beat(at_ms, flow)
        visible = flow.latency.get("visible", Latency())
        if self._at_ms is None:
            self._at_ms, self._records, self._counts = at_ms, flow.records, visible.counts
            return
        passed_ms = at_ms - self._at_ms
        if passed_ms < STEP_MS:
            return
        if passed_ms > _GAP_MS:  # not recorded meanwhile
            self.points.append(Point(self._at_ms + STEP_MS, None, (None, None, None)))
        # Totals restart when the tasks of a process move to another one and back.
        copied = flow.records - self._records if flow.records >= self._records else flow.records
        since = tuple(
            after - before
            for after, before in zip(visible.counts, self._counts or (0,) * len(visible.counts), strict=False)
        )
        if any(number < 0 for number in since):
            since = visible.counts
        low, middle, high = (quantile(visible.bounds_s, since, wanted) for wanted in QUANTILES)
        self.points.append(Point(at_ms, copied * 1000 / passed_ms, (low, middle, high)))
        self._at_ms, self._records, self._counts = at_ms, flow.records, visible.counts

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

    def _add_beat(self, at_ms: int, flow: FlowView) -> None:
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


class History:
    """The histories of all flows, by name."""

    def __init__(self) -> None:
        self._flows: dict[str, FlowHistory] = {}
        self.since_ms: int | None = None

    def add(self, snapshot: Snapshot) -> None:
        """Add a snapshot."""
        if self.since_ms is None:
            self.since_ms = snapshot.at_ms
        names = {flow.name for flow in snapshot.flows}
        for removed in self._flows.keys() - names:
            del self._flows[removed]
        for flow in snapshot.flows:
            self.flow(flow.name).add(snapshot.at_ms, flow)

    def flow(self, name: str) -> FlowHistory:
        """The history of a flow; empty for an unknown one."""
        return self._flows.setdefault(name, FlowHistory())


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


def quantile(bounds_s: Sequence[float], counts: Sequence[int], wanted: float) -> float | None:
    """The quantile ``wanted`` (0 to 1) of a histogram, as in Prometheus's histogram_quantile; None without values.

    Values are assumed to be evenly distributed within a bucket. For the last bucket, which has no upper bound, the
    result is its lower bound. ``counts`` has one bucket more than ``bounds_s``.
    """
    total = sum(counts)
    if not total:
        return None
    rank = wanted * total
    below = 0
    for index, number in enumerate(counts):
        if number and below + number >= rank:
            low = bounds_s[index - 1] if index else 0.0
            if index >= len(bounds_s):
                return low
            return low + (bounds_s[index] - low) * (rank - below) / number
        below += number
    return bounds_s[-1] if bounds_s else None
