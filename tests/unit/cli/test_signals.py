"""A signal stops a program whatever its main thread does at that moment."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, signal
from mm2.cli.signals import ask_at_hangup, stop_at_signals
stopping = stop_at_signals()
event = ask_at_hangup(stopping) if {hangup} else stopping
with event._cond:  # as while it waits for the event
    os.kill(os.getpid(), signal.{name})
print(event.wait(60))
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP"])
def test_a_signal_that_interrupts_a_wait_for_its_event_is_not_lost(name: str) -> None:
    program = PROGRAM.format(name=name, hangup=name == "SIGHUP")
    done = subprocess.run(
        [sys.executable, "-c", program],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
