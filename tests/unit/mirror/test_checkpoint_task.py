"""The rounds of a checkpoint task: which groups are translated again, with a simulated source and target."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.connect.api import SourceRecord
from mm2.copy.progress.ledger import Ledger, chunk_record, entry_record
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import (
    EARLIEST,
    Metadata,
    OffsetAndMetadata,
    OffsetInfo,
    PartitionInfo,
    TopicInfo,
    TopicPartition,
)
from mm2.mirror.checkpoint_task import MirrorCheckpointTask
from mm2.mirror.common import plugins
from mm2.mirror.common.formats import Checkpoint, OffsetSync
from mm2.mirror.groups.checkpoint_store import CheckpointStore
from mm2.mirror.groups.group_offsets import GroupOffsets
from mm2.mirror.groups.group_reasons import GroupReasons
from mm2.mirror.groups.offset_sync_store import OffsetSyncStore
from mm2.mirror.groups.target_logs import TargetLogs
from mm2.mirror.groups.translator import Translator
from mm2.mirror.notes.kept_records import ForeignRun, kept_note_records
from mm2.reasons import OffsetReasonCode

T, REMOTE = TopicPartition("t", 0), TopicPartition("A.t", 0)


class Side:
    """A cluster: topic ids, committed offsets, log start and end offsets."""

    name = "side"

    def __init__(self, ids: dict[str, str]) -> None:
        self.ids = ids
        self.offsets: dict[str, dict[TopicPartition, OffsetAndMetadata] | KafkaFailure] = {}
        self.start: int | KafkaFailure = 0
        self.end = 1000
        self.cluster = self

    def metadata(self, names: Iterable[str], *, timeout_s: float) -> Metadata:
        assert timeout_s
        led = {0: PartitionInfo(1, 0, (1,), (1,))}
        topics = {
            name: TopicInfo(name, self.ids[name], internal=False, partitions=led) for name in names if name in self.ids
        }
        return Metadata("c", 1, {}, topics, {name: BrokerFailure.of(3) for name in names if name not in self.ids})

    def list_group_offsets(self, groups: Iterable[str], *, require_stable: bool) -> Any:
        assert not require_stable
        return {group: dict(found) if isinstance(found := self.offsets[group], dict) else found for group in groups}

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        def answer(when: int) -> OffsetInfo | KafkaFailure:
            if when == EARLIEST and isinstance(self.start, KafkaFailure):
                return self.start
            return OffsetInfo(self.start if when == EARLIEST and isinstance(self.start, int) else self.end, -1, 0)

        return {tp: answer(when) for tp, when in wanted.items()}


class Scene:
    """A task with one group, and what it reads. ``translated`` are the offsets translated in the last round."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        props = {"source.cluster.alias": "A", "target.cluster.alias": "B", "topics": "t"}
        self.source, self.target = Side({"t": "t1"}), Side({"A.t": "a1"})
        self.syncs, self.ledger = OffsetSyncStore(must_read_to_end=False), Ledger()
        self.syncs.first_read_done()
        task: Any = MirrorCheckpointTask()
        self.task = task
        task._groups, task._interval_s, task._due = ["g"], 0.0, 0.0
        task._checkpoints = CheckpointStore(["g"])
        task._checkpoints_topic = "A.checkpoints.internal"
        task._topic_filter = plugins.topic_filter(props)
        task._source_admin, task._target_admin = self.source, self.target
        task._source_groups = GroupOffsets(task._source_admin, stable=False)
        task._target_logs = TargetLogs(task._target_admin, "B")
        task._translator = translator = Translator(plugins.replication_policy(props), "A", "B")
        translator.syncs, translator.ledger = self.syncs, self.ledger
        task._inputs = SimpleNamespace(are_ready=True)
        clients: Any = SimpleNamespace(source_alias="A")
        task._reasons = GroupReasons(["g"], clients, task._recurring, threading.Event())
        self.translated: list[int] = []
        translate = translator.translate

        def noted(partition: TopicPartition, offset: int, *ids: Any) -> Any:
            self.translated.append(offset)
            return translate(partition, offset, *ids)

        monkeypatch.setattr(translator, "translate", noted)

    def commit(self, offset: int) -> None:
        self.source.offsets["g"] = {T: OffsetAndMetadata(offset)}

    def copied(self, records: int, target: int = 0, source: int = 0) -> None:
        """The flow has copied so many records from this source offset on, the first of them to this target offset."""
        mark = Mark(source + records, target + records, records)
        entry = LedgerEntry("t", 0, "A.t", mark, source + records, "t1", "a1")
        for record in (chunk_record(T, SegmentChunk(0, [Segment(source, target, records)])), entry_record(entry)):
            self.ledger.apply(record.key, record.value)

    def round(self) -> list[tuple[int, int]]:
        """The checkpoints of one round: offsets on the source and on the target."""
        self.translated.clear()
        records: list[SourceRecord] = self.task.poll() or []
        found = [Checkpoint.decode(record.key, record.value) for record in records]
        return [(one.upstream_offset, one.downstream_offset) for one in found]


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch) -> Scene:
    return Scene(monkeypatch)


