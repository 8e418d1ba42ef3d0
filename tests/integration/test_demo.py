"""The demo runs and finishes."""

import os
import subprocess
from pathlib import Path

import pytest

_REPOSITORY = Path(__file__).parents[2]


@pytest.mark.timeout(400)
def test_demo_ends_with_equal_clusters_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [_REPOSITORY / "bin" / "demo", "--seconds", "5", "--rate", "1000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "EQUAL: all" in done.stdout
    assert list(tmp_path.glob("mm2-demo-*")) == []
    assert not [line for line in _command_lines() if str(tmp_path) in line]


def _command_lines() -> list[str]:
    lines = []
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(process.read_text(errors="replace").replace("\0", " "))
        except OSError:
            continue  # it has ended meanwhile
    return lines
