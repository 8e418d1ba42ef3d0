"""The processes of a session, also after its id has been given to another process."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from bench import proctree
from bench.proctree import Session
from mm2.sandbox.process import end, spawn


def test_the_members_of_a_session_are_its_living_processes(tmp_path: Path) -> None:
    process = spawn(["sh", "-c", "sleep 100 & wait"], output=tmp_path / "log")
    try:
        session = Session(process.pid)
        while len(session.members()) < 2:
            pass
        process.kill()
        process.wait()
        (orphan,) = session.members()
        orphan.kill()
        psutil.wait_procs([orphan], 10)
        assert session.members() == []
    finally:
        end(process)


def test_another_process_with_the_same_id_is_no_member(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process = spawn(["sleep", "100"], output=tmp_path / "log")
    try:
        session = Session(process.pid)
        recycled = psutil.Process(process.pid)
        recycled._ident = (process.pid, 1.0)  # type: ignore[attr-defined]  # another creation time
        monkeypatch.setattr(proctree, "session_members", lambda _: [recycled])
        assert session.members() == []
    finally:
        end(process)
