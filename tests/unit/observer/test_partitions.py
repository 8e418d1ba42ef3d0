"""Partitions put together from ledger, source and copier."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy.driver.status import FlowStatus, PartitionStatus
from mm2.copy.progress.ledger import Ledger, Pause, Verified, entry_record, pause_record, verified_record
from mm2.copy.progress.session import LedgerEntry, Lost, Mark, PartitionCondition
from mm2.copy.spec import PartitionProgress
from mm2.copy.states import BEHIND_OFFSETS, LASTING, PartitionState
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror.groups.target_logs import TargetLoss
from mm2.mirror.notes.preparation import Preparation, filling
from mm2.mirror.notes.promotions import Promotion
from mm2.observer import partition_views
from mm2.observer import partitions as module
from mm2.observer.flow_state import FlowInputs, state_of, summary_of
from mm2.observer.partition_inputs import PartitionInputs, PartitionMemory
from mm2.observer.partitions import LOSSES_REPORTED_MS, STALLED_S, Partitions, PartitionViews
from mm2.observer.polling.polls import SourceLogs
from mm2.observer.polling.timestamps import BatchTimestamp
from mm2.observer.shown.shapes import page_json
from mm2.observer.views import FlowState, LossView, PartitionView
from mm2.observer.work import Work
from mm2.reasons import PauseCode, TargetLossCode

T0 = TopicPartition("t", 0)
T1 = TopicPartition("t", 1)
NOW_MS = 1_700_000_000_000
ANN = Pause("ann", 5)


class Environment:
    """A partition book with its inputs and a manual clock."""

    def __init__(self) -> None:
        self.book = PartitionViews()
        self.ledger = Ledger()
        self.at_s = 100.0
        self.ends: dict[TopicPartition, int] = {}
        self.statuses: dict[TopicPartition, PartitionStatus] = {}
        self.more: dict[str, Any] = {"tasks": {T0: 0, T1: 1}}

    def entry(self, tp: TopicPartition, position: int, records: int = 0, **more: Any) -> None:
        entry = LedgerEntry(tp.topic, tp.partition, f"A.{tp.topic}", Mark(position, position, records), **more)
        record = entry_record(entry)
        self.ledger.apply(record.key, record.value, NOW_MS)

    def row(self, tp: TopicPartition, position: int, end: int, *, fresh: bool = True, **more: Any) -> None:
        fields: dict[str, Any] = {
            "state": "RUNNING",
            "reason": "",
            "records": position,
            "bytes": position * 100,
            "lost": 0,
            **more,
        }
        row = PartitionProgress(
            tp.topic,
            tp.partition,
            position,
            position,
            end,
            offset=-1,
            since_ms=-1,
            stopped=False,
            gaps={},
            foreign=0,
            **fields,
        )
        self.statuses[tp] = PartitionStatus(row, 0, f"A.{tp.topic}", fresh, row.records, row.bytes)

    def pause(self, partition: int | None, pause: Pause | None = ANN) -> None:
        record = pause_record("t", partition, pause)
        self.ledger.apply(record.key, record.value)

    def refresh(self, after_s: float = 1.0, **more: Any) -> Partitions:
        self.at_s += after_s
        now_ms = NOW_MS + int((self.at_s - 100) * 1000)
        given = {"ends": dict(self.ends), "ends_at_s": self.at_s, "statuses": dict(self.statuses), **self.more, **more}

        def part(kind: Any, **names: str) -> Any:
            return kind(**{name: given.pop(key) for name, key in names.items() if key in given})

        source = part(SourceLogs, **{one.name: one.name for one in dataclasses.fields(SourceLogs)})
        status = part(FlowStatus, partitions="statuses", left="left")
        work = part(Work, tasks="tasks", failed="failed_tasks", held="held", idle_reason="idle", absent="absent")
        losses = dict.fromkeys(self.ledger.partitions())
        given = {"as_of_s": self.at_s, "target_losses": losses, **given}
        return self.book.read(
            PartitionInputs(self.at_s, now_ms, ledger=self.ledger, source=source, status=status, work=work, **given)
        )


@pytest.fixture
def env() -> Environment:
    made = Environment()
    made.entry(T0, 10, 10)
    made.entry(T1, 20, 20)
    made.ends = {T0: 10, T1: 20}
    return made


def test_no_lag_means_nothing_at_risk(env: Environment) -> None:
    seen = env.refresh()
    assert (seen.risk.seconds, seen.risk.records, seen.risk.bytes) == (0.0, 0, 0)
    assert seen.states == {PartitionState.RUNNING: 2}


def test_a_backlog_ages_from_the_poll_that_first_saw_it(env: Environment) -> None:
    env.refresh()
    env.ends[T1] = 25
    env.refresh()
    seen = env.refresh(5)
    assert (seen.risk.seconds, seen.risk.records) == (5.0, 5)
    assert seen.wanted == []
    env.entry(T1, 25, 25)
    assert env.refresh().risk.seconds == 0.0


def test_a_small_backlog_of_old_records_is_catching_up(env: Environment) -> None:
    """By age as well as by count, whatever the copier or the ledger reports; up to half a minute it is RUNNING."""
    env.refresh()
    env.ends[T1] = 25
    env.row(T1, 20, 25)
    env.refresh()
    assert env.refresh(30).views[1].state is PartitionState.RUNNING
    seen = env.refresh(2).views[1]
    assert (seen.state, seen.lag_records, seen.is_unhealthy) == (PartitionState.CATCHING_UP, 5, False)


def test_a_backlog_older_than_the_history_has_the_age_of_its_record(env: Environment) -> None:
    env.ends[T1] = 50
    seen = env.refresh()
    assert seen.wanted == [(T1, 20)]
    assert (seen.risk.seconds, seen.risk.records) == (None, 30)
    seen = env.refresh(0, stamps={T1: BatchTimestamp(20, 30, NOW_MS - 59_000)})
    assert seen.risk.seconds == 60.0
    assert seen.wanted == [(T1, 20)], "the source drops timestamps that are not requested any more"


def test_verified_offsets_of_replaced_topics_are_not_reported(env: Environment) -> None:
    env.entry(T0, 90, source_id="s", target_id="r")
    env.entry(T1, 90, source_id="s", target_id="r")
    for tp, target_id in ((T0, "r"), (T1, "another")):
        record = verified_record(tp, Verified(0, 80, 80, NOW_MS, source_id="s", target_id=target_id))
        env.ledger.apply(record.key, record.value)
    assert [view.verified_offset for view in env.refresh().views] == [80, None]


def test_without_a_timestamp_the_age_is_the_time_since_the_first_poll(env: Environment) -> None:
    env.ends[T1] = 50
    env.refresh()
    assert env.refresh(4, stamps={T1: BatchTimestamp(20, 30, None)}).risk.seconds == 4.0


def test_records_do_not_age_while_the_source_is_unreachable(env: Environment) -> None:
    env.refresh()
    env.ends[T1] = 25
    silent_s = env.at_s + 1
    env.refresh()
    seen = env.refresh(60, as_of_s=silent_s + 2, ends_at_s=silent_s)
    assert (seen.risk.seconds, seen.risk.records) == (2.0, 5)
    assert seen.stalled == []


def test_without_the_source_the_ledgers_end_offset_counts(env: Environment) -> None:
    env.ends = {}
    env.entry(T0, 10, 10, end=15)
    risk = env.refresh(ends_at_s=0.0).risk
    assert (risk.records, risk.records_at_least) == (None, 5), "the source has not been asked yet"


def test_a_silent_source_has_at_least_the_records_that_are_known(env: Environment) -> None:
    """Given a running, a paused and a blocked partition whose entries are old, and newer end offsets in the ledger's notes."""
    env.pause(1, Pause("ann@ops1", 1, ""))
    blocked = TopicPartition("t", 2)
    env.more["tasks"][blocked] = 0
    env.entry(blocked, 30, 30, condition=PartitionCondition("TOO_LARGE", "too large", 30, 1), end=31)
    env.ends = {}
    silent: dict[str, Any] = {
        "ends_at_s": 0.0,
        "silent": "A does not answer: refused",
        "silent_since_ms": NOW_MS - 5_000,
    }
    seen = env.refresh(**silent, noted={T0: 10, T1: 70, blocked: 130})
    assert (seen.risk.records, seen.risk.records_at_least) == (None, 150)
    assert [(view.state, view.since_ms, view.lag_records) for view in seen.views] == [
        (PartitionState.UNREACHABLE, NOW_MS - 5_000, 0),
        (PartitionState.PAUSED, 1, 50),
        (PartitionState.TOO_LARGE, 1, 100),
    ]
    assert seen.views[0].reason == "A does not answer: refused"


