from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

from mm2.copy.progress.ledger import Ledger, entry_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicInfo
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.filters import DefaultTopicFilter
from mm2.mirror.notes.ledgers import PROVENANCE_NOTE, Notes
from mm2.mirror.notes.promotions import Promotion, promoted, withdrawn
from mm2.mirror.policy import IdentityReplicationPolicy
from mm2.mirror.topics.provenance import Path, Provenance, extended, gives_way, loops
from mm2.mirror.topics.selection import TopicSelection

A_AT_5: Path = (("a", 5),)


def test_a_topic_created_on_the_source_is_claimed_with_one_hop() -> None:
    assert extended([], "a", "b", 5) == (A_AT_5,)


def test_a_claim_continues_the_route_of_the_source_s_claim() -> None:
    assert extended([A_AT_5], "b", "c", 7) == ((("b", 7),), (("a", 5), ("b", 7)))


def test_what_comes_from_the_target_closes_a_loop_over_the_clusters_between() -> None:
    before, loop = ("x", 1), (("a", 5), ("b", 7))
    assert loops([(before, *loop)], "a") == [loop]
    assert loops([(before, *loop)], "c") == []
    # It is not extended: that would make endless paths.
    assert extended([(before, *loop)], "c", "a", 9) == ((("c", 9),),)


def test_only_the_youngest_flow_of_a_loop_rejects_the_topic() -> None:
    hops = [("a", 5), ("b", 7), ("c", 6)]
    youngest = [own for own in hops if gives_way(tuple(hop for hop in hops if hop != own), own)]
    assert youngest == [("b", 7)]


def test_of_two_flows_started_in_the_same_millisecond_one_rejects_the_topic() -> None:
    assert gives_way((("a", 5),), ("b", 5))
    assert not gives_way((("b", 5),), ("a", 5))


class TwoLedgers:
    """The ledger of a flow, and that of the opposite flow, on the flow's source."""

    def __init__(self, own: list[Ledger], opposite: list[Ledger]) -> None:
        self._own, self._opposite = own, opposite  # lists of one, which the other flow shares
        self._read = own[0]
        self.losses = 0
        self.is_proven = True

    def own(self) -> Ledger:
        self.losses += self._own[0] is not self._read
        self._read = self._own[0]
        return self._own[0]

    def was_recreated(self) -> bool:
        return self._own[0] is not self._read

    def notes_of_source(self, kind: str, _admin: Any, *, proven: bool = False) -> Iterator[Notes]:
        if self.is_proven or not proven:
            yield self._opposite[0].notes(kind)

    def write(self, records: Sequence[Record]) -> None:
        for record in records:
            self._own[0].apply(record.key, record.value)


def flow(source: str, target: str, ledgers: TwoLedgers, target_ids: Mapping[str, str] | None = None) -> Provenance:
    """A flow whose names do not show where topics came from. ``target_ids``: the ids of topics on the target."""
    ids = {} if target_ids is None else target_ids

    def described(names: Iterable[str]) -> dict[str, TopicInfo | KafkaFailure]:
        return {
            name: TopicInfo(name, ids[name], internal=False, partitions={}) if name in ids else BrokerFailure.of(3)
            for name in names
        }

    admins: list[Any] = [
        SimpleNamespace(describe_cluster=lambda name=name: SimpleNamespace(cluster_id=name), describe_topics=described)
        for name in (source, target)
    ]
    policy, topics = IdentityReplicationPolicy(), DefaultTopicFilter()
    policy.configure({"source.cluster.alias": source})
    topics.configure({})
    selection = TopicSelection(policy, topics, source, target)
    return Provenance(admins[0], admins[1], selection, cast(Any, ledgers), RecurringErrors(), lambda _: True)


def test_claims_that_the_ledger_lost_are_written_again() -> None:
    """Otherwise the opposite flow would copy the topics back, and this one would copy them again, without an end."""
    there, back = [Ledger()], [Ledger()]
    forth, opposite = flow("A", "B", TwoLedgers(there, back)), flow("B", "A", TwoLedgers(back, there))
    assert forth.allowed({"orders"}) == ({"orders"}, True)
    assert opposite.allowed({"orders"}) == (set(), True)
    assert forth.renew()
    there[0] = Ledger()  # deleted, and created again
    assert not forth.renew(), "so it is noticed before the next refresh"
    assert forth.allowed({"orders"}) == ({"orders"}, True)
    assert set(there[0].notes(PROVENANCE_NOTE)) == {(), ("orders",)}
    assert opposite.allowed({"orders"}) == (set(), True)
    assert forth.renew()


