"""Metrics of Connect workers for a scrape.

Rates cover about the last minute, measured between scrapes, and are missing before there is an earlier scrape. Averages
and maxima are since the task or worker started, where Java's are over a sampling window.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from mm2.connect.errors import NotFound
from mm2.connect.herder.answers import ConnectorStateInfo
from mm2.connect.herder.base import AbstractHerder
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.runtime.counters import Sizes, StartCounters, TaskCounters
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.status_store import State
from mm2.metrics import connect as names
from mm2.metrics.metric import Metric, Sheet

_OVER_S: Final = 60.0
_APART_S: Final = 5.0
_STATES: Final = tuple(state.value.lower() for state in State)


@dataclass(frozen=True)
class ObservedWorker:
    """A worker of this process; ``labels`` distinguish it from others in the same process."""

    herder: AbstractHerder
    labels: Mapping[str, str]


class ConnectMetrics:
    """Writes the metrics of the workers that ``workers`` returns. Thread-safe."""

    def __init__(self, workers: Callable[[], Iterable[ObservedWorker]]) -> None:
        self._workers = workers
        self._lock = threading.Lock()
        self._rates: dict[object, deque[tuple[float, float]]] = {}

    def __call__(self, sheet: Sheet) -> None:
        """All current metrics."""
        with self._lock:
            now_s = time.monotonic()
            seen: set[object] = set()
            for worker in self._workers():
                _Page(sheet, worker, lambda key, total: self._rate(seen, key, total, now_s)).write()
            self._rates = {key: samples for key, samples in self._rates.items() if key in seen}

    def _rate(self, seen: set[object], key: object, total: float, now_s: float) -> float | None:
        seen.add(key)
        samples = self._rates.setdefault(key, deque())
        if samples and total < samples[-1][1]:
            samples.clear()  # a different task with the same name
        while len(samples) > 1 and now_s - samples[1][0] > _OVER_S:
            samples.popleft()
        rate = None
        if samples and now_s > samples[0][0]:
            rate = (total - samples[0][1]) / (now_s - samples[0][0])
        if not samples or now_s - samples[-1][0] >= _APART_S:
            samples.append((now_s, total))
        return rate


class _Page:
    """The metrics of one worker."""

    def __init__(self, sheet: Sheet, worker: ObservedWorker, rate: Callable[[object, float], float | None]) -> None:
        self._sheet = sheet
        self._herder = worker.herder
        self._more = worker.labels
        self._rate = rate

    def write(self) -> None:
        herder = self._herder
        worker = herder.worker
        counters = worker.task_counters()
        self._worker("connector_count", len(worker.connector_names()))
        self._worker("task_count", len(counters))
        self._starts("connector", herder.connector_starts)
        self._starts("task", herder.task_starts)
        for name in herder.connectors():
            with contextlib.suppress(NotFound):  # it is so new that it has no status yet
                self._connector(herder.connector_status(name))
        for task, counted in sorted(counters.items()):
            self._task(task, counted)
        if isinstance(herder, DistributedHerder):
            self._rebalances(herder)

    def _add(self, metric: Metric, value: float | None, *labels: str) -> None:
        self._sheet.add(metric, labels, value, self._more)

    def _worker(self, name: str, value: float) -> None:
        self._add(names.WORKER[name], value)

    def _starts(self, kind: str, starts: StartCounters) -> None:
        attempts = starts.succeeded + starts.failed
        self._worker(f"{kind}_startup_attempts_total", attempts)
        for name, count in (("success", starts.succeeded), ("failure", starts.failed)):
            self._worker(f"{kind}_startup_{name}_total", count)
            self._worker(f"{kind}_startup_{name}_percentage", count / attempts if attempts else 0.0)

    def _connector(self, status: ConnectorStateInfo) -> None:
        """From the statuses, so tasks on other workers and failed ones are included."""
        states = [task.state for task in status.tasks]
        metrics = names.WORKER_CONNECTOR
        self._add(metrics["connector_total_task_count"], len(states), status.name)
        for state in (State.RUNNING, State.PAUSED, State.FAILED, State.UNASSIGNED, State.RESTARTING, State.DESTROYED):
            metric = metrics[f"connector_{state.value.lower()}_task_count"]
            self._add(metric, states.count(state.value), status.name)
        for task in status.tasks:
            for state_name in _STATES:
                is_it = task.state.lower() == state_name
                self._add(names.STATUS, float(is_it), status.name, str(task.id), state_name)

    def _task(self, task: ConnectorTaskId, counted: TaskCounters) -> None:
        own = (task.connector, str(task.task))
        for name, value in {
            "running_ratio": counted.ratio("running"),
            "pause_ratio": counted.ratio("paused"),
            **_commits(counted),
            **_sizes("offset_commit", counted.commit_ms, "time_ms"),
            "batch_size_avg": _average(counted.batch),
            "batch_size_max": counted.batch.greatest,
        }.items():
            self._add(names.TASK[name], value, *own)
        for field, metric in zip(_ERROR_FIELDS, names.ERRORS.values(), strict=True):
            self._add(metric, getattr(counted.errors, field), *own)
        if counted.source is not None:
            self._source(own, counted)
        if counted.sink is not None:
            self._sink(own, counted)

    def _source(self, own: tuple[str, str], counted: TaskCounters) -> None:
        source = counted.source
        if source is None:
            return
        values = {
            **self._total("source_record_poll", source.polled, own),
            **self._total("source_record_write", source.written, own),
            **_sizes("poll_batch", source.poll_ms, "time_ms"),
            **_active("source_record_active_count", source.active),
        }
        if source.transaction_records.count:
            sizes = source.transaction_records
            values |= {
                "transaction_size_min": sizes.least,
                "transaction_size_avg": _average(sizes),
                "transaction_size_max": sizes.greatest,
            }
        for name, value in values.items():
            self._add(names.SOURCE[name], value, *own)

    def _sink(self, own: tuple[str, str], counted: TaskCounters) -> None:
        sink = counted.sink
        if sink is None:
            return
        values = {
            **self._total("sink_record_read", sink.read, own),
            **self._total("sink_record_send", sink.sent, own),
            **self._total("offset_commit_completion", sink.commits_completed, own),
            **self._total("offset_commit_skip", sink.commits_skipped, own),
            "partition_count": float(sink.partitions),
            "offset_commit_seq_no": float(sink.commit_sequence),
            **_sizes("put_batch", sink.put_ms, "time_ms"),
            **_active("sink_record_active_count", sink.active),
        }
        for name, value in values.items():
            self._add(names.SINK[name], value, *own)

    def _total(self, name: str, total: int, own: tuple[str, str]) -> dict[str, float | None]:
        key = (name, own, tuple(self._more.values()))
        return {f"{name}_total": float(total), f"{name}_rate": self._rate(key, total)}

    def _rebalances(self, herder: DistributedHerder) -> None:
        counted = herder.rebalance_counters
        since_s = None if counted.ended_s is None else time.monotonic() - counted.ended_s
        for name, value in {
            "epoch": float(herder.generation),
            "completed_rebalances_total": float(counted.took_ms.count),
            "rebalancing": float(counted.began_s is not None),
            **_sizes("rebalance", counted.took_ms, "time_ms"),
            "time_since_last_rebalance_ms": float("inf") if since_s is None else since_s * 1000,
        }.items():
            self._add(names.REBALANCE[name], value)
        connectors, tasks = herder.assigned
        client_id = f"connect-{herder.worker.worker_id}"
        self._add(names.COORDINATOR["assigned_connectors"], len(connectors), client_id)
        self._add(names.COORDINATOR["assigned_tasks"], len(tasks), client_id)


#: In the order of `mm2.metrics.connect.ERRORS`.
_ERROR_FIELDS: Final = (
    "record_failures",
    "record_errors",
    "records_skipped",
    "retries",
    "errors_logged",
    "dead_letter_requests",
    "dead_letter_failures",
    "last_error_ms",
)


def _average(sizes: Sizes) -> float:
    return sizes.total / sizes.count if sizes.count else 0.0


def _sizes(name: str, sizes: Sizes, unit: str) -> dict[str, float]:
    return {f"{name}_avg_{unit}": _average(sizes), f"{name}_max_{unit}": sizes.greatest}


def _active(name: str, sizes: Sizes) -> dict[str, float]:
    return {name: sizes.last, f"{name}_avg": _average(sizes), f"{name}_max": sizes.greatest}


def _commits(counted: TaskCounters) -> dict[str, float]:
    commits = counted.commits_succeeded + counted.commits_failed
    failed = counted.commits_failed / commits if commits else 0.0
    return {
        "offset_commit_success_percentage": 1.0 - failed if commits else 0.0,
        "offset_commit_failure_percentage": failed,
    }
