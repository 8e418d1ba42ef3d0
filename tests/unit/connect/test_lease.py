"""How long a worker may assume that it owns its tasks. Times in seconds, the session timeout is 10."""

from __future__ import annotations

import pytest

from mm2.connect.group.lease import GroupLease


class Clock:
    """A manual clock."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> GroupLease:
    lease = GroupLease(10, clock)
    lease.begin()
    return lease


def test_the_lease_ends_with_the_session_and_stays_lost(lease: GroupLease, clock: Clock) -> None:
    clock.now += 10
    assert lease.is_valid()
    clock.now += 0.001
    assert not lease.is_valid()
    lease.renew(clock.now)
    assert not lease.is_valid(), "an answer that comes late does not give the work back"
    lease.tick()
    lease.begin()
    assert lease.is_valid()


def test_a_response_renews_the_lease_from_the_send_time_of_its_request(lease: GroupLease, clock: Clock) -> None:
    asked_s = clock.now + 5
    clock.now += 8
    lease.renew(asked_s)
    clock.now = asked_s + 10
    assert lease.is_valid()
    clock.now += 0.001
    assert not lease.is_valid()


def test_the_lease_holds_while_a_response_is_pending_and_the_process_runs(lease: GroupLease, clock: Clock) -> None:
    lease.await_answer()
    for _ in range(60):
        clock.now += 1
        assert not lease.tick()
    clock.now += 10.001  # frozen
    assert not lease.is_valid()
    assert lease.tick()


def test_a_request_without_a_response_shortens_the_lease(lease: GroupLease, clock: Clock) -> None:
    lease.await_answer()
    for _ in range(20):
        clock.now += 1
        lease.tick()
    lease.answer_failed(3)
    clock.now += 3
    assert lease.is_valid()
    clock.now += 0.001
    assert not lease.is_valid()


def test_a_new_assignment_starts_the_lease_when_the_process_was_last_known_to_run(
    lease: GroupLease, clock: Clock
) -> None:
    lease.tick()
    clock.now += 4  # frozen, with the answer in the buffer
    lease.begin()
    clock.now += 6.001
    assert not lease.is_valid()


def test_without_an_assignment_nothing_is_lost(lease: GroupLease, clock: Clock) -> None:
    lease.end()
    clock.now += 3600
    assert lease.is_valid()
    lease.lose()
    assert lease.is_valid()


def test_losing_the_lease_takes_effect_immediately(lease: GroupLease) -> None:
    lease.lose()
    assert not lease.is_valid()
