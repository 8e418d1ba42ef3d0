"""Troubles are said once, by whichever thread meets them."""

from __future__ import annotations

import sys
import threading

import structlog

from mm2.mirror.complaints import Complaints


def test_a_trouble_is_said_once_and_when_it_is_over() -> None:
    complaints = Complaints()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            complaints.say("group g", "It cannot be read.")
        complaints.say("topic t", "It cannot be made.")
        complaints.keep_only("group ", [])
        complaints.keep_only("group ", [])
    assert [line["log_level"] for line in lines] == ["warning", "debug", "debug", "warning", "info"]


def test_two_threads_may_complain_at_the_same_time() -> None:
    complaints = Complaints()

    def complain(prefix: str, count: int) -> None:
        for number in range(count):
            complaints.say(f"{prefix} {number}", "It is in use.")

    switch_s = sys.getswitchinterval()
    with structlog.testing.capture_logs():
        complain("sync of", 2000)
        more = threading.Thread(target=complain, args=("sync of another", 1000))
        sys.setswitchinterval(1e-6)
        try:
            more.start()
            while more.is_alive():
                complaints.keep_only("group ", [])
        finally:
            sys.setswitchinterval(switch_s)
            more.join()
