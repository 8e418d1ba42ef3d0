"""A source that answers each request wrongly: every call ends with a result or a typed failure, in limited memory.

`bin/fuzz --hostile 1000000` does the same with a million answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass

import pytest

from tests.fuzz.hostile_broker import HostileBroker
from tests.fuzz.hostile_client import LIMIT_BYTES


@dataclass(frozen=True)
class Attack:
    """What a hostile broker sent to one client by kind, what the client's calls led to, and the memory it needed at most."""

    answers: Counter[str]
    outcomes: Counter[str]
    findings: Counter[str]
    memory_bytes: int

    def plus(self, other: Attack) -> Attack:
        """Both together, with the larger memory."""
        return Attack(
            self.answers + other.answers,
            self.outcomes + other.outcomes,
            self.findings + other.findings,
            max(self.memory_bytes, other.memory_bytes),
        )


def attacked(seed: int, calls: int) -> Attack:
    """Let a client make so many calls to a hostile broker. Raises AssertionError if it does not end by itself."""
    with closing(HostileBroker(seed)) as broker:
        command = [sys.executable, "-m", "tests.fuzz.hostile_client", str(broker.port), str(calls), str(seed)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-3000:]
        report = json.loads(done.stdout)
        return Attack(broker.answers, Counter(report["outcomes"]), Counter(report["findings"]), report["bytes"])


@pytest.fixture(params=[1, 2, 3])
def attack(request: pytest.FixtureRequest) -> Attack:
    return attacked(request.param, 300 if request.param == 1 else 6_000)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_every_call_ends_with_a_result_or_a_typed_failure(attack: Attack) -> None:
    """A hang ends the client after a minute of processor time, and too much memory raises MemoryError, which is a finding."""
    assert attack.findings == {}
    assert attack.memory_bytes < LIMIT_BYTES
    assert {"CorruptBatch", "dict", "Fetched"} <= attack.outcomes.keys()
    if attack.answers.total() > 10_000:  # one answer of a thousand is a bomb that is read
        assert {"batch over the limit", "partition OVER_LIMIT"} <= attack.outcomes.keys()
    assert {"valid", "damaged", "huge_array", "cut", "other_id", "claimed_size"} <= attack.answers.keys()
