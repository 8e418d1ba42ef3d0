"""Medians, ratios, goals and raw numbers, for the terminal and for RESULTS.md."""

import platform
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from rich.console import Console
from rich.table import Table

from bench.contenders import OURS, Contender
from bench.event import Event, Result
from bench.goals import GOALS, Verdict, median, verdicts
from bench.outcome import Figure, Outcome

_MET = {None: "?", True: "yes", False: "NO"}


def show(console: Console, event: Event, result: Result) -> None:
    """Medians side by side, then the ratios."""
    present = _present(event, result)
    table = Table("median", title=result.title)
    for contender in present:
        table.add_column(contender.title, justify="right")
    for figure in event.figures:
        table.add_row(figure.name, *(figure.text(median(result, one, figure)) for one in present))
    console.print(table)
    for line in (*ratio_lines(event, result), *failure_lines(event, result), *result.facts):
        console.print(line, highlight=False, markup=False, soft_wrap=True)
    for line in _goal_lines(result):
        console.print(line, highlight=False, markup=False, soft_wrap=True)


def put_result(file: Path, event: Event, result: Result) -> None:
    """The section of a row. It describes the machine without its name or paths."""
    figures, present = event.figures, _present(event, result)
    notes = dict.fromkeys(f"{run.contender}: {note}" for run in result.outcomes for note in run.notes)
    runs = {one.name: sum(run.contender == one.name for run in result.outcomes) for one in present}
    beside = ", beside an earlier commit" if any(one.name.startswith(f"{OURS.name}-") for one in present) else ""
    put(
        file,
        f"{result.event}{beside}{' (quick)' if result.quick else ''}",
        f"{result.at}, commit {result.commit}.",
        " ".join((f"{result.title}.", *result.facts, result.machine)),
        f"Runs: {', '.join(f'{name} {number}' for name, number in runs.items())}.",
        "",
        *_table(
            ["median", *(figure.name for figure in figures)],
            [[one.title, *(figure.text(median(result, one, figure)) for figure in figures)] for one in present],
        ),
        "",
        *(f"- {line}" for line in (*ratio_lines(event, result), *_goal_lines(result), *failure_lines(event, result))),
        *(f"- {note}" for note in notes),
    )


def show_table(console: Console, results: Mapping[str, Result]) -> None:
    """The whole table of goals, with what has been measured of it."""
    table = Table("figure", "against", "goal", "reached", "ours : theirs", "met", title="Goals")
    for row in _goal_rows(results):
        table.add_row(*row)
    console.print(table)


def put_table(file: Path, results: Mapping[str, Result], at: str) -> None:
    """The same as a section; rows may be of different commits, which are named."""
    commits = sorted({result.commit for result in results.values()})
    put(
        file,
        f"the table{' (quick)' if any(result.quick for result in results.values()) else ''}",
        f"{at}, commit {', '.join(commits)}. {machine()}",
        "",
        *_table(["figure", "against", "goal", "reached", "ours : theirs", "met"], _goal_rows(results)),
    )


def show_lines(console: Console, figures: Sequence[Figure], outcomes: Sequence[Outcome]) -> None:
    """Outcomes without a contender: the physical lines."""
    table = Table("the physical line", *(figure.name for figure in figures))
    for one in outcomes:
        table.add_row(one.contender, *(figure.text(one.figures.get(figure.name)) for figure in figures))
    console.print(table)


def put_lines(file: Path, name: str, at: str, figures: Sequence[Figure], outcomes: Sequence[Outcome]) -> None:
    """The same as a section."""
    rows = [[one.contender, *(figure.text(one.figures.get(figure.name)) for figure in figures)] for one in outcomes]
    put(file, name, at, machine(), "", *_table(["the physical line", *(figure.name for figure in figures)], rows))


def ratio_lines(event: Event, result: Result) -> list[str]:
    """This project compared with each other contender, figure by figure, with the ratio."""
    lines = []
    for peer in _present(event, result):
        if peer is OURS:
            continue
        ratios = []
        for figure in event.compared:
            ours, theirs = median(result, OURS, figure), median(result, peer, figure)
            if ours is not None and theirs:
                ratios.append(f"{figure.name} {ours / theirs:.2f}x ({figure.text(ours)} : {figure.text(theirs)})")
        if ratios:
            lines.append(f"mm2 : {peer.name} = " + ", ".join(ratios))
    return lines


def failure_lines(event: Event, result: Result) -> list[str]:
    """Failed contenders with their reasons."""
    failed = ((contender, result.failure_of(contender.name)) for contender in event.contenders)
    return [f"FAILED: {contender.name}: {why}" for contender, why in failed if why]


def commit(repository: Path) -> str:
    """Short name of the checked-out commit, marked when the files differ from it."""
    results = [
        subprocess.run(["git", "-C", str(repository), *command], capture_output=True, text=True, check=False)
        for command in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "--untracked-files=no", "mm2"))
    ]
    if results[0].returncode != 0:
        return "unknown"
    return results[0].stdout.strip() + (" with changes" if results[1].stdout.strip() else "")


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


def _goal_lines(result: Result) -> list[str]:
    return [
        f"goal: {verdict.goal.line}, against {verdict.peer.name}: {verdict.goal.wanted(verdict.bound)}, "
        f"reached {_reached(verdict)}, met: {_MET[verdict.reached]}"
        for goal in GOALS
        if goal.event == result.event
        for verdict in verdicts(goal, result)
        if verdict.ratio or verdict.why.startswith("failed")
    ]


def _goal_rows(results: Mapping[str, Result]) -> list[list[str]]:
    return [
        [
            goal.line,
            verdict.peer.name,
            goal.wanted(verdict.bound),
            _reached(verdict),
            f"{goal.figure.text(verdict.ours)} : {goal.figure.text(verdict.theirs)}",
            _MET[verdict.reached],
        ]
        for goal in GOALS
        for verdict in verdicts(goal, results.get(goal.event))
    ]


def _reached(verdict: Verdict) -> str:
    return verdict.why if verdict.ratio is None else f"{verdict.ratio:.3g}x"


def _present(event: Event, result: Result) -> list[Contender]:
    return [
        contender for contender in event.contenders if any(run.contender == contender.name for run in result.outcomes)
    ]


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return ["| " + " | ".join(cells) + " |" for cells in lines]


def put(file: Path, name: str, *lines: str) -> None:
    """Replace the section of this name, or add it: earlier figures are in the history of the file."""
    first, *sections = (file.read_text() if file.exists() else "# Results\n").split("\n## ")
    text = f"{name}\n\n" + "\n".join(lines).strip("\n") + "\n"
    names = [section.partition("\n")[0] for section in sections]
    if name in names:
        sections[names.index(name)] = text
    else:
        sections.append(text)
    file.write_text("\n## ".join((first, *sections)))
