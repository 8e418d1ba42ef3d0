"""Programs that tests start as forks."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from mm2.sandbox.ports import free_ports
from tests.support import programs
from tests.support.waiting import wait_until

COMMAND = [*programs.PYTHON, "mm2.cli.connect_distributed"]


@pytest.fixture
def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(programs.ROOT), "MM2_LOG_LEVEL": "no such level"}


def test_a_fork_has_its_own_arguments_environment_output_and_exit_code(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    output = tmp_path / "log"
    usage = programs.start([*COMMAND, "--help"], output=output, folder=tmp_path, environment=environment)
    assert usage.wait(60) == 1
    assert "worker.properties" in output.read_text()
    refused = programs.start([*COMMAND, "file"], output=output, folder=tmp_path, environment=environment)
    assert refused.wait(60) == 1
    assert "no such level" in output.read_text()


def test_a_fork_is_a_child_with_a_session_of_its_own_and_takes_signals(
    tmp_path: Path, environment: dict[str, str]
) -> None:
    file = tmp_path / "worker.properties"
    file.write_text(f"bootstrap.servers=127.0.0.1:{free_ports(1)[0]}\nlisteners=http://127.0.0.1:0\n")
    del environment["MM2_LOG_LEVEL"]
    process = programs.start([*COMMAND, str(file)], output=tmp_path / "log", folder=tmp_path, environment=environment)
    try:
        assert psutil.Process(process.pid).ppid() == os.getpid()
        wait_until(lambda: os.getsid(process.pid) == process.pid)
        process.kill()
        assert process.wait(60) == -signal.SIGKILL
    finally:
        process.kill()


def test_outside_pytest_and_with_other_modules_it_is_executed(
    tmp_path: Path, environment: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Benchmarks measure programs as users start them, and a test may replace modules with PYTHONPATH."""
    forked = programs.start([*COMMAND, "--help"], output=tmp_path / "log", folder=tmp_path, environment=environment)
    others = {**environment, "PYTHONPATH": f"{programs.ROOT}:{tmp_path}"}
    replaced = programs.start([*COMMAND, "--help"], output=tmp_path / "log", folder=tmp_path, environment=others)
    monkeypatch.delenv("PYTEST_VERSION")
    outside = programs.start([*COMMAND, "--help"], output=tmp_path / "log", folder=tmp_path, environment=environment)
    started = [forked, replaced, outside]
    assert [isinstance(process, programs.Forked) for process in started] == [True, False, False]
    assert [process.wait(60) for process in started] == [1, 1, 1]
