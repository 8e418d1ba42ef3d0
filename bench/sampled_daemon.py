"""Spark's Python daemon with a sampler in every copying worker; the product itself is unchanged.

The bench names this module as `spark.python.daemon.module`. A timer that counts the process's CPU time interrupts it
every millisecond, and the stack at that moment is counted; Python runs the handler when a call into C returns, so what C
code cost stands at the line that called it. The counts go into the folder that MM2_BENCH_PROFILE names, a file each time.
"""

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import CodeType, FrameType

import mm2.copy.executor.task as product

_INTERVAL_S = 0.001
_run = product.run


class Sampler:
    """Counts lines (innermost) and functions (anywhere on the stack)."""

    def __init__(self) -> None:
        self.lines: Counter[str] = Counter()
        self.functions: Counter[str] = Counter()

    def sample(self, _number: int, frame: FrameType | None) -> None:
        if frame is not None:
            self.lines[f"{_name(frame.f_code)}:{frame.f_lineno}"] += 1
        seen = set()
        while frame is not None:
            seen.add(_name(frame.f_code))
            frame = frame.f_back
        self.functions.update(seen)

    def write(self, folder: Path) -> None:
        counts = {"lines": dict(self.lines), "functions": dict(self.functions)}
        (folder / f"{os.getpid()}-{time.monotonic_ns()}.json").write_text(json.dumps(counts))


def run(assignments: Iterable[str]) -> Iterator[str]:
    """As the product's, under the sampler."""
    sampler = Sampler()
    signal.signal(signal.SIGPROF, sampler.sample)
    signal.setitimer(signal.ITIMER_PROF, _INTERVAL_S, _INTERVAL_S)
    try:
        yield from _run(assignments)
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        sampler.write(Path(os.environ["MM2_BENCH_PROFILE"]))


@cache
def _name(code: CodeType) -> str:
    return f"{'/'.join(Path(code.co_filename).parts[-2:])} {code.co_qualname}"


product.run = run

if __name__ == "__main__":
    from pyspark.daemon import manager

    manager()
