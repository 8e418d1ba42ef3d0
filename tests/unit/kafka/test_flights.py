import threading
import time

import pytest

from mm2.kafka.errors import KafkaFailure, TimeoutFailure
from mm2.kafka.flights import Flights


def soon(seconds: float = 5.0) -> float:
    return time.monotonic() + seconds


def test_waiting_callers_share_one_fetch_started_after_their_request() -> None:
    flights: Flights[int] = Flights()
    fetches: list[float] = []
    first_runs = threading.Event()
    go_on = threading.Event()

    def fetch() -> int:
        fetches.append(time.monotonic())
        first_runs.set()
        go_on.wait(5)
        return len(fetches)

    answers: list[tuple[int, float]] = []

    def ask() -> None:
        asked = time.monotonic()
        answers.append((flights.join("all", soon(), fetch, "It"), asked))

    threads = [threading.Thread(target=ask)]
    threads[0].start()
    first_runs.wait(5)
    for _ in range(5):
        threads.append(threading.Thread(target=ask))
        threads[-1].start()
    time.sleep(0.1)
    go_on.set()
    for thread in threads:
        thread.join(5)
    assert sorted(answer for answer, _ in answers) == [1, 2, 2, 2, 2, 2]
    assert all(fetches[answer - 1] >= asked for answer, asked in answers)


def test_a_failure_reaches_all_callers_and_is_not_cached() -> None:
    flights: Flights[int] = Flights()

    def fail() -> int:
        raise KafkaFailure("no")

    with pytest.raises(KafkaFailure, match="no"):
        flights.join("k", soon(), fail, "It")
    assert flights.join("k", soon(), lambda: 7, "It") == 7


def test_caller_does_not_wait_beyond_its_own_deadline() -> None:
    flights: Flights[int] = Flights()
    go_on = threading.Event()
    slow = threading.Thread(target=lambda: flights.join("k", soon(), lambda: int(go_on.wait(5)), "It"))
    slow.start()
    time.sleep(0.05)
    start = time.monotonic()
    with pytest.raises(TimeoutFailure, match="It: no answer before the timeout"):
        flights.join("k", soon(0.1), lambda: 1, "It")
    assert time.monotonic() - start < 1
    go_on.set()
    slow.join(5)


def test_a_follower_waits_beyond_the_shorter_deadline_of_the_leader() -> None:
    flights: Flights[int] = Flights()
    go_on = threading.Event()
    running = threading.Thread(target=lambda: flights.join("k", soon(), lambda: int(go_on.wait(5)), "It"))
    running.start()
    time.sleep(0.05)
    failures: list[KafkaFailure] = []

    def lead() -> None:
        try:
            flights.join("k", soon(0.1), lambda: 1, "It")
        except TimeoutFailure as failure:
            failures.append(failure)

    leader = threading.Thread(target=lead)
    leader.start()
    time.sleep(0.03)
    threading.Timer(0.3, go_on.set).start()
    assert flights.join("k", soon(), lambda: 2, "It") == 2
    leader.join(5)
    running.join(5)
    assert len(failures) == 1
