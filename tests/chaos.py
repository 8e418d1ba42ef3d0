"""`bin/chaos`: inject faults under load and compare the copied records with the sent ones.

==== mode ====================== effect ==================================================================================
  --minutes M [--two]            random faults of the --victims, one or two at a time; --brokers 2 or 3 per cluster, each behind
                                 a fault-injecting proxy; --two: two processes share the flow
  --kills N --records R          R records on the source are copied by processes that are killed N times
  --moments N [--two]            a process is killed at N points of its life cycle (start-up, discovery, within a batch,
                                 around a commit, after SIGTERM); --two: one of two processes is killed each time
  --pauses                       each fault of clusters of three brokers once, and how long it interrupts this project and Java's
                                 MirrorMaker 2, which copies the same topic at the same time
  --states --minutes M           copies with one alias and merges by a process and a Connect worker; the remote topic is restored,
                                 deleted, recreated or written by others while nothing is copied, or all processes are killed;
                                 what mm2 status, gaps, lag and verify state is compared with the count of the records
========================================================================================================================

With --exactly-once all but --moments run in that mode; with --age-days D their record timestamps are D days in the past, so that the
target's brokers expire the producer that wrote them. With --preserve-offsets, --minutes also compares the offsets of all records. The seed determines all random choices and is printed.
"""

import argparse
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import configargparse
from confluent_kafka import KafkaException
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started with -P, which leaves our own folder out

from bench.errors import BenchFailed
from mm2.kafka.errors import KafkaFailure
from mm2.sandbox.errors import SandboxError
from tests.endurance.backlog import Death, backlog
from tests.endurance.composition import ALONE, Victim, parse_victims
from tests.endurance.environment import Environment, environment
from tests.endurance.fault_run import Outcome, compose, fault_run
from tests.endurance.judge import Verdict
from tests.endurance.kill_points import plan
from tests.endurance.kill_runs import Kill, ProcessPair, SingleProcess
from tests.endurance.pause_run import measure, pause_run, seconds
from tests.endurance.product import ProductFailed
from tests.endurance.state_run import rounds, state_run, summary
from tests.endurance.traffic import TrafficFailed

_SHOWN = 10
_VICTIMS = """\
of --minutes, separated by commas (default: all). broker: kill -9 and restart, SIGSTOP, or clean stop of a broker, 1 to 45 s;
follower: SIGSTOP of one or more brokers for 2 to 12 s, so that the ISR of the other leaders shrinks, with two of three below
min.insync.replicas; controller: kill -9 or SIGSTOP of the controller, up to 20 s; network: faulty networks before brokers; disk-stall:
for 15 s the threads of a broker that append to its logs are stopped with ptrace in bursts of up to 8 s, while its network threads
and its heartbeat to the controller continue (where ptrace is not allowed: SIGSTOP of the whole broker in the same bursts);
process: our processes and Spark's JVM and Python workers killed, or frozen and resumed"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 every record was copied once, unchanged and in order, 1 otherwise or on an error, 130 interrupted."""
    parser = configargparse.ArgumentParser(
        prog="bin/chaos",
        description="Injects seeded faults under load and checks the copied records.",
        auto_env_var_prefix="MM2_CHAOS_",
    )
    parser.add_argument("--seed", type=int, default=None, help="of all random choices (default: a new one)")
    parser.add_argument("--minutes", type=float, default=10.0, help="of random faults (default: %(default)g)")
    parser.add_argument("--kills", type=int, default=0, help="instead: number of kill -9 while a backlog is copied")
    parser.add_argument("--records", type=int, default=2_000_000, help="of the backlog (default: %(default)s)")
    parser.add_argument(
        "--beside", metavar="REVISION", help="with --kills: every second process runs this project at a Git revision"
    )
    parser.add_argument("--age-days", type=float, default=0.0, help="age of the record timestamps (default: 0)")
    parser.add_argument(
        "--brokers",
        type=int,
        choices=(1, 2, 3),
        default=None,
        help="per cluster; with 3 the target needs two in sync (default: 2, with --kills 1; not with --moments)",
    )
    parser.add_argument(
        "--replicas", type=int, choices=(1, 2, 3), default=None, help="of all topics (default: as many as --brokers)"
    )
    parser.add_argument("--victims", type=_victims, default=None, metavar="NAME[,NAME...]", help=_VICTIMS)
    parser.add_argument(
        "--moments", type=int, default=0, help="instead: number of kill -9 at points of a process's life cycle"
    )
    parser.add_argument("--states", action="store_true", help="instead: the target changes while nothing is copied")
    parser.add_argument("--pauses", action="store_true", help="instead: the pause after each fault, beside Java")
    parser.add_argument("--two", action="store_true", help="two processes share the flow")
    parser.add_argument("--exactly-once", action="store_true", help="exactly.once.source.support=enabled")
    parser.add_argument(
        "--preserve-offsets", action="store_true", help="with --minutes: records have the same offsets on both clusters"
    )
    parser.add_argument(
        "--rate", type=float, default=None, help="records per second (default: 500, with --brokers 3 300)"
    )
    options = parser.parse_args(arguments)
    if options.brokers is None:
        options.brokers = 1 if options.kills else 2
    if options.replicas is not None and options.replicas > options.brokers:
        parser.error(f"--replicas {options.replicas} needs as many --brokers")
    if options.brokers > 2 and options.replicas == 1:
        parser.error("--replicas 1 cannot have two in sync, as the target of --brokers 3 needs")
    if options.brokers == 1 and options.victims and not ALONE.intersection(options.victims):
        parser.error(f"a single broker has none of these victims: {', '.join(options.victims)}")
    if options.beside and not options.kills:
        parser.error("--beside is for --kills")
    if options.preserve_offsets and (options.exactly_once or options.kills or options.moments or options.pauses):
        parser.error("--preserve-offsets is for --minutes, without --exactly-once")
    if options.rate is None:
        options.rate = 300.0 if options.brokers > 2 else 500.0
    seed = random.randrange(1_000_000) if options.seed is None else options.seed
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"Seed {seed}.")
    try:
        if options.kills:
            good = _kills(console, seed, options)
        elif options.states:
            good = _states(console, seed, options)
        elif options.pauses:
            good = _pauses(console, options)
        elif options.moments:
            good = _moments(console, seed, options)
        else:
            good = _compose(console, seed, options)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except (
        ProductFailed,
        TrafficFailed,
        BenchFailed,
        SandboxError,
        KafkaFailure,
        KafkaException,
        AssertionError,
    ) as exc:
        console.print(f"[bold red]Chaos with seed {seed} failed:[/]")
        console.print(str(exc), markup=False)
        return 1
    return 0 if good else 1


