"""Limits: held over time, fair to the tail, and never so small that nothing moves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy.executor.fetching.throttle import Throttle
from mm2.kafka.backoff import TokenBucket


def copied(throttle: Throttle, seconds: float, *, topic: str = "t", behind: bool = False, batch: int = 0) -> int:
    """Bytes that come in that time when as much is taken as may be, in batches of at least ``batch``."""
    now, total = 100.0, 0
    while now < 100.0 + seconds:
        room, wait_s = throttle.room(topic, now, behind=behind)
        if room:
            size = max(int(room), batch)
            throttle.consume(topic, size)
            total += size
            now += 0.01
        else:
            now += max(wait_s, 0.001)
    return total


@settings(deadline=None)
@given(st.sampled_from([100.0, 1_000.0, 5_000.0, 1e6]), st.booleans(), st.integers(0, 200_000))
def test_a_rate_is_kept_over_time_with_batches_of_any_size(rate: float, behind: bool, batch: int) -> None:
    seconds = 100 + 4 * (batch + 4096) / rate
    total = copied(Throttle(rate), seconds, behind=behind, batch=batch)
    most = rate * seconds + max(rate, 4096) + max(batch, rate, 4096)
    assert 0.5 * rate * seconds - batch <= total <= most


@pytest.mark.parametrize("rate", [10.0, 500.0, 1_500.0])
def test_a_small_limit_shared_by_many_still_lets_a_backfill_through(rate: float) -> None:
    throttle = Throttle(rate)
    room, _ = throttle.room("t", 1.0, behind=True)
    assert room >= 1024
    throttle.consume("t", 100_000)
    room, wait_s = throttle.room("t", 1.0, behind=True)
    assert room == 0
    room, _ = throttle.room("t", 1.0 + wait_s + 0.01, behind=True)
    assert room >= 1024


def test_the_tail_gets_its_share_beside_a_backfill() -> None:
    throttle = Throttle(100_000)
    backfill, _ = throttle.room("t", 1.0, behind=True)
    throttle.consume("t", int(backfill))
    assert throttle.room("t", 1.0, behind=True)[0] == 0
    tail, _ = throttle.room("u", 1.0, behind=False)
    assert tail == 50_000


def test_a_topic_limit_applies_to_the_topic_and_a_flow_limit_to_all() -> None:
    throttle = Throttle(100_000, {"slow": 10_000})
    assert throttle.room("slow", 1.0, behind=False)[0] == 10_000
    throttle.consume("slow", 10_000)
    assert throttle.room("slow", 1.0, behind=False)[0] == 0
    assert throttle.room("fast", 1.0, behind=False)[0] == 90_000
    assert throttle.flow_room(behind=False) == 90_000


def test_without_limits_everything_is_allowed() -> None:
    throttle = Throttle()
    assert not throttle.active
    assert throttle.room("t", 1.0, behind=True) == (float("inf"), 0.0)
    assert throttle.flow_room(behind=True) == float("inf")


def test_changed_rates_apply_immediately_and_unchanged_ones_keep_their_usage() -> None:
    throttle = Throttle(100_000, {"t": 10_000, "u": 0})
    throttle.room("t", 1.0, behind=False)
    throttle.consume("t", 10_000)
    throttle.set(50_000, {"t": 10_000})
    assert throttle.room("t", 1.0, behind=False)[0] == 0
    throttle.set(0, {"t": 20_000})
    assert throttle.room("t", 1.0, behind=False)[0] == 20_000
    throttle.set(0, {})
    assert not throttle.active


def test_a_bucket_holds_at_most_its_size_and_may_owe_more() -> None:
    bucket = TokenBucket(10_000, size=10_000)
    bucket.fill(5.0)
    bucket.fill(500.0)
    assert bucket.tokens == 10_000
    bucket.tokens -= 30_000
    assert bucket.wait_s(501.0, 1_000) == pytest.approx(1.1)
    assert bucket.tokens == -10_000


def test_a_bucket_without_size_collects_nothing_while_it_is_unused() -> None:
    bucket = TokenBucket(100, size=0, filled_s=5.0)
    bucket.fill(500.0)
    bucket.tokens -= 50
    assert (bucket.wait_s(500.0), bucket.wait_s(500.5), bucket.wait_s(900.0)) == (0.5, 0.0, 0.0)
