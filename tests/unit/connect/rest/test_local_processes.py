"""Processes find each other and ignore files of dead processes."""

from __future__ import annotations

import json
import os
from pathlib import Path

import psutil
import pytest

from mm2.connect.rest import local_processes


def test_a_running_process_is_found_and_a_dead_one_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert local_processes.processes() == []
    local_processes.write("http://127.0.0.1:1/", ["A->B"])
    (found,) = local_processes.processes()
    assert (found.pid, found.url, found.flows) == (os.getpid(), "http://127.0.0.1:1/", ("A->B",))
    assert abs(found.since_ms / 1000 - psutil.Process().create_time()) < 2, "not the time when its flows changed"

    folder = tmp_path / "mm2" / "processes"
    mine = json.loads((folder / f"{os.getpid()}.json").read_text())
    (folder / "1.json").write_text(json.dumps(mine | {"pid": 1}))  # is running, and was started at another time
    (folder / "99999999.json").write_text(json.dumps(mine | {"pid": 99999999}))
    (folder / "2.json").write_text("half a fi")
    assert local_processes.processes() == [found]
    assert not (folder / "1.json").exists()

    local_processes.remove()
    assert local_processes.processes() == []
    local_processes.remove()


def test_an_unwritable_folder_does_not_stop_the_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    local_processes.write("http://127.0.0.1:1/", [])
    local_processes.remove()
    assert local_processes.processes() == []
