"""Which topics and partitions of two clusters are compared; a comparison of nothing would be equal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from mm2.copy.progress.ledger import Ledger, Verified, entry_record, verified_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.admin import Admin
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import EARLIEST, OffsetInfo, PartitionInfo, TopicInfo, TopicPartition
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.topics import provenance
from mm2.verify.driver import Verifier
from mm2.verify.planning import NotInFlow, PartitionPlan, VerifyRequest
from mm2.verify.report import VerifyReport
from mm2.verify.verification import Verification

LEADER = PartitionInfo(1, 0, (1,), (1,))
PROPS = {
    "source.cluster.alias": "A",
    "target.cluster.alias": "B",
    "source.cluster.bootstrap.servers": "nowhere:1",
    "target.cluster.bootstrap.servers": "nowhere:1",
}
IDENTITY = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}


@dataclass
class FakeAdmin:
    """A cluster with one record in each partition; `topics` are the numbers of partitions."""

    topics: Mapping[str, int]
    hidden: frozenset[str] = field(default_factory=frozenset)

    def list_topics(self) -> set[str]:
        return set(self.topics)

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo | KafkaFailure]:
        return {name: self._described(name) for name in names}

    def _described(self, name: str) -> TopicInfo | KafkaFailure:
        if name not in self.topics:
            return BrokerFailure.of(29 if name in self.hidden else 3, subject=f"Topic {name}")
        return TopicInfo(
            name, f"{id(self)} {name}", internal=False, partitions=dict.fromkeys(range(self.topics[name]), LEADER)
        )

    def describe_configs(self, _names: Iterable[str]) -> dict[str, Any]:
        return {}

    def list_offsets(
        self, wanted: Mapping[TopicPartition, int], _isolation: str = ""
    ) -> dict[TopicPartition, OffsetInfo]:
        return {place: OffsetInfo(0 if at == EARLIEST else 1, -1, 0) for place, at in wanted.items()}


def plans(
    source: FakeAdmin,
    target: FakeAdmin,
    ledger: Ledger | None = None,
    request: VerifyRequest | None = None,
    props: Mapping[str, str] | None = None,
    *,
    incremental: bool = False,
) -> list[PartitionPlan]:
    verification = Verification({**PROPS, **(props or {})}, cast("Verifier", None))
    verification._syncs = dict  # type: ignore[method-assign]
    found, _ = verification._plans(
        request or VerifyRequest(), ledger, cast("Admin", source), cast("Admin", target), incremental=incremental
    )
    return found


def ledger_of(*entries: LedgerEntry) -> Ledger:
    ledger = Ledger()
    for entry in entries:
        row = entry_record(entry)
        ledger.apply(row.key, row.value)
    return ledger


def test_a_flow_of_which_no_topic_is_found_is_not_equal() -> None:
    """The patterns match nothing, or the user may not describe the topics: heartbeats alone show nothing."""
    cases: tuple[dict[str, int], ...] = ({}, {"other": 1}, {"other": 1, "heartbeats": 1})
    for there in cases:
        source, target = FakeAdmin(there), FakeAdmin({"A.heartbeats": 1})
        with pytest.raises(NotInFlow, match="A->B copies no topics"):
            plans(source, target, props={"topics": "orders"})
        assert all(
            plan.topic == "heartbeats" for plan in plans(source, target, props={"topics": "orders"}, incremental=True)
        )
    (plan,) = plans(
        FakeAdmin({"heartbeats": 1}), FakeAdmin({"A.heartbeats": 1}), request=VerifyRequest(frozenset({"heartbeats"}))
    )
    assert not plan.error


def test_a_topic_that_the_file_names_and_the_user_may_not_describe_is_reported() -> None:
    source = FakeAdmin({"orders": 1}, frozenset({"payments"}))
    found = plans(source, FakeAdmin({"A.orders": 1}), props={"topics": "orders, payments, absent, any.*"})
    assert [plan.topic for plan in found] == ["orders", "payments"]
    assert not found[0].error
    assert "TOPIC_AUTHORIZATION_FAILED" in found[1].error


def test_each_partition_is_compared_with_the_topic_to_which_it_was_copied() -> None:
    """The policy has changed, and one of the partitions has no records since."""
    ledger = ledger_of(
        LedgerEntry("t", 0, "t", Mark(1, 1, 1), 1, "", ""), LedgerEntry("t", 1, "A.t", Mark(1, 1, 1), 1, "", "")
    )
    source, target = FakeAdmin({"t": 3}), FakeAdmin({"t": 3, "A.t": 2})
    found = plans(source, target, ledger, props={**IDENTITY, "topics": "t"})
    assert [(plan.remote_topic, len(plan.spans)) for plan in found] == [("t", 1), ("A.t", 1), ("t", 1)]


def test_topics_that_came_from_the_target_are_not_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """Topic names do not show it; those that the flow has copied are always compared."""
    monkeypatch.setattr(provenance.Provenance, "foreseen", lambda _self, topics: set(topics) - {"back", "copied"})
    ledger = ledger_of(LedgerEntry("copied", 0, "copied", Mark(1, 1, 1), 1, "", ""))
    there = {"back": 1, "copied": 1, "orders": 1}
    assert [plan.topic for plan in plans(FakeAdmin(there), FakeAdmin(there), ledger, props=IDENTITY)] == [
        "copied",
        "orders",
    ]
    with pytest.raises(NotInFlow, match="A->B does not copy back from A"):
        plans(FakeAdmin(there), FakeAdmin(there), ledger, VerifyRequest(frozenset({"back"})), IDENTITY)


def test_requested_offsets_after_the_end_are_not_equal() -> None:
    source, target = FakeAdmin({"t": 1}), FakeAdmin({"A.t": 1})
    place = TopicPartition("t", 0)
    for first, error in (
        (0, ""),
        (1, "t-0 ends before offset 1 on the source, so it has none of the requested offsets"),
    ):
        (plan,) = plans(source, target, request=VerifyRequest(offsets={place: (first, None)}))
        assert plan.error == error


def test_a_topic_that_both_clusters_have_deleted_is_left_out() -> None:
    """The ledger keeps its entry. One that only the source has deleted, and one that is requested, are reported."""
    ledger = ledger_of(
        *(LedgerEntry(topic, 0, f"A.{topic}", Mark(1, 1, 1), 1, "", "") for topic in ("t", "gone", "left"))
    )
    source, target = FakeAdmin({"t": 1}), FakeAdmin({"A.t": 1, "A.left": 1})
    assert [(plan.topic, bool(plan.error)) for plan in plans(source, target, ledger)] == [("left", True), ("t", False)]
    (plan,) = plans(source, target, ledger, VerifyRequest(frozenset({"gone"})))
    assert "UNKNOWN_TOPIC_OR_PARTITION" in plan.error


def test_what_was_recorded_for_a_deleted_topic_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its differences would be reported forever: nothing can be compared any more."""
    ledger = ledger_of(*(LedgerEntry(topic, 0, f"A.{topic}", Mark(1, 1, 1), 1, "", "") for topic in ("t", "gone")))
    for topic in ("t", "gone"):
        row = verified_record(TopicPartition(topic, 0), Verified(0, 0, 1, 1, 1, {"missing": 1}))
        ledger.apply(row.key, row.value)
    written: list[Record] = []

    def write(_self: Ledgers, records: Sequence[Record]) -> None:
        written.extend(records)

    monkeypatch.setattr(Ledgers, "write", write)
    verification = Verification(PROPS, cast("Verifier", None))
    verification._cluster = lambda _side: nullcontext(FakeAdmin({}))  # type: ignore[method-assign, assignment, return-value]
    verification._ledger = lambda _target: ledger  # type: ignore[method-assign, assignment]
    source, target = cast("Admin", FakeAdmin({"t": 1})), cast("Admin", FakeAdmin({"A.t": 1}))
    _, deleted = verification._plans(VerifyRequest(), ledger, source, target, incremental=False)
    verification.store_verified(VerifyReport("A->B", 1, 2, 0, (), deleted=deleted))
    assert written == [verified_record(TopicPartition("gone", 0), None)]