def test_a_partition_is_not_running_while_the_target_does_not_answer_and_no_task_reports(env: Environment) -> None:
    """The workers have left their group, whose coordinator is on the target. What a copier has just reported is its own state."""
    env.pause(1, Pause("ann@ops1", 1, ""))
    silent: dict[str, Any] = {"target_silent": "B does not answer: refused", "target_silent_since_ms": NOW_MS - 5_000}
    running, held = env.refresh(**silent).views
    assert (running.state, running.since_ms) == (PartitionState.UNREACHABLE, NOW_MS - 5_000)
    assert (running.reason, held.state) == ("B does not answer: refused", PartitionState.PAUSED)
    env.row(T0, 10, 10, fresh=True)
    assert env.refresh(**silent).views[0].state is PartitionState.RUNNING


def test_an_end_offset_that_is_not_the_current_one_makes_the_sum_a_lower_bound(env: Environment) -> None:
    env.refresh()
    env.ends[T1] = 25
    exact, without = (
        env.refresh().risk,
        env.refresh(missing={T0: BrokerFailure(5, "LEADER_NOT_AVAILABLE", "no leader", True)}).risk,
    )
    assert (exact.records, exact.records_at_least) == (5, 5)
    assert (without.records, without.records_at_least) == (None, 5)


def test_the_copier_of_this_process_is_newer_than_the_ledger(env: Environment) -> None:
    env.row(T0, 14, 16)
    view = env.refresh().views[0]
    assert (view.position, view.source_end, view.lag_records, view.lag_bytes) == (14, 16, 2, 200)
    env.row(T0, 14, 16, fresh=False)
    env.entry(T0, 15, 15)
    assert env.refresh().views[0].position == 15


def test_a_truncated_log_has_its_new_end(env: Environment) -> None:
    env.refresh()
    env.ends[T0] = 7
    assert env.refresh().views[0].source_end == 7


def test_an_older_response_does_not_override_the_copier(env: Environment) -> None:
    asked_s = env.at_s
    env.row(T0, 12, 12)
    assert env.refresh(ends_at_s=asked_s).views[0].source_end == 12


