"""A source that answers each request wrongly: every call ends with a result or a typed failure, in limited memory.

`bin/fuzz --hostile 1000000` does the same with a million answers.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from typing import Any

import pytest

from tests.fuzz.hostile_broker import HostileBroker
from tests.fuzz.hostile_client import LIMIT_BYTES


def attacked(seed: int, calls: int) -> tuple[dict[str, Any], HostileBroker]:
    """What a client reports that made so many calls to a hostile broker."""
    with closing(HostileBroker(seed)) as broker:
        command = [sys.executable, "-m", "tests.fuzz.hostile_client", str(broker.port), str(calls), str(seed)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        assert found.returncode == 0, found.stderr[-3000:]
        return json.loads(found.stdout), broker


@pytest.fixture(params=[1, 2, 3])
def run(request: pytest.FixtureRequest) -> tuple[dict[str, Any], HostileBroker]:
    return attacked(request.param, 300 if request.param == 1 else 20_000)


@pytest.mark.slow
def test_every_call_ends_with_a_result_or_a_typed_failure(run: tuple[dict[str, Any], HostileBroker]) -> None:
    """A hang ends the client after a minute, and too much memory raises MemoryError, which is a finding."""
    report, broker = run
    assert report["findings"] == {}
    assert report["bytes"] < LIMIT_BYTES
    outcomes = report["outcomes"]
    assert {"CorruptBatch", "dict", "Fetched", "batch over the limit", "partition OVER_LIMIT"} <= outcomes.keys()
    assert {"valid", "damaged", "huge_array", "cut", "other_id", "claimed_size"} <= broker.answers.keys()
