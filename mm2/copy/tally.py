"""Counts of record batches and their latencies.

The executor counts for one micro-batch and reports the counts to the driver, which adds them up over
micro-batches, lanes and tasks.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass, field
from typing import Any, Final, Self

from mm2.codec import decode

#: Upper bounds of a histogram's buckets, in seconds. There is one more bucket for longer durations.
BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_BUCKETS: Final = len(BOUNDS_S) + 1

#: From the timestamp of a batch's newest record until the batch was fetched; from there until the target acknowledged it; both.
STAGES: Final = ("fetch", "produce", "visible")

PASSTHROUGH: Final = "passthrough"
#: Means by which target offsets without a record are taken up.
MARKERS: Final = "markers"
TRANSACTIONS: Final = "transactions"
_RATE_OVER_S: Final = 10.0


@dataclass(slots=True)
class Histogram:
    """``counts`` per bucket, not cumulative."""

    counts: list[int] = field(default_factory=lambda: [0] * _BUCKETS)
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        """Add one value."""
        self.counts[bisect_left(BOUNDS_S, seconds)] += 1
        self.sum_s += seconds

    def merge(self, other: Histogram) -> None:
        """Add the counts of another histogram."""
        self.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s


class Summary(list[int]):
    """``[last, minimum, maximum, sum, count]`` of a value in milliseconds. A list, because reports contain it
    unchanged.
    """

    __slots__ = ()

    def add(self, value: int) -> None:
        """Add one value."""
        if not self:
            self[:] = (value, value, value, value, 1)
            return
        self[0] = value
        if value < self[1]:
            self[1] = value
        elif value > self[2]:
            self[2] = value
        self[3] += value
        self[4] += 1


@dataclass(slots=True)
class Rate:
    """Growth of a count per second, over about the last ten seconds."""

    value: float = 0.0
    _measured: tuple[float, int] | None = None

    def measure(self, now_s: float, count: int) -> None:
        """Update ``value`` with the present count, at most once a second."""
        if self._measured is None:
            self._measured = (now_s, count)
            return
        since_s, before = self._measured
        passed = now_s - since_s
        if passed >= 1.0:
            weight = min(1.0, passed / _RATE_OVER_S)
            self.value += ((count - before) / passed - self.value) * weight
            self._measured = (now_s, count)


@dataclass(slots=True)
class Tally:
    """``paths`` counts the source's record batches: `PASSTHROUGH`, or the reason why they were re-encoded.

    ``latency`` counts acknowledged batches by stage. Batches of a backlog are left out, because their age is
    unrelated to the latency of copying (see `mm2.copy.executor.partition.cursor.Cursor.take`). ``filled`` counts target offsets that
    were taken up for source offsets without a record, by means: `MARKERS` or `TRANSACTIONS`.
    """

    paths: dict[str, int] = field(default_factory=dict)
    latency: dict[str, Histogram] = field(default_factory=lambda: {stage: Histogram() for stage in STAGES})
    filled: dict[str, int] = field(default_factory=dict)
    _stages: tuple[Histogram, ...] = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.latency.keys() != set(STAGES) or any(len(one.counts) != _BUCKETS for one in self.latency.values()):
            message = "a latency has other stages or buckets"
            raise ValueError(message)
        self._stages = tuple(self.latency[stage] for stage in STAGES)

    def count(self, path: str, batches: int = 1) -> None:
        """Count batches under a path."""
        self.paths[path] = self.paths.get(path, 0) + batches

    def fill(self, means: str, offsets: int) -> None:
        """Count target offsets that were filled."""
        self.filled[means] = self.filled.get(means, 0) + offsets

    def acked(self, newest_s: float, fetched_s: float, now_s: float) -> None:
        """Count a batch that the target has acknowledged. All times are in seconds of one clock: when its newest
        record was written, when it was fetched, and now.

        The clocks of two machines may differ; a negative duration counts as 0.
        """
        # Called for each batch; inlined, it takes a third of the time.
        fetch, produce, visible = self._stages
        took_s = fetched_s - newest_s if fetched_s > newest_s else 0.0
        fetch.counts[bisect_left(BOUNDS_S, took_s)] += 1
        fetch.sum_s += took_s
        took_s = now_s - fetched_s
        produce.counts[bisect_left(BOUNDS_S, took_s)] += 1
        produce.sum_s += took_s
        took_s = now_s - newest_s if now_s > newest_s else 0.0
        visible.counts[bisect_left(BOUNDS_S, took_s)] += 1
        visible.sum_s += took_s

    def merge(self, other: Tally) -> None:
        """Add the counts of another tally."""
        for path, batches in other.paths.items():
            self.count(path, batches)
        for means, offsets in other.filled.items():
            self.fill(means, offsets)
        for stage, histogram in other.latency.items():
            self.latency[stage].merge(histogram)

    def copy(self) -> Tally:
        """An independent copy."""
        made = Tally()
        made.merge(self)
        return made

    @classmethod
    def received(cls, data: Any) -> Self:
        """The counts of a report. Those of an executor of another version may have another form: they count nothing."""
        try:
            return decode(cls, data)
        except ValueError:
            return cls()