@pytest.mark.parametrize(
    ("more", "state", "reason"),
    [
        ({"failed_tasks": {1: "ConnectError: no"}}, PartitionState.FAILED, "task 1 has failed: ConnectError: no"),
        ({"held": "paused"}, PartitionState.PAUSED, "copying is paused"),
        ({"tasks": {T0: 0}}, PartitionState.PAUSED, "no task copies it any more: its topic is not selected"),
        ({"idle": "no worker", "absent": "it has none"}, PartitionState.PAUSED, "nothing is copied: no worker"),
        (
            {"tasks": {T0: 0}, "missing": {T1: BrokerFailure.of(5, subject="t-1")}},  # its leader does not respond
            PartitionState.PAUSED,
            "no task copies it any more: its topic is not selected",
        ),
        (
            {"tasks": {T0: 0}, "missing": {T1: BrokerFailure.of(3, subject="t-1")}},
            PartitionState.DELETED,
            str(BrokerFailure.of(3, subject="t-1")),
        ),
    ],
)
def test_a_state_has_its_reason(env: Environment, more: dict[str, Any], state: PartitionState, reason: str) -> None:
    view = env.refresh(**more).views[1]
    assert (view.state, view.reason) == (state, reason)


def test_errors_pauses_and_lag_of_other_processes_are_reported(env: Environment) -> None:
    env.entry(T0, 10, 10, condition=PartitionCondition("CORRUPT", "bad bytes", 10, 77))
    env.ends[T1] = 20 + BEHIND_OFFSETS + 1
    first, second = env.refresh().views
    assert (first.state, first.reason, first.since_ms) == (PartitionState.CORRUPT, "bad bytes", 77)
    assert second.state is PartitionState.CATCHING_UP
    env.pause(None)
    assert [view.state for view in env.refresh().views] == [PartitionState.CORRUPT, PartitionState.PAUSED]


def test_partitions_without_a_task_count_in_no_figure(env: Environment) -> None:
    env.ends[T1] = 99
    seen = env.refresh(tasks={T0: 0})
    assert (seen.risk.records, len(seen.views), seen.states) == (0, 2, {PartitionState.RUNNING: 1})


def promote(env: Environment, topic: str, *, turned: bool = False) -> None:
    record = Promotion(topic, topic, "failover", NOW_MS, turned).record()
    env.ledger.apply(record.key, record.value)


def test_a_topic_that_was_failed_back_counts_in_no_figure(env: Environment) -> None:
    """Given identity naming. What the flow in the opposite direction copies to the source is on the target."""
    other = TopicPartition("other", 0)
    env.more["tasks"][other] = 1
    env.entry(other, 50, 50)
    env.ends[other] = 53
    env.row(T0, 10, 10, state="PAUSED", reason="paused by mm2 failover")
    env.refresh()
    promote(env, "t", turned=True)
    env.ends |= {T0: 5_000, T1: 5_000}
    seen = env.refresh(STALLED_S + 1)
    assert (seen.risk.records, seen.states, seen.stalled) == (3, {PartitionState.RUNNING: 1}, [other])
    turned = seen.views[1:]
    assert {(view.state, view.pause, view.lag_records, view.is_counted) for view in turned} == {
        (PartitionState.PAUSED, PauseCode.TURNED, None, False)
    }
    assert "the flow in the opposite direction copies this topic" in turned[0].reason


def test_a_flow_whose_topics_were_all_failed_back_has_nothing_at_risk(env: Environment) -> None:
    promote(env, "t", turned=True)
    env.ends |= {T0: 5_000, T1: 5_000}
    seen = env.refresh()
    inputs = FlowInputs("A", "B", True, seen)
    assert (seen.risk.seconds, seen.risk.records, seen.risk.bytes) == (0.0, 0, 0)
    assert (state_of(inputs), summary_of(inputs)) == (FlowState.RUNNING, "If A dies now you lose nothing.")


def test_records_that_are_written_to_a_promoted_topic_are_at_risk_until_failback(env: Environment) -> None:
    promote(env, "t")
    env.ends[T0] = 40
    seen = env.refresh()
    assert (seen.risk.records, seen.states) == (30, {PartitionState.PAUSED: 2})
    assert {(view.pause, view.is_counted) for view in seen.views} == {(PauseCode.PROMOTED, True)}
    assert "promoted, until mm2 failback" in seen.views[0].reason


def test_a_pause_has_its_code(env: Environment) -> None:
    env.pause(0)
    assert [view.pause for view in env.refresh().views] == [PauseCode.USER, None]
    assert [view.pause for view in env.refresh(held="stopped").views] == [PauseCode.USER, PauseCode.FLOW]
    assert env.refresh(tasks={T0: 0}).views[1].pause is PauseCode.NOT_SELECTED
    env.row(T0, 10, 10, state="PAUSED", reason="paused by ann")
    assert env.refresh().views[0].pause is PauseCode.USER
    env.pause(0, None)
    assert env.refresh().views[0].pause is None, "it was resumed, and the copier does not know it yet"


def test_a_partition_with_lag_and_no_progress_is_stalled(env: Environment) -> None:
    env.refresh()
    env.ends[T0] = 30
    env.refresh()
    assert env.refresh(STALLED_S - 1).stalled == []
    assert env.refresh(5).stalled == [T0]
    env.entry(T0, 29, 29)
    assert env.refresh().stalled == []


