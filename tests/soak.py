"""`bin/soak`: run thousands of micro-batches, or hours with one fault per minute, and check that memory does not grow.

Memory after all batches is compared with memory after a tenth of them (by default 10,000 and 1,000). Both are medians
over some time, because the heap size varies. With --faults the last tenth of the time is compared with the second tenth.
"""

import random
import sys
import time
from bisect import bisect_left
from collections.abc import Sequence
from pathlib import Path

import configargparse
from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # started with -P, which leaves our own folder out

from mm2.kafka.errors import KafkaFailure
from mm2.sandbox.errors import SandboxError
from tests.endurance.batches import BatchCount
from tests.endurance.environment import Environment, environment
from tests.endurance.fault_run import fault_run
from tests.endurance.footprint import ROLES, Sample, sample, typical
from tests.endurance.product import LogTail, Product, ProductFailed
from tests.endurance.steady_run import measure
from tests.endurance.traffic import TrafficFailed

_ALLOWED_GROWTH = 0.05
_SAMPLE_INTERVAL_S = 0.5
_STALL_S = 120.0
_ROWS = 10


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 memory does not grow and all records arrived, 1 otherwise, 130 interrupted."""
    parser = configargparse.ArgumentParser(
        prog="bin/soak",
        description="Runs many short micro-batches and compares memory early and late.",
        auto_env_var_prefix="MM2_SOAK_",
    )
    parser.add_argument("--batches", type=int, default=10_000, help="number of micro-batches (default: %(default)s)")
    parser.add_argument("--batch-ms", type=int, default=100, help="copy.batch.duration.ms (default: %(default)s)")
    parser.add_argument(
        "--rate", type=float, default=None, help="records per second (default: 200, with --faults 5000)"
    )
    parser.add_argument(
        "--faults", action="store_true", help="one fault per minute instead of many short micro-batches"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="with --faults (default: %(default)g)")
    parser.add_argument("--seed", type=int, default=None, help="of the faults (default: a new one, which is printed)")
    parser.add_argument(
        "--java", action="store_true", help="with --faults: measure the latency of Java's MirrorMaker 2 beside it"
    )
    options = parser.parse_args(arguments)
    console = Console(highlight=False, soft_wrap=True)
    try:
        if options.faults:
            seed = random.randrange(1_000_000) if options.seed is None else options.seed
            rate = 5000.0 if options.rate is None else options.rate
            return 0 if _endure(console, seed, minutes=options.minutes, rate=rate, java=options.java) else 1
        options.rate = 200.0 if options.rate is None else options.rate
        with environment(partitions=4, rate=options.rate, size_bytes=512, producers=1, poll_interval_s=1.0) as env:
            good = env.succeeded = _soak(console, env, batches=options.batches, batch_ms=options.batch_ms)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except (ProductFailed, TrafficFailed, SandboxError, KafkaFailure, AssertionError) as exc:
        console.print("[bold red]The soak failed:[/]")
        console.print(str(exc), markup=False)
        return 1
    return 0 if good else 1


def _endure(console: Console, seed: int, *, minutes: float, rate: float, java: bool) -> bool:
    console.print(f"Seed {seed}, {minutes:g} minutes at {rate:,.0f} records per second.")
    # Micro-batches of the default duration, as in production.
    with (
        console.status("Starting") as status,
        fault_run(rate=rate, brokers=1, seed=seed, settings={"copy.batch.duration.ms": "60000"}, promptly=True) as made,
    ):
        seen = measure(made, seed, minutes, status.update, lambda line: console.print(line, markup=False), java=java)
        whole = made.succeeded = not seen.outcome.problems
    for problem in seen.outcome.problems:
        console.print(problem, markup=False)
    for topic, judgment in seen.outcome.judgments.items():
        console.print(f"{topic}: {judgment}", markup=False)
    _show_minutes(console, seen.samples, minutes)
    tenth = max(1, len(seen.samples) // _ROWS)
    flat = _compare(
        console,
        (f"minute {minutes / _ROWS:.0f} to {2 * minutes / _ROWS:.0f}", seen.samples[tenth : 2 * tenth]),
        (f"the last {minutes / _ROWS:.0f} minutes", seen.samples[-tenth:]),
    )
    for when, latencies in (("outside the faults", seen.outside), ("faults included", seen.everything)):
        for reader, latency in latencies.items():
            console.print(
                f"Latency {when}, producer to consumer of {reader}: p50 {latency.p50_ms} ms, p99 {latency.p99_ms} ms, "
                f"p99.9 {latency.p999_ms} ms, maximum {latency.max_ms} ms of {latency.records:,} records."
            )
    verdict = (
        "[bold green]FLAT AND WHOLE[/]"
        if whole and flat
        else "[bold red]NOT FLAT[/]"
        if whole
        else "[bold red]NOT WHOLE[/]"
    )
    console.print(f"{verdict}: {len(seen.outcome.steps)} faults; the allowed memory growth is {_ALLOWED_GROWTH:.0%}.")
    return whole and flat


def _compare(console: Console, early: tuple[str, Sequence[Sample]], late: tuple[str, Sequence[Sample]]) -> bool:
    """Print the memory of each role in both periods; True when neither the total nor the JVM exceeds the allowed growth."""
    before, after = typical(early[1]), typical(late[1])
    growth = {role: after[role] / before[role] - 1 if before[role] else 0.0 for role in before}
    table = Table("memory", early[0], late[0], "growth")
    for role in (*ROLES, "total"):
        table.add_row(role, _mb(before[role]), _mb(after[role]), f"{growth[role]:+.1%}")
    console.print(table)
    return growth["total"] <= _ALLOWED_GROWTH and growth["jvm"] <= _ALLOWED_GROWTH


def _soak(console: Console, env: Environment, *, batches: int, batch_ms: int) -> bool:
    product = env.product("soaked", {"copy.batch.duration.ms": str(batch_ms)})
    product.start()
    count, samples = _observe(console, product, batches)
    env.traffic.finish()
    verdict = env.judge([])
    code = product.stop()

    early, late = _windows(samples, count, batches)
    _show(console, samples, count, batches)
    flat = _compare(console, (f"after {batches // 10:,} batches", early), (f"after {batches:,}", late))

    duplicates = verdict.duplicates.total()
    console.print(
        f"{verdict.records:,} records arrived, {len(verdict.lost)} gaps, {len(verdict.disordered)} out of order, "
        f"{len(verdict.damaged)} damaged, {duplicates:,} duplicates; exit code {code}.",
    )
    whole = not (verdict.lost or verdict.disordered or verdict.damaged or duplicates) and code == 0
    good = whole and flat
    verdict_text = "[bold green]FLAT[/]" if good else "[bold red]NOT FLAT[/]" if whole else "[bold red]NOT WHOLE[/]"
    console.print(f"{verdict_text}: the allowed growth is {_ALLOWED_GROWTH:.0%}, in total and for the JVM.")
    return good


def _observe(console: Console, product: Product, batches: int) -> tuple[BatchCount, list[Sample]]:
    """Take samples until the product has logged that many batches. Raises ProductFailed when it stalls."""
    count, samples, tail = BatchCount(), list[Sample](), LogTail(product.log)
    last_batch_s = time.monotonic()
    with console.status("Starting") as status:
        while count.total < batches:
            product.check()
            now_s = time.monotonic()
            samples.append(sample(product.pid, now_s))
            new = [count.add_line(line, now_s) for line in tail.new()]
            if any(new):
                last_batch_s = now_s
                rss = _mb(samples[-1].total_bytes)
                status.update(f"{count.total:,} of {batches:,} micro-batches, {rss} MB")
            if now_s - last_batch_s > _STALL_S:
                raise ProductFailed(f"No new micro-batch for {_STALL_S:.0f} s after {count.total:,}.")
            time.sleep(_SAMPLE_INTERVAL_S)
    return count, samples


def _windows(samples: Sequence[Sample], count: BatchCount, batches: int) -> tuple[list[Sample], list[Sample]]:
    """Samples after a tenth of the batches and before the end, over 5 % of the batches each."""
    share = batches // 20
    return _slice(samples, count, batches // 10, batches // 10 + share), _slice(
        samples, count, batches - share, batches
    )


def _slice(samples: Sequence[Sample], count: BatchCount, first: int, last: int) -> list[Sample]:
    times = [one.at_s for one in samples]
    begin = bisect_left(times, count.time_s(first))
    return list(samples[begin : max(begin + 1, bisect_left(times, count.time_s(last)))]) or [samples[-1]]


def _show(console: Console, samples: Sequence[Sample], count: BatchCount, batches: int) -> None:
    table = Table("batches", "minutes", *(f"{role} MB" for role in ROLES), "total MB", "processes")
    for row in range(1, _ROWS + 1):
        number = batches * row // _ROWS
        at = _slice(samples, count, number, number)[0]
        minutes = f"{(at.at_s - samples[0].at_s) / 60:.1f}"
        parts = (_mb(at.rss_bytes[role]) for role in ROLES)
        table.add_row(f"{number:,}", minutes, *parts, _mb(at.total_bytes), str(at.processes))
    console.print(table)


def _show_minutes(console: Console, samples: Sequence[Sample], minutes: float) -> None:
    table = Table("until minute", *(f"{role} MB" for role in ROLES), "total MB")
    tenth = max(1, len(samples) // _ROWS)
    for row in range(_ROWS):
        if some := samples[row * tenth : (row + 1) * tenth]:
            found = typical(some)
            table.add_row(f"{minutes * (row + 1) / _ROWS:g}", *(_mb(found[role]) for role in (*ROLES, "total")))
    console.print(table)


def _mb(size_bytes: float) -> str:
    return f"{size_bytes / 1e6:,.0f}"


if __name__ == "__main__":
    sys.exit(main())
