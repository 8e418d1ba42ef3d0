"""What the topic id and the log end offset of a remote partition show of the records that were copied to it."""

from __future__ import annotations

from typing import Any

import pytest

from mm2.copy.progress.session import LedgerEntry, Mark, PartitionCondition, PreviousCommit
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import TopicInfo
from mm2.mirror.groups.target_logs import TargetLoss, target_loss
from mm2.reasons import TargetLossCode

GONE = BrokerFailure.of(3, subject="A.t")
DENIED = BrokerFailure.of(29, subject="A.t")
OPEN = PreviousCommit(Mark(5, 5, 5), {}, 0, (0, 0, 0), 0)


def entry(mark: Mark = Mark(12, 10, 10), **more: Any) -> LedgerEntry:  # noqa: B008  (immutable)
    return LedgerEntry("t", 0, "A.t", mark, target_id="old", **more)


def topic(topic_id: str = "old") -> TopicInfo:
    return TopicInfo("A.t", topic_id, False, {})


@pytest.mark.parametrize(
    ("known", "answer", "end", "code"),
    [
        (entry(), topic(), 10, None),
        (entry(), topic(), 99, None),  # also by other producers, which is seen elsewhere
        (entry(), topic(), 9, TargetLossCode.SHORTER),
        (entry(), topic("new"), 0, TargetLossCode.RECREATED),
        (entry(), topic("new"), 10, TargetLossCode.RECREATED),
        (entry(), topic(""), 10, None),  # brokers without topic ids
        (entry(retired=("older",)), topic("older"), 10, None),  # stale metadata
        (entry(), GONE, GONE, TargetLossCode.DELETED),
        (entry(), topic(), GONE, TargetLossCode.DELETED),
        # Nothing had been copied.
        (entry(Mark(12, 0, 0)), topic("new"), 0, None),
        (entry(Mark(12, 0, 0)), GONE, GONE, None),
        (entry(Mark(0, -1, 0)), GONE, GONE, None),
        # Where on the target is not known, but something was.
        (entry(Mark(12, -1, 0)), topic(), 0, None),
        (entry(Mark(12, -1, 0)), topic("new"), 0, TargetLossCode.RECREATED),
        # Its log has other records, how many there may be.
        (entry(condition=PartitionCondition("INCONSISTENT", "", 5, 0)), topic(), 99, TargetLossCode.STOPPED),
        (entry(condition=PartitionCondition("LOST_RANGE", "", 5, 0)), topic(), 9, TargetLossCode.SHORTER),
        (entry(condition=PartitionCondition("UNREACHABLE", "", 5, 0)), topic(), 10, None),
        # The transaction of the entry may be open, or aborted.
        (entry(before=OPEN), topic(), 5, None),
        (entry(before=OPEN), topic(), 4, TargetLossCode.SHORTER),
    ],
)
def test_a_log_that_is_not_the_copied_one_or_ends_before_the_position_is_a_loss(
    known: LedgerEntry, answer: TopicInfo | KafkaFailure, end: int | KafkaFailure, code: TargetLossCode | None
) -> None:
    found = target_loss(known, answer, end)
    assert not isinstance(found, KafkaFailure)
    assert (None if found is None else found.code) == code


@pytest.mark.parametrize(("answer", "end"), [(DENIED, DENIED), (topic(), DENIED)])
def test_an_error_shows_nothing(answer: TopicInfo | KafkaFailure, end: KafkaFailure) -> None:
    assert target_loss(entry(), answer, end) is DENIED


def test_the_message_has_both_numbers() -> None:
    loss = target_loss(entry(), topic("new"), 3)
    assert isinstance(loss, TargetLoss)
    assert str(loss) == (
        "A.t was deleted and created again: records were copied up to offset 10 of A.t-0, and the new log ends at offset 3"
    )
