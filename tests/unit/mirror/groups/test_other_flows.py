"""Where a group may be in a remote partition that two flows copy to. Their topics are read by `test_shared_remote_topics.py`."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from mm2.copy.progress.ledger import Ledger, chunk_record, entry_record
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.formats import Checkpoint
from mm2.mirror.groups.other_flows import OtherFlows, _Checkpoints, _OtherFlow
from mm2.mirror.policy import IdentityReplicationPolicy
from mm2.reasons import OffsetReasonCode

T = TopicPartition("t", 0)


def flows(*read_to: int | None, java: bool = False) -> OtherFlows:
    """A->C has copied to the offsets 100-199 of the topic with the id "x". ``read_to``: checkpoints of the group g in other flows."""
    ledger = Ledger()
    entry = LedgerEntry("t", 0, "t", Mark(100, 200, 100), chunk=1)
    for record in (entry_record(entry), chunk_record(T, SegmentChunk(1, [Segment(0, 100, 100)]))):
        ledger.apply(record.key, record.value)
    clients: Any = SimpleNamespace(source_alias="A", target_alias="C")
    admin: Any = SimpleNamespace(list_topics=lambda: {"mm2-ledger.A.internal", "A.checkpoints.internal"})
    found = OtherFlows(clients, admin, IdentityReplicationPolicy(), can_share=True)
    found.read(ledger)
    assert found.shared_offset("g", T, 120, "x") is None
    found._index_own()
    for index, offset in enumerate(read_to):
        checkpoints = _Checkpoints(None)
        group = "another" if offset is None else "g"
        one = Checkpoint(group, "t", 0, 1, offset or 0)
        checkpoints.apply(one.key(), one.value())
        name = f"B{index}"
        found._flows[name] = _OtherFlow(checkpoints, None if java else {T: {"x"}})
    return found


@pytest.mark.parametrize(
    ("offset", "read_to", "placed"),
    [
        (120, 90, 90),
        (190, 20, 20),
        (100, 100, 100),
        (200, 100, 200),  # behind its checkpoint in the other flow there are records of this flow only
        (150, 130, 150),
        (20, 90, 20),
    ],
)
def test_a_group_is_placed_before_the_first_record_that_it_may_not_have_read(
    offset: int, read_to: int, placed: int
) -> None:
    for java in (False, True):
        shared = flows(read_to, java=java).shared_offset("g", T, offset, "x")
        assert shared is not None
        assert (shared.offset, shared.reason) == (placed, None)


def test_the_smallest_checkpoint_in_several_flows_counts() -> None:
    shared = flows(150, 30).shared_offset("g", T, 180, "x")
    assert shared is not None
    assert shared.offset == 30


def test_nothing_of_a_flow_without_a_checkpoint_of_the_group_counts_as_read() -> None:
    shared = flows(150, None).shared_offset("g", T, 180, "x")
    assert shared is not None
    assert shared.reason is not None
    assert (shared.offset, shared.reason.code) == (0, OffsetReasonCode.OTHER_FLOW)
    assert "B0->C, B1->C" in shared.reason.message


def test_what_was_copied_to_a_deleted_topic_does_not_count() -> None:
    assert flows(20).shared_offset("g", T, 180, "y") is None
    assert flows(20).names_of(T, "y") == []
    assert flows(20).names_of(T) == ["B0->C"]


def test_records_of_the_flow_itself_between_two_offsets_are_known() -> None:
    found = flows(20)
    assert [found.has_own(T, *run) for run in ((0, 100), (90, 101), (199, 300), (200, 300))] == [
        False,
        True,
        True,
        False,
    ]
