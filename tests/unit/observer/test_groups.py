"""Which offsets of groups are known, and what is reported about the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest

from mm2.config.mirrormaker import SourceAndTarget
from mm2.copy.progress.ledger import Ledger, group_record
from mm2.copy.states import PartitionState
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, UnsupportedVersion
from mm2.kafka.structs import EARLIEST, GroupListing, OffsetAndMetadata, OffsetInfo, TopicPartition
from mm2.mirror.common.clients import Side
from mm2.mirror.common.formats import Checkpoint
from mm2.observer.flow import FlowObserver, WatchedFlow
from mm2.observer.groups import group_views
from mm2.observer.polling.polls import FlowClients, GroupsPoll
from mm2.observer.views import PartitionView
from mm2.reasons import MoveCode, OffsetReason, OffsetReasonCode
from tests.unit.observer.unreachable import PROPS

TP = TopicPartition("A.t", 0)
DENIED, NOT_FOUND = BrokerFailure.of(30, subject="group two"), BrokerFailure.of(69, subject="group two")
Answer = dict[TopicPartition, OffsetAndMetadata] | KafkaFailure


class FakeAdmin:
    """Answers with these offsets, or raises the failure."""

    def __init__(self, answers: dict[str, Answer] | KafkaFailure) -> None:
        self.answers = answers

    share_groups: tuple[str, ...] = ()

    def list_groups(self) -> list[GroupListing]:
        return [GroupListing(group, "share", "Stable", "share") for group in self.share_groups]

    def list_offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
        """All logs have the offsets from 3 to 20."""
        return {tp: OffsetInfo(3 if when == EARLIEST else 20, -1, 0) for tp, when in wanted.items()}

    def list_group_offsets(self, groups: Iterable[str], **_: object) -> dict[str, Answer]:
        if isinstance(self.answers, KafkaFailure):
            raise self.answers
        return {group: self.answers[group] for group in groups}

    list_share_group_offsets = list_group_offsets


Sides = dict[Side, dict[str, Answer] | KafkaFailure]
ONE: Answer = {TP: OffsetAndMetadata(5)}
COMPLETE: dict[str, Answer] = {"one": ONE, "two": {}}


def answering(poll: GroupsPoll, sides: Sides, monkeypatch: pytest.MonkeyPatch) -> GroupsPoll:
    poll.reasoned = frozenset({"one", "two"})
    monkeypatch.setattr(poll, "_follow", lambda: None)
    monkeypatch.setattr(poll, "_admins", {side: FakeAdmin(answers) for side, answers in sides.items()})
    return poll


@pytest.fixture
def polled(monkeypatch: pytest.MonkeyPatch) -> Callable[[Sides], GroupsPoll]:
    return lambda sides: answering(GroupsPoll(FlowClients(PROPS)), sides, monkeypatch)


def test_a_group_that_cannot_be_read_hides_no_other_and_is_reported(polled: Callable[[Sides], GroupsPoll]) -> None:
    poll = polled({Side.TARGET: {"one": ONE, "two": DENIED}, Side.SOURCE: COMPLETE})
    with pytest.raises(BrokerFailure, match="group two"):
        poll()
    assert poll.failed_on is Side.TARGET
    assert (set(poll.seen.target), set(poll.seen.source)) == ({"one"}, {"one", "two"})


def test_a_group_that_a_cluster_does_not_have_has_no_offsets_there(polled: Callable[[Sides], GroupsPoll]) -> None:
    poll = polled({Side.TARGET: {"one": ONE, "two": NOT_FOUND}, Side.SOURCE: COMPLETE})
    poll()
    assert poll.seen.target == {"one": ONE, "two": {}}


@pytest.mark.parametrize("without", Side)
def test_a_target_before_kafka_4_2_has_no_offsets_of_share_groups(
    without: Side, polled: Callable[[Sides], GroupsPoll], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FakeAdmin, "share_groups", ("two",))
    unsupported: dict[str, Answer] = {"one": ONE, "two": UnsupportedVersion.of(ErrorCode.UNSUPPORTED_VERSION)}
    poll = polled({side: unsupported if side is without else COMPLETE for side in Side})
    if without is Side.TARGET:
        poll()
        assert poll.seen.target == {"one": ONE, "two": {}}
    else:  # it has listed a share group
        with pytest.raises(UnsupportedVersion):
            poll()


def test_a_source_that_does_not_answer_keeps_its_previous_offsets(polled: Callable[[Sides], GroupsPoll]) -> None:
    sides: Sides = {Side.TARGET: COMPLETE, Side.SOURCE: COMPLETE}
    poll = polled(sides)
    poll()
    before = poll.seen.source
    polled_again = {Side.TARGET: {"one": {}, "two": {}}, Side.SOURCE: KafkaFailure("A does not answer")}
    poll._admins = {side: FakeAdmin(answers) for side, answers in polled_again.items()}  # type: ignore[misc, arg-type]
    with pytest.raises(KafkaFailure, match="A does not answer"):
        poll()
    assert (poll.failed_on, poll.seen.source, poll.seen.target) == (Side.SOURCE, before, {"one": {}, "two": {}})


@pytest.mark.parametrize(
    ("sides", "source_error", "error"),
    [
        (None, "", "their first poll has not ended yet"),
        ({Side.TARGET: COMPLETE, Side.SOURCE: COMPLETE}, "", ""),
        ({Side.TARGET: {"one": DENIED, "two": DENIED}, Side.SOURCE: COMPLETE}, "", str(DENIED)),
        ({Side.TARGET: {"one": DENIED, "two": DENIED}, Side.SOURCE: COMPLETE}, "timed out", str(DENIED)),
        ({Side.TARGET: COMPLETE, Side.SOURCE: {"one": ONE, "two": DENIED}}, "", str(DENIED)),
        ({Side.TARGET: COMPLETE, Side.SOURCE: KafkaFailure("timed out")}, "timed out", ""),
    ],
)
def test_the_view_of_a_flow_has_the_reason(
    sides: Sides | None, source_error: str, error: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not twice for a source that does not answer."""
    observer = FlowObserver(WatchedFlow(SourceAndTarget("A", "B"), PROPS), None)
    try:
        observer._source_watch.error = source_error
        if sides is not None:
            answering(observer._groups, sides, monkeypatch)
            observer._groups_watch.once()
        assert observer.view().groups_error == error
    finally:
        observer.stop()


