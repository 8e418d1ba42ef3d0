"""What commands report if something fails after a promotion may have been stored."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.cli import mm2 as program
from mm2.config.mirrormaker import SourceAndTarget
from mm2.copy.progress.ledger import Ledger, entry_record
from mm2.copy.progress.session import LedgerEntry, Mark, PartitionCondition
from mm2.copy.states import PartitionState
from mm2.failover import copy_control, failback, failover, promote
from mm2.failover.copy_control import stop_copying
from mm2.failover.evidence import PartitionEvidence, RecordCount
from mm2.failover.failover import FailoverOptions
from mm2.failover.groups import Choice
from mm2.failover.leaving import Before
from mm2.failover.records.uncopied import Uncopied
from mm2.kafka.errors import TimeoutFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.notes.promotions import Promotion

ONE = PartitionEvidence("t", 0, "A.t", 90, 90, 90)
BEFORE = Before([TopicPartition("t", 0)], [ONE], Uncopied())
SENTENCE = "1 topic of A->B may be promoted, and no longer copied; run the command again"


class _Flow:
    """The sides of a flow without processes; its ledger is written, and then not read back for this reason."""

    def __init__(self, failure: BaseException | None) -> None:
        self.pair = SourceAndTarget("A", "B")
        self.selection = SimpleNamespace(remote=lambda topic: f"A.{topic}")
        self.source = self.source_error = None
        self.ledger = Ledger()
        entry = entry_record(LedgerEntry("t", 0, "A.t", Mark(90, 90, 90)))
        self.ledger.apply(entry.key, entry.value, 1)
        self.workers: int | None = 0
        self.workers_error = ""
        self.is_undisturbed = True
        self.written: list[Record] = []
        self._failure = failure

    def write_ledger(self, records: list[Record], *, promotions: int) -> None:
        assert promotions == len(records)
        self.written += records
        for record in records:
            self.ledger.apply(record.key, record.value, 1)
        if self._failure is not None:
            raise self._failure

    def refresh(self) -> None:
        """Nothing is new."""


def failed_over(flow: Any) -> tuple[list[str], list[str]]:
    result = failover._execute(flow, BEFORE, SimpleNamespace(), FailoverOptions(Choice()))  # type: ignore[arg-type]
    return result.done, result.problems


def made_topics_of_the_target(flow: Any) -> tuple[list[str], list[str]]:
    result = promote._PromoteState(BEFORE, [])
    assert not promote._execute(flow, Choice(), result, leave_behind=False)
    return result.done, result.problems


@pytest.mark.parametrize("command", [failed_over, made_topics_of_the_target])
def test_a_failure_after_the_write_is_not_reported_as_no_change(command: Callable[[Any], Any]) -> None:
    """Exit code 2 means that nothing was changed, but copying stops with the promotion."""
    flow = _Flow(TimeoutFailure("The ledger cannot be read to its end."))
    assert command(flow) == ([], [f"{SENTENCE}: The ledger cannot be read to its end."])
    assert len(flow.written) == 1


def test_a_failure_after_a_promotion_was_withdrawn_is_a_problem() -> None:
    flow: Any = _Flow(TimeoutFailure("no answer"))
    promotion = Promotion("t", "A.t", "failover", 1)
    record = promotion.record()
    flow.ledger.apply(record.key, record.value, 1)
    done: list[str] = []
    problems: list[str] = []
    failback._resume(flow, {"t": promotion}, done, problems)
    assert (done, problems) == ([], ["A->B may copy 1 topic again; run the command again: no answer"])


def test_an_interrupt_reports_what_may_have_been_done(capsys: pytest.CaptureFixture[str]) -> None:
    flow: Any = _Flow(KeyboardInterrupt())

    def run(_: object) -> int:
        failed_over(flow)
        return 0

    assert program._run(SimpleNamespace(run=run)) == 130
    assert capsys.readouterr().err == f"mm2: interrupted: {SENTENCE}\n"


def test_promote_reports_the_state_after_copying_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The figures from before the confirmation may be minutes old."""
    after = PartitionEvidence("t", 0, "A.t", 90, 90, 97)
    monkeypatch.setattr("mm2.failover.leaving.partitions_of", lambda *_: [after])
    monkeypatch.setattr("mm2.failover.leaving.uncopied", lambda *_: Uncopied())
    flow: Any = _Flow(None)
    flow.source = object()
    for leave_behind, problems in (
        (False, ["producers still write to A; written after copying was stopped, and not on B: 7 records"]),
        (True, []),
    ):
        result = promote._PromoteState(BEFORE, [])
        assert promote._execute(flow, Choice(), result, leave_behind=leave_behind)
        assert result.problems == problems
        assert [one.missing for one in result.state.partitions] == [RecordCount(7, 7)]


def test_the_promotion_is_stored_before_the_tasks_are_waited_for() -> None:
    flow: Any = _Flow(None)
    done, problems = stop_copying(flow, ["t"], "failover")
    assert (len(flow.written), problems) == (1, [])
    assert done[1] == "no process of A->B is running; the promotion applies when one starts"


def test_a_flow_without_tasks_has_not_confirmed_anything() -> None:
    """The connector is paused or stopped, and its processes are running."""
    flow: Any = _Flow(None)
    flow.workers, flow.assigned = 1, set
    done, problems = stop_copying(flow, ["t"], "failover")
    assert (done[1:], problems) == (["no task of A->B is assigned to copy them; the promotion applies when one is"], [])


def test_tasks_are_waited_for_while_it_is_not_known_whether_processes_are_running(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The worker group has no coordinator: its tasks continue, and confirm in the ledger."""
    monkeypatch.setattr(copy_control, "CONFIRM_S", 0.0)
    flow: Any = _Flow(None)
    flow.workers, flow.assigned = None, lambda: {TopicPartition("t", 0)}
    flow.workers_error = "Group A-mm2 of cluster B has no coordinator."
    done, problems = stop_copying(flow, ["t"], "failover")
    assert len(done) == 1
    assert len(problems) == 1
    assert problems[0].startswith(
        "1 partition, first t-0, not confirmed as paused after 0 s; A->B has an unknown number of workers (Group A-mm2 of cluster B "
        "has no coordinator): "
    )


@pytest.mark.parametrize("state", [PartitionState.INCONSISTENT, PartitionState.DIVERGED])
def test_a_partition_that_has_stopped_until_a_reset_is_not_waited_for(
    state: PartitionState, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its task copies nothing, and keeps this state in the ledger instead of the pause."""
    monkeypatch.setattr(copy_control, "CONFIRM_S", 0.0)
    flow: Any = _Flow(None)
    flow.workers, flow.assigned = 1, lambda: {TopicPartition("t", 0)}
    condition = PartitionCondition(state, "why", 95, 1)
    entry = entry_record(LedgerEntry("t", 0, "A.t", Mark(90, 90, 90), condition=condition))
    flow.ledger.apply(entry.key, entry.value, 1)
    done, problems = stop_copying(flow, ["t"], "failover")
    assert (done[1:], problems) == (
        ["all tasks of A->B have confirmed in the ledger that they stopped copying them"],
        [],
    )
