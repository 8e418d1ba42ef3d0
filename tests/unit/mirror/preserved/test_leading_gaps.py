"""Filling the offsets before the first record, against a model of a target partition."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.copy.progress.ledger import Ledger, entry_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer.filler import FILLER_RECORDS
from mm2.kafka.structs import EARLIEST, OffsetInfo, TopicPartition
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.notes.preparation import filling
from mm2.mirror.preserved import leading_gaps
from mm2.mirror.preserved.leading_gaps import LeadingGap, LeadingGaps
from mm2.mirror.topics.config_sync import ConfigSync

SOURCE, TARGET = TopicPartition("t", 0), TopicPartition("A.t", 0)
END = 2 * FILLER_RECORDS + 500_000


class Log:
    """The clusters' offsets; those of ``leaderless`` partitions cannot be read."""

    cluster = SimpleNamespace(metadata=lambda _: SimpleNamespace(topics={"A.t": SimpleNamespace(topic_id="new")}))

    def __init__(self, *leaderless: TopicPartition) -> None:
        self.start, self.runs = 0, list[tuple[str, int]]()
        self.leaderless = leaderless
        self.altered: list[str] = []

    @property
    def end(self) -> int:
        return sum(count for _, count in self.runs)

    def list_offsets(self, wanted: Mapping[TopicPartition, int], **_: Any) -> dict[TopicPartition, Any]:
        def answer(tp: TopicPartition, when: int) -> OffsetInfo | KafkaFailure:
            if tp in self.leaderless:
                return BrokerFailure.of(ErrorCode.LEADER_NOT_AVAILABLE)
            return OffsetInfo(self.start if when == EARLIEST else self.end, -1, 0)

        return {tp: answer(tp, when) for tp, when in wanted.items()}

    def delete_records(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        self.start = max(self.start, *wanted.values())
        return dict.fromkeys(wanted, self.start)

    def incremental_alter_configs(self, operations: Mapping[str, object]) -> dict[str, None]:
        self.altered += operations
        return dict.fromkeys(operations)

    def describe_configs(self, topics: list[str], _keys: object = None) -> dict[str, dict[str, object]]:
        return {topic: {} for topic in topics}


class NoLedgers:
    def __init__(self, ledger: Ledger | None = None) -> None:
        self._ledger = ledger or Ledger()

    def own(self) -> Ledger:
        return self._ledger

    def write(self, records: list[object]) -> None:
        """Notes are not read here."""


class Gaps(LeadingGaps):
    def __init__(self, log: Log, source: Log, ledgers: NoLedgers) -> None:
        self._log = log
        source_admin, target_admin = cast("Admin", source), cast("Admin", log)
        super().__init__(
            source_admin, target_admin, cast("ConfigSync", None), RecurringErrors(), cast("Ledgers", ledgers)
        )

    def _is_filler_at(self, target: TopicPartition, offset: int) -> bool:
        at = 0
        for kind, count in self._log.runs:
            at += count
            if offset < at:
                return kind == "filler"
        return False


def gaps_of(log: Log, source: Log | None = None, ledgers: NoLedgers | None = None) -> LeadingGaps:
    return Gaps(log, source or log, ledgers or NoLedgers())


def starting_at(offset: int) -> Log:
    """A source log."""
    source = Log()
    source.start = offset
    return source


def test_a_process_that_was_frozen_writes_no_filler_behind_copied_records(monkeypatch: pytest.MonkeyPatch) -> None:
    log, frozen, resume = Log(), threading.Event(), threading.Event()

    def produce(_cluster: object, _partition: TopicPartition, _at: int, count: int, _timeout_s: float) -> int:
        base = log.end
        log.runs.append(("filler", count))
        if threading.current_thread().name == "frozen":
            frozen.set()
            resume.wait(30)
        return base

    monkeypatch.setattr(leading_gaps, "produce_filler", produce)
    thread = threading.Thread(target=lambda: gaps_of(log)._fill(SOURCE, LeadingGap(TARGET, END, 0)), name="frozen")
    thread.start()
    assert frozen.wait(60)
    gaps_of(log)._fill(SOURCE, LeadingGap(TARGET, END, 0))
    assert (log.start, log.end) == (END, END)
    log.runs.append(("records", 1000))
    resume.set()
    thread.join(30)
    assert log.runs[-1] == ("records", 1000)


def test_what_the_source_loses_meanwhile_is_filled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    source, log = starting_at(END), Log()

    def produce(_cluster: object, _partition: TopicPartition, _at: int, count: int, _timeout_s: float) -> int:
        source.start = END + 7
        log.runs.append(("filler", count))
        return 0

    monkeypatch.setattr(leading_gaps, "produce_filler", produce)
    gap = LeadingGap(TARGET, END, 0)
    gaps_of(log, source)._fill(SOURCE, gap)
    assert (log.start, log.end, gap.end) == (END + 7, END + 7, END + 7)


def test_a_record_of_another_program_among_the_fillers_ends_the_filling(monkeypatch: pytest.MonkeyPatch) -> None:
    log, source = Log(), starting_at(END)
    log.runs.append(("filler", FILLER_RECORDS))

    def produce(*_: object) -> int:
        raise BrokerFailure.of(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER)

    monkeypatch.setattr(leading_gaps, "produce_filler", produce)
    gaps = gaps_of(log, source)
    gaps._fill(SOURCE, LeadingGap(TARGET, END, 0))
    assert gaps.unready([SOURCE], lambda topic: f"A.{topic}") == {SOURCE}
    assert [(one.state, "another program" in one.reason) for one in gaps.preparations()] == [
        (PartitionState.DIVERGED, True)
    ]
    assert log.runs == [("filler", FILLER_RECORDS)]


@pytest.mark.parametrize(("target_id", "is_filled"), [("new", False), ("old", True)])
def test_a_partition_that_a_task_has_begun_to_copy_is_not_filled(target_id: str, *, is_filled: bool) -> None:
    """The source has deleted its records since. Another topic had the same name where the id differs."""
    ledger = Ledger()
    record = entry_record(LedgerEntry("t", 0, "A.t", Mark(0, 0, 0), target_id=target_id))
    ledger.apply(record.key, record.value)
    gaps = gaps_of(Log(), starting_at(END), NoLedgers(ledger))
    gaps.stop(0)
    assert gaps.unready([SOURCE], lambda topic: f"A.{topic}") == ({SOURCE} if is_filled else set())


def test_a_partition_without_a_leader_delays_no_other_one() -> None:
    partitions = [TopicPartition("t", index) for index in range(3)]
    assert gaps_of(Log(partitions[2])).unready(partitions, lambda topic: f"A.{topic}") == {partitions[2]}


def test_a_stop_waits_for_a_request_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    sent, answer = threading.Event(), threading.Event()

    def produce(*_: object) -> int:
        sent.set()
        answer.wait(30)
        return 0

    monkeypatch.setattr(leading_gaps, "produce_filler", produce)
    gaps = gaps_of(Log(), starting_at(END))
    gaps._wanted[TopicPartition("t", 0)] = LeadingGap(TARGET, END, 0)
    gaps._thread = threading.Thread(target=gaps._run, daemon=True)
    gaps._thread.start()
    assert sent.wait(60)
    began_s = time.monotonic()
    assert not gaps.stop(0.1)
    assert time.monotonic() - began_s < 25
    answer.set()
    assert gaps.stop(30)


def test_the_progress_of_filling_is_known_while_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    log, sent, answer = Log(), threading.Event(), threading.Event()

    def produce(_cluster: object, _partition: TopicPartition, _at: int, count: int, _timeout_s: float) -> int:
        if log.end >= FILLER_RECORDS:
            sent.set()
            answer.wait(30)
        log.runs.append(("filler", count))
        return 0

    monkeypatch.setattr(leading_gaps, "produce_filler", produce)
    gaps, source = gaps_of(log, starting_at(END)), TopicPartition("t", 0)
    gaps._wanted[source] = LeadingGap(TARGET, END, 1_700_000_000_000)
    gaps._thread = threading.Thread(target=gaps._run, daemon=True)
    gaps._thread.start()
    assert sent.wait(60)
    (found,) = gaps.preparations()
    assert found == filling(source, "A.t", FILLER_RECORDS, END, 1_700_000_000_000)
    assert found.state is PartitionState.PREPARING
    assert "1,000,000 of 2,500,000 (40 %)" in found.reason
    assert found.unfilled == END - FILLER_RECORDS
    answer.set()
    gaps._thread.join(30)
    assert gaps.preparations() == []


def test_other_partitions_of_a_topic_that_is_filled_wait_with_a_reason() -> None:
    partitions = [TopicPartition("t", 0), TopicPartition("t", 1)]
    log = Log()
    log.start = END  # of the source, since both sides are one here
    gaps = gaps_of(log)
    gaps.stop(0)
    assert gaps.unready(partitions, lambda topic: f"A.{topic}") == set(partitions)
    assert {(one.partition, one.state) for one in gaps.preparations()} == {
        (0, PartitionState.PREPARING),
        (1, PartitionState.PREPARING),
    }


@pytest.mark.parametrize("is_recreated", [True, False])
def test_nothing_is_deleted_where_the_gap_has_vanished_while_the_partition_waited(*, is_recreated: bool) -> None:
    """The source topic was created again and copied, or another program has written to the empty remote topic."""
    log, source = Log(), starting_at(1000)
    gaps = gaps_of(log, source)
    gaps.stop(0)  # the thread is busy with another partition
    assert gaps.unready([SOURCE], lambda topic: f"A.{topic}") == {SOURCE}
    if is_recreated:
        source.start = 0
        assert gaps.unready([SOURCE], lambda topic: f"A.{topic}") == set()
    log.runs.append(("records", 1500))
    gaps._stopping.clear()
    gaps._run()
    assert (log.start, log.altered) == (0, [])
    assert not gaps.is_filling("t", "A.t")


def test_records_of_another_program_among_the_fillers_are_not_deleted(monkeypatch: pytest.MonkeyPatch) -> None:
    log = Log()

    def produce(_cluster: object, _partition: TopicPartition, _at: int, count: int, _timeout_s: float) -> int:
        if not log.runs:
            log.runs.append(("records", 300))
        log.runs.append(("filler", count))
        return 0

    monkeypatch.setattr(leading_gaps, "produce_filler", produce)
    gaps_of(log)._fill(SOURCE, LeadingGap(TARGET, END, 0))
    assert log.start == 0


def test_filling_ends_when_the_source_topic_is_created_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Until then the partition is not copied, since a filler may still be on the way."""
    log, source = Log(), starting_at(END)

    def produce(_cluster: object, _partition: TopicPartition, _at: int, count: int, _timeout_s: float) -> int:
        log.runs.clear()  # both were deleted
        source.start = 0
        assert gaps.unready([SOURCE], lambda topic: f"A.{topic}") == {SOURCE}
        return 0

    monkeypatch.setattr(leading_gaps, "produce_filler", produce)
    gaps = gaps_of(log, source)
    gaps.stop(0)
    gaps.unready([SOURCE], lambda topic: f"A.{topic}")
    gaps._stopping.clear()
    gaps._run()
    assert (log.start, log.end) == (0, 0)
    monkeypatch.setattr(gaps, "_restore", lambda _topic, _remote: True)
    assert gaps.unready([SOURCE], lambda topic: f"A.{topic}") == set()
