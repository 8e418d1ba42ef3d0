"""What `mm2 failback` refuses before it changes anything."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mm2.config.mirrormaker import SourceAndTarget
from mm2.copy.progress.ledger import Ledger
from mm2.failover import failback as module
from mm2.failover.evidence import PartitionEvidence
from mm2.failover.failback import FailbackOptions, check_reverse_names, failback
from mm2.failover.groups import Choice
from mm2.failover.records.uncopied import Uncopied
from mm2.failover.sides import FlowConfig, Refused, Sides
from mm2.kafka.structs import TopicPartition
from mm2.mirror.notes.promotions import Promotion
from mm2.mirror.plan.way_back import WayBack


def flow(source: str, target: str, regex: str = "") -> FlowConfig:
    """A flow, with a router that keeps the names of the source."""
    props = {
        "source.cluster.alias": source,
        "target.cluster.alias": target,
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
    }
    if regex:
        props |= {"transforms": "r", "transforms.r.type": "RegexRouter"}
        props |= {"transforms.r.regex": regex, "transforms.r.replacement": "$1"}
    return FlowConfig(SourceAndTarget(source, target), props, props, {})


def test_the_opposite_flow_has_to_keep_the_names_that_a_router_keeps() -> None:
    """Otherwise it would not continue the topics, but copy them to others."""
    sides = Sides(flow("A", "B", r"A\.(.*)"))
    check_reverse_names(sides, flow("B", "A", r"B\.(.*)"), ["t"])
    with pytest.raises(Refused) as caught:
        check_reverse_names(sides, flow("B", "A"), ["u", "t"])
    assert str(caught.value).startswith("B->A would copy t to A as B.t, so it cannot continue the topic t there")


def test_the_opposite_flow_has_to_select_the_topics_that_it_takes_over() -> None:
    """Otherwise it would have a position for them, and copy nothing."""
    reverse = flow("B", "A")
    reverse.source_connector["topics"] = "other"
    with pytest.raises(Refused, match=r"B->A would copy nothing of t and 1 more to A: its topics"):
        check_reverse_names(Sides(flow("A", "B")), reverse, ["t", "u"])


class _Identity:
    """The flow A->B with identity naming, which has promoted t; ``reverse`` is the promotion by B->A of the time before."""

    def __init__(self, promotion: Promotion, reverse: Promotion | None, *, error: str = "") -> None:
        self.source, self.source_error, self.reverse_error = object(), "", error
        self.config = flow("A", "B")
        self.pair = self.config.pair
        self.ledger = _ledger(promotion)
        self.reverse_ledger = None if error else _ledger(reverse)
        self.changed_by: list[str] = []

    def is_same_name(self, _topic: str) -> bool:
        return True

    def way_back(self, _topics: object) -> WayBack:
        return WayBack(self.pair)


def _ledger(promotion: Promotion | None) -> Ledger:
    ledger = Ledger()
    if promotion is not None:
        record = promotion.record()
        ledger.apply(record.key, record.value, 1)
    return ledger


ONE = PartitionEvidence("t", 0, "t", 90, 90, 90)


def failed_back(
    monkeypatch: pytest.MonkeyPatch, sides: Any, one: PartitionEvidence = ONE, *, keep: bool = False
) -> tuple[Any, list[list[str]]]:
    """The report, and the topics of which promotions by B->A were withdrawn."""
    withdrawn: list[list[str]] = []

    @contextmanager
    def opened(_: FlowConfig) -> Iterator[Any]:
        yield sides

    def withdraw(reversal: Any, done: list[str], _problems: list[str]) -> None:
        withdrawn.append(sorted(reversal._topics))
        done.append("withdrawn")

    monkeypatch.setattr(Sides, "opened", opened)
    monkeypatch.setattr(module, "chosen_partitions", lambda *_: [TopicPartition("t", 0)])
    monkeypatch.setattr(module, "partitions_of", lambda *_, **__: [one])
    monkeypatch.setattr(module, "last_contact_ms", lambda *_: None)
    monkeypatch.setattr(module, "gone_topics", lambda *_: set())
    monkeypatch.setattr(module, "uncopied", lambda *_: Uncopied())
    monkeypatch.setattr(module, "foreign_records", lambda *_: {})
    monkeypatch.setattr(module, "check_reverse_names", lambda *_: None)
    monkeypatch.setattr(module._FlowReversal, "withdraw", withdraw)
    monkeypatch.setattr(module._FlowReversal, "starts", lambda *_: [])
    reverse = flow("B", "A")
    reverse.worker["offset.storage.topic"] = "mm2-offsets.B.internal"
    return failback(flow("A", "B"), reverse, FailbackOptions(Choice(), keep=keep)), withdrawn


def test_the_promotions_of_the_opposite_flow_have_to_be_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would be said to copy the topic, and never copy it."""
    sides = _Identity(Promotion("t", "t", "failover", 9), None, error="no leader")
    with pytest.raises(Refused, match=r"The ledger of B->A on cluster A cannot be read.*: no leader"):
        failed_back(monkeypatch, sides)


@pytest.mark.parametrize(
    ("reverse", "stuck"),
    [
        (Promotion("t", "t", "failover", 5, turned=True), True),
        (Promotion("t", "t", "failover", 12, turned=True), False),
        (Promotion("t", "t", "failover", 12), False),
        (None, False),
    ],
    ids=["left from before", "failed over later and back", "failed over later", "none"],
)
def test_a_promotion_of_the_opposite_flow_from_before_is_withdrawn_in_a_rerun(
    monkeypatch: pytest.MonkeyPatch, reverse: Promotion | None, stuck: bool
) -> None:
    sides = _Identity(Promotion("t", "t", "failover", 9, turned=True), reverse)
    report, withdrawn = failed_back(monkeypatch, sides)
    assert report.done == ["B->A had already taken over 1 topic, first t", *(["withdrawn"] if stuck else [])]
    assert withdrawn == ([["t"]] if stuck else [])


@pytest.mark.parametrize("keep", [False, True])
def test_the_opposite_flow_does_not_start_after_records_that_are_lost(
    monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    """Applications may have written others in their place, which it would skip. The fake has no cluster to write to."""
    lost = dataclasses.replace(ONE, target_error="t-0 ends at offset 40, and records were copied up to offset 90")
    report, _ = failed_back(monkeypatch, _Identity(Promotion("t", "t", "failover", 9), None), lost, keep=keep)
    (problem,) = report.problems
    assert problem.endswith("up to offset 90. B->A cannot start after them, and nothing was changed")
    assert report.done == []
