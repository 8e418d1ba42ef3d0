import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from mm2.kafka.client.shared_requests import SharedRequests
from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from tests.support.waiting import wait_until


def soon(seconds: float = 60.0) -> float:
    return time.monotonic() + seconds


@contextmanager
def in_flight(requests: SharedRequests[int], key: str) -> Iterator[None]:
    """A request for `key` is in flight until the end."""
    begun, go_on = threading.Event(), threading.Event()

    def fetch() -> int:
        begun.set()
        return int(go_on.wait(60))

    with ThreadPoolExecutor(1) as pool:
        pool.submit(requests.join, key, soon(), fetch, "It")
        assert begun.wait(60)
        try:
            yield
        finally:
            go_on.set()


def test_waiting_callers_share_one_fetch_started_after_their_request() -> None:
    requests: SharedRequests[int] = SharedRequests()
    fetches: list[float] = []
    first_runs = threading.Event()
    go_on = threading.Event()

    def fetch() -> int:
        fetches.append(time.monotonic())
        first_runs.set()
        go_on.wait(60)
        return len(fetches)

    answers: list[tuple[int, float]] = []

    def ask() -> None:
        asked = time.monotonic()
        answers.append((requests.join("all", soon(), fetch, "It"), asked))

    threads = [threading.Thread(target=ask)]
    threads[0].start()
    assert first_runs.wait(60)
    for _ in range(5):
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    wait_until(lambda: requests._by_key["all"].users == len(threads), interval_s=0.01)
    go_on.set()
    for thread in threads:
        thread.join(60)
    assert sorted(answer for answer, _ in answers) == [1, 2, 2, 2, 2, 2]
    assert all(fetches[answer - 1] >= asked for answer, asked in answers)


def test_a_failure_reaches_all_callers_and_is_not_cached() -> None:
    requests: SharedRequests[int] = SharedRequests()

    def fail() -> int:
        raise KafkaFailure("no")

    with pytest.raises(KafkaFailure, match="no"):
        requests.join("k", soon(), fail, "It")
    assert requests.join("k", soon(), lambda: 7, "It") == 7


def test_caller_does_not_wait_beyond_its_own_deadline() -> None:
    requests: SharedRequests[int] = SharedRequests()
    with in_flight(requests, "k"), pytest.raises(TimeoutFailure, match="It: no answer before the timeout"):
        requests.join("k", soon(0.1), lambda: 1, "It")


def test_a_follower_waits_beyond_the_shorter_deadline_of_the_leader() -> None:
    requests: SharedRequests[int] = SharedRequests()
    with ThreadPoolExecutor(2) as pool:
        with in_flight(requests, "k"):
            leader = pool.submit(requests.join, "k", soon(0.2), lambda: 1, "It")
            wait_until(lambda: requests._by_key["k"].following or leader.done(), interval_s=0.01)
            follower = pool.submit(requests.join, "k", soon(), lambda: 2, "It")
            assert isinstance(leader.exception(60), TimeoutFailure)
        assert follower.result(60) == 2
