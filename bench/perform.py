"""Run an event: brokers, data, warm-up, rounds. A contender that fails is excluded from further rounds."""

import shutil
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from bench.cluster_pair import ClusterPair, open_cluster_pair
from bench.contenders import CONTENDERS, JAVA_DEFAULT, OURS, Contender
from bench.errors import BenchFailed
from bench.event import Event, Result
from bench.idle import Idleness, Waiting
from bench.latency import Line, Traffic
from bench.many import BROKER_SETTINGS, HEAP, INTERVALS, Many, ManyTopics
from bench.outcome import Figure, Outcome
from bench.preload import Stored, preload
from bench.race import CopyRuns, Watch
from bench.report import commit, machine
from bench.shapes import Shape
from mm2.kafka.errors import KafkaFailure
from mm2.sandbox.errors import SandboxError

_TOPIC = "bench"
_DISK_SHARES = 2.5  # the source, one replica, and what a deleted replica still holds
_WARM_UP_S = 30
_WARM_UP_RUNS = 3
_FAILURES = (BenchFailed, SandboxError, KafkaFailure, OSError)

Run = Callable[[Contender], Outcome]
WarmUps = Sequence[tuple[str, Callable[[], Outcome]]]


@dataclass(frozen=True)
class BenchContext:
    """What every event needs: a terminal, a working folder, and the measured repository."""

    console: Console
    folder: Path
    repository: Path
    quick: bool = False
    in_memory: bool = False
    """The folder, and with it the brokers' logs."""


def perform(context: BenchContext, event: Event, watch: Watch = lambda _pid: nullcontext()) -> Result:
    """Raises BenchFailed, SandboxError or KafkaFailure when the brokers cannot be prepared."""
    folder = context.folder / event.name
    folder.mkdir()
    facts = ["The brokers' logs lie in memory." if context.in_memory else "The brokers' logs lie on disk."]
    try:
        if isinstance(event.task, Shape):
            _check_disk(folder, event.task)
        if isinstance(event.task, Traffic) and event.task.cold:
            outcomes = _rounds(context, event, partial(_run_cold, event, event.task, folder), [])
        else:
            needs: dict[str, Any] = {"heap": HEAP, "settings": BROKER_SETTINGS} if isinstance(event.task, Many) else {}
            with open_cluster_pair(folder, event.conditions, **needs) as pair:
                outcomes = _rounds(context, event, *_prepare(context, event, pair, folder, facts, watch))
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return Result(
        event=event.name,
        title=event.title,
        quick=context.quick,
        at=f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC",
        commit=commit(context.repository),
        machine=machine(),
        outcomes=outcomes,
        facts=facts,
    )


def _run_cold(event: Event, traffic: Traffic, folder: Path, contender: Contender) -> Outcome:
    """Run one contender on brokers that have just been started."""
    place = folder / "cold"
    place.mkdir()
    try:
        with open_cluster_pair(place, event.conditions) as pair:
            return Line(pair).run(contender, traffic, place)
    finally:
        shutil.rmtree(place, ignore_errors=True)


def load(context: BenchContext, pair: ClusterPair, shape: Shape) -> tuple[str, Stored]:
    """Writes the shape's records to the source; the topic and how they lie in it."""
    with context.console.status(f"Writing {shape.records:,} records"):
        return _TOPIC, preload(pair.clusters[0], pair.brokers[0].bootstrap, _TOPIC, shape)


