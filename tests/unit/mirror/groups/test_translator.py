"""Translation of group offsets by the ledger or offset syncs, and the reasons when neither applies."""

from __future__ import annotations

import pytest

from mm2.copy.progress.ledger import Ledger, chunk_record, entry_record
from mm2.copy.progress.segments import Gap, Segment, SegmentChunk
from mm2.copy.progress.session import FormerTopic, LedgerEntry, Mark
from mm2.kafka.structs import TopicPartition
from mm2.mirror.common.formats import OffsetSync
from mm2.mirror.groups.offset_sync_store import OffsetSyncStore
from mm2.mirror.groups.translator import TopicIds, Translated, Translator, Untranslated
from mm2.mirror.notes.kept_records import ForeignRun, kept_note_records, kept_records
from mm2.mirror.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, ReplicationPolicy
from mm2.mirror.topics.routing import NO_ROUTE, TopicRoute, topic_route
from mm2.reasons import OffsetReason, OffsetReasonCode

P0 = TopicPartition("t", 0)
#: The id of the target's topic of which the opposite flow has made a copy.
OURS: TopicIds = {"t": "source-1"}


def ledger(
    segments: list[Segment],
    mark: Mark,
    *,
    topic: str = "t",
    remote: str = "A.t",
    gaps: tuple[Gap, ...] = (),
    former: FormerTopic | None = None,
    is_preserved: bool = False,
    end: int = -1,
    foreign: int = 0,
    source_id: str = "source-1",
) -> Ledger:
    found = Ledger()
    source = TopicPartition(topic, 0)
    entry = LedgerEntry(topic, 0, remote, mark, source_id=source_id, target_id="target-1", former=former)
    entry = entry.replace(is_preserved=is_preserved, end=end, foreign=foreign)
    for row in (chunk_record(source, SegmentChunk(0, segments, list(gaps))), entry_record(entry)):
        found.apply(row.key, row.value)
    return found


def translator(
    known: Ledger | None = None,
    *syncs: tuple[int, int],
    home: Ledger | None = None,
    policy: ReplicationPolicy | None = None,
    route: TopicRoute = NO_ROUTE,
) -> Translator:
    if policy is None:
        policy = DefaultReplicationPolicy()
        policy.configure({})
    found = Translator(policy, "A", "B", route)
    found.ledger, found.home_ledger = known, home
    found.syncs = OffsetSyncStore(must_read_to_end=False)
    for up, down in syncs:
        found.syncs.update(OffsetSync("t", 0, up, down))
    found.syncs.first_read_done()
    return found


def reason(found: Translated | Untranslated) -> OffsetReasonCode:
    assert isinstance(found, Untranslated)
    return found.reason.code


def test_the_ledger_is_exact_where_syncs_are_not() -> None:
    known = translator(ledger([Segment(0, 7, 1000)], Mark(1000, 1007, 0)), (0, 7), (999, 1006))
    assert known.translate(P0, 500, {}, {}) == Translated("A.t", 507, is_exact=True)


def test_preserved_offsets_are_the_same_up_to_the_end_of_the_copy() -> None:
    copied = ledger([Segment(0, 0, 40), Segment(60, 60, 40)], Mark(110, 110, 80), is_preserved=True)
    known = translator(copied, (99, 99))
    for offset in (0, 40, 50, 100, 110):
        assert known.translate(P0, offset, {}, {}) == Translated("A.t", offset, is_exact=True)
    assert known.translate(P0, 111, {}, {}) == Translated("A.t", 110, is_exact=False)
    recreated = known.translate(P0, 50, {"t": "source-2"}, {})
    assert isinstance(recreated, Untranslated)


def test_a_group_fails_back_with_the_same_offset_where_offsets_are_preserved() -> None:
    home = ledger([Segment(0, 0, 40)], Mark(50, 50, 40), topic="u", remote="B.u", is_preserved=True)
    known = translator(home=home)
    back = known.translate(TopicPartition("B.u", 0), 45, {}, {"u": "source-1"})
    assert back == Translated("u", 45, is_exact=True)


