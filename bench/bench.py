"""`bin/bench`: this project against Java's MirrorMaker 2, on the same two brokers, in one run.

A round is one run of each contender, each round in another order. Before the rounds, memory is touched, and runs are
discarded that warm the brokers up.
"""

import json
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import configargparse
from rich.console import Console

_REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_REPOSITORY))  # started with -P, which leaves our own folder out

from bench import contenders, memory, physics, profiling, report  # noqa: E402
from bench.cluster_pair import open_cluster_pair  # noqa: E402
from bench.conditions import Conditions  # noqa: E402
from bench.contenders import CONTENDERS, JAVA_DEFAULT, NOTHING, OURS, OURS_PRESERVED  # noqa: E402
from bench.errors import BenchFailed  # noqa: E402
from bench.event import FOUR, THREE, Event, Result  # noqa: E402
from bench.goals import BEYOND, EVENTS, MANY, TABLE, quick  # noqa: E402
from bench.idle import Idleness  # noqa: E402
from bench.latency import PARTITIONS, Traffic  # noqa: E402
from bench.perform import BenchContext, load, only, perform  # noqa: E402
from bench.shapes import SHAPES, Shape  # noqa: E402
from mm2.kafka.errors import KafkaFailure  # noqa: E402
from mm2.sandbox.errors import SandboxError  # noqa: E402
from mm2.sandbox.jars import cache_folder  # noqa: E402

