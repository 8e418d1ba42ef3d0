from collections.abc import Sequence
from dataclasses import replace

from mm2.observer.views import FlowState, FlowView, HeartbeatView, Latency, Risk, Snapshot
from mm2.ui.history import BEATS, STEP_MS, History, heartbeat_of, quantile

BOUNDS = (0.1, 1.0, 10.0)


def flow(records: int = 0, counts: Sequence[int] = (0, 0, 0, 0), beats: Sequence[HeartbeatView] = ()) -> FlowView:
    latency = {"visible": Latency(BOUNDS, tuple(counts), 0.0)}
    return FlowView("A", "B", FlowState.RUNNING, "", Risk(), records=records, latency=latency, heartbeats=beats)


def beat(age_ms: int, route: tuple[str, ...] = ("A",), source: str = "B", target: str = "A") -> HeartbeatView:
    return HeartbeatView("A.heartbeats" if route else "heartbeats", source, target, route, age_ms)


def history_of(*moments: tuple[int, FlowView]) -> History:
    history = History()
    for at_ms, view in moments:
        history.add(Snapshot(at_ms, "1", (view,)))
    return history


def test_percentiles_cover_the_time_since_the_previous_point() -> None:
    history = history_of(
        (0, flow(100, (1_000, 0, 0, 0))),
        (STEP_MS, flow(600, (1_000, 100, 0, 0))),
        (2 * STEP_MS, flow(600, (1_000, 100, 0, 0))),
    )
    first, second = history.flow("A->B").points
    assert first.records_per_s == 100.0
    low, _, high = first.latency_s
    assert low is not None
    assert high is not None
    assert 0.5 < low < 0.6
    assert 0.98 < high <= 1.0  # all hundred new batches took between 0.1 and 1 second
    assert second.records_per_s == 0.0
    assert second.latency_s == (None, None, None)


def test_restarted_totals_do_not_cause_a_negative_rate() -> None:
    history = history_of((0, flow(5_000, (9, 9, 9, 9))), (STEP_MS, flow(50, (1, 0, 0, 0))))
    (point,) = history.flow("A->B").points
    assert point.records_per_s == 10.0
    assert point.latency_s[0] == 0.05


def test_unrecorded_time_is_a_gap_in_the_curve() -> None:
    points = history_of((0, flow(0)), (STEP_MS, flow(5)), (100 * STEP_MS, flow(10))).flow("A->B").points
    assert [point.records_per_s is None for point in points] == [False, True, False]


def test_a_missed_heartbeat_stays_visible() -> None:
    at_ms, moments = 1_000_000, []
    for second in range(60):
        delay_s = max(0, second - 20) if second < 40 else 0
        moments.append((at_ms + 1000 * second, flow(beats=[beat(300 + 1000 * delay_s)])))
    marks = [one.received for one in history_of(*moments).flow("A->B").beats(at_ms + 59_000)]
    assert len(marks) == BEATS
    seen = [mark for mark in marks if mark is not None]
    assert len(seen) == 12
    assert seen[:5] == [True] * 5
    assert False in seen[5:8]
    assert seen[-3:] == [True] * 3


def test_infrequent_heartbeats_are_not_missed() -> None:
    # One every ten seconds: the newest is up to ten seconds old, which is expected.
    moments = [(1_000_000 + 1000 * second, flow(beats=[beat(1000 * (second % 10))])) for second in range(120)]
    marks = [one.received for one in history_of(*moments).flow("A->B").beats(moments[-1][0])]
    assert False not in marks[-18:]


def test_copied_heartbeats_take_precedence_over_written_ones() -> None:
    written = beat(10, (), "A", "B")
    copied, older, passing = beat(500), beat(900), beat(1, ("C", "A"), "D", "C")
    assert heartbeat_of(flow(beats=[written, older, copied, passing])) is copied
    assert heartbeat_of(flow(beats=[written, passing])) is written
    assert heartbeat_of(flow()) is None
    silent = replace(flow(beats=[written, copied]), source_error="A does not answer")
    assert heartbeat_of(silent) is copied
    assert heartbeat_of(replace(silent, heartbeats=(written,))) is None, "the worker writes it without the source"


def test_quantiles() -> None:
    assert quantile(BOUNDS, (0, 0, 0, 0), 0.5) is None
    assert quantile(BOUNDS, (10, 0, 0, 0), 0.5) == 0.05
    assert quantile(BOUNDS, (0, 0, 0, 7), 0.99) == 10.0
    assert quantile(BOUNDS, (50, 0, 50, 0), 0.75) == 5.5


def test_the_history_of_a_deleted_flow_is_deleted() -> None:
    history = history_of((0, flow(0)), (STEP_MS, flow(5)))
    history.add(Snapshot(2 * STEP_MS, "1", ()))
    assert not history.flow("A->B").points
