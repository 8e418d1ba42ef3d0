"""The table that has to be reached, and the events it takes, the most telling first."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bench import idle, latency, race
from bench.conditions import Conditions
from bench.contenders import JAVA_DEFAULT, JAVA_TUNED, OURS, Contender
from bench.event import FOUR, Event, Result
from bench.idle import Idleness
from bench.latency import Traffic
from bench.many import Many
from bench.outcome import Figure
from bench.shapes import SHAPES

_FAR = replace(SHAPES["1k"], records=100_000)
"""Java's default moves a megabyte a second at that distance."""

TABLE = (
    Event(SHAPES["1k-4g"]),
    Event(Traffic(1000, 60)),
    Event(SHAPES["lz4"]),
    Event(SHAPES["1k"], Conditions(exactly_once=True)),
    Event(SHAPES["1k"], Conditions(tls=True)),
    Event(_FAR, Conditions(rtt_ms=80), FOUR),
    Event(SHAPES["100b"]),
    Event(SHAPES["zstd"]),
    Event(SHAPES["single"]),
    Event(SHAPES["single-lz4"]),
    Event(Idleness(60), contenders=(OURS, JAVA_DEFAULT), runs=1),
    Event(Traffic(10_000, 60)),
    Event(Traffic(1000, 600), contenders=(OURS, JAVA_DEFAULT), runs=1),
)
BEYOND = (
    Event(SHAPES["hot"]),
    Event(SHAPES["100p"]),
    Event(SHAPES["1000p"]),
    Event(_FAR, Conditions(rtt_ms=20), FOUR),
)
"""Shapes without a line of their own in the table."""
MANY = Event(Many(), contenders=(OURS, JAVA_DEFAULT))
"""An hour for itself, so in neither."""
EVENTS: Mapping[str, Event] = {event.name: event for event in (*TABLE, *BEYOND)}

_QUICK_RECORDS = {"1k-4g": 600_000, "single": 100_000, "single-lz4": 100_000}
_OTHERWISE = 300_000


def quick(event: Event) -> Event:
    """The same on little data, once: shows that everything works, proves nothing."""
    task = event.task
    if isinstance(task, Traffic):
        short = Traffic(task.rate, min(60, task.seconds // 2))
    elif isinstance(task, Idleness):
        return replace(event, task=Idleness(15), runs=1)
    elif isinstance(task, Many):
        return replace(event, task=Many(50, 5, 50, 20), runs=1)
    else:
        few = _QUICK_RECORDS.get(task.name, _OTHERWISE)
        return replace(event, task=replace(task, records=20_000 if event.conditions.rtt_ms else few), runs=1)
    return replace(event, task=short, runs=1)


@dataclass(frozen=True)
class Goal:
    """One line of the table. The bounds are for ours divided by theirs, `most` is one for ours alone."""

    line: str
    event: str
    figure: Figure
    default: float | None
    tuned: float | None
    at_least: bool = False
    most: float | None = None

    @property
    def bounds(self) -> Sequence[tuple[Contender, float | None]]:
        return (JAVA_DEFAULT, self.default), (JAVA_TUNED, self.tuned)

    def reached(self, ratio: float, bound: float, ours: float) -> bool:
        within = self.most is None or ours <= self.most
        return within and (ratio >= bound if self.at_least else ratio <= bound)

    def wanted(self, bound: float) -> str:
        """The goal in words, e.g. `≥ 6x`."""
        alone = "" if self.most is None else f" and ≤ {self.most:g}"
        return f"{'≥' if self.at_least else '≤'} {bound:.3g}x{alone}"


def _faster(line: str, event: str, default: float, tuned: float) -> Goal:
    return Goal(line, event, race.RATE, default, tuned, at_least=True)


GOALS = (
    _faster("catch-up, 128 KB batches", "1k-4g", 6, 2.8),
    _faster("catch-up, lz4", "lz4", 8, 4.5),
    _faster("catch-up, zstd", "zstd", 8, 4.5),
    _faster("catch-up, 16 KB batches of 100 B", "100b", 5, 3),
    _faster("catch-up, one record per batch", "single", 2, 1.3),
    _faster("catch-up, one record per batch, lz4", "single-lz4", 1, 1),
    _faster("catch-up at 80 ms round trip", "1k-rtt80", 8, 2),
    _faster("catch-up with exactly-once", "1k-exactly-once", 5, 3),
    _faster("catch-up with TLS on both sides", "1k-tls", 5, 1.8),
    Goal("CPU s per GB, 128 KB batches", "1k-4g", race.CPU, 1 / 12, 1 / 6),
    Goal("latency p50 at 1,000 rec/s", "latency-1000", latency.P50, 0.5, 0.5),
    Goal("latency p99 at 1,000 rec/s", "latency-1000", latency.P99, 0.5, 0.5),
    Goal("latency p50 at 10,000 rec/s", "latency-10000", latency.P50, 0.5, 0.5),
    Goal("latency p99 at 10,000 rec/s", "latency-10000", latency.P99, 0.5, 0.5),
    Goal("longest latency in 10 minutes", "latency-1000-max", latency.LONGEST, 1, None, most=100),
    Goal("peak memory", "1k-4g", race.MEMORY, 0.6, 0.6),
    Goal("start → first record copied", "1k-4g", race.START, 1, 1),
    Goal("idle cost, 1,000 partitions, CPU", "idle", idle.CPU, 0.5, None),
)


@dataclass(frozen=True)
class Verdict:
    """What one goal came to against one peer. Without `ours` and `theirs`, `why` is what is missing."""

    goal: Goal
    peer: Contender
    bound: float
    ours: float | None = None
    theirs: float | None = None
    why: str = ""

    @property
    def ratio(self) -> float | None:
        return self.ours / self.theirs if self.ours is not None and self.theirs else None

    @property
    def reached(self) -> bool | None:
        """None: not known."""
        if self.ours is None or self.ratio is None:
            return None
        return self.goal.reached(self.ratio, self.bound, self.ours)


def median(result: Result, contender: Contender, figure: Figure) -> float | None:
    """Over its runs; None when it has none or did not measure that."""
    values = [run.figures[figure.name] for run in result.of(contender.name) if figure.name in run.figures]
    return statistics.median(values) if values else None


def verdicts(goal: Goal, result: Result | None) -> list[Verdict]:
    """One for each peer against which there is a goal."""
    found = []
    for peer, bound in goal.bounds:
        if bound is None:
            continue
        if result is None:
            found.append(Verdict(goal, peer, bound, why="not measured"))
            continue
        ours, theirs = median(result, OURS, goal.figure), median(result, peer, goal.figure)
        lost = next((result.failure_of(one.name) for one in (OURS, peer) if result.failure_of(one.name)), "")
        why = f"failed: {lost}" if lost else "not measured"
        found.append(Verdict(goal, peer, bound, ours, theirs, "" if ours is not None and theirs else why))
    return found
