import threading
import time
from collections.abc import Iterator

import pytest

from mm2.mirror import scheduler as module
from mm2.mirror.scheduler import Scheduler


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.02)
    made = Scheduler("test", context={"flow": "A->B"})
    made.start()
    yield made
    assert made.stop(5)


def test_a_one_time_job_is_retried_until_it_succeeds(scheduler: Scheduler) -> None:
    answers: list[object] = [ValueError("boom"), False, None]
    done = threading.Event()

    def job() -> bool | None:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            done.set()
            return None
        return bool(answer)

    scheduler.once("A job", job)
    assert done.wait(5)
    assert answers == []


def test_a_job_runs_at_a_fixed_rate_and_one_after_another(scheduler: Scheduler) -> None:
    times: list[float] = []

    def job() -> None:
        times.append(time.monotonic())
        time.sleep(0.02)

    scheduler.every(0.05, "A job", job)
    time.sleep(0.4)
    assert 5 <= len(times) <= 9


def test_a_negative_interval_schedules_nothing(scheduler: Scheduler) -> None:
    ran = threading.Event()
    scheduler.every(-1, "A job", ran.set)
    assert not ran.wait(0.1)


def test_a_stop_does_not_wait_for_a_job_that_hangs() -> None:
    made = Scheduler("hanging", context={})
    release = threading.Event()
    begun = threading.Event()

    def hang() -> None:
        begun.set()
        release.wait(10)

    made.start()
    made.once("A job", hang)
    assert begun.wait(5)
    started = time.monotonic()
    assert not made.stop(0.1)
    assert time.monotonic() - started < 1
    release.set()
    assert made.stop(5)


def test_a_sleep_in_a_job_ends_at_stop() -> None:
    made = Scheduler("pausing", context={})
    begun = threading.Event()

    def pause() -> None:
        begun.set()
        assert not made.pause(60)

    made.start()
    made.once("A job", pause)
    assert begun.wait(5)
    assert made.stop(5)
