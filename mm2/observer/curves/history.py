"""The values of flows and topics over the last day, in bounded memory. Pure, except for a lock.

The newest half hour has a point every ten seconds, a day one every five minutes: averages of rates, and the highest lag. A
value is a float of 32 bits. With 480 points and three values, a topic takes 7.1 kB, and `TOPICS_KEPT` of them 35 MB.
"""

from __future__ import annotations

import math
import threading
from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

#: Interval of the points of the newest half hour, and their number.
STEP_MS: Final = 10_000
FINE_POINTS: Final = 180
#: The same for the whole time, 25 hours.
COARSE_STEP_MS: Final = 300_000
COARSE_POINTS: Final = 300
#: Topics of all flows whose values are kept: the first ones that were copied.
TOPICS_KEPT: Final = 5_000
#: With fewer coarse points, a curve has the fine ones, too.
_ENOUGH_POINTS: Final = 24
QUANTILES: Final = (0.5, 0.95, 0.99)
_GAP_STEPS: Final = 2.5
_UNKNOWN: Final = math.nan
_RATES: Final = frozenset({"records_per_s", "bytes_per_s"})


class TopicSample(NamedTuple):
    """Values of one source topic; None if not known. ``unhealthy`` is a number of partitions."""

    records_per_s: float | None
    lag_records: float | None
    unhealthy: float | None


@dataclass(frozen=True, slots=True)
class FlowSample:
    """Values of one flow; None if not known.

    ``latency_s`` are the seconds until 50, 95 and 99 percent of the batches since the previous sample were visible on the
    target, None where nothing was copied.
    """

    records_per_s: float | None = None
    bytes_per_s: float | None = None
    lag_records: float | None = None
    lag_seconds: float | None = None
    latency_s: tuple[float | None, float | None, float | None] = (None, None, None)
    topics: Mapping[str, TopicSample] = field(default_factory=dict)

    def values(self) -> Iterator[tuple[tuple[str, str], float | None]]:
        """The values by topic ("": the flow) and name."""
        yield ("", "records_per_s"), self.records_per_s
        yield ("", "bytes_per_s"), self.bytes_per_s
        yield ("", "lag_records"), self.lag_records
        yield ("", "lag_seconds"), self.lag_seconds
        for wanted, value in zip(QUANTILES, self.latency_s, strict=True):
            yield ("", latency_name(wanted)), value
        for topic, sample in self.topics.items():
            for name, value in zip(TopicSample._fields, sample, strict=True):
                yield (topic, name), value


def latency_name(wanted: float) -> str:
    """The name of a quantile of the latency."""
    return f"latency_{wanted:g}"


