from hypothesis import given
from hypothesis import strategies as st

from mm2.copy.executor.window import LARGEST, PATIENCE_S, SMALLEST, Window


def test_a_burst_is_sent_in_steps_that_double_with_each_commit() -> None:
    window, backlog, steps, now = Window(), 10_000, [], 100.0
    while backlog:
        step = 0
        while backlog and window.is_open(now):
            window.sent(50, now)
            backlog -= 50
            step += 50
        steps.append(step)
        now += 0.01
        window.confirmed(step, now)
    assert steps == [250, 500, 1000, 2000, 4000, 2250]


def test_a_window_that_is_not_needed_closes_again() -> None:
    window = Window(size=8_000)
    for now in range(10):
        assert window.is_open(now)
        window.sent(100, now)
        window.confirmed(100, now + 0.5)
    assert window.size == SMALLEST


def test_a_window_that_is_half_used_keeps_its_size_and_asks_for_a_commit() -> None:
    window = Window(size=1_000)
    window.sent(499, 1.0)
    before = window.wants_commit
    window.sent(1, 1.0)
    assert (before, window.wants_commit) == (False, True)
    window.confirmed(500, 1.1)
    assert (window.size, window.ahead) == (1_000, 0)


def test_without_commits_copying_waits_a_while_and_then_goes_on() -> None:
    window = Window()
    window.sent(SMALLEST, 10.0)
    assert not window.is_open(10.0)
    assert not window.is_open(10.0 + PATIENCE_S)
    assert window.is_open(10.1 + PATIENCE_S)
    window.sent(SMALLEST, 11.0)
    assert window.is_open(11.0), "until the first commit that comes back"
    window.confirmed(SMALLEST, 11.1)
    assert window.is_open(11.1)


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 5_000))))
def test_it_never_leaves_its_bounds(steps: list[tuple[bool, int]]) -> None:
    window = Window()
    for now, (confirm, count) in enumerate(steps):
        if confirm:
            window.confirmed(count, now)
        elif window.is_open(now):
            window.sent(count, now)
        assert SMALLEST <= window.size <= LARGEST
        assert window.ahead >= 0