def test_a_copy_without_records_has_no_offsets_as_in_java_but_leads_back() -> None:
    mark = Mark(50, 0, 0)
    assert reason(translator(ledger([], mark, end=50)).translate(P0, 50, {}, {})) is OffsetReasonCode.NOT_COPIED
    back = translator(None, home=ledger([], mark, remote="B.t", end=50))
    assert back.translate(TopicPartition("B.t", 0), 0, {}, OURS) == Translated("t", 50, is_exact=True)


def test_without_a_ledger_offsets_are_translated_like_mm2() -> None:
    known = translator(None, (100, 57))
    assert known.translate(P0, 100, {}, {}) == Translated("A.t", 57, is_exact=False)
    assert known.translate(P0, 150, {}, {}) == Translated("A.t", 58, is_exact=False)
    assert reason(known.translate(P0, 99, {}, {})) is OffsetReasonCode.TOO_OLD
    assert reason(known.translate(TopicPartition("u", 0), 1, {}, {})) is OffsetReasonCode.NO_SYNC


def test_records_copied_by_java_after_the_ledger_are_translated_by_syncs() -> None:
    segments = [Segment(0, 0, 100), Segment(500, 450, 100)]
    known = translator(ledger(segments, Mark(600, 550, 0)), (200, 190), (400, 380))
    assert known.translate(P0, 300, {}, {}) == Translated("A.t", 191, is_exact=False)
    assert known.translate(P0, 150, {}, {}) == Translated("A.t", 100, is_exact=False), "the ledger knows better"
    wrong = translator(ledger(segments, Mark(600, 550, 0)), (200, 470))
    assert wrong.translate(P0, 300, {}, {}) == Translated("A.t", 450, is_exact=False), "500 is the next, and lies there"


def test_offsets_before_the_ledger_are_translated_by_syncs_or_have_a_reason() -> None:
    segments = [Segment(500, 450, 100)]
    assert translator(ledger(segments, Mark(600, 550, 0)), (100, 90)).translate(P0, 200, {}, {}) == Translated(
        "A.t", 91, is_exact=False
    )
    why = reason(translator(ledger(segments, Mark(600, 550, 0))).translate(P0, 200, {}, {}))
    assert why is OffsetReasonCode.TOO_OLD


def test_syncs_of_an_earlier_remote_topic_do_not_lead_past_the_first_record_of_the_ledger() -> None:
    """The remote topic was recreated, another program wrote five records to it, and the position was set to 1000."""
    syncs = ((900, 900), (960, 960), (999, 999), (1000, 5), (1500, 505))
    known = translator(ledger([Segment(1000, 5, 2000)], Mark(3000, 2005, 2000)), *syncs)
    for offset in (900, 960, 990, 999):
        found = known.translate(P0, offset, {}, {})
        assert not isinstance(found, Translated) or found.offset <= 5, offset
    assert known.translate(P0, 1000, {}, {}) == Translated("A.t", 5, is_exact=True)


def test_offset_syncs_of_the_remote_topic_with_the_old_name_are_not_used() -> None:
    """Given 1,000 records in a topic, and then 100 in another one, which had 50: an offset sync does not name its topic."""
    segments = [Segment(1000, 50, 20), Segment(1080, 130, 20)]
    known = ledger(segments, Mark(1100, 150, 100), former=FormerTopic("old", 1000))
    old = ((0, 0), (900, 900), (1040, 1040))
    assert reason(translator(known, *old).translate(P0, 950, {}, {})) is OffsetReasonCode.TOO_OLD
    assert translator(known, *old).translate(P0, 1050, {}, {}) == Translated("A.t", 70, is_exact=False)
    assert translator(known, *old).translate(P0, 1100, {}, {}) == Translated("A.t", 150, is_exact=True)
    new = ((0, 0), (900, 900), (1000, 50), (1039, 89))
    assert translator(known, *new).translate(P0, 1050, {}, {}) == Translated("A.t", 90, is_exact=False)
    assert reason(translator(known, *new).translate(P0, 950, {}, {})) is OffsetReasonCode.TOO_OLD
    ahead = ((1000, 50), (1200, 120))
    assert (
        reason(
            translator(ledger([], Mark(1000, 50, 0), former=FormerTopic("old", 1000)), *ahead).translate(
                P0, 1200, {}, {}
            )
        )
        is OffsetReasonCode.TOO_OLD
    ), "nothing of it is known to be in the topic with the new name"


