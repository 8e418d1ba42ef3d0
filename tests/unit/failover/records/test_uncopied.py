"""Topics and partitions of the source that the ledger does not have."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.config.definitions.java_regex import compile_java
from mm2.copy.progress.ledger import Ledger, entry_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.copy.states import PartitionState
from mm2.failover.evidence import RecordCount
from mm2.failover.groups import Choice
from mm2.failover.leaving import Before, refuse_to_leave_behind
from mm2.failover.records.uncopied import Uncopied, uncopied
from mm2.failover.sides import Refused
from mm2.kafka.errors import BrokerFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import EARLIEST, OffsetInfo, PartitionInfo, TopicInfo, TopicPartition
from mm2.mirror.notes.preparation import Preparation, PreparationNote
from mm2.mirror.notes.promotions import Promotion

NO_LEADER = BrokerFailure.of(5, subject="Partition t-1 of cluster A")


class _Source:
    """A cluster with these partitions: (log start offset, end offset), or the failure."""

    def __init__(self, partitions: dict[tuple[str, int], tuple[int, int] | KafkaFailure]) -> None:
        self._partitions = {TopicPartition(*tp): found for tp, found in partitions.items()}

    def list_topics(self) -> set[str]:
        return {tp.topic for tp in self._partitions}

    def describe_topics(self, names: list[str], *, max_age_s: float) -> dict[str, TopicInfo]:
        del max_age_s
        some = PartitionInfo(1, 0, (1,), (1,))
        return {
            name: TopicInfo(name, "", False, {tp.partition: some for tp in self._partitions if tp.topic == name})
            for name in names
        }

    def list_offsets(
        self, asked: dict[TopicPartition, int], **_: object
    ) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        answers: dict[TopicPartition, OffsetInfo | KafkaFailure] = {}
        for tp, at in asked.items():
            found = self._partitions[tp]
            answers[tp] = found if isinstance(found, KafkaFailure) else OffsetInfo(found[at != EARLIEST], -1, 0)
        return answers


def sides_of(source: Any, *records: Record) -> Any:
    """A flow that has copied t-0, and selects topics that begin with t."""
    ledger = Ledger()
    for record in (entry_record(LedgerEntry("t", 0, "A.t", Mark(90, 90, 90))), *records):
        ledger.apply(record.key, record.value, 1)
    return SimpleNamespace(
        source=source,
        ledger=ledger,
        pair=SimpleNamespace(source="A", target="B"),
        policy=SimpleNamespace(is_heartbeats_topic=lambda topic: topic == "theartbeats"),
        selection=SimpleNamespace(
            should_replicate=lambda topic: topic.startswith("t"),
            remote=lambda topic: f"A.{topic}",
            named=lambda topic: f"A.{topic}",
            names_show_origin=True,
        ),
        clients=None,
        target=None,
    )


def test_records_of_new_partitions_are_missing_before_the_flow_has_found_them() -> None:
    """A partition was added after the last refresh of topics: a planned failover would lose its records."""
    sides = sides_of(_Source({("t", 0): (0, 90), ("t", 1): (20, 25), ("t", 2): (7, 7), ("u", 0): (0, 9)}))
    found = uncopied(sides, Choice())
    (one,) = found.partitions
    assert (one.source, one.remote_topic, one.copied, one.missing) == (("t", 1), "A.t", 20, RecordCount(5, 5))
    before = Before([], [], found)
    with pytest.raises(Refused, match=re.escape("has 5 records that are not on B yet (t-1: 20 of 25)")):
        refuse_to_leave_behind(sides, before)
    assert before.topics == {}, "nothing of it was copied, so it is not promoted"
    assert not uncopied(sides, Choice(compile_java("v"))).partitions


def test_new_topics_count_unless_they_came_from_the_target(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[set[str]] = []

    def foreseen(_: object, topics: set[str]) -> set[str]:
        asked.append(set(topics))
        return {"t-new"}

    monkeypatch.setattr("mm2.failover.records.uncopied.Provenance.foreseen", foreseen)
    sides = sides_of(
        _Source({("t", 0): (0, 90), ("t-new", 0): (0, 3), ("t-back", 0): (0, 4), ("theartbeats", 0): (0, 1)})
    )
    assert [one.source for one in uncopied(sides, Choice()).partitions] == [("t-new", 0)]
    assert asked == [{"t-new", "t-back"}]


def test_partitions_that_the_opposite_flow_writes_are_not_missing() -> None:
    turned = Promotion("t", "t", "failover", 1, turned=True).record()
    assert not uncopied(sides_of(_Source({("t", 0): (0, 90), ("t", 1): (0, 5)}), turned), Choice()).partitions


def test_a_new_partition_that_does_not_return_its_end_is_not_left() -> None:
    sides = sides_of(_Source({("t", 0): (0, 90), ("t", 1): NO_LEADER}))
    with pytest.raises(Refused, match=r"does not return the end offset of 1 partition \(first t-1: "):
        refuse_to_leave_behind(sides, Before([], [], uncopied(sides, Choice())))


def test_a_source_that_does_not_list_its_topics_is_not_left(monkeypatch: pytest.MonkeyPatch) -> None:
    source = _Source({})

    def fail(_: object) -> set[str]:
        raise TimeoutFailure("No answer.")

    monkeypatch.setattr(_Source, "list_topics", fail)
    sides = sides_of(source)
    found = uncopied(sides, Choice())
    assert found == Uncopied(error="Cluster A answers but does not list all its topics: No answer")
    with pytest.raises(Refused, match="does not list all its topics"):
        refuse_to_leave_behind(sides, Before([], [], found))


def test_of_an_unreachable_source_those_that_the_flow_has_noted_are_shown() -> None:
    """The target refuses to create them; their end offsets are not known."""
    noted: list[Record] = []
    log: Any = SimpleNamespace(send=lambda _topic, records, *_, **__: noted.extend(records))
    reason = "topic A.t-new cannot be created: no rights"
    PreparationNote(log, "ledger").update([Preparation("t-new", 0, "A.t-new", PartitionState.REFUSED, reason, 5)])
    (one,) = uncopied(sides_of(None, *noted), Choice()).partitions
    assert (one.source, one.state, one.note, one.end) == (("t-new", 0), "REFUSED", reason, None)
    assert one.missing.most is None
