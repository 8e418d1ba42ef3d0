"""`bin/fuzz`: millions of damaged inputs for all parsers of external bytes, and rewrites of random batches."""

import concurrent.futures
import itertools
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import configargparse
from hypothesis import settings
from rich.console import Console
from rich.markup import escape
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))  # started with -P, which leaves our own folder out

from tests.fuzz import test_surgery
from tests.fuzz.hostile_process import attacked_process, two_brokers
from tests.fuzz.loop import Apart, Finding, Tally
from tests.fuzz.targets import TARGETS, Target
from tests.fuzz.test_hostile_source import Attack, attacked

_ROUND = 100_000  # examples of one process; its memory limit detects leaks, and the progress bar moves
_SURGERY_SHARE = 200  # one random batch takes as long as that many damaged inputs
_SURGERY_ROUND = 5_000
_HOSTILE_CALLS = 5_000  # of one client, whose memory limit detects leaks
_HOSTILE_JOBS = 16


def _arguments(argv: Sequence[str]) -> Any:
    parser = configargparse.ArgumentParser(prog="bin/fuzz", description=__doc__)
    parser.add_argument("--examples", type=int, default=1_000_000, help="in all, shared out among the targets")
    parser.add_argument("--seed", type=int, default=int(time.time()), help="the same seed makes the same examples")
    parser.add_argument("--jobs", type=int, default=0, help="processes at a time (default: 1, with --hostile 16)")
    names = [target.name for target in TARGETS]
    parser.add_argument("--hostile", type=int, default=0, help="only a hostile broker, with so many answers")
    parser.add_argument(
        "--process", type=float, default=0, help="only a process with a hostile source, for so many minutes"
    )
    parser.add_argument("--only", nargs="+", choices=names, default=names, help="these targets, and no surgery")
    return parser.parse_args(argv)


def _rounds(target: Target, count: int, seed: int) -> Iterator[tuple[Target, int, int]]:
    for number, start in enumerate(range(0, count, _ROUND)):
        yield target, min(_ROUND, count - start), seed * 10_000 + number


def _damage(arguments: Any, console: Console) -> dict[str, Tally]:
    targets = [target for target in TARGETS if target.name in arguments.only]
    whole = sum(target.share for target in targets)
    rounds = [
        entry
        for target in targets
        for entry in _rounds(target, arguments.examples * target.share // whole, arguments.seed)
    ]
    tallies = {target.name: Tally(target.name) for target in targets}
    waiting, under_way = deque(rounds), list[Apart]()
    while waiting or under_way:
        while waiting and len(under_way) < max(1, arguments.jobs):
            under_way.append(Apart(*waiting.popleft()))
        ready = wait([one.answer for one in under_way])
        for one in [one for one in under_way if one.answer in ready]:
            under_way.remove(one)
            tally = one.result()
            total = tallies[tally.target]
            total.examples += tally.examples
            total.read += tally.read
            total.findings += tally.findings
            done = sum(each.examples for each in tallies.values())
            found = sum(len(each.findings) for each in tallies.values())
            console.print(f"{done:,} of {arguments.examples:,} examples ({tally.target}), {found} findings")
    return tallies


def _surgery(examples: int) -> Tally:
    tests: list[Callable[[], None]] = [test for name, test in vars(test_surgery).items() if name.startswith("test_")]
    tally = Tally("surgery")
    each = max(100, examples // _SURGERY_SHARE // len(tests))
    for test in tests:
        try:
            settings(max_examples=each, deadline=None, database=None)(test)()
        except Exception as error:  # noqa: BLE001 (this is what is looked for)
            tally.findings.append(Finding("surgery", b"", f"{test.__name__}: {error!r}"))
        tally.examples += each
        tally.read += each
    return tally


def _hostile(answers: int, seed: int, jobs: int, console: Console) -> int:
    """Clients and their brokers wait for each other most of the time, so many pairs run side by side."""
    total = Attack(Counter(), Counter(), Counter(), 0)
    begun = time.monotonic()
    rounds = itertools.count(seed * 10_000)
    # Not forked from here: brokers are threads.
    with ProcessPoolExecutor(jobs, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(attacked, next(rounds), _HOSTILE_CALLS) for _ in range(jobs)}
        while running:
            done, running = concurrent.futures.wait(running, return_when=concurrent.futures.FIRST_COMPLETED)
            for one in done:
                outcome = _outcome(one)
                for what, count in outcome.findings.items():
                    console.print(f"{count} times {what}", markup=False)
                total = total.plus(outcome)
                if total.answers.total() < answers:
                    running.add(pool.submit(attacked, next(rounds), _HOSTILE_CALLS))
                minutes, largest = (time.monotonic() - begun) / 60, total.memory_bytes >> 20
                console.print(
                    f"{total.answers.total():,} of {answers:,} answers in {minutes:.1f} minutes, "
                    f"at most {largest} MB, {total.findings.total()} findings"
                )
    for title, counted in (("answers", total.answers), ("outcomes", total.outcomes), ("findings", total.findings)):
        table = Table(title, "number")
        for name, count in counted.most_common():
            table.add_row(escape(name), f"{count:,}")
        console.print(table)
    return 1 if total.findings else 0


def _process(minutes: float, seed: int, console: Console) -> int:
    with two_brokers() as (brokers, folder):
        attack = attacked_process(brokers, folder, minutes, seed)
    table = Table("what", "seen")
    for what, seen in attack.rows():
        table.add_row(escape(what), escape(seen))
    console.print(table)
    for finding in attack.findings():
        console.print(finding, markup=False)
    return 1 if attack.findings() else 0


def _outcome(attack: Future[Attack]) -> Attack:
    try:
        return attack.result()
    except AssertionError as error:
        return Attack(Counter(), Counter(), Counter({f"a client died: {error}": 1}), 0)


def main(argv: Sequence[str]) -> int:
    """Exit code 0: no findings, 1: some, 130: interrupted."""
    arguments = _arguments(argv)
    console = Console()
    console.print(f"Seed {arguments.seed}.")
    if arguments.hostile:
        return _hostile(arguments.hostile, arguments.seed, arguments.jobs or _HOSTILE_JOBS, console)
    if arguments.process:
        return _process(arguments.process, arguments.seed, console)
    begun = time.monotonic()
    tallies = list(_damage(arguments, console).values())
    if len(tallies) == len(TARGETS):
        tallies.append(_surgery(arguments.examples))
    table = Table("target", "examples", "read", "refused", "findings")
    for tally in tallies:
        counts = (tally.examples, tally.read, tally.examples - tally.read - len(tally.findings), len(tally.findings))
        table.add_row(tally.target, *(f"{count:,}" for count in counts))
    console.print(table)
    total = sum(tally.examples for tally in tallies)
    console.print(f"{total:,} examples in {time.monotonic() - begun:,.0f} s.")
    findings = [finding for tally in tallies for finding in tally.findings]
    for finding in findings[:10]:
        console.print(f"\n{finding.target}: {finding.what}\n{finding.data.hex()}", markup=False)
    return 1 if findings else 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
