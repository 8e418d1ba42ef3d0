"""Samples of the history: of a snapshot, and of what a process copies."""

from __future__ import annotations

from dataclasses import replace

import pytest

from mm2.copy.driver.status import FlowStatus, PartitionStatus
from mm2.copy.spec import PartitionProgress
from mm2.copy.states import PartitionState
from mm2.copy.tally import BOUNDS_S, Tally
from mm2.kafka.structs import TopicPartition
from mm2.observer.curves.history import STEP_MS, History, TopicSample
from mm2.observer.curves.recorder import FlowSampler, Recorder
from mm2.observer.views import FlowState, FlowView, Latency, PartitionView, Risk, Snapshot

T0, T1, U0 = TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("u", 0)


def status(*partitions: tuple[TopicPartition, int, int], state: str = "RUNNING", is_fresh: bool = True) -> FlowStatus:
    """Partitions with the records that were copied, and their lag."""
    found = {}
    for tp, records, lag in partitions:
        row = PartitionProgress(tp.topic, tp.partition, 100, 0, 100 + lag, state, "", -1, 0, False, 0, 0, {}, 0, 0)
        found[tp] = PartitionStatus(row, 0, "", is_fresh, records, 10 * records)
    total = sum(one.records for one in found.values())
    return FlowStatus(found, records=total, bytes=10 * total, tally=Tally())


ALL = {T0: 0, T1: 0, U0: 1}


def test_a_process_that_copies_everything_knows_all_values() -> None:
    sampler = FlowSampler()
    first = sampler.of_status(0, status((T0, 100, 5), (T1, 0, 0), (U0, 7, 0)), ALL)
    assert (first.records_per_s, first.lag_records) == (None, 5), "a rate needs two samples"
    second = sampler.of_status(STEP_MS, status((T0, 300, 6), (T1, 100, 1), (U0, 7, 0)), ALL)
    assert (second.records_per_s, second.bytes_per_s, second.lag_records) == (30.0, 300.0, 7)
    assert second.topics == {"t": TopicSample(30.0, 7, 0), "u": TopicSample(0.0, 0, 0)}


def test_totals_that_have_restarted_give_no_negative_rate() -> None:
    sampler = FlowSampler()
    sampler.of_status(0, status((U0, 5_000, 0)), {U0: 0})
    assert sampler.of_status(STEP_MS, status((U0, 50, 0)), {U0: 0}).records_per_s == 5.0


@pytest.mark.parametrize("assigned", [None, {}, ALL], ids=["not known", "none", "others copy some"])
def test_a_part_is_not_taken_for_the_whole(assigned: dict[TopicPartition, int] | None) -> None:
    sampler = FlowSampler()
    sampler.of_status(0, status((T0, 0, 5), (U0, 0, 3)), assigned)
    found = sampler.of_status(STEP_MS, status((T0, 100, 5), (U0, 100, 3)), assigned)
    assert (found.records_per_s, found.lag_records) == (None, None)
    assert found.topics == ({"u": TopicSample(10.0, 3, 0)} if assigned else {}), "u is copied here only"


def test_old_reports_have_no_lag_and_states_are_counted() -> None:
    found = FlowSampler().of_status(0, status((U0, 1, 3), is_fresh=False), {U0: 0})
    assert (found.lag_records, found.topics["u"].lag_records) == (None, None)
    found = FlowSampler().of_status(0, status((U0, 1, 3), state="TOO_LARGE"), {U0: 0})
    assert found.topics["u"].unhealthy == 1


def view(records: int, counts: tuple[int, ...] = ()) -> FlowView:
    latency = {"visible": Latency(BOUNDS_S, counts or (0,) * (len(BOUNDS_S) + 1))}
    partitions = (
        PartitionView("t", 0, "A.t", PartitionState.RUNNING, lag_records=2, records_per_s=3.0, records=records),
        PartitionView("t", 1, "A.t", PartitionState.CORRUPT, lag_records=None, records_per_s=4.0),
    )
    return FlowView(
        "A",
        "B",
        FlowState.RUNNING,
        "",
        Risk(1.5, None, None, 9),
        records_per_s=7.0,
        partitions=partitions,
        latency=latency,
        records=records,
    )


def test_a_snapshot_has_the_values_of_all_processes() -> None:
    sampler = FlowSampler()
    found = sampler.of_view(0, view(100))
    assert (found.records_per_s, found.lag_records, found.lag_seconds) == (7.0, 9, 1.5), "at least nine are missing"
    assert found.topics == {"t": TopicSample(7.0, None, 1)}


@pytest.mark.parametrize(("lag", "is_exact", "sample"), [(0, False, None), (0, True, 0), (4, False, 4)])
def test_a_lag_of_which_only_0_is_known_is_a_gap_of_the_curve(lag: int, is_exact: bool, sample: int | None) -> None:
    one = PartitionView(
        "t", 0, "A.t", PartitionState.RUNNING, lag_records=lag, is_lag_exact=is_exact, records_per_s=0.0
    )
    flow = replace(view(0), partitions=(one,), risk=Risk(None, lag if is_exact else None, None, lag))
    found = FlowSampler().of_view(0, flow)
    assert (found.lag_records, found.topics["t"].lag_records) == (sample, sample)


@pytest.mark.parametrize(("state", "lag"), [("RECREATED", 0), ("LOST_RANGE", 5), ("RUNNING", -3)])
def test_a_position_of_another_log_has_no_lag(state: str, lag: int) -> None:
    found = FlowSampler().of_status(0, status((U0, 1, lag), state=state), {U0: 0})
    assert (found.lag_records, found.topics["u"].lag_records) == (None, None)


def test_latencies_are_those_since_the_previous_sample() -> None:
    sampler = FlowSampler()
    none = (0,) * (len(BOUNDS_S) + 1)
    slow = (1_000, *none[1:])
    assert sampler.of_view(0, view(0, slow)).latency_s == (None, None, None), "those before are not of this time"
    fast = (1_000, *none[1:-1], 100)
    assert sampler.of_view(STEP_MS, view(0, fast)).latency_s == (BOUNDS_S[-1],) * 3
    assert sampler.of_view(2 * STEP_MS, view(0, fast)).latency_s == (None, None, None)
    restarted = (10, *none[1:])
    assert sampler.of_view(3 * STEP_MS, view(0, restarted)).latency_s[0] is not None


def test_the_recorder_uses_the_snapshot_while_there_is_one() -> None:
    history = History()
    newest = [Snapshot(STEP_MS, "1", (view(0),))]
    recorder = Recorder(history, list, lambda: pytest.fail("the engine is not needed"), lambda: newest[0])
    recorder.sample(STEP_MS + 100)
    assert history.last("A->B", "t", "unhealthy") == 1.0
    newest[0] = replace(newest[0], flows=())
    recorder.sample(2 * STEP_MS)
    assert history.last("A->B", "t", "unhealthy") is None, "the flow was removed"
