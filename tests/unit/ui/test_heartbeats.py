from collections.abc import Sequence
from dataclasses import replace

from mm2.observer.views import FlowState, FlowView, HeartbeatView, Risk, Snapshot
from mm2.ui.heartbeats import BEATS, Heartbeats, heartbeat_of


def flow(beats: Sequence[HeartbeatView] = ()) -> FlowView:
    return FlowView("A", "B", FlowState.RUNNING, "", Risk(), heartbeats=beats)


def beat(age_ms: int, route: tuple[str, ...] = ("A",), source: str = "B", target: str = "A") -> HeartbeatView:
    return HeartbeatView("A.heartbeats" if route else "heartbeats", source, target, route, age_ms)


def history_of(*moments: tuple[int, FlowView]) -> Heartbeats:
    history = Heartbeats()
    for at_ms, view in moments:
        history.add(Snapshot(at_ms, "1", (view,)))
    return history


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


def test_the_heartbeats_of_a_deleted_flow_are_deleted() -> None:
    heartbeats = history_of((1_000_000, flow(beats=[beat(1)])))
    heartbeats.add(Snapshot(1_005_000, "1", ()))
    assert not any(one.received for one in heartbeats.flow("A->B").beats(1_005_000))
