"""The note about partitions that are not copied yet."""

from __future__ import annotations

from typing import Any, cast

import pytest

from mm2.copy.progress.ledger import Ledger, entry_record, note_record
from mm2.copy.progress.session import Lease, LedgerEntry, Mark, PartitionCondition
from mm2.copy.states import PartitionState
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.notes.preparation import Preparation, PreparationNote, filling, preparations, since

T0 = TopicPartition("t", 0)
REFUSED = Preparation("t", 1, "A.t", PartitionState.REFUSED, "others may write", 1)


class Log:
    """A ledger topic that counts writes; ``failure`` is raised by each."""

    def __init__(self) -> None:
        self.ledger, self.writes = Ledger(), 0
        self.failure: Exception | None = None

    def send(self, _topic: str, records: list[Record], _partition: int, *, timeout_s: float) -> None:
        assert timeout_s > 0
        if self.failure is not None:
            raise self.failure
        self.writes += 1
        for record in records:
            self.ledger.apply(record.key, record.value)


def note_of(log: Log) -> PreparationNote:
    return PreparationNote(cast("Producer", log), "ledger")


def test_the_note_has_all_partitions_and_is_written_when_something_changes() -> None:
    log = Log()
    note, first = note_of(log), filling(T0, "A.t", 10, 100, 1)
    for _ in range(2):
        assert note.update([REFUSED, first])
    assert preparations(log.ledger) == {T0: first, TopicPartition("t", 1): REFUSED}
    assert log.writes == 1
    second = filling(T0, "A.t", 60, 100, 1)
    note.update([REFUSED, second])
    assert preparations(log.ledger)[T0] == second
    note.update([])
    assert (preparations(log.ledger), log.writes) == ({}, 3)


def test_a_note_that_the_ledger_lost_is_written_again() -> None:
    """A failover has to know the partitions that the target refuses to create."""
    log, losses = Log(), 0
    note = PreparationNote(cast("Producer", log), "ledger", lambda: losses)
    note.update([REFUSED])
    log.ledger, losses = Ledger(), 1  # deleted, and created again
    for _ in range(2):
        note.update([REFUSED])
    assert preparations(log.ledger) == {TopicPartition("t", 1): REFUSED}
    assert log.writes == 2


def test_a_new_process_removes_what_its_predecessor_has_left() -> None:
    log = Log()
    note_of(log).update([REFUSED])
    note_of(log).update([])
    assert preparations(log.ledger) == {}


def test_without_a_ledger_the_note_is_written_later() -> None:
    log = Log()
    log.failure = BrokerFailure.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    note = note_of(log)
    assert not note.update([REFUSED])
    assert note.update([])
    log.failure = None
    assert note.update([REFUSED])
    assert log.writes == 1


def test_a_note_of_thousands_of_partitions_is_cut_but_has_those_that_are_filled() -> None:
    log = Log()
    many = [Preparation("t", index, "A.t", PartitionState.REFUSED, "", 1) for index in range(5000)]
    note_of(log).update([*many, filling(TopicPartition("z", 0), "A.z", 0, 10, 1)])
    found = preparations(log.ledger)
    assert len(found) == 200
    assert TopicPartition("z", 0) in found


@pytest.mark.parametrize("value", [None, 5, [["t"]], [["t", 0, "A.t", "NO_STATE", "", 1, 0]]])
def test_an_unreadable_note_has_none(value: Any) -> None:
    ledger, record = Ledger(), note_record("preparing", (), {"partitions": value})
    ledger.apply(record.key, record.value)
    assert preparations(ledger) == {}


def test_the_time_of_an_unchanged_preparation_is_kept() -> None:
    later = Preparation("t", 1, "A.t", PartitionState.REFUSED, "others may write", 9)
    assert since(REFUSED, later) is REFUSED
    other = Preparation("t", 1, "A.t", PartitionState.REFUSED, "another reason", 9)
    assert since(REFUSED, other) is other
    assert since(None, later) is later


def test_a_partition_that_a_task_stopped_before_copying_began_is_no_copied_one() -> None:
    """It has no entry for those who continue or count what was copied, until there is one."""
    ledger, reason = Ledger(), 'another record, "unbegun":true'
    stop = PartitionCondition("DIVERGED", reason, -1, 7)
    unbegun = LedgerEntry("t", 0, "A.t", Mark(0, -1, 0), condition=stop, is_unbegun=True)
    begun = LedgerEntry("t", 0, "A.t", Mark(5, 5, 5), condition=stop, lease=Lease(9))
    for entry, is_begun in ((unbegun, False), (begun, True), (unbegun, True)):
        record = entry_record(entry)
        ledger.apply(record.key, record.value)
        assert ledger.start(T0, None).entry == (begun if is_begun else None)
        assert ledger.partitions() == ([T0] if is_begun else [])
        wanted = Preparation("t", 0, "A.t", PartitionState.DIVERGED, reason, 7)
        assert preparations(ledger) == ({} if is_begun else {T0: wanted})
