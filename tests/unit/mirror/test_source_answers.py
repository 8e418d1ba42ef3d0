"""The notes about the last answers of the source."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import pytest

from mm2.copy.ledger import Ledger, note_record
from mm2.kafka.structs import OffsetInfo, TopicPartition
from mm2.mirror.source_answers import SOURCE_NOTE, AnswerNotes, SourceAnswers, source_answers


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


def test_a_source_with_many_partitions_is_asked_less_often() -> None:
    """Each request takes processor time by the number of partitions."""
    asked: list[int] = []

    def list_offsets(wanted: dict[TopicPartition, int], **_: object) -> dict[TopicPartition, OffsetInfo]:
        asked.append(len(wanted))
        return dict.fromkeys(wanted, OffsetInfo(7, -1, 0))

    source: Any = SimpleNamespace(cluster=SimpleNamespace(preflight=lambda _: None), list_offsets=list_offsets)
    ledger: Any = SimpleNamespace(send=lambda *_, **__: None)
    notes = AnswerNotes(source, ledger, "ledger")
    now_s = time.monotonic()
    with (
        patch("mm2.mirror.source_answers.time.thread_time", side_effect=[0.0, 0.06, 1.0, 1.06]),
        patch(
            "mm2.mirror.source_answers.time.monotonic", side_effect=[now_s, now_s, now_s + 19, now_s + 21, now_s + 21]
        ),
    ):
        assert all(notes.update([TopicPartition("t", 0)]) for _ in range(3))
    assert asked == [1, 1]
