"""How long a worker may assume that it owns its tasks. Times in seconds, the session timeout is 10."""

from __future__ import annotations

import pytest

from mm2.connect.group.lease import GroupLease
from tests.support.clock import Clock


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def lease(clock: Clock) -> GroupLease:
    lease = GroupLease(10, clock)
    lease.begin()
    return lease


def test_the_lease_ends_with_the_session_and_stays_lost(lease: GroupLease, clock: Clock) -> None:
    clock.now_s += 10
    assert lease.is_valid()
    clock.now_s += 0.001
    assert not lease.is_valid()
    lease.renew(clock.now_s)
    assert not lease.is_valid(), "an answer that comes late does not give the work back"
    lease.tick()
    lease.begin()
    assert lease.is_valid()


def test_a_response_renews_the_lease_from_the_send_time_of_its_request(lease: GroupLease, clock: Clock) -> None:
    asked_s = clock.now_s + 5
    clock.now_s += 8
    lease.renew(asked_s)
    clock.now_s = asked_s + 10
    assert lease.is_valid()
    clock.now_s += 0.001
    assert not lease.is_valid()


def test_the_lease_holds_while_a_response_is_pending_and_the_process_runs(lease: GroupLease, clock: Clock) -> None:
    lease.await_answer()
    for _ in range(60):
        clock.now_s += 1
        assert not lease.tick()
    clock.now_s += 10.001  # frozen
    assert not lease.is_valid()
    assert lease.tick()


def test_a_request_without_a_response_shortens_the_lease(lease: GroupLease, clock: Clock) -> None:
    lease.await_answer()
    for _ in range(20):
        clock.now_s += 1
        lease.tick()
    lease.answer_failed(3)
    clock.now_s += 3
    assert lease.is_valid()
    clock.now_s += 0.001
    assert not lease.is_valid()


def test_a_new_assignment_starts_the_lease_when_the_process_was_last_known_to_run(
    lease: GroupLease, clock: Clock
) -> None:
    lease.tick()
    clock.now_s += 4  # frozen, with the answer in the buffer
    lease.begin()
    clock.now_s += 6.001
    assert not lease.is_valid()


def test_without_an_assignment_nothing_is_lost(lease: GroupLease, clock: Clock) -> None:
    lease.end()
    clock.now_s += 3600
    assert lease.is_valid()
    lease.lose()
    assert lease.is_valid()


def test_losing_the_lease_takes_effect_immediately(lease: GroupLease) -> None:
    lease.lose()
    assert not lease.is_valid()
