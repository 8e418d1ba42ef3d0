"""An error that lasts is logged once, whichever thread reports it."""

from __future__ import annotations

import sys
import threading

import structlog

from mm2.mirror.common.recurring_errors import RecurringErrors


def test_an_error_is_logged_once_and_again_when_it_is_resolved() -> None:
    recurring = RecurringErrors()
    with structlog.testing.capture_logs() as lines:
        for _ in range(3):
            recurring.report("group g", "It cannot be read.")
        recurring.report("topic t", "It cannot be made.")
        recurring.keep_only("group ", [])
        recurring.keep_only("group ", [])
    assert [line["log_level"] for line in lines] == ["warning", "debug", "debug", "warning", "info"]


def test_two_threads_may_report_at_the_same_time() -> None:
    recurring = RecurringErrors()

    def report_many(prefix: str, count: int) -> None:
        for number in range(count):
            recurring.report(f"{prefix} {number}", "It is in use.")

    switch_s = sys.getswitchinterval()
    with structlog.testing.capture_logs():
        report_many("sync of", 2000)
        more = threading.Thread(target=report_many, args=("sync of another", 1000))
        sys.setswitchinterval(1e-6)
        try:
            more.start()
            while more.is_alive():
                recurring.keep_only("group ", [])
        finally:
            sys.setswitchinterval(switch_s)
            more.join()