def test_losses_are_listed_for_a_day_newest_first_and_counted_permanently(env: Environment) -> None:
    at_ms = NOW_MS - LOSSES_REPORTED_MS + 60_000  # listed for another minute
    env.entry(
        T0, 900, lost=(Lost(0, 5, "retention", at_ms - 120_000), Lost(300, 900, "retention", at_ms)), lost_before=4
    )
    env.entry(T1, 20, lost=(Lost(3, 4, "recreated", at_ms + 1_000),))
    seen = env.refresh()
    assert seen.losses == [
        LossView("t", 1, 3, 3, "recreated", at_ms + 1_000),
        LossView("t", 0, 300, 899, "retention", at_ms),
    ]
    assert [one.topic for one in env.refresh(after_s=59).losses] == ["t"]
    seen = env.refresh()
    assert (seen.losses, seen.lost_ranges) == ([], 7)
    env.entry(T1, 20, gaps={"recreated": 1}, lost=(Lost(3, 4, "recreated", NOW_MS),))
    seen = env.refresh()
    assert seen.losses
    deselected = env.refresh(tasks={T0: 0})
    assert (deselected.losses, deselected.lost_ranges, deselected.gaps) == (seen.losses, seen.lost_ranges, seen.gaps)


def test_new_losses_of_the_copier_are_looked_up_immediately(env: Environment) -> None:
    env.row(T0, 10, 10)
    env.refresh()
    env.entry(T0, 900, lost=(Lost(300, 900, "retention", NOW_MS),))
    assert not env.refresh().losses  # entries of partitions that are copied here are only parsed occasionally
    env.row(T0, 900, 900, lost=1)
    assert [one.last for one in env.refresh().losses] == [899]


def test_no_traffic_is_no_stall(env: Environment) -> None:
    env.refresh()
    assert env.refresh(10 * STALLED_S).stalled == []


def test_partitions_that_have_not_started_are_distinguished(env: Environment) -> None:
    tp = TopicPartition("new", 0)
    env.more["tasks"][tp] = 0
    env.ends[tp] = 1000
    seen = env.refresh()
    assert (seen.unbegun, seen.risk.records, seen.risk.records_at_least, seen.risk.seconds) == (1, None, 0, None)
    env.ends[tp] = 0
    seen = env.refresh()
    assert (seen.unbegun, seen.risk.records) == (0, 0)


def test_a_partition_of_unknown_lag_makes_age_and_bytes_unknown(env: Environment) -> None:
    """Not 0: then Mm2RpoExceeded and Mm2RiskUnknown would both be silent."""
    tp = TopicPartition("denied", 0)
    env.more["tasks"][tp] = 0
    seen = env.refresh(missing={tp: BrokerFailure.of(29, subject="topic denied")})
    assert seen.unbegun == 0
    assert (seen.risk.seconds, seen.risk.records, seen.risk.bytes) == (None, None, None)
    assert seen.risk.records_at_least == 0
    env.ends[tp] = 0
    assert (env.refresh().risk.seconds, env.refresh().risk.bytes) == (0.0, 0), "it is empty"
    env.ends[tp] = 7
    assert env.refresh().risk.bytes is None, "it has records, and no position"


STOPPED = "t-0 of A was deleted and recreated; source.data.loss is stop"


@pytest.mark.parametrize(
    ("state", "start", "end", "lag"),
    [
        (PartitionState.RECREATED, 0, 40, 40),
        (PartitionState.RECREATED, 5, 5_000, 4_995),
        (PartitionState.RECREATED, None, 40, None),
        (PartitionState.LOST_RANGE, 150, 400, 250),  # retention has removed what was to be copied next
        (PartitionState.LOST_RANGE, 0, 60, 0),  # the source was truncated, and what follows is not known
        (PartitionState.LOST_RANGE, 0, 100, 10),
    ],
)
def test_the_lag_is_a_lower_bound_if_the_position_may_be_of_another_log(
    env: Environment, state: PartitionState, start: int | None, end: int, lag: int | None
) -> None:
    """Not max(0, end - position), which is 0 for the first records of a recreated topic."""
    env.entry(T0, 90, 90, condition=PartitionCondition(state, STOPPED, 90, 5))
    env.ends[T0] = end
    seen = env.refresh(starts={} if start is None else {T0: start})
    view = seen.views[0]
    assert (view.lag_records, view.is_lag_exact, view.lag_seconds) == (lag, False, None)
    assert (seen.risk.records, seen.risk.records_at_least, seen.risk.seconds) == (None, lag or 0, None)
    assert (set(seen.other_logs), seen.wanted, seen.stalled) == ({T0}, [], [])
    inputs = FlowInputs("A", "B", True, seen)
    assert "nothing" not in summary_of(inputs)


@pytest.mark.parametrize("state", [PartitionState.RECREATED, PartitionState.LOST_RANGE])
@pytest.mark.parametrize("hiding", [{"failed_tasks": {0: "ConnectError: no"}}, {"held": "stopped"}])
def test_the_lag_is_a_lower_bound_also_while_another_state_is_shown(
    env: Environment, state: PartitionState, hiding: dict[str, Any]
) -> None:
    """A task of which all partitions have stopped has failed; a flow may be stopped then."""
    env.entry(T0, 90, 90, condition=PartitionCondition(state, STOPPED, 90, 5))
    env.ends[T0] = 40
    seen = env.refresh(starts={T0: 0}, **hiding)
    view, lag = seen.views[0], 40 if state is PartitionState.RECREATED else 0
    assert (view.lag_records, view.is_lag_exact) == (lag, False)
    assert (seen.risk.records, seen.risk.records_at_least) == (None, lag)