def test_a_group_that_has_not_read_the_topic_with_the_old_name_begins_the_other_one_at_its_first_record() -> None:
    known = ledger([Segment(1000, 0, 100)], Mark(1100, 100, 100), former=FormerTopic("old", 1000))
    assert translator(known, (900, 900)).translate(P0, 950, {}, {}) == Translated("A.t", 0, is_exact=True)


def test_nothing_is_translated_to_a_name_under_which_nothing_has_been_copied() -> None:
    known = translator(ledger([Segment(0, 0, 100)], Mark(100, 100, 100), remote="old"), (50, 50))
    found = known.translate(P0, 70, {}, {})
    assert isinstance(found, Untranslated)
    assert (found.reason.message, found.lies_before, found.was_undone) == ("the copy of t is old", False, False)


def test_under_identity_naming_an_empty_copy_of_the_opposite_flow_does_not_replace_offset_syncs() -> None:
    """The group would read all records again: the opposite flow has opened the topic once, and copied nothing."""
    policy = IdentityReplicationPolicy()
    policy.configure({"source.cluster.alias": "A"})
    home, on_target = ledger([], Mark(0, 0, 0), remote="t", source_id="target-1"), {"t": "target-1"}
    known = translator(ledger([], Mark(0, 0, 0), remote="t"), (480, 490), home=home, policy=policy)
    assert known.translate(P0, 500, {}, on_target) == Translated("t", 491, is_exact=False)
    without = translator(ledger([], Mark(0, 0, 0), remote="t"), home=home, policy=policy)
    assert without.translate(P0, 500, {}, on_target) == Translated("t", 0, is_exact=False)


def test_recreated_topics_are_not_translated() -> None:
    known = translator(ledger([Segment(0, 0, 100)], Mark(100, 100, 0)), (0, 0))
    assert known.translate(P0, 50, {"t": "source-1"}, {"A.t": "target-1"}) == Translated("A.t", 50, is_exact=True)
    assert reason(known.translate(P0, 50, {"t": "other"}, {})) is OffsetReasonCode.RECREATED
    assert reason(known.translate(P0, 50, {}, {"A.t": "other"})) is OffsetReasonCode.RECREATED
    assert reason(known.translate(P0, 50, {}, {"A.t": None})) is OffsetReasonCode.NO_TOPIC


def test_a_group_that_consumed_a_copy_fails_back() -> None:
    # The flow B->A, from A: its ledger is on B, its source is our target.
    gaps = (Gap(100, 102, "control"),)
    segments = [Segment(0, 0, 100), Segment(102, 100, 50)]
    home = ledger(segments, Mark(152, 150, 0), remote="B.t", gaps=gaps)
    known = translator(None, home=home)
    came = TopicPartition("B.t", 0)
    assert known.translate(came, 40, {"B.t": "target-1"}, {"t": "source-1"}) == Translated("t", 40, is_exact=True)
    assert known.translate(came, 120, {}, OURS) == Translated("t", 122, is_exact=True)
    assert known.translate(came, 150, {}, OURS) == Translated("t", 152, is_exact=True)
    assert reason(known.translate(came, 40, {}, {"t": "other"})) is OffsetReasonCode.RECREATED
    assert reason(translator().translate(came, 40, {}, {})) is OffsetReasonCode.NO_LEDGER


def test_under_identity_naming_failback_uses_the_ledgers() -> None:
    home = ledger([Segment(0, 7, 100)], Mark(100, 107, 0), remote="t")
    policy = IdentityReplicationPolicy()
    policy.configure({"source.cluster.alias": "A"})
    known = translator(None, home=home, policy=policy)
    assert known.translate(P0, 57, {}, OURS) == Translated("t", 50, is_exact=True)
    assert known.came_under_its_name(P0, OURS)
    known.ledger = ledger([Segment(0, 0, 10)], Mark(10, 10, 0), remote="t")
    assert known.translate(P0, 5, {}, {}) == Translated("t", 5, is_exact=True), "this flow copies it"