@pytest.mark.parametrize(
    ("committed", "translated", "code", "records"),
    [
        (10, 10, MoveCode.CONTINUES, 0),
        (15, 10, MoveCode.AHEAD, 5),
        (20, 10, MoveCode.AHEAD, 10),  # the next record
        (21, 10, MoveCode.OUT_OF_RANGE, None),  # the target has lost its end
        (21, None, MoveCode.OUT_OF_RANGE, None),
        (3, 10, MoveCode.READS_AGAIN, 7),
        (2, 10, MoveCode.OUT_OF_RANGE, None),  # retention has removed the records
        (5, None, MoveCode.UNTRANSLATED, None),
        # Checkpoints outlive the records to which they refer.
        (2, 2, MoveCode.OUT_OF_RANGE, None),
        (21, 21, MoveCode.OUT_OF_RANGE, None),
    ],
)
def test_consumers_cannot_start_at_an_offset_that_the_target_does_not_have(
    committed: int,
    translated: int | None,
    code: MoveCode,
    records: int | None,
    polled: Callable[[Sides], GroupsPoll],
) -> None:
    """Given a log from 3 to 20 on the target."""
    other = TopicPartition("other", 0)  # of another flow
    offsets: Answer = {TP: OffsetAndMetadata(committed), other: OffsetAndMetadata(7)}
    poll = polled({Side.TARGET: {"one": offsets, "two": {}}, Side.SOURCE: COMPLETE})
    poll.remote_topics = frozenset({"A.t"})
    if translated is not None:
        poll._checkpoints = {("one", "A.t", 0): Checkpoint("one", "A.t", 0, 9, translated)}
    poll()
    assert other not in poll.seen.target_logs
    ledger = Ledger()
    if translated is None:
        reasons = {TopicPartition("t", 0): OffsetReason(OffsetReasonCode.NO_SYNC, "no offset sync")}
        record = group_record("one", reasons)
        ledger.apply(record.key, record.value)
    (view,) = group_views(poll.seen, ledger, (PartitionView("t", 0, "A.t", PartitionState.RUNNING),))
    assert (view.if_moved, view.if_moved_records) == (code, records)
