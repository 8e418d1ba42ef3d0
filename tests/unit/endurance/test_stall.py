"""Stopping and resuming threads of another process, and clean-up of fault scripts."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.endurance.stall import DiskStall, Script, resume_threads, stop_threads, writers
from tests.support.waiting import wait_until

#: Thread names of a broker: one that appends to logs, one that waits for its network, one of another kind.
_BROKER = """
import select, threading, time
def name(text):
    open(f"/proc/self/task/{threading.get_native_id()}/comm", "w").write(text)
def writer():
    name("data-plane-kafka-request-handler-0")
    while True:
        time.sleep(0.01)
def fetcher():
    name("ReplicaFetcherThread-0-1")
    while True:
        time.sleep(0.01)
def network():
    name("data-plane-kafka-network-thread-1")
    waiting = select.epoll()
    while True:
        waiting.poll(0.2)
for each in (writer, fetcher, network):
    threading.Thread(target=each, daemon=True).start()
time.sleep(0.2)
print("ready", flush=True)
time.sleep(600)
"""


@contextmanager
def broker() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen([sys.executable, "-c", _BROKER], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        try:
            yield process
        finally:
            process.kill()


def states(pid: int) -> dict[str, str]:
    """State of each thread by its name."""
    found = {}
    for task in Path(f"/proc/{pid}/task").iterdir():
        found[(task / "comm").read_text().strip()] = (task / "stat").read_text().rpartition(")")[2].split()[0]
    return found


def test_writer_threads_are_request_handlers_and_fetchers_without_network_threads() -> None:
    with broker() as process:
        names = {(Path(f"/proc/{process.pid}/task/{one}/comm")).read_text().strip() for one in writers(process.pid)}
        assert len(writers(process.pid)) == 2
        assert names == {"data-plane-kafk", "ReplicaFetcherT"}


def test_only_the_writer_threads_stop_and_they_resume() -> None:
    with broker() as process:
        stopped = stop_threads(writers(process.pid))
        assert len(stopped) == 2
        assert states(process.pid)["ReplicaFetcherT"] == "t"
        assert sum(state == "t" for state in states(process.pid).values()) <= 2
        resume_threads(stopped)
        wait_until(lambda: "t" not in states(process.pid).values(), 30, what="resumption")


def test_where_ptrace_is_not_allowed_the_whole_process_stops(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_threads: object) -> list[int]:
        raise PermissionError

    monkeypatch.setattr("tests.endurance.stall.stop_threads", refuse)
    done: list[str] = []
    with broker() as process:
        stall = DiskStall(lambda: process.pid, lambda: done.append("pause"), lambda: done.append("resume"))
        stall.stall()
        assert stall.note == "the whole process stopped"
        stall.release()
        stall.release()
    assert done == ["pause", "resume"]


def test_a_script_plays_its_steps_in_the_order_of_their_times_and_undoes_them_once() -> None:
    done: list[str] = []
    played = threading.Event()
    script = Script(
        [(0.05, lambda: done.append("second")), (0.0, lambda: done.append("first")), (0.1, played.set)],
        lambda: done.append("undone"),
    )
    script.start()
    assert played.wait(60)
    assert done == ["first", "second"]
    script.finish()
    assert done == ["first", "second", "undone"]


def test_a_script_that_is_finished_early_plays_no_more_steps() -> None:
    done: list[str] = []
    script = Script([(600.0, lambda: done.append("late"))], lambda: done.append("undone"))
    script.start()
    script.finish()
    assert done == ["undone"]


def test_finish_raises_the_error_of_a_step_after_every_step_was_undone() -> None:
    done: list[str] = []

    def fail() -> None:
        raise OSError("no such broker")

    script = Script([(0.0, fail), (0.01, lambda: done.append("after"))], lambda: done.append("undone"))
    script.start()
    time.sleep(0.05)
    with pytest.raises(OSError, match="no such broker"):
        script.finish()
    assert done == ["undone"]