@pytest.mark.parametrize("remote", ["t", "B.t"])
def test_the_next_records_of_a_group_that_other_producers_wrote_to_a_copy_are_named(remote: str) -> None:
    """B->A copied 101 records to A, where 10 of others are between them: no flow copies these to B. An application wrote more after them."""
    segments = [Segment(0, 0, 100), Segment(100, 110, 1)]
    home = ledger(segments, Mark(101, 111, 101), remote=remote, foreign=10)
    policy = IdentityReplicationPolicy() if remote == "t" else None
    if policy is not None:
        policy.configure({"source.cluster.alias": "A"})
    known, came = translator(None, home=home, policy=policy), TopicPartition(remote, 0)
    found = known.translate(came, 103, {}, OURS)
    assert found == Translated("t", 100, is_exact=False, not_copied=(103, 110))
    assert isinstance(found, Translated)
    assert found.unread == OffsetReason(
        OffsetReasonCode.NEXT_NOT_COPIED,
        "its next records, at offsets 103 to 109, are on the source only: the offset on the target is after them",
    )
    assert known.translate(came, 99, {}, OURS) == Translated("t", 99, is_exact=True)
    assert known.translate(came, 110, {}, OURS) == Translated("t", 100, is_exact=True)
    assert known.translate(came, 111, {}, OURS) == Translated("t", 101, is_exact=True), "what follows is copied"
    known.home_ledger = ledger(segments, Mark(101, 111, 101), remote=remote)
    known._known.clear()
    assert known.translate(came, 103, {}, OURS) == Translated("t", 100, is_exact=True), "no foreign record was counted"


def test_the_marker_of_a_transaction_is_no_record_of_other_producers() -> None:
    """In exactly-once mode the copy has no session, and a marker after each transaction."""
    home = ledger([Segment(0, 0, 100), Segment(100, 101, 50)], Mark(150, 155, 150), remote="B.t", foreign=4)
    found = translator(None, home=home).translate(TopicPartition("B.t", 0), 100, {}, OURS)
    assert found == Translated("t", 100, is_exact=True)
    found = translator(None, home=home).translate(TopicPartition("B.t", 0), 151, {}, OURS)
    assert found == Translated("t", 150, is_exact=False, not_copied=(151, 155))


def test_kept_records_are_named_while_the_topic_is_the_same() -> None:
    """`mm2 failback` has kept the first 100 records on A; this flow started after them, in an empty topic."""
    known = ledger([Segment(100, 0, 10)], Mark(110, 10, 10), remote="A.t")
    (note,) = kept_note_records(known, {P0: "source-1"}, {P0: [ForeignRun(0, 100, 100)]})
    known.apply(note.key, note.value)
    assert kept_records(known)[P0].runs == (ForeignRun(0, 100, 100),)
    found = translator(known)
    assert found.translate(P0, 50, {"t": "source-1"}, {}) == Translated("A.t", 0, is_exact=False, not_copied=(50, 100))
    assert found.translate(P0, 101, {"t": "source-1"}, {}) == Translated("A.t", 1, is_exact=True)
    (note,) = kept_note_records(known, {P0: "source-1"}, {P0: [ForeignRun(0, 100, 100), ForeignRun(120, 130, 7)]})
    known.apply(note.key, note.value)
    assert kept_records(known)[P0].runs == (ForeignRun(0, 100, 100), ForeignRun(120, 130, 7)), "each once"
    (note,) = kept_note_records(known, {P0: "other"}, {P0: [ForeignRun(3, 4, 1)]})
    known.apply(note.key, note.value)
    assert kept_records(known)[P0].runs == (ForeignRun(3, 4, 1),), "the topic was created again"
    assert found.translate(P0, 3, {"t": "source-1"}, {}) == Translated("A.t", 0, is_exact=True)


