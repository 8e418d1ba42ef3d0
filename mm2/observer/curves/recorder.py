"""Records the history of a process from its start: a thread that samples every ten seconds, and sends no request to a cluster.

While the observer runs, because a page is open or metrics are read, samples are made of its snapshot. Otherwise they are made of
what this process copies. Values of a topic that other processes copy as well are unknown then, since a part would mislead.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.driver.status import FlowStatus, PartitionStatus
from mm2.copy.states import OTHER_LOG, WELL, PartitionState
from mm2.copy.tally import BOUNDS_S
from mm2.kafka.structs import TopicPartition
from mm2.observer.curves.history import QUANTILES, STEP_MS, FlowSample, History, TopicSample, quantile
from mm2.observer.flow import WatchedFlow
from mm2.observer.views import FlowView, Latency, PartitionView, Snapshot
from mm2.observer.work import AssignedTasks

log = structlog.get_logger("mm2.observer.recorder")

_GAP_MS: Final = 4 * STEP_MS


@dataclass(slots=True)
class _TopicSum:
    """A topic's partitions. ``records`` were copied by this process."""

    partitions: int = 0
    records: int = 0
    records_per_s: float | None = 0.0
    lag: int | None = 0
    unhealthy: int = 0

    def add(self, records: int, records_per_s: float | None, lag: int | None, *, is_healthy: bool) -> None:
        self.partitions += 1
        self.records += records
        self.unhealthy += not is_healthy
        self.records_per_s = (
            None if self.records_per_s is None or records_per_s is None else self.records_per_s + records_per_s
        )
        self.lag = None if self.lag is None or lag is None else self.lag + lag


@dataclass(slots=True)
class _Totals:
    """What this process had copied at one moment: records and bytes, in all and by topic, and batches by latency."""

    at_ms: int
    records: int
    bytes: int
    latency: Sequence[int]
    topics: Mapping[str, int] = field(default_factory=dict)


class FlowSampler:
    """Makes the samples of one flow. Rates are differences from the previous sample."""

    def __init__(self) -> None:
        self._before: _Totals | None = None

    def of_view(self, at_ms: int, view: FlowView) -> FlowSample:
        """A sample of a snapshot."""
        topics = _sums(map(_of_view, view.partitions))
        latency = view.latency.get("visible", Latency())
        totals = _Totals(at_ms, view.records, view.bytes, latency.counts, _records(topics))
        found = self._latencies(totals, latency.bounds_s)
        self._before = totals
        samples = {name: TopicSample(one.records_per_s, one.lag, one.unhealthy) for name, one in topics.items()}
        risk = view.risk
        # A lower bound of 0 shows nothing, and a curve does not show that it is one.
        lag = risk.records if risk.records is not None else risk.least or None
        return FlowSample(view.records_per_s, view.bytes_per_s, lag, risk.least_seconds, found, samples)

    def of_status(self, at_ms: int, status: FlowStatus, assigned: Mapping[TopicPartition, int] | None) -> FlowSample:
        """A sample of what this process copies; ``assigned`` are all partitions of the flow, None if not known."""
        topics = _sums(
            (tp.topic, one.records, 0.0, _lag(one), _is_healthy(one)) for tp, one in status.partitions.items()
        )
        latency = status.tally.latency.get("visible")
        counts = tuple(latency.counts) if latency is not None else ()
        totals = _Totals(at_ms, status.records, status.bytes, counts, _records(topics))
        before, found = self._before, self._latencies(totals, BOUNDS_S)
        self._before = totals
        sizes = Counter(tp.topic for tp in assigned or ())
        own = {name: one for name, one in topics.items() if one.partitions == sizes[name]}
        samples = {
            name: TopicSample(_rate(before, totals, one.records, name), one.lag, one.unhealthy)
            for name, one in own.items()
        }
        if not sizes or len(own) < len(sizes):
            return FlowSample(latency_s=found, topics=samples)
        lags = [one.lag for one in own.values()]
        return FlowSample(
            _rate(before, totals, totals.records),
            _rate(before, totals, totals.bytes, of_bytes=True),
            None if None in lags else sum(lag for lag in lags if lag is not None),
            None,
            found,
            samples,
        )

    def _latencies(self, totals: _Totals, bounds_s: Sequence[float]) -> tuple[float | None, float | None, float | None]:
        before = self._before.latency if self._before is not None else totals.latency
        if len(before) != len(totals.latency):
            before = (0,) * len(totals.latency)
        since = [after - earlier for after, earlier in zip(totals.latency, before, strict=True)]
        if any(
            number < 0 for number in since
        ):  # totals restart when the tasks of a process move to another one and back
            since = list(totals.latency)
        low, middle, high = (quantile(bounds_s, since, wanted) for wanted in QUANTILES)
        return low, middle, high


