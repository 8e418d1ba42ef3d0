"""The notes about the last answers of the source."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.copy.progress.ledger import Ledger, note_record
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import OffsetInfo, TopicPartition
from mm2.mirror.notes.source_answers import EVERY_S, SOURCE_NOTE, AnswerNotes, SourceAnswers, source_answers


def ledger_of(*notes: tuple[list[str], dict[str, object]]) -> Ledger:
    ledger = Ledger()
    for name, value in notes:
        row = note_record(SOURCE_NOTE, name, value)
        ledger.apply(row.key, row.value)
    return ledger


def test_the_ends_of_partitions_are_as_of_the_last_answer() -> None:
    ledger = ledger_of(
        ([], {"answered_ms": 5}), (["t"], {"ends": [7, -1, 0]}), (["u"], {"ends": [3]}), ([], {"answered_ms": 9})
    )
    ends = {TopicPartition("t", 0): 7, TopicPartition("t", 2): 0, TopicPartition("u", 0): 3}
    assert source_answers(ledger) == SourceAnswers(9, ends)


@pytest.mark.parametrize("value", [{}, {"answered_ms": "noon"}, {"answered_ms": True}, {"answered_ms": -1}])
def test_without_a_readable_time_nothing_is_known(value: dict[str, object]) -> None:
    assert source_answers(ledger_of(([], value), (["t"], {"ends": [7]}))) == SourceAnswers()


def test_unreadable_ends_are_unknown() -> None:
    ledger = ledger_of(([], {"answered_ms": 9}), (["t"], {"ends": 7}), (["u"], {"ends": ["x", None, 4]}))
    assert source_answers(ledger).ends == {TopicPartition("u", 2): 4}


def test_a_note_says_when_the_next_one_follows() -> None:
    ledger = ledger_of(([], {"answered_ms": 9, "within_ms": 5_100}))
    assert source_answers(ledger) == SourceAnswers(9, {}, 5_100)


class Clock:
    """The clocks of a process that spends this processor time on each question, and is called every `EVERY_S`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, cpu_s: float, lasts_s: float) -> None:
        self.now_s = self.busy_s = 100.0
        self.asked_s: list[float] = []
        self.notes: list[tuple[float, int]] = []  # when they were written, and `within_ms`
        self._cpu_s, self._lasts_s = cpu_s, lasts_s
        clocks = SimpleNamespace(
            monotonic=lambda: self.now_s, thread_time=lambda: self.busy_s, time_ns=lambda: int(self.now_s * 1e9)
        )
        monkeypatch.setattr("mm2.mirror.notes.source_answers.time", clocks)
        source: Any = SimpleNamespace(cluster=SimpleNamespace(preflight=lambda _: None), list_offsets=self._ask)
        ledger: Any = SimpleNamespace(send=self._send)
        self._notes = AnswerNotes(source, ledger, "ledger")
        self.failure: KafkaFailure | None = None

    def run(self, ticks: int) -> None:
        for tick in range(ticks):
            self.now_s = 100.0 + tick * EVERY_S
            assert self._notes.update([TopicPartition("t", 0)])

    def again(self) -> None:
        self._notes.update([TopicPartition("t", 0)])

    def _work(self) -> None:
        self.now_s += self._lasts_s / 2
        self.busy_s += self._cpu_s / 2

    def _ask(self, wanted: dict[TopicPartition, int], **_: object) -> dict[TopicPartition, OffsetInfo]:
        self.asked_s.append(self.now_s)
        self._work()
        return dict.fromkeys(wanted, OffsetInfo(7, -1, 0))

    def _send(self, _topic: str, records: list[Record], *_: object, **__: object) -> None:
        self._work()
        if self.failure is not None:
            raise self.failure
        self.notes.append((self.now_s, json.loads(records[-1].value or b"")["within_ms"]))


@pytest.mark.parametrize("cpu_s", [0.001, 0.0149, 0.0151, 0.06, 0.2])
@pytest.mark.parametrize("lasts_s", [0.01, 3.0])
def test_the_next_note_follows_within_the_noted_time(
    monkeypatch: pytest.MonkeyPatch, cpu_s: float, lasts_s: float
) -> None:
    """`mm2 failover` waits for it, so a slow machine must not look like one that does not reach the source."""
    clock = Clock(monkeypatch, cpu_s, lasts_s)
    clock.run(60)
    intervals = [after - before for (before, _), (after, _) in itertools.pairwise(clock.notes)]
    noted = [within_ms / 1000 for _, within_ms in clock.notes]
    assert all(interval <= within for interval, within in zip(intervals[1:], noted[1:], strict=False))
    assert max(noted[1:]) <= max(intervals) + lasts_s + 0.01, "and not much later"
    least = cpu_s / 0.003
    assert all(interval >= least for interval in intervals[1:]), "asking takes a small share of the processor"


def test_a_note_that_could_not_be_written_is_written_at_the_next_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch, 0.06, 0.01)
    clock.failure = BrokerFailure.of(7)
    with pytest.raises(BrokerFailure):
        clock.run(1)
    clock.failure = None
    clock.now_s += 1
    clock.again()
    assert len(clock.notes) == 1
