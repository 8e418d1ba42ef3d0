"""The times at which a partition's end passed an offset."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mm2.observer.polling.end_offsets import EndOffsetHistory


def history(*samples: tuple[float, int]) -> EndOffsetHistory:
    made = EndOffsetHistory()
    for at_s, end in samples:
        made.see(at_s, end)
    return made


def test_a_record_ages_from_the_first_poll_that_saw_it() -> None:
    seen = history((1, 10), (2, 10), (3, 15), (4, 20))
    assert seen.passed(10) == 3
    assert seen.passed(14) == 3
    assert seen.passed(15) == 4


def test_records_of_the_first_poll_have_a_minimum_age_only() -> None:
    assert history((1, 10), (2, 12)).passed(9) is None
    assert history((1, 10)).passed(3) is None


def test_no_lag_has_no_age() -> None:
    seen = history((1, 10), (2, 12))
    assert seen.passed(12) is None
    assert EndOffsetHistory().passed(0) is None


def test_a_truncated_log_starts_a_new_history() -> None:
    seen = history((1, 10), (2, 20), (3, 5))
    assert seen.end == 5
    assert seen.passed(4) is None
    seen.see(4, 8)
    assert seen.passed(5) == 4


@given(st.lists(st.integers(0, 5), min_size=1, max_size=300), st.data())
def test_an_age_is_never_overstated_and_memory_is_bounded(gains: list[int], data: st.DataObject) -> None:
    made, end, written = EndOffsetHistory(), 100, {}
    made.see(0, end)
    for at_s, gain in enumerate(gains, 1):
        written.update(dict.fromkeys(range(end, end + gain), at_s))
        end += gain
        made.see(at_s, end)
    position = data.draw(st.integers(90, end))
    passed = made.passed(position)
    if position < 100 or position == end:
        assert passed is None
    else:
        assert passed is not None
        assert passed >= written[position]
        # At most a few polls later, because only every second sample of many is kept.
        assert made.passed(end) is None
    assert len(made._ends) <= 65