class Series:
    """Values of many names at the same times; the newest ``size`` points."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._times: array[int] = array("q")
        self._columns: dict[tuple[str, str], array[float]] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._times)

    def append(self, at_ms: int, values: Mapping[tuple[str, str], float]) -> None:
        """Add a point. Names that ``values`` lacks are unknown at this time."""
        full = len(self._times) == self._size
        if full:
            self._times[self._next] = at_ms
        else:
            self._times.append(at_ms)
        for name in values.keys() - self._columns.keys():
            self._columns[name] = array("f", [_UNKNOWN] * (len(self._times) - (not full)))
        for name, column in self._columns.items():
            value = values.get(name, _UNKNOWN)
            if full:
                column[self._next] = value
            else:
                column.append(value)
        self._next = (self._next + 1) % self._size

    def drop(self, topics: frozenset[str]) -> None:
        """Forget topics."""
        for name in [name for name in self._columns if name[0] in topics]:
            del self._columns[name]

    def points(self, topic: str, name: str, since_ms: int) -> list[tuple[int, float | None]]:
        """Times and values, oldest first; None for an unknown value."""
        column = self._columns.get((topic, name))
        if column is None:
            return []
        return [(self._times[at], _known(column[at])) for at in self._order() if self._times[at] >= since_ms]

    def newest(self, topic: str, name: str, count: int) -> list[float | None]:
        """The newest values, oldest first."""
        column = self._columns.get((topic, name))
        if column is None:
            return []
        return [_known(column[at]) for at in self._order()[-count:]]

    def _order(self) -> list[int]:
        """The indexes of the points, oldest first."""
        return [*range(self._next, len(self._times)), *range(min(self._next, len(self._times)))]

    def sums(self, since_ms: int, until_ms: int) -> dict[tuple[str, str], float]:
        """Of each name in that time: the average of a rate, else the highest value. Unknown ones are left out."""
        indexes = [at for at, time_ms in enumerate(self._times) if since_ms < time_ms <= until_ms]
        found = {}
        for name, column in self._columns.items():
            known = [column[at] for at in indexes if column[at] == column[at]]
            if known:
                found[name] = sum(known) / len(known) if name[1] in _RATES else max(known)
        return found


def _known(value: float) -> float | None:
    return None if math.isnan(value) else value


class FlowHistory:
    """The history of one flow and its topics."""

    def __init__(self) -> None:
        self._fine, self._coarse = Series(FINE_POINTS), Series(COARSE_POINTS)
        self._at_ms: int | None = None
        self._coarse_at_ms = 0
        self.topics: set[str] = set()

    def add(self, at_ms: int, sample: FlowSample, room: int) -> None:
        """Add a sample. Of topics that are new, at most ``room`` are kept."""
        gone = frozenset(self.topics - sample.topics.keys()) if sample.topics else frozenset()
        if gone and len(self.topics) >= TOPICS_KEPT // 2:  # keep the curves of a deleted topic while there is room
            self.topics -= gone
            self._fine.drop(gone)
            self._coarse.drop(gone)
        self.topics.update([one for one in sample.topics if one not in self.topics][: max(0, room)])
        if self._at_ms is not None and at_ms - self._at_ms > _GAP_STEPS * STEP_MS:  # not recorded meanwhile
            self._fine.append(self._at_ms + STEP_MS, {})
        values = {
            name: value
            for name, value in sample.values()
            if value is not None and (not name[0] or name[0] in self.topics)
        }
        self._fine.append(at_ms, values)
        self._coarse_at_ms = min(self._coarse_at_ms or at_ms, at_ms)  # the clock may have been set back
        if at_ms - self._coarse_at_ms >= COARSE_STEP_MS:
            self._coarse.append(at_ms, self._fine.sums(self._coarse_at_ms, at_ms))
            self._coarse_at_ms = at_ms
        self._at_ms = at_ms

    def points(self, topic: str, name: str, since_ms: int) -> list[tuple[int, float | None]]:
        """The points of a topic, "" for the flow, since that time: coarse ones, then those that are finer."""
        fine = self._fine.points(topic, name, since_ms)
        first_ms = fine[0][0] if fine else since_ms
        if first_ms - since_ms < 2 * STEP_MS or len(self._fine) < FINE_POINTS:
            return fine  # the fine points have everything
        coarse = self._coarse.points(topic, name, since_ms)
        older = [point for point in coarse if point[0] < first_ms]
        if len(older) < _ENOUGH_POINTS:
            return [*older, *fine]
        # Within one curve, the newest points would be more jagged than the others.
        return [*coarse, *fine[-1:]]

    def newest(self, topic: str, name: str, count: int) -> list[float | None]:
        """The newest values of the fine points, oldest first."""
        return self._fine.newest(topic, name, count)


class History:
    """The histories of all flows, by name. Thread-safe: one thread records, others read."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._flows: dict[str, FlowHistory] = {}
        self.at_ms = 0  # of the newest sample

    def add(self, at_ms: int, samples: Mapping[str, FlowSample]) -> None:
        """Add samples of all flows; other flows are forgotten."""
        with self._lock:
            for removed in self._flows.keys() - samples.keys():
                del self._flows[removed]
            for name, sample in samples.items():
                flow = self._flows.setdefault(name, FlowHistory())
                flow.add(at_ms, sample, TOPICS_KEPT - sum(len(one.topics) for one in self._flows.values()))
            self.at_ms = at_ms

    def points(self, flow: str, topic: str, name: str, since_ms: int) -> list[tuple[int, float | None]]:
        """See `FlowHistory.points`; empty for an unknown flow or topic."""
        with self._lock:
            return self._flows[flow].points(topic, name, since_ms) if flow in self._flows else []

    def newest(self, flow: str, topics: Sequence[str], name: str, count: int) -> list[list[float | None]]:
        """The newest values of several topics, oldest first."""
        with self._lock:
            found = self._flows.get(flow)
            return [[] if found is None else found.newest(topic, name, count) for topic in topics]

    def last(self, flow: str, topic: str, name: str) -> float | None:
        """The newest known value."""
        with self._lock:
            values = self._flows[flow].newest(topic, name, FINE_POINTS) if flow in self._flows else []
        return next((value for value in reversed(values) if value is not None), None)


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