_FAILURES = (BenchFailed, SandboxError, KafkaFailure)


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 measured, 1 failed (a contender or all of it), 130 interrupted."""
    parser = _parser()
    options = parser.parse_args(arguments)
    alone = "--beside" if options.beside else "--preserve-offsets"
    if (options.beside or options.preserve_offsets) and (
        options.all or options.beyond or options.rows or options.line or options.profile or options.only
    ):
        parser.error(f"{alone} is for one comparison: not with --all, --beyond, --rows, --line, --profile or --only.")
    if options.beside and options.preserve_offsets:
        parser.error("--beside and --preserve-offsets are two comparisons: give one of them.")
    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="mm2-bench-", dir=None if options.disk else memory.folder()))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    context = BenchContext(console, folder, _REPOSITORY, quick=options.quick, in_memory=memory.holds(folder))
    try:
        contenders.fetch_jars()
        _say(console, contenders.LEFT_OUT)
        if not options.no_touch:
            with console.status("Touching the free memory"):
                touched = memory.touch_free_memory()
            console.print(f"{touched / 1e9:.1f} GB of free memory touched.", highlight=False)
        if options.line:
            _measure_line(context, options)
            return 0
        if options.profile:
            _profile(context, _event(options), options)
            return 0
        if options.all or options.beyond or options.rows:
            return _measure_rows(context, options)
        event = _event(options)
        if options.beside:
            earlier = contenders.at_revision(options.beside, _REPOSITORY, folder / "beside")
            event = replace(event, contenders=(OURS, earlier))
        elif options.floor and options.latency:
            event = replace(event, contenders=(*event.contenders, NOTHING))
        elif options.preserve_offsets:
            event = replace(event, contenders=(OURS, OURS_PRESERVED))
        result = perform(context, event)
        _report(context, event, result, options.results)
        return 0 if result.complete else 1
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except _FAILURES as exc:
        _say(console, f"The bench failed: {exc}")
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _parser() -> Any:
    parser = configargparse.ArgumentParser(
        prog="bin/bench",
        description="Compares this project with Java's MirrorMaker 2, default and tuned, on the same two brokers.",
        auto_env_var_prefix="MM2_BENCH_",
    )
    what = parser.add_argument_group("what to measure (default: catching up)").add_mutually_exclusive_group()
    what.add_argument("--latency", action="store_true", help="steady traffic: time from creation to visibility")
    what.add_argument("--idle", action="store_true", help="cost of 1,000 partitions without traffic")
    what.add_argument("--many", action="store_true", help="2,000 topics of 5 partitions and 2,000 groups on one flow")
    what.add_argument("--line", action="store_true", help="limits of the machine itself")
    what.add_argument("--profile", action="store_true", help="profile of this project while it catches up")
    what.add_argument("--all", action="store_true", help="all rows of the table of goals")
    what.add_argument("--beyond", action="store_true", help="the shapes that are not in that table")
    what.add_argument("--rows", nargs="+", choices=list(EVENTS), metavar="ROW", help=f"of: {', '.join(EVENTS)}")
    parser.add_argument("--resume", action="store_true", help="with --all or --beyond: skip rows that have a result")
    parser.add_argument("--full", action="store_true", help="with --all: the default, the opposite of --quick")
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1k", help="the data (default: %(default)s)")
    parser.add_argument("--records", type=int, help="number of records (default: that of the shape)")
    parser.add_argument("--age-days", type=int, help="age of the record timestamps (default: 0)")
    parser.add_argument("--exactly-once", action="store_true", help="exactly.once.source.support for all")
    parser.add_argument("--insert-header", action="store_true", help="the transformation InsertHeader for all")
    parser.add_argument("--tls", action="store_true", help="TLS to both brokers for all contenders")
    parser.add_argument("--rtt", type=int, default=0, metavar="MS", help="round trip to the target")
    parser.add_argument("--rate", type=int, default=1000, help="of --latency, records/s (default: %(default)s)")
    parser.add_argument("--minutes", type=float, default=1.0, help="of --latency (default: %(default)s)")
    parser.add_argument("--partitions", type=int, default=PARTITIONS, help="of --latency (default: %(default)s)")
    parser.add_argument(
        "--batch-records",
        type=int,
        default=0,
        metavar="N",
        help="of --latency: 1 as producers with linger.ms=0 write (default: a batch each millisecond)",
    )
    parser.add_argument("--tasks", type=int, default=0, metavar="N", help="of --latency: tasks.max of all contenders")
    parser.add_argument("--cold", action="store_true", help="of --latency: new brokers for each run, without warm-up")
    parser.add_argument("--floor", action="store_true", help="of --latency: also runs without a replicator")
    parser.add_argument("--runs", type=int, help="measured runs of each contender (default: 3)")
    parser.add_argument("--quick", action="store_true", help="little data and one run, for a rough result")
    parser.add_argument(
        "--only", nargs="+", choices=[one.name for one in CONTENDERS], help="contenders (default: those of the row)"
    )
    parser.add_argument(
        "--beside", metavar="REVISION", help="compare with this project at a Git revision instead of with Java"
    )
    parser.add_argument(
        "--preserve-offsets", action="store_true", help="compare with and without preserve.offsets instead of with Java"
    )
    parser.add_argument(
        "--results", type=Path, default=_REPOSITORY / "bench" / "RESULTS.md", help="the page of results"
    )
    parser.add_argument(
        "--disk", action="store_true", help="store the brokers' logs on disk even if they fit into memory"
    )
    parser.add_argument("--no-touch", action="store_true", help="do not touch the free memory first")
    return parser


def _event(options: Any) -> Event:
    """The event that the options describe."""
    if options.latency:
        seconds = round(60 * options.minutes)
        event = Event(
            Traffic(options.rate, seconds, options.partitions, options.batch_records, options.tasks, options.cold)
        )
    elif options.idle:
        event = Event(Idleness(60), contenders=(OURS, JAVA_DEFAULT))
    elif options.many:
        event = MANY
    else:
        conditions = Conditions(options.exactly_once, options.tls, options.rtt, options.insert_header)
        event = Event(SHAPES[options.shape], conditions, FOUR if options.rtt else THREE)
        event = replace(event, task=EVENTS[event.name].task) if event.name in EVENTS else event
    return _adapted(event, options)


def _adapted(event: Event, options: Any) -> Event:
    """Apply the number of runs, the data size and the contenders of the options."""
    if options.quick:
        event = quick(event)
    if options.records and isinstance(event.task, Shape):
        event = replace(event, task=replace(event.task, records=options.records))
    if options.age_days and isinstance(event.task, Shape):
        title = f"{event.task.title}, {options.age_days} days old"
        event = replace(event, task=replace(event.task, title=title, age_days=options.age_days))
    if options.runs:
        event = replace(event, runs=options.runs)
    return only(event, options.only or ())


def _measure_rows(context: BenchContext, options: Any) -> int:
    """Measure row by row; results are stored in a file, so that an interrupted or failed row can be measured separately."""
    store = _Store(cache_folder() / "bench" / ("rows-quick.json" if context.quick else "rows.json"))
    chosen = [EVENTS[name] for name in options.rows] if options.rows else list(BEYOND if options.beyond else TABLE)
    results = store.read() if options.rows or options.resume or options.beyond else {}
    began = time.monotonic()
    if options.all and not options.resume:
        _attempt_line(context, options)
    for event in chosen:
        if options.resume and event.name in results and results[event.name].complete:
            continue
        event_now = _adapted(event, options)
        _say(context.console, f"-- {event.name} ({(time.monotonic() - began) / 60:.0f} min so far)")
        try:
            # The name of a row must not depend on --quick.
            results[event.name] = replace(perform(context, event_now), event=event.name)
        except (*_FAILURES, OSError) as exc:
            _say(context.console, f"FAILED: {exc}")
            results.pop(event.name, None)
            continue
        _report(context, event_now, results[event.name], options.results)
        store.write(results)
    report.show_table(context.console, results)
    report.put_table(options.results, results, f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC")
    _say(context.console, f"{(time.monotonic() - began) / 60:.0f} minutes.")
    return 0 if all(event.name in results and results[event.name].complete for event in chosen) else 1


class _Store:
    """The latest result of each row."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def read(self) -> dict[str, Result]:
        with suppress(OSError, ValueError, TypeError, KeyError):
            rows = json.loads(self._file.read_text())
            return {name: Result.from_json(row) for name, row in rows.items()}
        return {}

    def write(self, results: dict[str, Result]) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        scratch = self._file.with_suffix(".new")
        scratch.write_text(json.dumps({name: result.to_json() for name, result in results.items()}))
        scratch.replace(self._file)


