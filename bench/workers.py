"""Measured Connect workers, ours and Java's, and the report of their figures."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from bench import report
from bench.outcome import Figure
from mm2.sandbox.kafka import LocalKafka
from tests.systems.workers import DistributedWorker, JavaDistributedWorker, WorkerProcess

_REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = Path(__file__).with_name("RESULTS.md")

_PATIENCE_S = 600.0
#: What Kafka's own scripts start a worker with (kafka-run-class.sh, connect-distributed.sh), except that the heap may grow.
_KAFKAS_OWN = (
    *("-server", "-Xms256M", "-Xmx2G", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20"),
    *("-XX:InitiatingHeapOccupancyPercent=35", "-XX:+ExplicitGCInvokesConcurrent"),
)
#: The settings that tests use for a faster start.
_OF_TESTS = ("-Xmx", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel", "-Xshare", "-XX:SharedArchiveFile")


class JavaWorker(JavaDistributedWorker):
    """``connect-distributed.sh`` of Kafka 4.3.0."""

    def _command(self, file: Path) -> list[str]:
        java, *rest = (part for part in super()._command(file) if not part.startswith(_OF_TESTS))
        return [java, *_KAFKAS_OWN, *rest]


@contextmanager
def one_broker(folder: Path, overrides: Mapping[str, str] | None = None) -> Iterator[LocalKafka]:
    """A broker with a long start timeout."""
    broker = LocalKafka("bench", folder, heap="1g", overrides=overrides)
    try:
        yield broker.start(_PATIENCE_S)
    finally:
        broker.stop(60)


@dataclass(frozen=True)
class Kind:
    """One of the two."""

    title: str
    worker: type[WorkerProcess]


KINDS = {"ours": Kind("this project", DistributedWorker), "java": Kind("Java Connect 4.3.0", JavaWorker)}


@dataclass
class Section:
    """What one bench found, run by run; ``kinds`` are keys of KINDS."""

    name: str
    title: str
    figures: Sequence[Figure]
    compared: Sequence[Figure]
    runs: list[tuple[str, Mapping[str, float]]] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def add(self, kind: str, found: Mapping[str, float]) -> None:
        """Add a run and print it immediately."""
        self.runs.append((kind, found))
        text = ", ".join(f"{figure.name} {figure.text(found.get(figure.name))}" for figure in self.figures)
        sys.stderr.write(f"{kind}: {text}\n")

    def fail(self, kind: str, failure: object) -> None:
        """Add a failed run."""
        self.failures.append(f"{kind}: {failure}")
        sys.stderr.write(f"{kind}: FAILED: {failure}\n")

    def median(self, kind: str, figure: Figure) -> float | None:
        """None when nothing was measured."""
        values = [found[figure.name] for name, found in self.runs if name == kind and figure.name in found]
        return statistics.median(values) if values else None

    def lines(self) -> list[str]:
        """In the form of RESULTS.md, without its heading."""
        names = [figure.name for figure in self.figures]
        present = [kind for kind in KINDS if any(name == kind for name, _ in self.runs)]
        medians = [[KINDS[k].title, *(f.text(self.median(k, f)) for f in self.figures)] for k in present]
        return [
            *_table(["median", *names], medians),
            "",
            *(f"- ours : java = {text}" for text in self._ratios()),
            *(f"- FAILED: {failure}" for failure in self.failures),
        ]

    def _ratios(self) -> list[str]:
        ratios = []
        for figure in self.compared:
            ours, java = self.median("ours", figure), self.median("java", figure)
            if ours is not None and java:
                ratios.append(f"{figure.name} {ours / java:.2f}x ({figure.text(ours)} : {figure.text(java)})")
        return [", ".join(ratios)] if ratios else []

    def put(self, file: Path) -> None:
        """Put it into the results. It describes the machine without its name or paths."""
        at = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {report.commit(_REPOSITORY)}."
        report.put(file, self.name, at, f"{self.title}. {report.machine()}", "", *self.lines())


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]
