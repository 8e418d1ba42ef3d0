"""Curves over more time than the process has recorded, from a Prometheus that scrapes it.

Results are shared by all viewers, and read again when a newer point exists. Where Prometheus does not answer, curves are
those of the process's own history, with a note.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol

import structlog

from mm2.copy.states import WELL
from mm2.observer.curves.history import QUANTILES, History, latency_name
from mm2.observer.curves.prometheus import PrometheusFailure

log = structlog.get_logger("mm2.observer.long_term")

Points = Sequence[tuple[int, float | None]]

#: Ranges up to this one are those of the process's own history.
OWN_MS: Final = 30 * 60_000
_POINTS: Final = 300
#: A rate needs two samples of each series; a process is scraped every one or two minutes at least.
_LEAST_WINDOW_S: Final = 300
_READ_S: Final = 15.0
_FRESH_S: Final = 300.0
_RETRY_S: Final = 30.0
_KEPT: Final = 200
_READS_AT_ONCE: Final = 4


class SeriesReader(Protocol):
    """See `mm2.observer.curves.prometheus.Prometheus`."""

    def read(self, expressions: Mapping[str, str], times_s: range, deadline_s: float) -> Mapping[str, Points]:
        """The values of each expression. Raises PrometheusFailure."""


@dataclass(frozen=True)
class Curves:
    """The points of curves by name. ``note`` is a sentence about their source, ``version`` changes with the points."""

    version: object
    points: Mapping[str, Points]
    note: str = ""


class _Wanted(NamedTuple):
    flow: str
    topic: str
    length_ms: int


@dataclass
class _StoredCurves:
    """The newest points, None before the first answer, and why there are no newer ones."""

    points: Mapping[str, Points] | None = None
    failure: str = ""
    next_s: float = field(default=0.0)
    version: int = 0


class LongTermHistory:
    """Reads curves in threads of its own, so no method blocks. Thread-safe. ``clock`` returns seconds since the epoch."""

    def __init__(self, reader: SeriesReader, matchers: str = "", clock: Callable[[], float] = time.time) -> None:
        self._reader = reader
        self._matchers = matchers
        self._clock = clock
        self._lock = threading.Lock()
        self._results: OrderedDict[_Wanted, _StoredCurves] = OrderedDict()
        self._reading: set[_Wanted] = set()
        self._failed = False

    def newest(self, flow: str, topic: str, length_ms: int) -> tuple[int, Mapping[str, Points] | None, str]:
        """A version, the points by the names of `History`, and why there are no newer ones; starts to read if it is due.

        ``topic`` is "" for the flow. Points are None before the first answer.
        """
        wanted = _Wanted(flow, topic, length_ms)
        with self._lock:
            found = self._results.setdefault(wanted, _StoredCurves())
            self._results.move_to_end(wanted)
            while len(self._results) > _KEPT:
                self._results.popitem(last=False)
            is_due = self._clock() >= found.next_s and wanted not in self._reading
            if is_due and len(self._reading) < _READS_AT_ONCE:
                self._reading.add(wanted)
                # A daemon, so that a slow Prometheus does not delay the end of the process.
                threading.Thread(target=self._read, args=(wanted,), name="long-term", daemon=True).start()
            return found.version, found.points, found.failure

    def _read(self, wanted: _Wanted) -> None:
        """Runs in the thread."""
        times_s = times(self._clock(), wanted.length_ms)
        points, failure = None, ""
        try:
            expressions = expressions_of(wanted.flow, wanted.topic, times_s.step, self._matchers)
            points = self._reader.read(expressions, times_s, time.monotonic() + _READ_S)
        except PrometheusFailure as error:
            failure = str(error)
        except Exception as error:
            log.exception("Prometheus could not be read")
            failure = type(error).__name__
        with self._lock:
            self._reading.discard(wanted)
            found = self._results.setdefault(wanted, _StoredCurves())
            found.failure = failure
            found.version += 1
            if points is not None:
                found.points = points
            delay_s = _RETRY_S if failure else min(_FRESH_S, times_s.step)
            found.next_s = self._clock() + delay_s
            changed, self._failed = self._failed != bool(failure), bool(failure)
        if changed and failure:
            log.warning("Prometheus cannot be read; the dashboard shows its own history", reason=failure)
        elif changed:
            log.info("Prometheus has been read again")


class CurveSource:
    """The curves of pages: those of the process, or for a longer range those of Prometheus if one is configured."""

    def __init__(self, history: History, long_term: LongTermHistory | None) -> None:
        self._history = history
        self._long_term = long_term

    @property
    def is_long(self) -> bool:
        """Whether there are more than 24 hours."""
        return self._long_term is not None

    def of(self, flow: str, topic: str, names: Sequence[str], length_ms: int, at_ms: int) -> Curves:
        """Curves of the names of `History`; ``topic`` is "" for the flow, ``at_ms`` the end of the range."""
        note = ""
        if self._long_term is not None and length_ms > OWN_MS:
            version, points, failure = self._long_term.newest(flow, topic, length_ms)
            if points is not None and any(value is not None for name in names for _, value in points[name]):
                note = f"From Prometheus. It {failure}, so newer values are missing." if failure else "From Prometheus."
                return Curves((version, length_ms), {name: points[name] for name in names}, note)
            note = _why(points, failure)
        own = {name: self._history.points(flow, topic, name, at_ms - length_ms) for name in names}
        return Curves((self._history.at_ms, length_ms), own, note)


def _why(points: Mapping[str, Points] | None, failure: str) -> str:
    """Why the points of the process are shown."""
    if failure:
        return f"Prometheus {failure}. These are the values that this process has recorded."
    if points is None:
        return "Reading from Prometheus …"
    return "Prometheus has no values for this time. These are the values that this process has recorded."


def times(now_s: float, length_ms: int) -> range:
    """The times of the points, in seconds: multiples of the step, so that curves do not change with each read."""
    step_s = max(1, length_ms // 1000 // _POINTS)
    end_s = int(now_s) // step_s * step_s
    return range(end_s - _POINTS * step_s, end_s + 1, step_s)


def expressions_of(flow: str, topic: str, step_s: int, matchers: str) -> dict[str, str]:
    """The PromQL of each curve. As in `History`, points are averages of rates, and the highest lag.

    Every process of a deployment reports the lag of all partitions, and the records that it has copied itself.
    """
    source, _, target = flow.partition("->")
    window = f"[{max(step_s, _LEAST_WINDOW_S)}s]"
    common = ",".join([f"source={_quoted(source)}", f"target={_quoted(target)}", *([matchers] if matchers else [])])
    if not topic:
        rates = f'mm2_copy_latency_seconds_bucket{{{common},stage="visible"}}{window}'
        return {
            "records_per_s": f"sum(rate(mm2_copied_records_total{{{common}}}{window}))",
            "lag_records": f"max(max_over_time(mm2_flow_records_at_risk_at_least{{{common}}}{window}))",
            **{latency_name(one): f"histogram_quantile({one}, sum by (le) (rate({rates})))" for one in QUANTILES},
        }
    of_topic = f"{common},topic={_quoted(topic)}"
    unhealthy = f'{of_topic},state!~"{"|".join(sorted(WELL))}"'
    return {
        "records_per_s": f"sum(rate(mm2_copied_records_total{{{of_topic}}}{window}))",
        "lag_records": f"sum(max by (partition) (max_over_time(mm2_partition_lag_records{{{of_topic}}}{window})))",
        # A healthy partition may have no series of this metric.
        "unhealthy": f"count(max by (partition) (max_over_time(mm2_partition_state{{{unhealthy}}}{window}))) "
        f"or max(0 * max_over_time(mm2_flow_observed_timestamp_seconds{{{common}}}{window}))",
    }


def _quoted(text: str) -> str:
    """A string of PromQL."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'