def test_under_identity_naming_records_of_the_other_flow_are_translated_by_its_ledger() -> None:
    """B->A has copied 100 records, at B's offsets from 7 on; then applications wrote on B, and this flow started at 107."""
    policy = IdentityReplicationPolicy()
    policy.configure({"source.cluster.alias": "A"})
    home = ledger([Segment(0, 7, 100)], Mark(100, 107, 0), remote="t", source_id="target-1")
    known = translator(ledger([Segment(107, 130, 50)], Mark(157, 180, 0), remote="t"), home=home, policy=policy)
    assert known.translate(P0, 57, {}, {"t": "target-1"}) == Translated("t", 50, is_exact=True), (
        "before: where it came from"
    )
    assert known.translate(P0, 110, {}, {}) == Translated("t", 133, is_exact=True), "since: where it was copied to"
    assert known.translate(P0, 107, {}, {}) == Translated("t", 130, is_exact=True)


def test_offsets_of_recreated_topics_are_marked_as_undone() -> None:
    known = translator(ledger([Segment(0, 0, 100)], Mark(100, 100, 0)))
    renewed: list[tuple[dict[str, str | None], dict[str, str | None]]]
    renewed = [({"t": "other"}, {}), ({}, {"A.t": "other"}), ({}, {"A.t": None})]
    for topics in renewed:
        found = known.translate(P0, 50, *topics)
        assert isinstance(found, Untranslated)
        assert found.was_undone
    before = translator(ledger([Segment(500, 450, 100)], Mark(600, 550, 0))).translate(P0, 200, {}, {})
    assert isinstance(before, Untranslated)
    assert not before.was_undone


def test_an_updated_ledger_is_read_again() -> None:
    found = ledger([Segment(0, 0, 100)], Mark(100, 100, 0))
    known = translator(found)
    assert known.translate(P0, 120, {}, {}) == Translated("A.t", 100, is_exact=False)
    row = entry_record(LedgerEntry("t", 0, "A.t", Mark(130, 130, 0)))
    found.apply(row.key, row.value)
    assert known.translate(P0, 120, {}, {}) == Translated("A.t", 120, is_exact=True)


ROUTE = topic_route(
    {
        "transforms": "r",
        "transforms.r.type": "RegexRouter",
        "transforms.r.regex": r"A\.(.*)",
        "transforms.r.replacement": "eu-$1",
    }
)


def test_offsets_are_those_of_the_topic_that_a_router_names() -> None:
    known = translator(ledger([Segment(0, 7, 1000)], Mark(1000, 1007, 0), remote="eu-t"), (0, 7), route=ROUTE)
    assert known.translate(P0, 500, {}, {}) == Translated("eu-t", 507, is_exact=True)
    assert known.topic_on_target("B.u") == "u", "it came from the target, which no router has named"
    assert known.routed_topics() == {"eu-t"}


def test_a_router_that_has_changed_moves_no_group_in_the_new_topic() -> None:
    known = translator(ledger([Segment(0, 7, 1000)], Mark(1000, 1007, 0)), (0, 7), route=ROUTE)
    found = known.translate(P0, 500, {}, {})
    assert isinstance(found, Untranslated)
    assert found.reason.message == "the copy of t is A.t"


def test_without_a_router_names_show_which_topics_are_copies() -> None:
    assert translator(ledger([Segment(0, 7, 1000)], Mark(1000, 1007, 0))).routed_topics() == set()


def merged(**copies: tuple[list[Segment], Mark]) -> Translator:
    """Of topics that a router gives one name, with what the ledger knows of each."""
    settings = {"transforms": "r", "transforms.r.type": "RegexRouter"}
    settings |= {"transforms.r.regex": ".*", "transforms.r.replacement": "all"}
    known = Ledger()
    for topic, (segments, mark) in copies.items():
        source = TopicPartition(topic, 0)
        entry = LedgerEntry(topic, 0, "all", mark).replace(end=mark.source)
        for row in (chunk_record(source, SegmentChunk(0, segments)), entry_record(entry)):
            known.apply(row.key, row.value)
    return translator(known, route=topic_route(settings))