@pytest.mark.parametrize("condition", sorted(LASTING))
@pytest.mark.parametrize(
    ("hiding", "reason", "pause"),
    [
        ({"failed_tasks": {0: "ConnectError: no"}}, "task 0 has failed: ConnectError: no", None),
        ({"held": "stopped"}, "copying is stopped", PauseCode.FLOW),
        ({}, str(ANN), PauseCode.USER),
    ],
    ids=["failed", "stopped", "paused"],
)
def test_a_lasting_condition_is_shown_also_while_a_task_has_failed_or_a_user_has_paused(
    env: Environment, condition: PartitionState, hiding: dict[str, Any], reason: str, pause: PauseCode | None
) -> None:
    """Otherwise its alert ends, although nothing was fixed. A task of which all partitions have stopped has failed."""
    env.entry(T0, 90, 90, condition=PartitionCondition(condition, "what happened.", 90, 5))
    if not hiding:
        env.pause(0)
    seen = env.refresh(**hiding)
    view = seen.views[0]
    assert (view.state, view.reason, view.since_ms) == (condition, f"what happened; {reason}", 5)
    assert (view.pause, seen.states[condition]) == (pause, 1)
    assert sum(seen.states.values()) == 2, "each partition has one state"


@pytest.mark.parametrize("condition", sorted(set(PartitionState) - LASTING))
def test_a_condition_that_ends_by_itself_is_not_that_of_a_failed_task(
    env: Environment, condition: PartitionState
) -> None:
    env.entry(T0, 10, 10, condition=PartitionCondition(condition, "was so", 10, 5))
    view = env.refresh(failed_tasks={0: "ConnectError: no"}).views[0]
    assert (view.state, view.reason) == (PartitionState.FAILED, "task 0 has failed: ConnectError: no")


def test_the_reason_of_a_task_that_has_failed_for_its_partitions_is_not_repeated(env: Environment) -> None:
    env.entry(T0, 90, 90, condition=PartitionCondition("RECREATED", STOPPED, 90, 5))
    view = env.refresh(failed_tasks={0: f"CopyFailed: {STOPPED}"}).views[0]
    assert view.reason == f"task 0 has failed: CopyFailed: {STOPPED}"


def test_a_new_micro_batch_that_has_read_nothing_does_not_end_a_condition(env: Environment) -> None:
    """Else the state, and its alert, would end for a moment with each restart of a worker."""
    env.entry(T0, 10, 10, condition=PartitionCondition("LOST_RANGE", "they are gone", 10, 5))
    env.row(T0, 10, -1)
    assert env.refresh().views[0].state is PartitionState.LOST_RANGE
    env.row(T0, 10, 10)
    assert env.refresh().views[0].state is PartitionState.RUNNING
    env.row(T0, 10, -1, state="UNREACHABLE", reason="no leader")
    assert env.refresh().views[0].state is PartitionState.UNREACHABLE


def test_a_paused_partition_with_a_condition_can_be_resumed(env: Environment) -> None:
    env.row(T0, 10, 10, state="LOST_RANGE", reason="they are gone")
    env.pause(0)
    assert env.refresh().views[0].pause is PauseCode.USER


@pytest.mark.parametrize("more", [{}, {"held": "stopped"}, {"failed_tasks": {0: "no", 1: "no"}}])
def test_the_lag_is_a_lower_bound_if_the_log_ends_before_the_position(env: Environment, more: dict[str, Any]) -> None:
    """Given a log that was truncated while nothing copies it, so there is no condition yet. Records have been written since."""
    env.refresh(**more)
    env.ends[T0] = 7
    for _ in range(2):
        seen = env.refresh(**more)
    view = seen.views[0]
    assert (view.lag_records, view.is_lag_exact, view.lag_seconds, view.source_end) == (0, False, None, 7)
    assert (view.lag_bytes, seen.risk.bytes) == (None, None)
    assert (seen.risk.records, seen.risk.records_at_least, seen.risk.seconds) == (None, 0, None)
    inputs = FlowInputs("A", "B", True, seen)
    assert "you lose no record that is known here" in summary_of(inputs)
    env.ends[T0] = 12
    seen = env.refresh(**more)
    assert (seen.views[0].lag_records, seen.views[0].is_lag_exact) == (2, True)


def test_an_end_offset_that_is_only_older_than_the_position_shows_no_truncation(env: Environment) -> None:
    """Another process copies, and the ledger is read more often than the end offsets."""
    env.refresh()
    for position in (12, 15):
        env.entry(T0, position, position)
        asked_s = env.at_s
        seen = env.refresh(ends_at_s=asked_s)
        assert (seen.risk.records, seen.views[0].is_lag_exact) == (0, True)
    env.ends[T0] = 15
    assert env.refresh().risk.records == 0


def test_a_partition_of_which_the_first_answer_shows_the_truncation_is_polled_once_more(env: Environment) -> None:
    env.ends[T0] = 7
    assert env.refresh(ends_at_s=env.at_s).risk.records == 0, "the request may be older than the ledger"
    assert env.refresh().risk.records is None


