"""What is counted of a task while it runs: the figures behind the metrics of spec connect F. Plain data, no reporting.

Totals and maxima are since the task was started; rates and windows are whoever shows them to make.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Sizes:
    """Values of one kind: how many, their sum, the least, the greatest and the last of them."""

    count: int = 0
    total: float = 0.0
    least: float = 0.0
    greatest: float = 0.0
    last: float = 0.0

    def add(self, value: float) -> None:
        """One more."""
        self.least = value if not self.count else min(self.least, value)
        self.greatest = max(self.greatest, value)
        self.count += 1
        self.total += value
        self.last = value

    def join(self, other: Sizes) -> None:
        """Those of another place, too; of the two that came last the greater."""
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
    """connect-worker-rebalance-metrics. A rebalance lasts from the assignment until the work of it has started."""

    took_ms: Sizes = field(default_factory=Sizes)
    #: Monotonic, None when none is under way.
    began_s: float | None = None
    #: Of the last one, None before the first.
    ended_s: float | None = None

    def begin(self) -> None:
        """An assignment has come."""
        self.began_s = time.monotonic()

    def end(self) -> None:
        """Its work has started."""
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
    #: After transformations, without what they dropped.
    written: int = 0
    poll_ms: Sizes = field(default_factory=Sizes)
    #: Polled and not acknowledged yet.
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
    #: Consumed and not committed yet.
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
    #: State by state, how many seconds the task has been in it.
    state_s: dict[str, float] = field(default_factory=dict)
    state: str = "unassigned"
    _since_s: float = field(default_factory=time.monotonic)

    def enter(self, state: str) -> None:
        """The task is in another state, named as its status is, in lower case."""
        now = time.monotonic()
        self.state_s[self.state] = self.state_s.get(self.state, 0.0) + now - self._since_s
        self.state, self._since_s = state, now

    def ratio(self, state: str) -> float:
        """The share of its life that the task has been in a state."""
        now = time.monotonic()
        times = dict(self.state_s)
        times[self.state] = times.get(self.state, 0.0) + now - self._since_s
        whole = sum(times.values())
        return times.get(state, 0.0) / whole if whole else 0.0

    def committed(self, seconds: float, *, failed: bool = False) -> None:
        """A commit of offsets is over."""
        self.commit_ms.add(seconds * 1000)
        if failed:
            self.commits_failed += 1
        else:
            self.commits_succeeded += 1
