"""The demo runs and finishes."""

import subprocess
from pathlib import Path

import pytest

from tests.support.checkout import checkout, environment


@pytest.mark.timeout(400)
def test_demo_ends_with_equal_clusters_and_leaves_nothing_running(tmp_path: Path) -> None:
    done = subprocess.run(
        [checkout(tmp_path / "checkout") / "bin" / "demo", "--seconds", "5", "--rate", "1000"],
        capture_output=True,
        text=True,
        check=False,
        timeout=380,
        env=environment(TMPDIR=str(tmp_path)),
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