def test_nothing_is_known_before_the_ledger_was_read(env: Environment) -> None:
    """The target has died, and the process was restarted."""
    inputs = PartitionInputs(1.0, NOW_MS, 1.0, None, SourceLogs(ends_at_s=1.0), FlowStatus(), Work())
    risk = PartitionViews().read(inputs).risk
    assert (risk.records, risk.seconds, risk.bytes, risk.least) == (None, None, None, None)
    assert PartitionViews().read(dataclasses.replace(inputs, ledger=Ledger())).risk.records == 0


def test_the_log_of_a_recreated_topic_ends_where_the_source_says(env: Environment) -> None:
    """Not at the end offset that the stopped copier has seen in the old log."""
    env.row(T0, 90, 90, state="RECREATED", reason=STOPPED)
    env.ends[T0] = 40
    view = env.refresh(starts={T0: 0}).views[0]
    assert (view.source_end, view.lag_records) == (40, 40)


def test_nothing_of_a_topic_that_has_another_id_was_copied(env: Environment) -> None:
    """Given a flow that does not copy, so its ledger is about the topic before."""
    env.entry(T0, 90, 90, source_id="old", retired=("older",))
    env.ends[T0] = 95
    for topic_id in ("old", "older", ""):  # "": a source without topic ids
        seen = env.refresh(topic_ids={"t": topic_id})
        assert (seen.risk.records, seen.other_logs) == (5, set())
    seen = env.refresh(topic_ids={"t": "new"})
    assert (seen.views[0].lag_records, set(seen.other_logs)) == (None, {T0})
    seen = env.refresh(topic_ids={"t": "new"}, starts={T0: 0})
    assert (seen.risk.records, seen.risk.records_at_least) == (None, 95)
    env.row(T0, 95, 95)
    env.refresh(topic_ids={"t": "new"}, starts={T0: 0})
    env.entry(T0, 95, 95, source_id="new")
    seen = env.refresh(topic_ids={"t": "new"})
    assert (seen.risk.records, seen.other_logs) == (0, set()), "the ledger is read again at once"


def test_rates_follow_the_records(env: Environment) -> None:
    env.row(T0, 100, 100)
    env.refresh()
    for step in range(1, 40):
        env.row(T0, 100 + step * 50, 100 + step * 50)
        seen = env.refresh()
    assert seen.records_per_s == pytest.approx(50, rel=0.05)
    assert seen.bytes_per_s == pytest.approx(5000, rel=0.05)
    for _ in range(200):
        seen = env.refresh()
    assert (seen.records_per_s, seen.bytes_per_s) == (0, 0)


def test_counts_are_kept_when_their_task_has_ended(env: Environment) -> None:
    env.row(T0, 100, 100)
    env.refresh()
    env.statuses.clear()
    view = env.refresh(left={T0: (100, 10_000)}).views[0]
    assert (view.records, view.bytes) == (100, 10_000)
    # The ledger's count is valid now, which is not a new loss.
    assert env.refresh(left={T0: (100, 10_000)}).records_per_s == 0


def test_unchanged_partitions_are_the_same_object(env: Environment) -> None:
    env.row(T0, 14, 16)
    env.refresh()
    before = env.refresh().views
    env.entry(T1, 20, 20, foreign=1)
    after = env.refresh().views
    assert after[0] is before[0]
    assert after[1] is not before[1]
    assert after[1].foreign_records == 1


def test_a_partition_deleted_everywhere_is_removed(env: Environment) -> None:
    assert len(env.refresh().views) == 2
    env.ledger.apply(b'{"partition":1,"topic":"t"}', None)
    assert len(env.refresh(tasks={T0: 0}).views) == 1


def test_a_note_of_the_copier_is_reported(env: Environment) -> None:
    env.entry(T0, 10, 10, note="at least once: no ledger")
    assert env.refresh().views[0].note == "at least once: no ledger"
    # The ledger itself may be missing: then only the copier's report has the note, as a reason without a stop.
    env.row(T1, 5, 5, reason="at least once: it is gone")
    views = env.refresh().views
    assert [(view.reason, view.note) for view in views] == [
        ("", "at least once: no ledger"),
        ("", "at least once: it is gone"),
    ]


def test_pauses_of_the_ledger_are_read_as_the_verb_writes_them() -> None:
    ledger = Ledger()
    record = pause_record("t", 1, Pause("ann", 5, "why"))
    ledger.apply(record.key, record.value)
    assert ledger.pauses() == {("t", 1): Pause("ann", 5, "why")}


def test_the_row_of_an_older_executor_has_no_spreads() -> None:
    row: list[Any] = ["t", 0, 1, 1, 1, "RUNNING", "", -1, -1, False, 0, 0, {}, 0, 0]
    assert PartitionProgress(*row).latency_ms is None
    sent = PartitionProgress(*row)._replace(age_ms=[1, 1, 1, 1, 1])
    assert PartitionProgress(*json.loads(json.dumps(sent))) == sent


def test_a_partition_that_is_prepared_has_its_progress_until_a_task_copies_it(env: Environment) -> None:
    third = TopicPartition("t", 2)
    env.ends[third] = 500_100
    env.more["preparing"] = {third: filling(third, "A.t", 100_000, 500_000, NOW_MS)}
    seen = env.refresh()
    view = seen.views[2]
    assert (view.state, view.since_ms, view.unfilled) == (PartitionState.PREPARING, NOW_MS, 400_000)
    assert view.remote_topic == "A.t"
    assert "100,000 of 500,000 (20 %)" in view.note
    assert (seen.states[PartitionState.PREPARING], seen.unbegun) == (1, 1)
    env.more["tasks"] = {T0: 0, T1: 1, third: 1}
    view = env.refresh().views[2]
    assert (view.state, view.unfilled) == (PartitionState.RUNNING, 0)


