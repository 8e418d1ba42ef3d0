"""Medians, ratios and raw numbers, for the terminal and for RESULTS.md."""

import platform
import statistics
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from bench.contenders import CONTENDERS, JAVA_DEFAULT, JAVA_TUNED, Contender
from bench.preload import Stored
from bench.race import Outcome
from bench.shapes import Shape


@dataclass(frozen=True)
class Figure:
    """One column: what it is called, how it is read from an outcome, how it is written."""

    heading: str
    read: Callable[[Outcome], float]
    digits: int = 0

    def text(self, value: float) -> str:
        return f"{value:,.{self.digits}f}"


FIGURES = (
    Figure("rec/s", lambda run: run.records_per_s),
    Figure("MB/s", lambda run: run.mb_per_s),
    Figure("first → last s", lambda run: run.copy_s, 2),
    Figure("start → first s", lambda run: run.start_s, 2),
    Figure("CPU s/GB", lambda run: run.cpu_s_per_gb, 2),
    Figure("CPU s in all", lambda run: run.whole_cpu_s, 1),
    Figure("peak RSS MB", lambda run: run.peak_rss_mb),
    Figure("broker system s/GB", lambda run: run.broker_system_s_per_gb, 2),
    Figure("broker user s/GB", lambda run: run.broker_user_s_per_gb, 2),
)
_COMPARED = ("rec/s", "start → first s", "CPU s/GB", "peak RSS MB")


@dataclass(frozen=True)
class Report:
    """All measured runs of one bench, in the order in which they ran."""

    shape: Shape
    stored: Stored
    outcomes: Sequence[Outcome]

    def medians(self) -> dict[str, dict[str, float]]:
        """By contender, then by heading."""
        by_name = {
            contender.name: [run for run in self.outcomes if run.contender == contender.name]
            for contender in CONTENDERS
        }
        return {
            name: {figure.heading: statistics.median(map(figure.read, runs)) for figure in FIGURES}
            for name, runs in by_name.items()
            if runs
        }

    def show(self, console: Console) -> None:
        medians = self.medians()
        table = Table("median", title=self._title())
        present = _present(medians)
        for contender in present:
            table.add_column(contender.title, justify="right")
        for figure in FIGURES:
            table.add_row(figure.heading, *(figure.text(medians[one.name][figure.heading]) for one in present))
        console.print(table)
        for line in ratio_lines(medians):
            console.print(line, highlight=False)

    def append_to(self, file: Path, repository: Path) -> None:
        """Adds a section to `file`. It names the machine by what it is, never by name or place."""
        medians = self.medians()
        now = datetime.now(UTC)
        lines = [
            f"## {now:%Y-%m-%d %H:%M} UTC, commit {commit(repository)}, {self.shape.name}",
            "",
            f"{self._title()}. {machine()}",
            "",
            *_table(
                ["median", *(figure.heading for figure in FIGURES)],
                [
                    [contender.title, *(figure.text(medians[contender.name][figure.heading]) for figure in FIGURES)]
                    for contender in _present(medians)
                ],
            ),
            "",
            *(f"- {line}" for line in ratio_lines(medians)),
            "",
            "Every run, in order:",
            "",
            *_table(
                ["run", *(figure.heading for figure in FIGURES), "duplicates"],
                [
                    [run.contender, *(figure.text(figure.read(run)) for figure in FIGURES), str(run.duplicates)]
                    for run in self.outcomes
                ],
            ),
            "",
        ]
        with file.open("a") as results:
            results.write("\n" + "\n".join(lines))

    def _title(self) -> str:
        return (
            f"{self.shape.title}: {self.shape.records:,} records in {self.shape.partitions} partitions, "
            f"{self.stored.records_per_batch:.0f} records and {self.stored.bytes_per_batch / 1024:.1f} KiB per stored batch"
        )


def ratio_lines(medians: Mapping[str, Mapping[str, float]]) -> list[str]:
    """This project against each Java, figure by figure, as `theirs` and `ours` with the quotient."""
    ours = medians.get("mm2")
    lines = []
    for peer in (JAVA_DEFAULT, JAVA_TUNED):
        theirs = medians.get(peer.name)
        if ours is None or theirs is None:
            continue
        figures = {figure.heading: figure for figure in FIGURES}
        told = [
            f"{heading} {_ratio(ours[heading], theirs[heading])} "
            f"({figures[heading].text(ours[heading])} : {figures[heading].text(theirs[heading])})"
            for heading in _COMPARED
        ]
        lines.append(f"mm2 : {peer.name} = " + ", ".join(told))
    return lines


def commit(repository: Path) -> str:
    """Short name of the checked-out commit, marked when the files differ from it."""
    told = [
        subprocess.run(["git", "-C", str(repository), *command], capture_output=True, text=True, check=False)
        for command in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "mm2"))
    ]
    if told[0].returncode != 0:
        return "unknown"
    return told[0].stdout.strip() + (" with changes" if told[1].stdout.strip() else "")


def machine() -> str:
    """Processor, memory and versions, in one sentence."""
    models = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    memory = psutil.virtual_memory().total / (1 << 30)
    return (
        f"{psutil.cpu_count()} x {models[0] if models else platform.machine()}, {memory:.0f} GiB, "
        f"Linux {platform.release()}, Python {platform.python_version()}."
    )


def _present(medians: Mapping[str, object]) -> list[Contender]:
    return [contender for contender in CONTENDERS if contender.name in medians]


def _ratio(ours: float, theirs: float) -> str:
    return f"{ours / theirs:.2f}x" if theirs else "-"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]
