"""The values of the last day: their points, their resolution, and the memory that they take."""

from __future__ import annotations

import tracemalloc

from mm2.observer.curves import history as history_module
from mm2.observer.curves.history import (
    COARSE_POINTS,
    COARSE_STEP_MS,
    FINE_POINTS,
    STEP_MS,
    TOPICS_KEPT,
    FlowSample,
    History,
    TopicSample,
    latency_name,
    quantile,
)

BOUNDS = (0.1, 1.0, 10.0)
HOUR_MS = 3_600_000
FLOW = "A->B"


def sample(rate: float | None, lag: float | None = 0.0, topics: dict[str, TopicSample] | None = None) -> FlowSample:
    return FlowSample(rate, None, lag, None, (0.1, None, None), topics or {"orders": TopicSample(rate, lag, 0)})


def recorded(*rates: float | None, step_ms: int = STEP_MS, first_ms: int = STEP_MS) -> History:
    history = History()
    for number, rate in enumerate(rates):
        history.add(first_ms + number * step_ms, {FLOW: sample(rate, rate)})
    return history


def values(history: History, since_ms: int, topic: str = "", name: str = "records_per_s") -> list[float | None]:
    return [value for _, value in history.points(FLOW, topic, name, since_ms)]


def test_the_newest_half_hour_has_every_sample() -> None:
    history = recorded(*map(float, range(FINE_POINTS + 20)))
    assert values(history, 21 * STEP_MS) == [*map(float, range(20, FINE_POINTS + 20))]
    newest_ms = (FINE_POINTS + 20) * STEP_MS
    shown = history.points(FLOW, "orders", "records_per_s", newest_ms - 10 * STEP_MS)
    assert shown == [(newest_ms - back * STEP_MS, 199.0 - back) for back in range(10, -1, -1)]
    assert history.newest(FLOW, ["orders", "absent"], "records_per_s", 2) == [[198.0, 199.0], []]
    assert history.last(FLOW, "", latency_name(0.5)) == 0.10000000149011612, "32 bits"


def test_a_day_has_averages_of_rates_and_the_highest_lags() -> None:
    # The rate is 10 and, in one sample of each five minutes, 310; so is the lag.
    count = 25 * HOUR_MS // STEP_MS
    history = recorded(*(310.0 if number % 30 == 7 else 10.0 for number in range(count)))
    newest_ms = count * STEP_MS
    day = history.points(FLOW, "orders", "records_per_s", newest_ms - 24 * HOUR_MS)
    assert day[0][0] <= newest_ms - 24 * HOUR_MS + 2 * COARSE_STEP_MS
    assert len(day) >= 24 * HOUR_MS // COARSE_STEP_MS
    assert {value for _, value in day[:-1]} == {20.0}
    assert set(values(history, newest_ms - 24 * HOUR_MS, "orders", "lag_records")[:-1]) == {310.0}
    times = [at_ms for at_ms, _ in day]
    assert times == sorted(times)


def test_old_points_are_replaced() -> None:
    history = recorded(*([1.0] * 9_500), *([2.0] * 9_500))
    assert len(history.points(FLOW, "", "records_per_s", 0)) <= COARSE_POINTS + 1
    assert set(values(history, 0)) == {2.0}


def test_unknown_and_unrecorded_values_are_gaps() -> None:
    history = recorded(1.0, None, 3.0)
    history.add(1_000_000, {FLOW: sample(4.0)})
    assert values(history, 0) == [1.0, None, 3.0, None, 4.0]


def test_a_topic_that_appears_later_has_no_earlier_values() -> None:
    history = recorded(1.0, 1.0)
    topics = {"new": TopicSample(5.0, 0.0, 0)}
    history.add(3 * STEP_MS, {FLOW: sample(1.0, topics=topics)})
    assert values(history, 0, "new") == [None, None, 5.0]
    assert values(history, 0, "orders") == [1.0, 1.0, None]


def test_a_clock_that_was_set_back_ends_no_curve() -> None:
    history = recorded(*[1.0] * 10, step_ms=COARSE_STEP_MS, first_ms=10 * HOUR_MS)
    for number in range(8):
        history.add(5 * HOUR_MS + number * COARSE_STEP_MS, {FLOW: sample(3.0)})
    assert [value for value in values(history, 0) if value is not None] == [*[1.0] * 10, *[3.0] * 8]


def test_a_curve_never_has_fewer_points_than_before() -> None:
    """A chart of a day or of six hours, in each minute of the first five hours of a process."""
    history, counts = History(), []
    for number in range(5 * HOUR_MS // STEP_MS):
        history.add(number * STEP_MS, {FLOW: sample(1.0)})
        if number % 6 == 5:
            counts.append((number // 6 + 1, len(values(history, number * STEP_MS - 24 * HOUR_MS))))
    first_half_hour = [(minutes, count) for minutes, count in counts if minutes <= 30]
    assert first_half_hour == [(minutes, 6 * minutes) for minutes in range(1, 31)]
    assert min(count for minutes, count in counts if 30 < minutes < 140) >= FINE_POINTS
    assert min(count for minutes, count in counts if minutes >= 140) > 24


def test_a_removed_flow_is_forgotten() -> None:
    history = recorded(1.0, 2.0)
    history.add(3 * STEP_MS, {})
    assert values(history, 0) == []


def test_the_number_of_topics_and_the_memory_are_bounded() -> None:
    topics = {f"t{number}": TopicSample(1.0, 2.0, 0) for number in range(50)}
    more = {f"u{number}": TopicSample(1.0, 2.0, 0) for number in range(TOPICS_KEPT)}
    history = History()
    tracemalloc.start()
    try:
        for number in range(2 * FINE_POINTS):
            history.add(number * COARSE_STEP_MS, {FLOW: sample(1.0, topics=topics)})
        snapshot = tracemalloc.take_snapshot().filter_traces([tracemalloc.Filter(True, history_module.__file__)])
    finally:
        tracemalloc.stop()
    taken = sum(found.size for found in snapshot.statistics("filename"))  # not by threads of other tests
    assert 1_000 < taken / len(topics) < 7_500, "as documented in mm2.observer.curves.history"
    history.add(10**10, {FLOW: sample(1.0, topics=topics | more)})
    known = sum(bool(history.newest(FLOW, [name], "records_per_s", 1)[0]) for name in [*topics, *more])
    assert known == TOPICS_KEPT


def test_quantiles() -> None:
    assert quantile(BOUNDS, (0, 0, 0, 0), 0.5) is None
    assert quantile(BOUNDS, (10, 0, 0, 0), 0.5) == 0.05
    assert quantile(BOUNDS, (0, 0, 0, 7), 0.99) == 10.0
    assert quantile(BOUNDS, (50, 0, 50, 0), 0.75) == 5.5
