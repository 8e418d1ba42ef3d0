"""Which source is left without a decision of the user."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.config.definitions.java_regex import compile_java
from mm2.config.mirrormaker import SourceAndTarget
from mm2.copy.progress.ledger import Ledger, entry_record, note_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.failover.evidence import PartitionEvidence
from mm2.failover.groups import Choice
from mm2.failover.leaving import Before, reason_to_confirm, refuse_rejected, refuse_uncopied, rejection_error
from mm2.failover.records.uncopied import Uncopied
from mm2.failover.sides import Refused, Sides, is_rejection
from mm2.kafka.errors import (
    AuthenticationFailure,
    BrokerFailure,
    DnsFailure,
    KafkaFailure,
    RefusedFailure,
    TimeoutFailure,
    TlsFailure,
)
from mm2.mirror.notes.source_answers import SOURCE_NOTE

PAIR = SourceAndTarget("A", "B")


@pytest.mark.parametrize(
    ("failure", "rejected"),
    [
        (AuthenticationFailure("Broker a:1 rejected the credentials."), True),
        (TlsFailure("certificate expired"), True),
        (BrokerFailure.of(35, subject="Metadata of cluster A"), True),
        (RefusedFailure("connection refused"), False),
        (TimeoutFailure("no answer"), False),
        (DnsFailure("no address"), False),
    ],
    ids=str,
)
def test_a_source_that_rejects_the_client_does_not_count_as_down(failure: KafkaFailure, rejected: bool) -> None:
    """Otherwise a wrong password in the file halts a healthy flow."""
    sides: Any = SimpleNamespace(pair=PAIR, is_rejected=is_rejection(failure), source_error=str(failure))
    assert sides.is_rejected is rejected
    if not rejected:
        refuse_rejected(sides, leave_behind=False)
        assert not rejection_error(sides)
        return
    with pytest.raises(Refused, match="Cluster A cannot be asked with the security settings of the file"):
        refuse_rejected(sides, leave_behind=False)
    refuse_rejected(sides, leave_behind=True)


def test_groups_return_to_the_target_although_nothing_was_copied_from_the_source() -> None:
    """A topic of the source that the flow has not found must not prevent the failover of what came from the target."""
    reverse, row = Ledger(), entry_record(LedgerEntry("orders", 0, "B.orders", Mark(5, 5, 5)))
    reverse.apply(row.key, row.value)
    before = Before([], [], Uncopied([PartitionEvidence("late", 0, "A.late", 0, None)]))
    for sides in (SimpleNamespace(pair=PAIR, reverse_ledger=None), SimpleNamespace(pair=PAIR, reverse_ledger=Ledger())):
        with pytest.raises(Refused, match="Nothing was copied yet of late"):
            refuse_uncopied(cast(Any, sides), before, Choice())
    both: Any = SimpleNamespace(pair=PAIR, reverse_ledger=reverse)
    refuse_uncopied(both, before, Choice())
    with pytest.raises(Refused, match="Nothing was copied yet of late"):
        refuse_uncopied(both, before, Choice(topics=compile_java("late")))


class _Flow(Sides):
    """The sides of a flow with a number of workers, whose ledger gets these times of the source's last answer."""

    def __init__(self, answered_ms: list[int], workers: int = 1, within_ms: int | None = None) -> None:
        self.pair = PAIR
        self.source, self.source_error, self.is_rejected = None, "no route to host", False
        self._is_reached = None
        self._workers = workers
        self._times = answered_ms
        self._within_ms = within_ms
        self.reads = 0
        self._ledger_log: Any = SimpleNamespace(ledger=Ledger(), read_to_end=self._read_to_end)
        self._read_to_end(0)

    def _read_to_end(self, _timeout_s: float) -> None:
        if self._times:
            within = {} if self._within_ms is None else {"within_ms": self._within_ms}
            note = note_record(SOURCE_NOTE, [], {"answered_ms": self._times.pop(0), **within})
            self._ledger_log.ledger.apply(note.key, note.value, 1)
        self.reads += 1

    @property
    def workers(self) -> int:
        return self._workers


@pytest.mark.parametrize(
    ("answered_ms", "workers", "reached"),
    [([1_000, 1_000, 6_000], 1, True), ([1_000, 1_000, 1_000], 1, False), ([1_000, 6_000], 0, False), ([], 1, False)],
)
def test_a_source_that_a_process_of_the_flow_reaches_is_only_left_after_a_confirmation(
    monkeypatch: pytest.MonkeyPatch, answered_ms: list[int], workers: int, reached: bool
) -> None:
    """The machine of the command may have no route to it."""
    monkeypatch.setattr("mm2.failover.sides._OLD_NOTES_S", 0.2)
    monkeypatch.setattr("mm2.failover.sides._POLL_S", 0.01)
    flow = _Flow(list(answered_ms), workers)
    reason = "Cluster A does not answer here, but a process of A->B has just reached it"
    assert reason_to_confirm(flow) == (reason if reached else "")
    reads = flow.reads
    assert reason_to_confirm(flow) == (reason if reached else "")
    assert flow.reads == reads, "the ledger is watched once"
    if not workers or not answered_ms:
        assert reads == 1, "no process can write a note"


@pytest.mark.parametrize(("within_ms", "waited_s"), [(5_250, 10.25), (25_400, 30.4), (None, 7.0)])
def test_the_next_note_of_a_process_is_awaited_as_long_as_its_last_note_says(
    monkeypatch: pytest.MonkeyPatch, within_ms: int | None, waited_s: float
) -> None:
    """A slow machine, or one with thousands of partitions, writes them less often. Those of older versions do not say it."""
    now_s = [100.0]

    def sleep(seconds: float) -> None:
        now_s[0] += seconds

    monkeypatch.setattr("mm2.failover.sides.time", SimpleNamespace(monotonic=lambda: now_s[0], sleep=sleep))
    assert not _Flow([1_000], within_ms=within_ms).is_reached_by_workers()
    assert now_s[0] - 100.0 == pytest.approx(waited_s, abs=0.31)
    late = _Flow([1_000] * int(waited_s / 0.3 - 1) + [6_000], within_ms=within_ms)
    assert late.is_reached_by_workers()
