"""Ports of sandbox brokers."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from mm2.sandbox import ports

_RESERVE = """
import sys
from mm2.sandbox import ports
ports._RANGE = range(31000, 31040)
print(*ports.free_ports(20), flush=True)
sys.stdin.read()
"""


def test_a_port_is_reserved_until_its_process_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Given a process that has reserved half of the ports and opened none; validates that another process gets the other
    half, then an error, and all of them when the first process has ended.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(ports, "_RANGE", range(31000, 31040))
    monkeypatch.setattr(ports, "_reserved", set())
    ports._lock_file.cache_clear()
    with subprocess.Popen([sys.executable, "-c", _RESERVE], stdin=-1, stdout=-1, text=True) as other:
        assert other.stdout is not None
        theirs = {int(port) for port in other.stdout.readline().split()}
        ours = set(ports.free_ports(10)) | set(ports.free_ports(4))
        assert (len(theirs), len(ours), theirs & ours) == (20, 14, set())
        with pytest.raises(OSError, match="no 10 free ports between 31000 and 31040"):
            ports.free_ports(10)
        other.communicate("")
    assert set(ports.free_ports(4)) <= theirs
    ports._lock_file.cache_clear()