def test_a_position_in_a_merge_is_the_smallest_of_those_of_its_topics() -> None:
    known = merged(
        a=([Segment(0, 0, 10), Segment(10, 30, 10)], Mark(20, 40, 20)), b=([Segment(0, 10, 20)], Mark(20, 30, 20))
    )
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    found = known.translate_group({a: 15, b: 5}, {}, {})
    assert found[b] == Translated("all", 15, is_exact=False)
    assert found[a] == Translated("all", 15, is_exact=False, alone=35)
    found = known.translate_group({a: 10, b: 20}, {}, {})
    assert [one.offset for one in found.values() if isinstance(one, Translated)] == [30, 30]
    assert known.translate_group({a: 15}, {}, {}) == {a: Translated("all", 35, is_exact=True)}


def test_a_position_in_a_merge_is_known_only_if_those_of_all_topics_are() -> None:
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    known = merged(a=([Segment(0, 0, 10)], Mark(10, 10, 10)), b=([Segment(500, 10, 20)], Mark(520, 30, 20)))
    found = known.translate_group({a: 5, b: 3}, {}, {})
    assert {reason(found[a]), reason(found[b])} == {OffsetReasonCode.TOO_OLD}
    assert "b-0" in str(found[a])


def test_a_topic_of_a_merge_without_a_record_does_not_block_the_groups() -> None:
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    known = merged(a=([Segment(0, 0, 10)], Mark(10, 10, 10)), b=([], Mark(0, 7, 0)))
    found = known.translate_group({a: 9, b: 0}, {}, {})
    assert [one.offset for one in found.values() if isinstance(one, Translated)] == [7, 7]
    known = merged(a=([Segment(0, 0, 10)], Mark(10, 10, 10)), b=([], Mark(0, -1, 0)))
    found = known.translate_group({a: 9, b: 0}, {}, {})
    assert [one.offset for one in found.values() if isinstance(one, Translated)] == [0, 0]


def test_a_group_that_has_read_all_of_an_idle_topic_of_a_merge_continues_at_its_mark() -> None:
    """The mark has moved past what was copied of the other topics since (`Window.pass_others`)."""
    known = merged(a=([Segment(0, 0, 10)], Mark(10, 500, 10)), b=([Segment(0, 10, 600)], Mark(600, 610, 600)))
    a, b = TopicPartition("a", 0), TopicPartition("b", 0)
    found = known.translate_group({a: 10, b: 600}, {}, {})
    assert [one.offset for one in found.values() if isinstance(one, Translated)] == [500, 500]
    found = known.translate_group({a: 9, b: 600}, {}, {})
    assert [one.offset for one in found.values() if isinstance(one, Translated)] == [9, 9]


@pytest.mark.parametrize("forged_id", ["", "guessed"])
def test_a_forged_ledger_on_the_source_translates_nothing(forged_id: str) -> None:
    """A client of the source may create the ledger of a flow B->A there; it does not know the id of B's own topic."""
    home = ledger([Segment(990, 0, 10)], Mark(1000, 10, 10), remote="B.t", source_id=forged_id)
    for on_target in (OURS, {"t": ""}, {}):
        found = translator(home=home).translate(TopicPartition("B.t", 0), 7, {"B.t": "target-1"}, on_target)
        assert isinstance(found, Untranslated), on_target


@pytest.mark.parametrize("forged_id", ["", "guessed"])
def test_a_forged_ledger_on_the_source_prevents_no_translation_under_identity_naming(forged_id: str) -> None:
    policy = IdentityReplicationPolicy()
    policy.configure({"source.cluster.alias": "A"})
    home = ledger([Segment(990, 0, 10)], Mark(1000, 10, 10), remote="t", source_id=forged_id)
    known = translator(None, (0, 0), (5, 5), home=home, policy=policy)
    assert not known.came_under_its_name(P0, OURS), "then its group offsets would not be synced"
    assert known.translate(P0, 5, {"t": "target-1"}, OURS) == Translated("t", 5, is_exact=False)
