"""A source that answers each request wrongly: every call ends with a result or a typed failure, in limited memory.

`bin/fuzz --hostile 1000000` does the same with a million answers.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
from collections import Counter
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.fuzz.hostile_broker import TOPIC, HostileBroker
from tests.fuzz.hostile_client import LIMIT_BYTES
from tests.integration.mirror_process import MirrorProcess, write_config
from tests.support.waiting import PATIENCE

PATIENCE_S = 60.0 * PATIENCE
#: To a whole process, which waits between its questions.
PROCESS_ANSWERS = 5_000


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
    return attacked(request.param, 300 if request.param == 1 else 20_000)


@pytest.mark.slow
def test_every_call_ends_with_a_result_or_a_typed_failure(attack: Attack) -> None:
    """A hang ends the client after a minute of processor time, and too much memory raises MemoryError, which is a finding."""
    assert attack.findings == {}
    assert attack.memory_bytes < LIMIT_BYTES
    expected = {"CorruptBatch", "dict", "Fetched", "batch over the limit", "partition OVER_LIMIT"}
    assert expected <= attack.outcomes.keys()
    assert {"valid", "damaged", "huge_array", "cut", "other_id", "claimed_size"} <= attack.answers.keys()


@pytest.mark.slow
@pytest.mark.timeout(3000)
def test_a_process_stays_small_and_reports_the_hostile_source(tmp_path: Path) -> None:
    """A whole process for one flow, whose target is a real broker."""
    target = LocalKafka("B", tmp_path / "B")
    start_all((target,), PATIENCE_S)
    try:
        with closing(HostileBroker(4)) as source:
            file = write_config(
                tmp_path / "mm2.properties",
                {
                    "clusters": "A, B",
                    "A.bootstrap.servers": f"127.0.0.1:{source.port}",
                    "B.bootstrap.servers": target.bootstrap,
                    "A->B.enabled": "true",
                    "A->B.topics": TOPIC,
                    "A->B.sync.group.offsets.enabled": "true",
                    **{
                        f"A.{name}": "1000"
                        for name in ("request.timeout.ms", "default.api.timeout.ms", "metadata.max.age.ms")
                    },
                    **{
                        f"A.{name}": "10"
                        for name in ("reconnect.backoff.ms", "reconnect.backoff.max.ms", "retry.backoff.ms")
                    },
                },
            )
            process = MirrorProcess(file, tmp_path / "mm2.log", variables={"XDG_STATE_HOME": str(tmp_path)})
            try:
                check_process(process, source)
            finally:
                process.clean_up()
    finally:
        stop_all((target,))


def check_process(process: MirrorProcess, source: HostileBroker) -> None:
    """Let it ask for a while, then look at its memory, its log, its health, and how it ends."""
    url = str(process.await_log("REST server listening.", timeout_s=PATIENCE_S)["advertised_url"])
    process.eventually(lambda: source.answers.total() > PROCESS_ANSWERS, 20 * PATIENCE_S)
    assert httpx.get(f"{url}health", timeout=PATIENCE_S, trust_env=False).status_code in {200, 503}
    overview = httpx.get(f"{url}overview", timeout=PATIENCE_S, trust_env=False).raise_for_status()
    assert [flow["name"] for flow in overview.json()["flows"]] == ["A->B"]
    peaks = {one.pid: peak_bytes(one.pid) for one in process.family() if "java" not in one.name()}
    assert max(peaks.values()) < LIMIT_BYTES, peaks
    unexpected = [line for line in process.lines() if "exception" in line]
    assert not unexpected, f"{len(unexpected)}, first {unexpected[0]}"
    reported = [
        line for line in process.lines(level="warning") if "cluster A" in str(line) or f"{TOPIC}-0" in str(line)
    ]
    assert reported, process.tail()
    code, _ = process.stop()
    assert code == 0


def peak_bytes(pid: int) -> int:
    """The largest resident memory of a process so far."""
    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
        for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) << 10
    return 0