def test_a_group_without_a_new_commit_is_not_translated_again(scene: Scene) -> None:
    scene.copied(100)
    scene.commit(40)
    assert scene.round() == [(40, 40)]
    assert (scene.round(), scene.translated) == ([], [40])
    assert (scene.round(), scene.translated) == ([], [])
    scene.commit(50)
    assert scene.round() == [(50, 50)]


def test_a_group_is_translated_again_when_the_ledger_or_a_sync_may_give_another_offset(scene: Scene) -> None:
    scene.commit(40)
    assert (scene.round(), scene.round()) == ([], [])
    assert (scene.round(), scene.translated) == ([], [])
    scene.syncs.update(OffsetSync("t", 0, 10, 10))
    assert scene.round() == [(40, 11)]
    scene.copied(100)
    assert scene.round() == [(40, 40)]


def test_a_reason_stays_while_the_group_is_not_translated(scene: Scene) -> None:
    scene.commit(40)
    for _ in range(3):
        scene.round()
    assert not scene.translated
    assert list(scene.task.reasons["g"]) == [T]
    scene.copied(100)
    scene.round()
    assert not scene.task.reasons


def test_a_group_that_skips_records_that_are_on_the_source_only_has_a_checkpoint_and_a_reason(scene: Scene) -> None:
    """`mm2 failback` has kept the first 60 records; the flow has copied those after them to an empty topic."""
    (note,) = kept_note_records(scene.ledger, {T: "t1"}, {T: [ForeignRun(0, 60, 60)]})
    scene.ledger.apply(note.key, note.value)
    scene.copied(40, source=60)
    scene.commit(50)
    assert scene.round() == [(50, 0)]
    assert {tp: reason.code for tp, reason in scene.task.reasons["g"].items()} == {T: OffsetReasonCode.NEXT_NOT_COPIED}
    scene.commit(60)
    assert (scene.round(), scene.task.reasons) == ([], {}), "the same offset on the target"


def test_a_recreated_topic_is_seen_without_a_new_commit(scene: Scene) -> None:
    scene.copied(100)
    scene.commit(40)
    for _ in range(3):
        scene.round()
    scene.target.ids["A.t"] = "a2"
    assert scene.round() == []
    assert list(scene.task.reasons["g"]) == [T]
    assert not scene.task._checkpoints.of("g")
    scene.target.ids["A.t"] = "a1"
    assert scene.round() == [(40, 40)]


def test_a_topic_that_is_selected_later_is_translated(scene: Scene) -> None:
    scene.copied(100)
    scene.commit(40)
    selected = [False]
    scene.task._topic_filter = SimpleNamespace(should_replicate_topic=lambda _: selected[0])
    assert (scene.round(), scene.round()) == ([], [])
    selected[0] = True
    assert scene.round() == [(40, 40)]


def test_an_offset_beyond_the_end_of_the_target_is_checked_in_each_round(scene: Scene) -> None:
    scene.syncs.update(OffsetSync("t", 0, 10, 500))
    scene.target.end = 100
    scene.commit(40)
    assert (scene.round(), scene.round(), scene.round()) == ([], [], [])
    assert list(scene.task.reasons["g"]) == [T]
    scene.target.end = 600
    assert scene.round() == [(40, 501)]


def test_a_group_that_moved_back_is_tried_again_while_the_start_of_the_target_is_not_known(scene: Scene) -> None:
    scene.syncs.update(OffsetSync("t", 0, 20, 20))
    scene.commit(40)
    assert scene.round() == [(40, 21)]
    scene.commit(5)
    scene.target.start = BrokerFailure.of(6)
    assert (scene.round(), scene.round()) == ([], [])
    scene.target.start = 3
    assert scene.round() == [(5, 3)]


def test_a_group_whose_offsets_cannot_be_read_is_translated_when_they_have_changed(scene: Scene) -> None:
    scene.copied(100)
    scene.commit(40)
    scene.round()
    scene.source.offsets["g"] = BrokerFailure.of(14)
    assert scene.round() == []
    scene.commit(45)
    assert scene.round() == [(45, 45)]


@pytest.mark.parametrize("syncs", [(), ((10, 10),)], ids=["without syncs", "with syncs"])
def test_a_checkpoint_behind_records_that_took_the_place_of_lost_ones_is_lowered(
    scene: Scene, syncs: tuple[tuple[int, int], ...]
) -> None:
    """The target lost its end, and the source has only later records. The group has read none of them."""
    scene.syncs.update(OffsetSync("t", 0, 450, 350))
    scene.commit(450)
    assert scene.round() == [(450, 350)]
    scene.syncs = scene.task._translator.syncs = OffsetSyncStore(must_read_to_end=False)
    for up, down in syncs:
        scene.syncs.update(OffsetSync("t", 0, up, down))
    scene.syncs.first_read_done()
    scene.copied(200, source=500, target=300)
    scene.target.end = 500
    assert scene.round() == [(450, 300)]
    assert (scene.round(), scene.round()) == ([], [])
