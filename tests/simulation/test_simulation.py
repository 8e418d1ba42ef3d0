"""A short run of the simulation, and a check that equal seeds give equal runs."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.simulation.directed import DIRECTED
from tests.simulation.directed_sequences import SEQUENCES
from tests.simulation.directed_target import TARGET
from tests.simulation.machine import Faults

pytestmark = pytest.mark.timeout(900)

ROOT = Path(__file__).parents[2]


def simulation(*arguments: str) -> str:
    """Run in a separate process: the order of sets must not depend on the run, and time is replaced."""
    environment = {**os.environ, "PYTHONHASHSEED": "0"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-5_000:]
    return done.stdout


def test_invariants_hold_in_random_schedules() -> None:
    """Seeds with all families of faults; `python -m tests.simulation --steps 10000000` runs many more."""
    assert " 0 violations" in simulation("--seeds", "6", "--seconds", "15")


@pytest.mark.parametrize("seeds", [1, pytest.param(10, marks=pytest.mark.slow)])
def test_invariants_hold_in_schedules_that_once_broke_the_protocol(seeds: int) -> None:
    """Elections of a source, deposed leaders, late writes, leases: see `tests.simulation.directed` and the modules beside it."""
    printed = simulation("--directed", "--seeds", str(seeds))
    schedules = (*DIRECTED, *SEQUENCES, *TARGET)
    assert printed.count(f": 0 of {seeds} seeds") == len(printed.splitlines()) == len(schedules)


@pytest.mark.parametrize(
    "rule", ["S8", "S9", "S10", "C7", "L5", "R1", *(pytest.param(rule, marks=pytest.mark.slow) for rule in "SLCR")]
)
def test_a_rule_that_is_missing_is_found(rule: str) -> None:
    """Each mutation of the rules with these letters."""
    printed = simulation("--mutations", "--rule", rule)
    assert printed
    assert all(line.startswith("found ") for line in printed.splitlines())


def test_a_partition_that_does_not_advance_is_found() -> None:
    """The mutation `progress` sends nothing after an error."""
    assert simulation("--mutations", "--rule", "progress").startswith("found ")


def test_a_seed_replays_exactly() -> None:
    """Two runs of a schedule print the same events."""
    first = simulation("--seed", "3", "--trace")
    assert first == simulation("--seed", "3", "--trace")
    assert len(first.splitlines()) > 100


TestFaults = Faults.TestCase
TestFaults.settings = settings(
    max_examples=4, stateful_step_count=6, deadline=None, suppress_health_check=list(HealthCheck)
)
