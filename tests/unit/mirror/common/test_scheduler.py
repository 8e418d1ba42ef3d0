import threading
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from mm2.mirror.common import scheduler as module
from mm2.mirror.common.scheduler import Scheduler


@pytest.fixture
def scheduler(monkeypatch: pytest.MonkeyPatch) -> Iterator[Scheduler]:
    monkeypatch.setattr(module, "FIRST_RETRY_S", 0.02)
    made = Scheduler("test", context={"flow": "A->B"})
    made.start()
    yield made
    assert made.stop(60)


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
    assert done.wait(60)
    assert answers == []


@pytest.mark.parametrize(("takes_s", "times_s"), [(2, [0, 5, 10, 15]), (12, [0, 12, 24, 36])])
def test_a_job_runs_at_a_fixed_rate_and_one_after_another(
    monkeypatch: pytest.MonkeyPatch, takes_s: int, times_s: list[int]
) -> None:
    made = Scheduler("test", context={})
    now_s, ran_s = [0.0], list[float]()

    def spend(seconds: float) -> None:
        now_s[0] += seconds

    def job() -> None:
        ran_s.append(now_s[0])
        spend(takes_s)
        made._stopping = len(ran_s) == len(times_s)

    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    monkeypatch.setattr(made._changed, "wait", spend)
    made.every(5, "A job", job)
    made._run()
    assert ran_s == times_s


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
        release.wait(600)  # longer than a test may take

    made.start()
    made.once("A job", hang)
    assert begun.wait(60)
    assert not made.stop(0.1)
    release.set()
    assert made.stop(60)


def test_a_sleep_in_a_job_ends_at_stop() -> None:
    made = Scheduler("pausing", context={})
    begun = threading.Event()

    def pause() -> None:
        begun.set()
        assert not made.pause(600)

    made.start()
    made.once("A job", pause)
    assert begun.wait(60)
    assert made.stop(60)
