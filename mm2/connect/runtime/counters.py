"""Counters of tasks for Connect's metrics. Plain data, no reporting.

Totals and maxima are since the task was started; rates and windows are computed where the metrics are reported.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sizes:
    """Values of one kind: count, sum, minimum, maximum and last value."""

    count: int = 0
    total: float = 0.0
    least: float = 0.0
    greatest: float = 0.0
    last: float = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self.least = value if not self.count else min(self.least, value)
        self.greatest = max(self.greatest, value)
        self.count += 1
        self.total += value
        self.last = value

    def join(self, other: Sizes) -> None:
        """Add the values of another instance; of the two last values the greater one is kept."""
        self.least = other.least if not self.count else min(self.least, other.least)
        self.greatest = max(self.greatest, other.greatest)
        self.last = max(self.last, other.last)
        self.count += other.count
        self.total += other.total


@dataclass(slots=True)
class StartCounters:
    """connect-worker-metrics, for connectors or for tasks: a start counts once, when it has succeeded or failed."""

    succeeded: int = 0
    failed: int = 0


@dataclass(slots=True)
class RebalanceCounters:
    """connect-worker-rebalance-metrics. A rebalance lasts from the assignment until the assigned work has started."""

    took_ms: Sizes = field(default_factory=Sizes)
    #: Monotonic, None when none is in progress.
    began_s: float | None = None
    #: Of the last one, None before the first.
    ended_s: float | None = None

    def begin(self) -> None:
        """An assignment was received."""
        self.began_s = time.monotonic()

    def end(self) -> None:
        """The assigned work has started."""
        self.ended_s = time.monotonic()
        if self.began_s is not None:
            self.took_ms.add((self.ended_s - self.began_s) * 1000)
        self.began_s = None


@dataclass(slots=True)
class ErrorCounters:
    """task-error-metrics (KIP-298)."""

    record_failures: int = 0
    record_errors: int = 0
    records_skipped: int = 0
    retries: int = 0
    errors_logged: int = 0
    dead_letter_requests: int = 0
    dead_letter_failures: int = 0
    #: Milliseconds since the epoch, 0 when there was none.
    last_error_ms: int = 0


@dataclass(slots=True)
class SourceCounters:
    """source-task-metrics."""

    polled: int = 0
    #: After transformations, without the dropped records.
    written: int = 0
    poll_ms: Sizes = field(default_factory=Sizes)
    #: Polled and not yet acknowledged.
    active: Sizes = field(default_factory=Sizes)
    transaction_records: Sizes = field(default_factory=Sizes)


@dataclass(slots=True)
class SinkCounters:
    """sink-task-metrics."""

    read: int = 0
    sent: int = 0
    partitions: int = 0
    commit_sequence: int = 0
    commits_completed: int = 0
    commits_skipped: int = 0
    put_ms: Sizes = field(default_factory=Sizes)
    #: Consumed and not yet committed.
    active: Sizes = field(default_factory=Sizes)


@dataclass(slots=True)
class TaskCounters:
    """connector-task-metrics, and those of the task's kind."""

    commits_succeeded: int = 0
    commits_failed: int = 0
    commit_ms: Sizes = field(default_factory=Sizes)
    batch: Sizes = field(default_factory=Sizes)
    errors: ErrorCounters = field(default_factory=ErrorCounters)
    source: SourceCounters | None = None
    sink: SinkCounters | None = None
    #: Seconds that the task has spent in each state.
    state_s: dict[str, float] = field(default_factory=dict)
    state: str = "unassigned"
    _since_s: float = field(default_factory=time.monotonic)

    def enter(self, state: str) -> None:
        """The task has entered another state, named like its status in lower case."""
        now = time.monotonic()
        self.state_s[self.state] = self.state_s.get(self.state, 0.0) + now - self._since_s
        self.state, self._since_s = state, now

    def ratio(self, state: str) -> float:
        """The fraction of its lifetime that the task has spent in a state."""
        now = time.monotonic()
        times = dict(self.state_s)
        times[self.state] = times.get(self.state, 0.0) + now - self._since_s
        whole = sum(times.values())
        return times.get(state, 0.0) / whole if whole else 0.0

    def committed(self, seconds: float, *, failed: bool = False) -> None:
        """A commit of offsets has completed or failed."""
        self.commit_ms.add(seconds * 1000)
        if failed:
            self.commits_failed += 1
        else:
            self.commits_succeeded += 1
