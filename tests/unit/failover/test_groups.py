"""Which offset a group gets on the target."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from mm2.copy.progress.ledger import Ledger, chunk_record, entry_record
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.failover.evidence import FoundBy, GroupEvidence, Outcome
from mm2.failover.groups import CHECKPOINT, SOURCE, Choice, Groups
from mm2.kafka.errors import BrokerFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.structs import (
    GroupDescription,
    GroupListing,
    OffsetAndMetadata,
    PartitionInfo,
    TopicInfo,
    TopicPartition,
)
from mm2.mirror.common.formats import Checkpoint, OffsetSync
from mm2.mirror.groups.offset_sync_store import OffsetSyncStore
from mm2.mirror.groups.translator import Translated, Translator
from mm2.mirror.policy import DefaultReplicationPolicy

P0 = TopicPartition("t", 0)
EMPTY = GroupDescription("g", "consumer", "", "Empty", "", ())


@pytest.mark.parametrize(("end", "found"), [(70, FoundBy.EXACT), (69, FoundBy.NOTHING)])
def test_an_exact_offset_beyond_the_end_of_the_target_is_not_used(end: int, found: FoundBy) -> None:
    """The target has lost its end since the ledger was written: the group would skip what is written up to this offset."""
    moves = Groups.__new__(Groups)
    moves._translator = SimpleNamespace(topic_on_target=lambda topic: f"A.{topic}")  # type: ignore[assignment]
    moves._merged = {}
    moves._logs = {TopicPartition("A.t", 0): (0, end)}
    row = moves._evidence("g", P0, 50, {}, Translated("A.t", 70, is_exact=True))
    assert row.found is found
    assert row.translated == (70 if found is FoundBy.EXACT else None)


@pytest.mark.parametrize("are_syncs_read", [True, False])
def test_a_checkpoint_behind_records_that_the_group_has_not_read_is_not_used(*, are_syncs_read: bool) -> None:
    """The target lost its end after the checkpoint was written, and later records of the source took its place."""
    ledger = Ledger()
    entry = LedgerEntry("t", 0, "A.t", Mark(700, 500, 200), 700)
    for record in (chunk_record(P0, SegmentChunk(0, [Segment(500, 300, 200)])), entry_record(entry)):
        ledger.apply(record.key, record.value)
    policy = DefaultReplicationPolicy()
    policy.configure({})
    moves: Any = Groups.__new__(Groups)
    moves._translator = Translator(policy, "A", "B")
    moves._translator.ledger = ledger
    moves._sides, moves._merged = SimpleNamespace(ledger=ledger), {}
    if are_syncs_read:
        moves._translator.syncs = OffsetSyncStore(must_read_to_end=False)
        moves._translator.syncs.update(OffsetSync("t", 0, 10, 10))
        moves._translator.syncs.first_read_done()
    moves._logs = {TopicPartition("A.t", 0): (0, 500)}
    written = Checkpoint("g", "A.t", 0, 450, 350, "")
    found = moves._translator.translate(P0, 450, {}, {})
    row = moves._evidence("g", P0, 450, {("g", TopicPartition("A.t", 0)): written}, found)
    assert (row.translated, row.found) == (300, FoundBy.CHECKPOINT)


class _Source:
    """The groups of a source; failures are those of coordinators without a broker."""

    def __init__(self, groups: dict[str, int | KafkaFailure | None], listed: Iterable[str] | KafkaFailure) -> None:
        self._groups = groups
        self._listed = listed

    def list_groups(self) -> list[GroupListing]:
        if isinstance(self._listed, KafkaFailure):
            raise self._listed
        return [GroupListing(group, "consumer", "Empty", "Classic") for group in self._listed]

    def list_group_offsets(self, groups: list[str], *, require_stable: bool) -> dict[str, Any]:
        assert require_stable
        found = {group: self._groups[group] for group in groups}
        return {
            group: offset
            if isinstance(offset, KafkaFailure)
            else {}
            if offset is None
            else {P0: OffsetAndMetadata(offset)}
            for group, offset in found.items()
        }

    def describe_groups(self, groups: list[str]) -> dict[str, Any]:
        return {group: GroupDescription(group, "", "", "Dead", "", ()) for group in groups}


NO_COORDINATOR = BrokerFailure.of(15, subject="Group g")


def groups_of(source: Any, *, target: Any = None) -> Any:
    """The groups of a flow A->B that copies t."""
    found: Any = Groups.__new__(Groups)
    found._shared = found._untyped = frozenset()
    found._choice, found._routed, found.problems, found.notes = Choice(), {}, [], []
    found._merged = {}
    found._filter = SimpleNamespace(should_replicate_group=lambda _: True)
    found._translator = SimpleNamespace(home_of=lambda _: None, topic_on_target=lambda topic: f"A.{topic}")
    found._sides = SimpleNamespace(
        source=source,
        target=target or SimpleNamespace(list_groups=list),
        assigned_groups=lambda: (set(), set()),
        pair=SimpleNamespace(source="A", target="B"),
        policy=SimpleNamespace(
            came_from=lambda _, topic: topic.startswith("A."), upstream_from=lambda _, topic: topic[2:]
        ),
        selection=SimpleNamespace(topic_filter=SimpleNamespace(should_replicate_topic=lambda _: True)),
    )
    return found


def checkpoints_of(**offsets: int) -> dict[tuple[str, TopicPartition], Checkpoint]:
    return {
        (group, TopicPartition("A.t", 0)): Checkpoint(group, "A.t", 0, offset, offset, "")
        for group, offset in offsets.items()
    }


@pytest.mark.parametrize("listed", [["here"], TimeoutFailure("broker 2 does not answer")], ids=["listed", "not listed"])
def test_groups_without_a_coordinator_get_their_last_checkpoint(listed: Any) -> None:
    """Of a source that has lost a broker: such a group is not listed, and would be forgotten without a word."""
    source = _Source({"here": 50, "lost": NO_COORDINATOR, "moved": 60, "deleted": None}, listed)
    groups = groups_of(source)
    checkpoints = groups._of_checkpoints(checkpoints_of(here=40, lost=40, moved=40, deleted=40))
    found = groups._of_source(source, checkpoints)
    assert {group: offsets[P0][:2] for group, offsets in found.items()} == {
        "here": (50, SOURCE),
        "lost": (40, CHECKPOINT),
        "moved": (60, SOURCE),
    }
    assert groups.notes == [
        f"the offsets of group lost cannot be read on A, so its last checkpoint is used: {NO_COORDINATOR}"
    ]
    assert len(groups.problems) == (0 if isinstance(listed, list) else 1)


def test_an_unreadable_group_without_a_checkpoint_is_a_problem() -> None:
    source = _Source({"lost": NO_COORDINATOR}, ["lost"])
    groups = groups_of(source)
    assert groups._of_source(source, {}) == {}
    assert groups.problems == [f"the offsets of group lost cannot be read on A: {NO_COORDINATOR}"]


@pytest.mark.parametrize("leader", [-1, 1])
def test_a_failover_does_without_offset_syncs_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch, leader: int) -> None:
    """A partition of the source without a leader must not prevent that the source is left."""
    info = TopicInfo("mm2-offset-syncs.B.internal", "", False, {0: PartitionInfo(leader, 0, (1,), (1,))})
    groups = groups_of(SimpleNamespace(describe_topics=lambda names: dict.fromkeys(names, info)))
    groups._sides.config = SimpleNamespace(source_connector={"target.cluster.alias": "B", "source.cluster.alias": "A"})
    reads = []

    def read(*asked: object) -> None:
        reads.append(asked)
        raise TimeoutFailure("not read")

    monkeypatch.setattr(groups, "_read", read)
    assert groups._syncs() is None
    assert len(reads) == (leader > 0), "a partition without a leader is not waited for"
    assert [
        note.startswith("the offset syncs cannot be read, so groups may read more records again: ")
        for note in groups.notes
    ] == [True]


def test_share_groups_of_an_unreachable_source_are_known_from_the_tasks() -> None:
    """They do not commit offsets. A consumer group of that name on the target would keep the share group from starting there."""
    target = SimpleNamespace(
        list_groups=lambda: [GroupListing("on-b", "share", "Empty", "Share"), GroupListing("x", "", "", "Share")]
    )
    groups = groups_of(None, target=target)
    groups._sides.assigned_groups = lambda: ({"consumer"}, {"share", "other-share"})
    assert groups._share_groups({"consumer", "share", "on-b", "unknown"}) == {"share", "on-b"}
    assert (groups.problems, groups._untyped) == ([], frozenset())

    def unanswered() -> list[GroupListing]:
        raise KafkaFailure("broker 2 of cluster B does not answer")

    target.list_groups = unanswered
    assert groups._share_groups({"consumer", "share", "on-b", "unknown"}) == {"share"}
    assert groups._untyped == {"on-b", "unknown"}
    (problem,) = groups.problems
    assert problem.startswith("whether on-b, unknown are share groups is not known, so they are not moved")
    target.list_groups = None  # not asked if all are known
    assert groups._share_groups({"consumer", "share"}) == {"share"}
    assert groups._share_groups(()) == frozenset()


class _GroupWrites:
    """The groups of a target."""

    def __init__(self) -> None:
        self.written: dict[str, dict[TopicPartition, OffsetAndMetadata]] = {}

    def alter_group_offsets(
        self, group: str, offsets: dict[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, None]:
        self.written[group] = offsets
        return dict.fromkeys(offsets)

    def describe_groups(self, groups: list[str]) -> dict[str, GroupDescription]:
        return dict.fromkeys(groups, EMPTY)

    def list_group_offsets(self, groups: list[str], **_: object) -> dict[str, dict[TopicPartition, OffsetAndMetadata]]:
        return {group: self.written.get(group, {}) for group in groups}


@pytest.mark.parametrize("told_by", [SOURCE, CHECKPOINT])
def test_the_metadata_of_a_commit_is_kept(told_by: str) -> None:
    """Applications such as Kafka Streams store data of their own there."""
    source: Any = _Source({"g": 50}, ["g"]) if told_by == SOURCE else None
    target = _GroupWrites()
    groups = groups_of(source, target=target)
    groups._logs = {}
    checkpoint = {("g", TopicPartition("A.t", 0)): Checkpoint("g", "A.t", 0, 50, 50, "mine")}
    commits = groups._of_checkpoints(checkpoint)
    if source is not None:
        source.list_group_offsets = lambda names, **_: {name: {P0: OffsetAndMetadata(50, "mine")} for name in names}
        commits = groups._of_source(source, commits)
    commit = commits["g"][P0]
    assert (commit.told_by, commit.metadata) == (told_by, "mine")
    row = GroupEvidence("g", "t", 0, "A.t", 50, told_by, 70, outcome=Outcome.TO_WRITE, metadata=commit.metadata)
    (done,) = groups.write([row])
    assert done.outcome is Outcome.WRITTEN
    assert target.written == {"g": {row.target: OffsetAndMetadata(70, "mine")}}


@pytest.mark.parametrize(
    ("before", "outcome"), [(80, Outcome.AHEAD), (81, Outcome.FAILED), (70, Outcome.ALREADY_COMMITTED)]
)
def test_an_offset_beyond_the_end_of_the_target_is_not_ahead(before: int, outcome: Outcome) -> None:
    """The target has lost its end, or the remote topic was created again: consumers of the group would be reset."""
    groups = groups_of(None)
    row = GroupEvidence("g", "t", 0, "A.t", 50, SOURCE, 70)
    groups._logs = {row.target: (0, 80)}
    found = groups._with_outcome(row, EMPTY, {row.target: OffsetAndMetadata(before)})
    assert found.outcome is outcome
    if outcome is Outcome.FAILED:
        assert "the offset 81 is beyond the end offset 80 of A.t-0" in found.reason


@pytest.mark.parametrize(
    ("described", "outcome", "reason"),
    [
        (EMPTY, Outcome.TO_WRITE, ""),
        (BrokerFailure.of(69, subject="Group g"), Outcome.TO_WRITE, ""),  # GROUP_ID_NOT_FOUND
        (
            GroupDescription("g", "consumer", "", "Stable", "", ()),
            Outcome.IN_USE,
            "it has members on B (stable): stop them first",
        ),
        (
            TimeoutFailure("broker 2 does not answer"),
            Outcome.FAILED,
            "whether it has members on B is not known: broker 2 does not answer",
        ),
    ],
)
def test_members_are_reported_only_if_they_are_known(described: Any, outcome: Outcome, reason: str) -> None:
    """A group that the target does not have is looked up on all brokers, also on one that does not answer."""
    groups = groups_of(None)
    groups._logs = {}
    row = GroupEvidence("g", "t", 0, "A.t", 50, SOURCE, translated=70, found=FoundBy.EXACT)
    found = groups._with_outcome(row, described, {})
    assert (found.outcome, found.reason) == (outcome, reason)
