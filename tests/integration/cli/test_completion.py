"""The output of `mm2 completion`, tested in the shells: the Tab key completes a verb, and a flow of the file.

bash and zsh get input on a terminal; `complete -C` of fish lists its completions. zsh and fish are installed by
`tests/tools/debian-packages zsh fish`, as bin/test --all does it.
"""

from __future__ import annotations

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.integration.mirror_process import ROOT
from tests.support.waiting import PATIENCE

_PATIENCE_S = 60.0 * PATIENCE
#: Escape sequences for the cursor and colours, which a terminal does not show.
_ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b[=>]|[\x07\x08]")
_SET_UP = {
    "bash": ("--norc", "--noprofile", "-i"),
    "zsh": ("-f", "-i"),
}
_BEFORE = {"bash": "bind 'set bell-style none'", "zsh": "autoload -U compinit; compinit -u -D; unsetopt beep"}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "mm2.properties").write_text("clusters = A, B\nA->B.enabled = true\n")
    return tmp_path


def environment(folder: Path) -> dict[str, str]:
    programs = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    return {"PATH": programs, "HOME": str(folder), "TERM": "dumb", "LC_ALL": "C.UTF-8", "PYTHONPATH": str(ROOT)}


class Terminal:
    """An interactive shell on a pseudo-terminal."""

    def __init__(self, master: int) -> None:
        self._master = master
        self.seen = ""

    def type(self, text: str) -> None:
        os.write(self._master, text.encode())

    def shows(self, pattern: str) -> None:
        """Wait until the output since the last call contains the text."""
        deadline = time.monotonic() + _PATIENCE_S
        while not (found := re.search(pattern, self.seen)):
            assert time.monotonic() < deadline, f"{pattern} did not come: {self.seen!r}"
            if select.select([self._master], [], [], 0.2)[0]:
                self.seen += _ESCAPES.sub("", os.read(self._master, 65536).decode(errors="replace"))
        self.seen = self.seen[found.end() :]


@contextmanager
def terminal(shell: str, folder: Path) -> Iterator[Terminal]:
    master, slave = pty.openpty()
    process = subprocess.Popen(
        [found(shell), *_SET_UP[shell]], cwd=folder, env=environment(folder), stdin=slave, stdout=slave, stderr=slave,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    try:
        yield Terminal(master)
    finally:
        process.kill()
        process.wait(10)
        os.close(master)


def found(shell: str) -> str:
    path = shutil.which(shell)
    assert path, f"{shell} is missing; tests/tools/debian-packages {shell} installs it"
    return path


@pytest.mark.slow
@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_tab_completion_offers_verbs_and_flows(shell: str, folder: Path) -> None:
    with terminal(shell, folder) as there:
        # Quotes, so that the word is not found in the echoed input.
        there.type(f"{_BEFORE[shell]}; eval \"$(mm2 completion {shell})\"; echo rea''dy\n")
        there.shows("ready")
        there.type("mm2 heartb\t")
        there.shows("mm2 heartbeats")
        there.type("\x15mm2 status mm2.properties A\t")
        there.shows(r"mm2 status mm2\.properties A-\\>B")
        # The completed flow is one word, and mm2 accepts it.
        there.type("--help | head -n 1\n")
        there.shows(r"usage: mm2 status")


@pytest.mark.slow
def test_fish_completion_offers_verbs_and_flows(folder: Path) -> None:
    script = 'mm2 completion fish | source; complete -C "mm2 heartb"; complete -C "mm2 status mm2.properties A"'
    done = subprocess.run(
        [found("fish"), "--no-config", "-c", script], cwd=folder, env=environment(folder), capture_output=True, text=True,
        timeout=_PATIENCE_S, check=True, stdin=subprocess.DEVNULL,
    )  # fmt: skip
    offered = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert offered[0] == "heartbeats"
    assert offered[1:] == ["A->B"]
