"""Check all models and print a table: ``python -m tests.model [--small]``. Exits with 1 if any result is not the expected one."""

from __future__ import annotations

import sys

from tests.model.catalogue import (
    ASSUMED,
    FINDINGS,
    HOLDS,
    LARGE,
    NEEDED,
    NEEDED_BY_COMMITS,
    NEEDED_BY_ENDING,
    NEEDED_BY_READING,
    NEEDED_BY_REJECTING,
    SHORTCUT,
    without,
)
from tests.model.checker import Model, check, render
from tests.model.reading import Reading


def _row(what: str, bounds: str, *figures: str) -> str:
    return f"{what:<58} {bounds:<76} " + " ".join(f"{figure:>11}" for figure in figures[:4]) + f"  {figures[4]}"


def _check(what: str, model: Model, *, holds: bool) -> bool:
    """Check one model and print its row; returns whether the result is the expected one."""
    result = check(model, progress=True)
    bounds = model.name.partition("[")[2].rstrip("]")
    found = result.violation or result.stuck
    end = found.what if found is not None else ("no violation" if result.complete else "stopped at the limit")
    figures = f"{result.states:,}", f"{result.transitions:,}", str(result.depth), f"{result.seconds:.1f}", end
    print(_row(what, bounds, *figures), flush=True)
    if holds and found is not None:
        print(render(model, found))
    return result.complete and found is None if holds else found is not None


def main() -> int:
    """Check the new protocol, then the models that must have a counterexample."""
    print(_row("model", "bounds", "states", "transitions", "depth", "seconds", "result"))
    right = [
        _check(model.name.partition(" [")[0], model, holds=True)
        for model in (*HOLDS, *([] if "--small" in sys.argv[1:] else LARGE))
    ]
    for finding, (model, _, _) in FINDINGS.items():
        right.append(_check(f"old protocol, finding {finding}"[:58], model, holds=False))
    for rule in (*NEEDED, *NEEDED_BY_COMMITS, *NEEDED_BY_READING, *NEEDED_BY_ENDING, *NEEDED_BY_REJECTING):
        model = without(rule)
        right.append(_check(model.name.partition(" [")[0], model, holds=False))
    for assumption, bounds in ASSUMED.items():
        right.append(_check(f"reading, assumption withdrawn: {assumption}", Reading(bounds), holds=False))
    right.append(_check("commits, C8 with a comparison with the mark", SHORTCUT, holds=False))
    return 0 if all(right) else 1


if __name__ == "__main__":
    raise SystemExit(main())