class Recorder:
    """Samples all flows of a process. ``newest`` is the observer's snapshot, None while it does not run."""

    def __init__(
        self,
        history: History,
        flows: Callable[[], Sequence[WatchedFlow]],
        engine: Callable[[], CopyEngine],
        newest: Callable[[], Snapshot | None],
    ) -> None:
        self._history = history
        self._flows = flows
        self._engine = engine
        self._newest = newest
        self._samplers: dict[str, FlowSampler] = {}
        self._assigned: dict[str, AssignedTasks] = {}
        self._stopping = threading.Event()

    def start(self) -> None:
        """Start to sample in a thread."""
        threading.Thread(target=self._run, name="history", daemon=True).start()

    def stop(self) -> None:
        """Stop sampling."""
        self._stopping.set()

    def sample(self, at_ms: int) -> None:
        """Add one sample of each flow."""
        snapshot = self._newest()
        if snapshot is not None and at_ms - snapshot.at_ms < STEP_MS:
            found = {view.name: self._sampler(view.name).of_view(at_ms, view) for view in snapshot.flows}
        else:
            found = {str(flow.pair): self._of_process(at_ms, flow) for flow in self._flows()}
        for removed in self._samplers.keys() - found.keys():
            del self._samplers[removed]
        self._history.add(at_ms, found)

    def _of_process(self, at_ms: int, flow: WatchedFlow) -> FlowSample:
        name = str(flow.pair)
        assigned = self._assigned.setdefault(name, AssignedTasks(flow.pair.source))
        tasks = None if flow.herder is None else assigned.of(flow.herder.configs())
        return self._sampler(name).of_status(at_ms, self._engine().flow_status(name), tasks)

    def _sampler(self, flow: str) -> FlowSampler:
        return self._samplers.setdefault(flow, FlowSampler())

    def _run(self) -> None:
        while not self._stopping.wait(STEP_MS / 1000):
            try:
                self.sample(int(time.time() * 1000))
            except Exception:
                log.exception("history sample failed")


def _sums(rows: Iterable[tuple[str, int, float | None, int | None, bool]]) -> dict[str, _TopicSum]:
    found: dict[str, _TopicSum] = {}
    for topic, records, rate, lag, is_healthy in rows:
        one = found.get(topic)
        if one is None:
            one = found[topic] = _TopicSum()
        one.add(records, rate, lag, is_healthy=is_healthy)
    return found


def _of_view(view: PartitionView) -> tuple[str, int, float | None, int | None, bool]:
    return view.topic, view.records, view.records_per_s, view.known_lag, view.state in WELL


def _records(topics: Mapping[str, _TopicSum]) -> dict[str, int]:
    return {name: one.records for name, one in topics.items()}


def _lag(status: PartitionStatus) -> int | None:
    row = status.row
    if row is None or not status.is_fresh or row.position < 0 or row.high_watermark < row.position:
        return None
    return None if row.state in OTHER_LOG else row.lag


def _is_healthy(status: PartitionStatus) -> bool:
    return status.row is None or PartitionState(status.row.state) in WELL


def _rate(
    before: _Totals | None, totals: _Totals, now: int, topic: str = "", *, of_bytes: bool = False
) -> float | None:
    """Per second since the previous sample; None if there is none, or it is too old."""
    if before is None or not 0 < totals.at_ms - before.at_ms <= _GAP_MS:
        return None
    then = before.topics.get(topic, 0) if topic else before.bytes if of_bytes else before.records
    return (now - then if now >= then else now) * 1000 / (totals.at_ms - before.at_ms)
