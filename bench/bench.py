"""`bin/bench`: this project against Java's MirrorMaker 2, on the same two brokers, in one run.

A round is one run of each contender, each round in another order. Before the rounds, memory is touched and one run is
discarded, which warms the brokers up.
"""

import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import configargparse
from rich.console import Console

_REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(_REPOSITORY))  # started with -P, which leaves our own folder out

from bench import contenders, memory  # noqa: E402
from bench.contenders import CONTENDERS, JAVA_DEFAULT, Contender  # noqa: E402
from bench.errors import BenchFailed  # noqa: E402
from bench.preload import preload  # noqa: E402
from bench.race import Course, Outcome  # noqa: E402
from bench.report import FIGURES, Report  # noqa: E402
from bench.shapes import SHAPES, Shape  # noqa: E402
from mm2.kafka.cluster import Cluster  # noqa: E402
from mm2.kafka.errors import KafkaFailure  # noqa: E402
from mm2.kafka.settings import ClientSettings  # noqa: E402
from mm2.sandbox.errors import SandboxError  # noqa: E402
from mm2.sandbox.kafka import LocalKafka, start_pair  # noqa: E402

_QUICK_RECORDS = 300_000
_TOPIC = "bench"
_DISK_SHARES = 2.5  # the source, one replica, and what a deleted replica still holds
_BROKER_SETTINGS = {
    # Replicas of earlier runs are to be gone before the next run begins.
    "log.segment.delete.delay.ms": "500",
    # Nothing of the source may go while it is being read.
    "log.retention.ms": "-1",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code: 0 measured, 1 failed, 130 interrupted."""
    parser = configargparse.ArgumentParser(
        prog="bin/bench",
        description="Compares catching up with Java's MirrorMaker 2, default and tuned, on the same two brokers.",
        auto_env_var_prefix="MM2_BENCH_",
    )
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1k", help="the data (default: %(default)s)")
    parser.add_argument("--records", type=int, help="instead of the number of records that belongs to the shape")
    parser.add_argument("--runs", type=int, default=3, help="measured runs of each contender (default: %(default)s)")
    parser.add_argument(
        "--quick", action="store_true", help=f"{_QUICK_RECORDS:,} records, one run: shows, proves little"
    )
    parser.add_argument(
        "--only", nargs="+", choices=[contender.name for contender in CONTENDERS], help="leave the others out"
    )
    parser.add_argument("--results", type=Path, default=_REPOSITORY / "bench" / "RESULTS.md", help="appended to")
    parser.add_argument("--no-touch", action="store_true", help="do not touch the free memory first")
    options = parser.parse_args(arguments)

    shape = SHAPES[options.shape]
    records = options.records or (_QUICK_RECORDS if options.quick else shape.records)
    shape = replace(shape, records=records)
    runs = 1 if options.quick else options.runs
    chosen = [contender for contender in CONTENDERS if not options.only or contender.name in options.only]

    console = Console()
    folder = Path(tempfile.mkdtemp(prefix="mm2-bench-"))
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.default_int_handler)
    try:
        report = _measure(console, folder, shape, chosen, runs=runs, touch=not options.no_touch)
        report.show(console)
        report.append_to(options.results, _REPOSITORY)
    except KeyboardInterrupt:
        console.print("Stopped.")
        return 130
    except (BenchFailed, SandboxError, KafkaFailure) as exc:
        console.print("[bold red]The bench failed:[/]", highlight=False)
        console.print(str(exc), markup=False, highlight=False, soft_wrap=True)
        return 1
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    return 0


def _measure(
    console: Console, folder: Path, shape: Shape, chosen: Sequence[Contender], *, runs: int, touch: bool
) -> Report:
    needed = _DISK_SHARES * shape.payload_bytes
    if shutil.disk_usage(folder).free < needed:
        raise BenchFailed(f"{folder} has less than the {needed / 1e9:.1f} GB free that two brokers need: set TMPDIR.")
    contenders.fetch_jars()
    if touch:
        with console.status("Touching the free memory"):
            touched = memory.touch_free_memory()
        console.print(f"{touched / 1e9:.1f} GB of free memory touched.", highlight=False)
    with ExitStack() as stack:
        brokers = stack.enter_context(start_pair(folder, heap="1g", overrides=_BROKER_SETTINGS))
        clusters = _cluster(stack, brokers[0]), _cluster(stack, brokers[1])
        with console.status(f"Writing {shape.records:,} records"):
            stored = preload(clusters[0], brokers[0].bootstrap, _TOPIC, shape)
        console.print(
            f"{shape.records:,} records on the source, {stored.records_per_batch:.0f} per batch.", highlight=False
        )
        course = Course(brokers, clusters, _TOPIC)
        outcomes: list[Outcome] = []
        discarded = JAVA_DEFAULT if JAVA_DEFAULT in chosen else chosen[0]
        for number, contender in enumerate([discarded, *_order(chosen, runs)]):
            with console.status(f"Run {number} of {len(chosen) * runs}: {contender.title}"):
                outcome = course.run(contender, shape, folder)
            console.print(_line(outcome) + ("" if number else "   discarded"), highlight=False, soft_wrap=True)
            if number:
                outcomes.append(outcome)
    return Report(shape, stored, outcomes)


def _order(chosen: Sequence[Contender], runs: int) -> list[Contender]:
    """Alternating, and beginning with another one each round, so that nobody always follows the same one."""
    rounds = ([*chosen[index % len(chosen) :], *chosen[: index % len(chosen)]] for index in range(runs))
    return [contender for one_round in rounds for contender in one_round]


def _line(run: Outcome) -> str:
    figures = "   ".join(f"{figure.text(figure.read(run))} {figure.heading}" for figure in FIGURES)
    extra = f"   {run.duplicates:,} duplicates" if run.duplicates else ""
    return f"{run.contender:<11} {figures}{extra}"


def _cluster(stack: ExitStack, kafka: LocalKafka) -> Cluster:
    settings = ClientSettings.from_props({"bootstrap.servers": kafka.bootstrap}, client_id="bench")
    cluster = Cluster(settings, name=kafka.name)
    stack.callback(cluster.close)
    return cluster


if __name__ == "__main__":
    sys.exit(main())