def _prepare(
    context: BenchContext, event: Event, pair: ClusterPair, folder: Path, facts: list[str], watch: Watch
) -> tuple[Run, WarmUps]:
    """How one contender runs, and the runs that warm the brokers up and are discarded."""
    if isinstance(event.task, Traffic):
        line = Line(pair)
        short = replace(event.task, seconds=_WARM_UP_S)
        # The first run on cold brokers has had a p99 of 100 ms where the fourth had 5.
        warm_up = [one for one in (OURS, OURS, JAVA_DEFAULT) if one in event.contenders] or event.contenders[:1]
        warming_up = [(one.name, partial(line.run, one, short, folder)) for one in warm_up]
        return partial(line.run, traffic=event.task, folder=folder), warming_up
    if isinstance(event.task, Idleness):
        waiting = Waiting(pair)
        waiting.prepare()
        return partial(waiting.run, idleness=event.task, folder=folder), []
    if isinstance(event.task, Many):
        settings = ", ".join(f"{key}={value}" for key, value in INTERVALS.items())
        facts.append(f"All have {settings}.")
        with context.console.status(f"Creating {event.task.topics:,} topics"):
            many_topics = ManyTopics(pair, event.task)
            many_topics.prepare()
        return partial(many_topics.run, folder=folder), []
    topic, stored = load(context, pair, event.task)
    facts.append(
        f"On the source {stored.records_per_batch:.0f} records and {stored.bytes_per_batch / 1024:.1f} KiB per batch."
    )
    # The brokers' JIT compiler must see the requests of all contenders, otherwise the first one pays for it. Over seven runs
    # of 2 GB the brokers' cost per GB fell from 11 CPU seconds to 1.7. With high latency this would take minutes, and there
    # the brokers are not the limit.
    wanted = (OURS,) if event.conditions.rtt_ms else (*[OURS] * _WARM_UP_RUNS, JAVA_DEFAULT)
    warming = [one for one in wanted if one in event.contenders] or event.contenders[:1]
    run = partial(CopyRuns(pair, topic).run, shape=event.task, folder=folder, watch=watch)
    return run, [(one.name, partial(run, one)) for one in warming]


def _rounds(context: BenchContext, event: Event, run: Run, warming: WarmUps) -> list[Outcome]:
    outcomes: list[Outcome] = []
    lost: set[str] = set()
    runs = [(name, first, True) for name, first in warming]
    runs += [(one.name, partial(run, one), False) for one in _order(event.contenders, event.runs)]
    for number, (name, measure, discarded) in enumerate(runs, 1):
        if name in lost:
            continue
        with context.console.status(f"{event.name}: run {number} of {len(runs)}: {name}"):
            outcome = _attempt(context, name, measure)
        result = outcome.failure or _line(event.figures, outcome)
        for text in (
            f"{name:<11} {result}{'   discarded' if discarded else ''}",
            *(f"{'':<11} {one}" for one in outcome.notes),
        ):
            context.console.print(text, highlight=False, markup=False, soft_wrap=True)
        if outcome.failure:
            lost.add(name)
        if outcome.failure or not discarded:
            outcomes.append(outcome)
    return outcomes


def _attempt(context: BenchContext, name: str, measure: Callable[[], Outcome]) -> Outcome:
    try:
        return measure()
    except _FAILURES as exc:
        # The text goes into a published file, where paths of this machine have no meaning.
        return Outcome(name, failure=str(exc).replace(str(context.folder), "…") or type(exc).__name__)


def _order(chosen: Sequence[Contender], runs: int) -> list[Contender]:
    """Alternate the contenders and start with another one each round, so that none always follows the same one."""
    rounds = ([*chosen[index % len(chosen) :], *chosen[: index % len(chosen)]] for index in range(runs))
    return [contender for one_round in rounds for contender in one_round]


def _line(figures: Sequence[Figure], outcome: Outcome) -> str:
    return "   ".join(f"{figure.text(outcome.figures.get(figure.name))} {figure.name}" for figure in figures)


def _check_disk(folder: Path, shape: Shape) -> None:
    needed = _DISK_SHARES * shape.payload_bytes
    if shutil.disk_usage(folder).free < needed:
        raise BenchFailed(f"There is less than the {needed / 1e9:.1f} GB free that two brokers need: set TMPDIR.")


def only(event: Event, names: Sequence[str]) -> Event:
    """With the contenders of those names; as it is when there are none."""
    return replace(event, contenders=tuple(one for one in CONTENDERS if one.name in names)) if names else event
