"""Which offsets of groups are known, and what is reported about the others."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

from mm2.config.mirrormaker import SourceAndTarget
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.clients import SOURCE_ALIAS_KEY, TARGET_ALIAS_KEY, Side
from mm2.observer.flow import FlowObserver, WatchedFlow
from mm2.observer.polls import FlowClients, GroupsPoll

PROPS = {
    "name": "MirrorSourceConnector",
    SOURCE_ALIAS_KEY: "A",
    TARGET_ALIAS_KEY: "B",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
    "target.cluster.bootstrap.servers": "127.0.0.1:1",
}
TP = TopicPartition("A.t", 0)
DENIED, NOT_FOUND = BrokerFailure.of(30, subject="group two"), BrokerFailure.of(69, subject="group two")
Answer = dict[TopicPartition, OffsetAndMetadata] | KafkaFailure


class FakeAdmin:
    """Answers with these offsets, or raises the failure."""

    def __init__(self, answers: dict[str, Answer] | KafkaFailure) -> None:
        self.answers = answers

    def list_groups(self) -> list[Any]:
        return []

    def list_group_offsets(self, groups: Iterable[str], **_: object) -> dict[str, Answer]:
        if isinstance(self.answers, KafkaFailure):
            raise self.answers
        return {group: self.answers[group] for group in groups}


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