def _attempt_line(context: BenchContext, options: Any) -> None:
    try:
        _measure_line(context, options)
    except (*_FAILURES, OSError) as exc:
        _say(context.console, f"FAILED: the physical line: {exc}")


def _measure_line(context: BenchContext, options: Any) -> None:
    shape = _adapted(Event(SHAPES[options.shape]), options).task
    assert isinstance(shape, Shape)
    folder = context.folder / "line"
    outcomes = [physics.bare(folder)]
    with open_cluster_pair(folder, Conditions(tls=options.tls)) as pair:
        topic, _ = load(context, pair, shape)
        physics.between_brokers(pair, topic, shape, 1, folder)  # discarded: warm-up of the brokers
        outcomes += [
            physics.between_brokers(pair, topic, shape, processes, folder) for processes in (1, 2) * (options.runs or 1)
        ]
    report.show_lines(context.console, physics.FIGURES, outcomes)
    name = f"the physical line, {shape.name}{', TLS' if options.tls else ''}"
    at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {report.commit(_REPOSITORY)}."
    report.put_lines(options.results, name, at, physics.FIGURES, outcomes)


def _profile(context: BenchContext, event: Event, options: Any) -> None:
    place = context.folder / "profile"
    contender = profiling.profiled(place, _REPOSITORY)
    event = replace(event, contenders=(contender,), runs=options.runs or 1)
    result = perform(context, event, lambda pid: profiling.perf(place, pid))
    _say(context.console, f"{event.title}, {result.at}, commit {result.commit}")
    _say(context.console, profiling.report(place))


def _report(context: BenchContext, event: Event, result: Result, file: Path) -> None:
    report.show(context.console, event, result)
    report.put_result(file, event, result)


def _say(console: Console, text: str) -> None:
    console.print(text, markup=False, highlight=False, soft_wrap=True)


if __name__ == "__main__":
    sys.exit(main())