def test_a_topic_that_the_source_does_not_list_any_more_is_not_copied_back() -> None:
    """It was deleted, or DESCRIBE was taken away: then the opposite flow would append all its records to it a second time."""
    there, back = [Ledger()], [Ledger()]
    ledgers, ids = TwoLedgers(there, back), {"orders": "copy"}
    forth, opposite = flow("A", "B", ledgers, ids), flow("B", "A", TwoLedgers(back, there))
    assert forth.allowed({"orders"}) == ({"orders"}, True)
    ledgers.write([entry_record(LedgerEntry("orders", 0, "orders", Mark(5, 5, 5), target_id="copy"))])
    for one in (forth, flow("A", "B", ledgers, ids)):  # also after a restart
        assert one.allowed(set()) == (set(), True)
        assert opposite.allowed({"orders"}) == (set(), True)
    assert forth.allowed({"orders"}) == ({"orders"}, True), "it is listed again"
    assert opposite.allowed({"orders"}) == (set(), True)
    forth.allowed(set())
    ids.clear()
    forth.allowed(set())
    assert opposite.allowed({"orders"}) == (set(), True), "a broker that has just started has an empty list"
    forth.allowed(set())
    assert opposite.allowed({"orders"}) == ({"orders"}, True), "the copy was deleted, too"


def test_the_claim_on_a_deleted_copy_does_not_apply_to_its_successor() -> None:
    there, back = [Ledger()], [Ledger()]
    ledgers = TwoLedgers(there, back)
    ids = {"orders": "copy"}
    forth, opposite = flow("A", "B", ledgers, ids), flow("B", "A", TwoLedgers(back, there))
    forth.allowed({"orders"})
    ledgers.write([entry_record(LedgerEntry("orders", 0, "orders", Mark(5, 5, 5), target_id="copy"))])
    ids["orders"] = "created on B, after both were deleted"
    forth.allowed(set())
    forth.allowed(set())
    assert opposite.allowed({"orders"}) == ({"orders"}, True)


def test_who_only_observes_writes_no_promotion_that_was_withdrawn_long_ago() -> None:
    """An observer reads promotions only when there are new topics: what it remembers may have ended hours before."""
    own = [Ledger()]
    ledgers = TwoLedgers(own, [Ledger()])
    ledgers.write([Promotion("orders", "orders", "failover", 5).record()])
    found = flow("A", "B", ledgers)
    assert found.foreseen({"orders"}) == {"orders"}
    assert found.handed_over == {"orders"}
    ledgers.write([withdrawn("orders")])
    own[0] = Ledger()
    assert found.foreseen({"orders"}) == {"orders"}
    assert promoted(own[0]) == {}, "the flow copies the topic"


def test_promotions_that_the_ledger_lost_are_written_again() -> None:
    """Otherwise the next process would copy the topic into one that applications write to."""
    own = [Ledger()]
    ledgers = TwoLedgers(own, [Ledger()])
    promotion = Promotion("orders", "orders", "failover", 5)
    ledgers.write([promotion.record()])
    found = flow("A", "B", ledgers)
    found.allowed({"orders"})
    assert found.handed_over == {"orders"}
    own[0] = Ledger()
    found.allowed({"orders"})
    assert found.handed_over == {"orders"}
    assert promoted(own[0]) == {"orders": promotion}
    ledgers.write([withdrawn("orders")])
    found.allowed({"orders"})
    assert found.handed_over == set(), "a failback is no loss"


def test_a_promotion_in_a_forged_ledger_on_the_source_stops_no_topic() -> None:
    """Any client of the source may create a topic with the name of a ledger, but not one that is proven."""
    ledgers = TwoLedgers([Ledger()], [Ledger()])
    TwoLedgers(ledgers._opposite, []).write([Promotion("orders", "orders", "failover", 5).record()])
    found = flow("A", "B", ledgers)
    assert found.allowed({"orders"}) == (set(), True), "it has failed over from B to A"
    ledgers.is_proven = False
    assert found.allowed({"orders"}) == ({"orders"}, True)
    assert found.foreseen({"orders"}) == {"orders"}
