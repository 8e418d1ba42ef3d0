"""When the views of consumer groups are made again."""

from __future__ import annotations

import dataclasses

from mm2.copy.progress.ledger import Ledger, group_record
from mm2.copy.states import PartitionState
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.common.formats import Checkpoint
from mm2.observer.groups import GroupViews
from mm2.observer.polling.polls import PolledGroups
from mm2.observer.views import PartitionView
from mm2.reasons import MoveCode, OffsetReason, OffsetReasonCode

HERE, THERE = TopicPartition("t", 0), TopicPartition("A.t", 0)
PARTITION = PartitionView("t", 0, "A.t", PartitionState.RUNNING, source_end=10, target_offset=9)


def polled(source: int = 7, target: int = 6, downstream: int = 6) -> PolledGroups:
    return PolledGroups(
        {"g": {THERE: Checkpoint("g", "A.t", 0, source, downstream)}},
        {"g": {HERE: OffsetAndMetadata(source)}},
        {"g": {THERE: OffsetAndMetadata(target)}},
    )


def test_a_group_has_its_offsets_on_both_clusters_and_its_lag() -> None:
    (view,) = GroupViews().read(polled(target=4), None, (PARTITION,))
    assert (view.source_offset, view.translated, view.target_offset) == (7, 6, 4)
    assert (view.source_lag, view.target_lag) == (3, 5)
    assert (view.if_moved, view.if_moved_records) == (MoveCode.READS_AGAIN, 2)


def test_the_lag_is_unknown_if_the_log_ends_before_the_offset() -> None:
    """The log was truncated, or is another one. A log that is known only ends there because its end was requested first."""
    cut = dataclasses.replace(PARTITION, source_end=5, is_lag_exact=False)
    assert GroupViews().read(polled(), None, (cut,))[0].source_lag is None
    assert GroupViews().read(polled(), None, (dataclasses.replace(cut, is_lag_exact=True),))[0].source_lag == 0
    assert GroupViews().read(polled(), None, (dataclasses.replace(cut, source_end=9),))[0].source_lag == 2


def test_views_are_made_again_only_when_something_has_changed() -> None:
    book, ledger = GroupViews(), Ledger()
    first = book.read(polled(), ledger, (PARTITION,))
    assert book.read(polled(), ledger, (dataclasses.replace(PARTITION),)) is first
    assert book.read(polled(target=5), ledger, (PARTITION,))[0].target_offset == 5
    longer = dataclasses.replace(PARTITION, source_end=12)
    assert book.read(polled(), ledger, (longer,))[0].source_lag == 5
    record = group_record("g", {HERE: OffsetReason(OffsetReasonCode.NO_SYNC, "there is no offset sync for it")})
    ledger.apply(record.key, record.value)
    assert book.read(polled(), ledger, (longer,))[0].reason == "there is no offset sync for it"
    assert book.read(polled(), ledger, ()) != first