def test_a_partition_that_its_task_has_stopped_before_copying_began_has_its_state(env: Environment) -> None:
    third = TopicPartition("t", 2)
    env.ends[third] = 100
    env.more["preparing"] = {third: Preparation("t", 2, "A.t", PartitionState.DIVERGED, "other records", NOW_MS)}
    for tasks in ({T0: 0, T1: 1}, {T0: 0, T1: 1, third: 1}):
        env.more["tasks"] = tasks
        view = env.refresh().views[2]
        assert (view.state, view.reason, view.since_ms) == (PartitionState.DIVERGED, "other records", NOW_MS)


def test_a_new_topic_has_had_its_records_for_as_long_as_it_is_known(env: Environment) -> None:
    """Without a bound, the seconds at risk of a flow without lag were unknown for minutes after every new topic: a critical alert."""
    late, empty = TopicPartition("u", 0), TopicPartition("v", 0)
    env.ends[late], env.ends[empty] = 5_000, 70
    new = Preparation("u", 0, "A.u", PartitionState.PREPARING, "new", NOW_MS)
    refused = Preparation("v", 0, "A.v", PartitionState.REFUSED, "too many", NOW_MS - 900_000)
    env.more["preparing"] = {late: new, empty: refused}
    seen = env.refresh(30)
    assert (seen.risk.seconds, seen.risk.seconds_at_least, seen.risk.records) == (None, 30.0, None)
    assert seen.unbegun == 2
    assert env.refresh(30, as_of_s=130.0, silent="A does not answer").risk.seconds_at_least == 30.0


def test_a_timestamp_from_behind_the_position_is_not_its_age(env: Environment) -> None:
    """The position was set back by a user: the record there is older."""
    env.ends[T1] = 50
    seen = env.refresh(0, stamps={T1: BatchTimestamp(30, 40, NOW_MS - 1_000)})
    assert (seen.risk.seconds, seen.risk.records, seen.wanted) == (None, 30, [(T1, 20)])


def test_a_note_that_a_dead_process_has_left_hides_no_partition_that_was_copied(env: Environment) -> None:
    env.more = {"tasks": None, "preparing": {T0: filling(T0, "A.t", 1, 5, NOW_MS)}}
    assert env.refresh().views[0].state is PartitionState.RUNNING


def test_the_rows_of_rest_and_json_keep_their_bytes(env: Environment) -> None:
    """Scripts and dashboards of users read them."""
    lost = (Lost(3, 4, "retention", NOW_MS),)
    env.entry(T0, 10, 10, gaps={"control": 2}, lost=lost, foreign=3, source_id="s", target_id="r", note="slow")
    record = verified_record(T0, Verified(0, 8, 8, NOW_MS, source_id="s", target_id="r"))
    env.ledger.apply(record.key, record.value)
    env.row(T1, 20, 50, state="TOO_LARGE", reason="too large", age_ms=[5, 1, 9, 15, 3], latency_ms=[2, 2, 2, 4, 2])
    env.pause(1)
    env.refresh()
    assert json.dumps(page_json(env.refresh().views, 0, 2)["rows"]) == (
        '[{"topic": "t", "partition": 0, "remote_topic": "A.t", "state": "RUNNING", "reason": "", "since_ms": null, '
        '"position": 10, "source_end": 10, "target_offset": 10, "lag_records": 0, "lag_bytes": 0, "lag_seconds": 0.0, '
        '"records_per_s": 0.0, "bytes_per_s": 0.0, "gaps": {"control": 2}, "lost_ranges": 1, "foreign_records": 3, '
        '"verified_offset": 8, "verified_at_ms": 1700000000000, "task": 0, "note": "slow", "records": 0, "bytes": 0, '
        '"age_ms": null, "latency_ms": null, "unfilled": 0, "pause": null, "is_counted": true, "is_lag_exact": true}, '
        '{"topic": "t", "partition": 1, "remote_topic": "A.t", "state": "TOO_LARGE", "reason": "too large", '
        '"since_ms": null, "position": 20, "source_end": 50, "target_offset": 20, "lag_records": 30, "lag_bytes": 3000, '
        '"lag_seconds": 0.0, "records_per_s": 0.0, "bytes_per_s": 0.0, "gaps": {}, "lost_ranges": 0, '
        '"foreign_records": 0, "verified_offset": null, "verified_at_ms": null, "task": 0, "note": "", "records": 20, '
        '"bytes": 2000, "age_ms": {"last": 5, "least": 1, "greatest": 9, "average": 5.0}, '
        '"latency_ms": {"last": 2, "least": 2, "greatest": 2, "average": 2.0}, "unfilled": 0, "pause": "user", '
        '"is_counted": true, "is_lag_exact": true}]'
    )


