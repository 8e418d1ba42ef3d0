"""The last end offsets of the source and when it answered, as notes in the flow's ledger.

A partition's ledger entry has the end offset of its last Fetch, so it is as old as the pause or the error that blocks the partition.
When the source has died, only these notes show how much of such a partition is not on the target, and how long the source has
been silent. The leader of the flow writes them: one note with the time, and one for each topic whose end offsets have changed.

  {"note":["source"]}            {"answered_ms":1700000000000,"within_ms":5250}; the next answer is noted within this time
  {"note":["source","orders"]}   {"ends":[1200,50,-1]}; by partition, -1: not known
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from mm2.copy.progress.ledger import Ledger, note_record
from mm2.kafka.admin import Admin
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.structs import LATEST, OffsetInfo, TopicPartition
from mm2.mirror.common.discovery import vanished

SOURCE_NOTE: Final = "source"
#: How often the leader asks, unless it has thousands of partitions. The figures of a source that has died are as old as this.
EVERY_S: Final = 5.0
#: Of the processor time of one core. To ask for 10,000 partitions takes 0.06 s.
_MOST_SHARE: Final = 0.003
_TIMEOUT_S: Final = 5.0


@dataclass(frozen=True, slots=True)
class SourceAnswers:
    """The end offsets of the source's partitions as of ``answered_ms``; None: no note. While the source answers, the next note follows
    within ``within_ms``; None: in the note of an older version.
    """

    answered_ms: int | None = None
    ends: Mapping[TopicPartition, int] = field(default_factory=dict)
    within_ms: int | None = None


def source_answers(ledger: Ledger) -> SourceAnswers:
    """The notes of a ledger. Unreadable ones are ignored."""
    answered_ms = within_ms = None
    ends: dict[TopicPartition, int] = {}
    for name, value in ledger.notes(SOURCE_NOTE).items():
        if not name:
            answered_ms, within_ms = (_number(value.get(key)) for key in ("answered_ms", "within_ms"))
        elif len(name) == 1 and isinstance(value.get("ends"), list):
            found = {TopicPartition(name[0], index): _number(end) for index, end in enumerate(value["ends"])}
            ends.update({tp: end for tp, end in found.items() if end is not None})
    return SourceAnswers() if answered_ms is None else SourceAnswers(answered_ms, ends, within_ms)


class AnswerNotes:
    """Asks the source, and writes the notes. Used by one thread."""

    def __init__(self, source: Admin, ledger: Producer, topic: str) -> None:
        """``topic`` is the ledger, which ``ledger`` writes."""
        self._source = source
        self._ledger = ledger
        self._topic = topic
        self._written: dict[str, list[int]] = {}
        self._due_s = 0.0
        self._send_cpu_s = self._send_s = 0.0  # of the last note: processor time, and time

    def update(self, partitions: Sequence[TopicPartition]) -> bool:
        """Write what has changed, and the time, if that is due. Call it every `EVERY_S`. False: there is no ledger yet.

        Raises KafkaFailure.
        """
        began_s, began_cpu_s = time.monotonic(), time.thread_time()
        if began_s < self._due_s:
            return True
        now_ms = time.time_ns() // 1_000_000  # before the request: what is written meanwhile may not be in the answer
        topics = self._ends(partitions)
        # The note contains when the next one follows, so this is decided before it is written.
        asked_s, asked_cpu_s = time.monotonic(), time.thread_time()
        lasts_s = asked_s - began_s + self._send_s
        due_s = asked_s + (asked_cpu_s - began_cpu_s + self._send_cpu_s) / _MOST_SHARE
        within_s = EVERY_S * max(1, math.ceil((due_s - began_s) / EVERY_S)) + lasts_s
        is_written = self._write(topics, {"answered_ms": now_ms, "within_ms": math.ceil(within_s * 1000)})
        self._due_s = due_s
        self._send_s, self._send_cpu_s = time.monotonic() - asked_s, time.thread_time() - asked_cpu_s
        return is_written

    def _write(self, topics: Mapping[str, list[int]], note: Mapping[str, int]) -> bool:
        changed = {topic: ends for topic, ends in topics.items() if self._written.get(topic) != ends}
        records = [note_record(SOURCE_NOTE, [topic], {"ends": ends}) for topic, ends in changed.items()]
        records += [note_record(SOURCE_NOTE, [topic], None) for topic in self._written.keys() - topics.keys()]
        records.append(note_record(SOURCE_NOTE, [], note))
        try:
            self._ledger.send(self._topic, records, 0, timeout_s=_TIMEOUT_S)
        except BrokerFailure as failure:
            if vanished(failure):
                return False  # it is created by another job of the connector
            raise
        self._written = dict(topics)
        return True

    def _ends(self, partitions: Sequence[TopicPartition]) -> dict[str, list[int]]:
        """The end offsets by topic. Raises KafkaFailure if none is known because brokers do not answer."""
        self._source.cluster.preflight(_TIMEOUT_S)
        answers = self._source.list_offsets(dict.fromkeys(partitions, LATEST), timeout_s=_TIMEOUT_S)
        silent = [
            one for one in answers.values() if isinstance(one, KafkaFailure) and not isinstance(one, BrokerFailure)
        ]
        if silent and len(silent) == len(answers):
            raise silent[0]
        topics: dict[str, list[int]] = {}
        for tp in sorted(answers):
            ends, answer = topics.setdefault(tp.topic, []), answers[tp]
            ends += [-1] * (tp.partition - len(ends))
            ends.append(answer.offset if isinstance(answer, OffsetInfo) else -1)
        return topics


def _number(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