def _victims(text: str) -> tuple[Victim, ...]:
    try:
        return parse_victims(text)
    except ValueError as exc:
        raise argparse.ArgumentTypeError(str(exc)) from None


# -- random faults ------------------------------------------------------------------------------------------------------


def _compose(console: Console, seed: int, options: Any) -> bool:
    processes = 2 if options.two else 1
    how = {"replicas": options.replicas, "age_days": options.age_days, "exactly_once": options.exactly_once}
    how["preserves"] = options.preserve_offsets
    with (
        console.status("Starting") as status,
        fault_run(rate=options.rate, processes=processes, brokers=options.brokers, seed=seed, **how) as made,
    ):
        compose(
            made,
            seed,
            options.minutes,
            status.update,
            lambda line: console.print(line, markup=False),
            options.victims,
        )
        outcome = made.finish(status.update)
        good = made.succeeded = not outcome.problems
    table = Table("topic", "source", "target", "missing with a reason")
    for topic, judgment in outcome.judgments.items():
        gaps = ", ".join(f"{count:,} {reason}" for reason, count in sorted(judgment.gaps.items())) or "none"
        table.add_row(topic, f"{judgment.source_records:,}", f"{judgment.target_records:,}", gaps)
    console.print(table)
    for problem in outcome.problems[:_SHOWN]:
        console.print(problem, markup=False)
    if len(outcome.problems) > _SHOWN:
        console.print(f"and {len(outcome.problems) - _SHOWN:,} more problems")
    for line in found(outcome):
        console.print(line, markup=False)
    slowest = max((step.recovery_s for step in outcome.steps), default=0.0)
    mode = "exactly-once" if options.exactly_once else "preserve-offsets" if options.preserve_offsets else "default"
    _conclude(
        console,
        good=good,
        text=f"{len(outcome.steps)} steps with seed {seed} in {mode} mode, slowest recovery {slowest:.1f} s, "
        f"{outcome.checkpoints:,} checkpoints, {outcome.peak_bytes / 1e6:,.0f} MB at most.",
    )
    return good


def found(outcome: Outcome) -> list[str]:
    """The figures of a verdict, one line each."""
    records = (
        ("lost", "lost"),
        ("doubled", "doubled"),
        ("reordered", "reordered"),
        ("altered", "altered"),
        ("skipped by a copy that resumed after them", "holes"),
        ("unexplained by the ledger", "unexplained"),
        ("with a wrong reason in the ledger", "misexplained"),
    )
    lines = [f"{outcome.number(what):9,}  {name}" for name, what in records]
    lines.append(
        f"{len(outcome.positions.above):9,}  positions above the high watermark, of {outcome.sampled:,} sampled "
        f"({len(outcome.positions.uncertain):,} uncertain, {outcome.unanswered:,} without an answer)"
    )
    lines.append(f"{len(outcome.back):9,}  positions that went back")
    return lines


# -- a backlog and many kills ------------------------------------------------------------------------------------------