OFFSETS = st.integers(0, 4)
STEPS = st.one_of(
    st.tuples(st.just("row"), st.sampled_from([T0, T1]), OFFSETS, OFFSETS, st.booleans()),
    st.tuples(st.just("entry"), st.sampled_from([T0, T1]), OFFSETS),
    st.tuples(st.just("end"), st.sampled_from([T0, T1]), st.none() | OFFSETS),
    st.tuples(st.just("tasks"), st.sampled_from([{T0: 0, T1: 1}, {T0: 0}, None])),
    st.tuples(st.just("held"), st.sampled_from(["", "paused"])),
    st.tuples(st.just("silent"), st.sampled_from(["", "A does not answer"])),
    st.tuples(st.just("topic_ids"), st.sampled_from([{}, {"t": "one"}, {"t": "two"}])),
    st.tuples(st.just("starts"), st.sampled_from([{}, {T0: 1}])),
    st.tuples(st.just("gone"), st.sampled_from([T0, T1])),
    st.tuples(st.just("wait"), st.sampled_from([1.0, 10.0, 40.0])),
)


@settings(deadline=None)
@given(st.lists(STEPS, max_size=25))
def test_views_of_partitions_at_rest_are_those_that_are_made_each_time(steps: list[tuple[Any, ...]]) -> None:
    env, other = Environment(), PartitionViews()
    read = env.book.read

    def both(inputs: PartitionInputs) -> Partitions:
        other._common = ()  # as if something had changed for all partitions
        expected = other.read(inputs)
        assert read(inputs) == expected
        return expected

    env.book.read = both  # type: ignore[method-assign]
    for kind, *values in steps:
        if kind == "row":
            tp, position, behind, fresh = values
            env.row(tp, position, position + behind, fresh=fresh)
        elif kind == "entry":
            tp, position = values
            env.entry(tp, position, position, source_id="one")
        elif kind == "end" and values[1] is None:
            env.ends.pop(values[0], None)
        elif kind == "end":
            env.ends[values[0]] = values[1]
        elif kind == "gone":
            env.statuses.pop(values[0], None)
        elif kind == "wait":
            env.refresh(values[0])
        else:
            env.more[kind] = values[0]
        env.refresh()
        env.refresh()


def test_a_partition_at_rest_is_not_looked_at(env: Environment, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[TopicPartition] = []
    view = partition_views.view_of

    def noted(known: PartitionMemory, *args: Any, **options: Any) -> PartitionView:
        made.append(known.tp)
        return view(known, *args, **options)

    monkeypatch.setattr(module, "view_of", noted)
    for _ in range(3):
        env.refresh()
    assert made == [T0, T1]
    env.ends[T1] = 25
    env.refresh()
    assert made == [T0, T1, T1]


LOSS = TargetLoss(TargetLossCode.RECREATED, "A.t was deleted and created again")


@pytest.mark.parametrize(
    ("code", "state"),
    [
        (TargetLossCode.DELETED, PartitionState.DELETED),
        (TargetLossCode.RECREATED, PartitionState.LOST_RANGE),
        (TargetLossCode.SHORTER, PartitionState.LOST_RANGE),
    ],
)
def test_a_partition_whose_copy_the_target_has_lost_is_not_without_lag(
    env: Environment, code: TargetLossCode, state: PartitionState
) -> None:
    seen = env.refresh(target_losses={T0: TargetLoss(code, "it is gone"), T1: None})
    first, second = seen.views
    assert (first.state, first.reason) == (state, "on the target: it is gone")
    assert (first.is_lag_exact, first.known_lag, first.lag_seconds) == (False, None, None)
    assert (second.state, second.lag_records, second.is_lag_exact) == (PartitionState.RUNNING, 0, True)
    assert (seen.risk.records, seen.risk.least, seen.target_losses[0][0]) == (None, 0, T0)
    inputs = FlowInputs("A", "B", True, seen)
    assert state_of(inputs) is FlowState.DEGRADED
    assert summary_of(inputs) == (
        "What would be lost is not known: B does not have all records of t-0 that were copied to it: it is gone."
    )
    assert env.refresh().risk.records == 0, "the topic was put back"


def test_a_loss_on_the_target_is_reported_of_paused_partitions_and_not_instead_of_another_condition(
    env: Environment,
) -> None:
    env.entry(T1, 20, 20, condition=PartitionCondition("TOO_LARGE", "a record is too large", 20, 1))
    seen = env.refresh(held="paused", target_losses={T0: LOSS, T1: LOSS})
    first, second = seen.views
    assert (first.state, first.pause) == (PartitionState.LOST_RANGE, PauseCode.FLOW)
    assert first.reason == "on the target: A.t was deleted and created again; copying is paused"
    assert (second.state, second.is_lag_exact) == (PartitionState.TOO_LARGE, False)


def test_without_the_logs_of_the_target_a_lag_is_a_lower_bound(env: Environment) -> None:
    seen = env.refresh(target_losses={T0: None})
    assert [view.is_lag_exact for view in seen.views] == [True, False]
    assert (seen.uncompared, seen.risk.records, seen.risk.least) == (1, None, 0)
    inputs = FlowInputs("A", "B", True, seen, uncompared_why="not authorized.")
    assert summary_of(inputs) == (
        "If A dies now you lose no record that is known here. The logs of B were not compared with the ledger in 1 partition: "
        "not authorized."
    )


def test_the_target_of_a_topic_that_the_source_has_deleted_does_not_matter(env: Environment) -> None:
    gone = BrokerFailure.of(3, subject="t-0")
    seen = env.refresh(missing={T0: gone}, target_losses={T0: LOSS, T1: None})
    assert (seen.target_losses, seen.uncompared) == ([], 0)
