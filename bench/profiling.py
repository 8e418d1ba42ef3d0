"""Profile a copy: Python lines by a sampler in the workers, native code by perf if it is available."""

import json
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.contenders import OURS, Contender
from bench.proctree import session_members

_LINES = 40
_PERF_HERTZ = 499


def profiled(folder: Path, repository: Path) -> Contender:
    """This project with a sampler in each worker; the counts go into `folder`. Slower by a few percent."""
    folder.mkdir(parents=True, exist_ok=True)
    return replace(
        OURS,
        top={"spark.python.daemon.module": "bench.sampled_daemon"},
        environment={"PYTHONPATH": str(repository), "MM2_BENCH_PROFILE": str(folder)},
    )


@contextmanager
def perf(folder: Path, pid: int) -> Iterator[None]:
    """Record all processes of the session of `pid` into `folder`, if perf is available."""
    found = shutil.which("perf")
    if found is None:
        yield
        return
    members = ",".join(str(member.pid) for member in session_members(pid))
    command = [found, "record", "-q", "-F", str(_PERF_HERTZ), "-p", members, "-o", str(folder / "perf.data")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as recorder:
        try:
            yield
        finally:
            recorder.send_signal(signal.SIGINT)


def report(folder: Path) -> str:
    """Report of the samples, the most frequent first."""
    lines: Counter[str] = Counter()
    functions: Counter[str] = Counter()
    for file in folder.glob("*.json"):
        counts = json.loads(file.read_text())
        lines.update(counts["lines"])
        functions.update(counts["functions"])
    total = max(1, lines.total())
    return "\n\n".join(
        (
            f"{total} samples of a worker's CPU time.",
            _top("by line, itself and the C it called", lines, total),
            _top("by function, with all it called", functions, total),
            _native(folder),
        )
    )


def _top(title: str, counts: Counter[str], total: int) -> str:
    rows = [f"{100 * count / total:5.1f} %  {name}" for name, count in counts.most_common(_LINES)]
    return "\n".join((f"-- {title}", *rows))


def _native(folder: Path) -> str:
    data = folder / "perf.data"
    if not data.exists():
        return "-- no perf on this machine, so nothing of native code"
    command = ["perf", "report", "-i", str(data), "--stdio", "--no-children", "--sort", "comm,dso,symbol"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    rows = [line.rstrip() for line in output.splitlines() if line.strip() and not line.startswith("#")]
    return "\n".join(("-- native code by process, library and symbol", *rows[:_LINES]))