def _kills(console: Console, seed: int, options: Any) -> bool:
    began_s = time.monotonic()
    with (
        console.status("Starting") as status,
        backlog(
            options.records,
            exactly_once=options.exactly_once,
            age_days=options.age_days,
            brokers=options.brokers,
            replicas=options.replicas,
            beside=options.beside,
            show=status.update,
        ) as made,
    ):
        deaths = made.kill(seed, options.kills, status.update)
        status.update("Waiting for the remaining records and reading everything back")
        judgment = made.finish(ledger=True)
        positions = made.judge_positions()
        good = judgment.exactly_once and judgment.explained and judgment.source_records == options.records
        good = made.succeeded = good and not positions.above and made.sampled > 0
    _show_deaths(console, deaths)
    console.print(str(judgment), markup=False)
    for sentence in positions.above[:_SHOWN]:
        console.print(f"position above the high watermark: {sentence}", markup=False)
    console.print(
        f"{len(positions.above):,} positions above the high watermark, of {made.sampled:,} sampled "
        f"({len(positions.uncertain):,} uncertain)."
    )
    minutes = (time.monotonic() - began_s) / 60
    mode = "exactly-once" if options.exactly_once else "default"
    turns = "" if options.beside is None else f", every second one at {options.beside}"
    _conclude(
        console,
        good=good,
        text=f"{options.kills} kills in {mode} mode with seed {seed}, {made.starts} processes{turns}, "
        f"{minutes:.1f} minutes in total.",
    )
    return good


def _show_deaths(console: Console, deaths: Sequence[Death]) -> None:
    table = Table("kill", "killed", "moment", "records copied", "recovered after")
    for number, death in enumerate(deaths, 1):
        table.add_row(str(number), death.victims, death.moment, f"{death.records:,}", f"{death.recovery_s:.1f} s")
    console.print(table)


# -- states of the target ------------------------------------------------------------------------------------------------


def _states(console: Console, seed: int, options: Any) -> bool:
    with console.status("Starting") as status, state_run() as made:
        status.update("Rounds")
        problems = rounds(made, seed, options.minutes, lambda line: console.print(line, markup=False))
    good = not problems and any(not one.unjudged for one in made.rounds)
    _conclude(console, good=good, text=summary(made, seed))
    return good


# -- pauses ------------------------------------------------------------------------------------------------------------


def _pauses(console: Console, options: Any) -> bool:
    with (
        console.status("Starting") as status,
        pause_run(rate=options.rate, exactly_once=options.exactly_once) as made,
    ):
        pauses = measure(made, status.update, lambda line: console.print(line, markup=False))
        status.update("Waiting for the last records and reading everything back")
        judgments = made.finish()
    table = Table("fault", "cluster", "longest pause", "Java's")
    for pause in pauses:
        table.add_row(pause.fault.name, pause.fault.cluster, *map(seconds, (pause.ours_s, pause.javas_s)))
    console.print(table)
    for name, judgment in judgments.items():
        console.print(f"{name}: {judgment}", markup=False)
    good = not made.problems
    mode = "exactly-once" if options.exactly_once else "default"
    _conclude(console, good=good, text=f"{len(pauses)} faults in {mode} mode, {made.ours.starts} process.")
    return good


# -- kill points --------------------------------------------------------------------------------------------------


def _moments(console: Console, seed: int, options: Any) -> bool:
    with environment(partitions=4, rate=options.rate, size_bytes=200, producers=2) as env:
        with console.status("Starting") as status:
            runner = ProcessPair(env) if options.two else SingleProcess(env)
            if isinstance(runner, ProcessPair):
                kills = runner.run(seed, options.moments, status.update)
            else:
                kills = runner.run(plan(seed, options.moments), status.update)
            status.update("Reading everything back")
            env.traffic.finish()
            verdict = env.judge([kill.ends for kill in kills])
            code = runner.finish()
        good = env.succeeded = _show_verdict(console, env, kills, verdict) and code == 0
        if code:
            console.print(f"The last process stopped with exit code {code}.")
    return good


def _show_verdict(console: Console, env: Environment, kills: Sequence[Kill], verdict: Verdict) -> bool:
    """Print the kills and the errors; True without errors."""
    table = Table("kill", "moment", "killed", "note", "repeated")
    for number, kill in enumerate(kills, 1):
        table.add_row(str(number), kill.what, kill.victims, kill.note, f"{verdict.duplicates[number]:,}")
    console.print(table)
    for what, sentences in (
        ("lost", verdict.lost),
        ("out of order", verdict.disordered),
        ("damaged", verdict.damaged),
    ):
        for sentence in sentences[:_SHOWN]:
            console.print(f"{what}: {sentence}", markup=False)
        if len(sentences) > _SHOWN:
            console.print(f"{what}: and {len(sentences) - _SHOWN:,} more")
    repeated = verdict.duplicates.total()
    good = not (verdict.lost or verdict.disordered or verdict.damaged or repeated)
    text = (
        f"{env.traffic.records:,} records written, {verdict.records:,} read back, {repeated:,} repeated after "
        f"{len(kills)} kills."
    )
    _conclude(console, good=good, text=text)
    return good


def _conclude(console: Console, *, good: bool, text: str) -> None:
    console.print(f"{'[bold green]WHOLE[/]' if good else '[bold red]NOT WHOLE[/]'}: {text}")


if __name__ == "__main__":
    sys.exit(main())
