"""Ranges planned from the ledger and the clusters, and partitions that cannot be compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mm2.copy.progress.ledger import Ledger, Verified, chunk_record, entry_record
from mm2.copy.progress.segments import Cut, Gap, Segment, SegmentChunk
from mm2.copy.progress.session import CopyOrigin, FormerTopic, LedgerEntry, Mark, PreviousCommit, Rules, Session
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.structs import PartitionInfo, ProducerIdentity, TopicInfo, TopicPartition
from mm2.reasons import OriginCode
from mm2.verify.comparing.passes import Pass
from mm2.verify.planning import (
    Certainty,
    ClusterOffsets,
    PartitionPlan,
    partitions_to_compare,
    plan_partition,
    split_spans,
    why_not_in_log,
)

LEADER = PartitionInfo(1, 0, (1,), (1,))
ENTRY = LedgerEntry("t", 0, "A.t", Mark(100, 98, 98), 100, "s", "r")
CHUNK = SegmentChunk(0, [Segment(0, 0, 50), Segment(52, 50, 48)], [Gap(50, 52, "control")])


def side(topic: str, topic_id: str, start: int, end: int, *, compacted: bool = False) -> ClusterOffsets:
    partition = TopicPartition(topic, 0)
    info = TopicInfo(topic, topic_id, internal=False, partitions={0: LEADER})
    return ClusterOffsets({topic: info}, {partition: start}, {partition: end}, {topic: compacted})


def ledger_of(entry: LedgerEntry, *chunks: SegmentChunk) -> Ledger:
    ledger = Ledger()
    for row in (*(chunk_record(entry.source, chunk) for chunk in chunks), entry_record(entry)):
        ledger.apply(row.key, row.value)
    return ledger


def planned(
    ledger: Ledger | None,
    source: ClusterOffsets,
    target: ClusterOffsets,
    *,
    first: int | None = None,
    after: int | None = None,
    syncs: Sequence[tuple[int, int]] = (),
    changes: str = "",
    is_undone: bool | None = None,
    merged: Sequence[LedgerEntry] | None = None,
) -> PartitionPlan:
    plan = PartitionPlan("t", 0, "A.t", changes=changes)
    plan_partition(plan, ledger, syncs, (source, target), (first, after), is_undone=is_undone, merged=merged)
    return plan


def ranges(plan: PartitionPlan) -> list[tuple[int, int, int, int]]:
    def of(one: Pass) -> tuple[int, int, int, int]:
        return one.first, one.after, one.target_first, one.target_after

    return [of(span.piece) for span in plan.spans]


def test_ranges_end_at_the_position_of_the_flow_and_not_at_the_log_end_offsets() -> None:
    plan = planned(ledger_of(ENTRY, CHUNK), side("t", "s", 0, 500, compacted=True), side("A.t", "r", 0, 300))
    assert (plan.certainty, plan.error, plan.notes) == (Certainty.LEDGER, "", [])
    assert (plan.first, plan.after, ranges(plan)) == (0, 100, [(0, 100, 0, 98)])
    (span,) = plan.spans
    assert (span.source_compacted, span.target_compacted) == (True, False)
    assert (span.in_detail, span.open_start, span.open_end, span.excluded) == (False, False, False, ())
    part = planned(ledger_of(ENTRY, CHUNK), side("t", "s", 0, 500), side("A.t", "r", 0, 300), first=10, after=60)
    assert (ranges(part), part.explained) == ([(10, 60, 10, 58)], {"control": 2})
    late = planned(ledger_of(ENTRY, CHUNK), side("t", "s", 0, 500), side("A.t", "r", 0, 300), first=90, after=200)
    assert (ranges(late), late.explained) == ([(90, 100, 88, 98)], {"not copied yet": 100})


def test_what_another_program_has_copied_is_compared_by_content_with_a_note() -> None:
    """Java's MirrorMaker copied the first 50 records, and 5 of the next ones after its last commit."""
    origin = CopyOrigin(OriginCode.OTHER_POSITION, 55)
    entry = LedgerEntry("t", 0, "A.t", Mark(100, 105, 50), 100, "s", "r", origin=origin)
    chunk = SegmentChunk(0, [Segment(50, 55, 50)])
    sides = side("t", "s", 0, 100), side("A.t", "r", 0, 105, compacted=True)
    plan = planned(ledger_of(entry, chunk), *sides)
    assert (plan.certainty, ranges(plan)) == (Certainty.LEDGER, [(0, 100, 0, 55), (50, 100, 55, 105)])
    before, since = plan.spans
    assert (before.by_content, before.open_start, before.excluded, since.by_content, since.open_start) == (
        True,
        True,
        (),
        False,
        False,
    )
    begin = "records before source offset 50 (target offset 55) were compared by content, which is less certain: "
    assert plan.notes == [
        f"{begin}another program has written them, such as Java's MirrorMaker, or the ledger was lost"
    ]
    assert before.twice == ""
    for code, end in (
        (OriginCode.OWN_POSITION, "the ledger was lost; the flow had a position when it began"),
        (
            OriginCode.START_FROM,
            "the flow began at an offset of start.from, when the remote partition ended at offset 55",
        ),
        (OriginCode.NO_POSITION, "the flow began without a position, when the remote partition ended at offset 55"),
        ("", "it is not known which program has written them"),
    ):
        other = planned(ledger_of(replace(entry, origin=CopyOrigin(code, 55)), chunk), *sides)
        assert other.notes == [f"{begin}{end}"]
        assert "copied again" in other.spans[0].twice
    dropped = planned(ledger_of(replace(entry, chunk=3), SegmentChunk(3, chunk.segments)), *sides)
    assert dropped.notes == [f"{begin}the ledger does not contain them any more"]
    idle = planned(ledger_of(replace(entry, mark=Mark(50, 55, 0))), side("t", "s", 0, 50), side("A.t", "r", 0, 55))
    assert [span.by_content for span in idle.spans] == [True]
    assert idle.notes == [
        "records were compared by content, which is less certain: another program has written them, such as Java's MirrorMaker, or the ledger was lost"
    ]


def test_a_source_topic_that_was_recreated_is_not_said_to_be_of_another_program() -> None:
    """In transactions, markers are between the records of the former topic."""
    entry = LedgerEntry("t", 0, "A.t", Mark(20, 38, 35), 20, "s", "r")
    chunk = SegmentChunk(0, [Segment(0, 0, 10), Segment(10, 11, 5), Segment(0, 17, 20)], cuts=[Cut(2, 0)])
    plan = planned(ledger_of(entry, chunk), side("t", "s", 0, 20), side("A.t", "r", 0, 38))
    assert plan.notes == []
    unknown = replace(chunk, segments=[Segment(0, 0, 10), Segment(10, 13, 5), Segment(0, 19, 20)])
    (note,) = planned(ledger_of(entry, unknown), side("t", "s", 0, 20), side("A.t", "r", 0, 40)).notes
    assert note.endswith("it is not known which program has written them")


def test_records_of_an_open_transaction_are_not_compared() -> None:
    before = PreviousCommit(Mark(52, 50, 50), {"control": 2}, 0, (1, 1, 0), 0)
    ledger = ledger_of(ENTRY.replace(before=before, previous=52), CHUNK)
    still_open = planned(ledger, side("t", "s", 0, 100), side("A.t", "r", 0, 50))
    assert (still_open.after, ranges(still_open)) == (52, [(0, 52, 0, 50)])
    over = planned(ledger, side("t", "s", 0, 100), side("A.t", "r", 0, 99))
    assert (over.after, ranges(over)) == (100, [(0, 100, 0, 98)])
    lost = planned(ledger, side("t", "s", 0, 100), side("A.t", "r", 0, 50), is_undone=False)
    assert ranges(lost) == [(0, 100, 0, 98)], "the transaction was committed, and the target has lost its records"
    aborted = planned(ledger, side("t", "s", 0, 100), side("A.t", "r", 0, 99), is_undone=True)
    assert (aborted.after, ranges(aborted)) == (52, [(0, 52, 0, 50)]), (
        "the coordinator has aborted it, so the end is past it"
    )


def test_the_ledger_does_not_apply_to_a_recreated_topic() -> None:
    for source_id, target_id, which in (("s2", "r", "source"), ("s", "r2", "remote")):
        plan = planned(ledger_of(ENTRY, CHUNK), side("t", source_id, 0, 40), side("A.t", target_id, 0, 30))
        assert (plan.certainty, ranges(plan)) == (Certainty.CONTENT, [(0, 40, 0, 30)])
        assert plan.notes == [f"the {which} topic was recreated, so the ledger does not apply to it"]
        assert plan.spans[0].in_detail
        # The records that were copied to a remote topic are expected, whichever topic has its name now.
        assert plan.spans[0].copied == ((0, 100) if which == "remote" else (0, 0))


def test_nothing_is_compared_with_a_topic_to_which_nothing_has_been_copied_yet() -> None:
    """The replication policy has changed, and other partitions have been copied since."""
    ledger = ledger_of(ENTRY.replace(remote_topic="A-t", target_id="r1"), CHUNK)
    plan = planned(ledger, side("t", "s", 0, 500), side("A.t", "r", 0, 30))
    assert (plan.first, plan.after, ranges(plan), plan.certainty) == (100, 100, [], Certainty.LEDGER)
    assert plan.notes == ["all records so far were copied to topic A-t"]


def test_records_since_the_last_change_of_the_policy_are_compared() -> None:
    entry = ENTRY.replace(mark=Mark(500, 130, 100), chunk=3, former=FormerTopic("A-t", 400))
    ledger = ledger_of(entry, SegmentChunk(3, [Segment(400, 30, 100)]))
    sides = side("t", "s", 0, 600), side("A.t", "r", 0, 130)
    note = "records before source offset 400 were copied to remote topics with other names, most recently to topic A-t"
    for first in (None, 10):
        plan = planned(ledger, *sides, first=first)
        assert (ranges(plan), plan.notes) == ([(400, 500, 30, 130)], [note])
    assert ranges(planned(ledger, *sides, first=10, after=300)) == []
    later = planned(ledger, *sides, first=450)
    assert (ranges(later), later.notes) == ([(450, 500, 80, 130)], [])


def test_records_copied_again_after_a_reset_are_compared_with_a_note() -> None:
    trail = SegmentChunk(0, [Segment(0, 0, 100), Segment(30, 100, 20)])
    ledger = ledger_of(ENTRY.replace(mark=Mark(50, 120, 20)), trail)
    sides = side("t", "s", 0, 500), side("A.t", "r", 0, 120)
    plan = PartitionPlan("t", 0, "A.t", before=Verified(0, 100, 100, 1, 100, {}, "s", "r", 100))
    plan_partition(plan, ledger, (), sides, (100, None))
    assert (plan.first, plan.after, plan.target_after, ranges(plan)) == (30, 50, 120, [(30, 50, 100, 120)])
    assert plan.notes == ["the flow was reset to an offset below 100; the records copied since then are compared"]
    assert not plan.spans[0].open_start
    waiting = PartitionPlan("t", 0, "A.t", before=Verified(0, 100, 100, 1, 100, {}, "s", "r", 120))
    plan_partition(waiting, ledger, (), sides, (100, None))
    assert (waiting.after, waiting.spans, waiting.notes) == (50, [], [])


def test_what_a_flow_drops_is_not_taken_from_the_ledger_if_its_changes_can_be_applied() -> None:
    gaps = [Gap(40, 42, "filtered"), Gap(70, 75, "skipped"), Gap(80, 81, "quarantined")]
    chunk = SegmentChunk(0, [Segment(0, 0, 40), Segment(42, 40, 28), Segment(75, 68, 5), Segment(81, 73, 19)], gaps)
    counts = {"filtered": 2, "skipped": 5, "quarantined": 1}
    ledger = ledger_of(ENTRY.replace(mark=Mark(100, 92, 92), gaps=counts), chunk)
    sides = side("t", "s", 0, 500), side("A.t", "r", 0, 300)
    unchanged, changed = planned(ledger, *sides), planned(ledger, *sides, changes="0a")
    assert (unchanged.explained, unchanged.spans[0].excluded) == (counts, tuple(gaps))
    assert (changed.explained, changed.spans[0].excluded) == ({"quarantined": 1}, (gaps[2],))
    assert planned(ledger, *sides, first=30, after=60).explained == {"filtered": 2}
    assert planned(ledger, *sides, first=30, after=60, changes="0a").explained == {}


def test_a_note_reports_that_a_flow_has_copied_with_other_changes() -> None:
    session = Session(ProducerIdentity(1, 0), Mark(60, 58, 0), str(Rules(read_committed=False, changes="0a")))
    sides = side("t", "s", 0, 500), side("A.t", "r", 0, 300)

    def noted(changes: str, session: Session | None = session, records: int = 40) -> list[str]:
        entry = ENTRY.replace(session=session, mark=Mark(100, 98, records))
        return planned(ledger_of(entry, CHUNK), *sides, changes=changes).notes

    for changes in ("0b", ""):
        (note,) = noted(changes)
        assert note.startswith("the records from source offset 60 on were copied with other transformations or")
    assert not noted("0a")
    assert not noted("0b", records=0), "nothing was copied in this session"
    assert not noted("0b", Session(ProducerIdentity(1, 0), Mark(60, 58, 0))), "of an old version"
    assert not noted("0b", None)


def test_without_a_ledger_consistent_offset_syncs_align_both_sides() -> None:
    sides = side("t", "s", 10, 100), side("A.t", "r", 0, 80)
    syncs = [(5, 0), (20, 10), (30, 9), (60, 50), (60, 50), (99, 79), (120, 100)]
    plan = planned(None, *sides, syncs=syncs)
    assert (plan.certainty, ranges(plan)) == (Certainty.SYNCS, [(10, 100, 0, 80)])
    (span,) = plan.spans
    assert [segment.source for segment in span.piece.route.segments] == [20, 60, 99]
    assert (span.open_start, span.open_end) == (True, True)
    part = planned(None, *sides, syncs=syncs, first=25, after=50)
    assert ranges(part) == [(20, 60, 10, 50)], "a range is extended to the nearest offset syncs"
    assert (part.spans[0].open_start, part.spans[0].open_end) == (False, False)


def test_without_a_ledger_a_target_is_compared_with_an_empty_source() -> None:
    assert ranges(planned(None, side("t", "s", 0, 0), side("A.t", "r", 0, 7))) == [(0, 0, 0, 7)]
    assert ranges(planned(None, side("t", "s", 9, 9), side("A.t", "r", 0, 7))) == [(9, 9, 0, 7)]
    assert ranges(planned(None, side("t", "s", 0, 0), side("A.t", "r", 3, 3))) == []


def test_a_topic_is_not_compared_with_itself() -> None:
    """Both aliases have the bootstrap servers of one cluster."""
    for ledger in (None, ledger_of(ENTRY, CHUNK)):
        plan = planned(ledger, side("t", "same", 0, 100), side("A.t", "same", 0, 100))
        assert plan.error.startswith("topic t would be compared with itself")
        assert not plan.spans
    assert not planned(None, side("t", "", 0, 100), side("A.t", "", 0, 100)).error, "brokers without topic ids"


def test_records_that_the_source_has_are_expected_unless_the_flow_has_left_them_out() -> None:
    """The ledger has noted that a record was not there, and now it is."""
    for reason, is_expected in (("missing", True), ("retention", True), ("quarantined", False), ("filtered", False)):
        chunk = SegmentChunk(0, [Segment(0, 0, 50), Segment(52, 50, 48)], [Gap(50, 52, reason)])
        plan = planned(
            ledger_of(ENTRY.replace(gaps={reason: 2}), chunk), side("t", "s", 0, 500), side("A.t", "r", 0, 98)
        )
        assert plan.explained == {reason: 2}
        assert (plan.spans[0].excluded == ()) is is_expected


def test_partitions_on_one_side_only_are_no_silent_equality() -> None:
    source, target = side("t", "s", 0, 5), side("A.t", "r", 0, 5)
    wider = TopicInfo("A.t", "r", internal=False, partitions={0: LEADER, 1: LEADER, 2: LEADER})
    beyond = {TopicPartition("A.t", 1): 3, TopicPartition("A.t", 2): 7}
    target = replace(target, topics={"A.t": wider}, starts={**target.starts, **beyond}, ends={**target.ends, **beyond})
    copied_to = {TopicPartition("t", 4): "A.t", TopicPartition("other", 9): "A.other"}
    assert partitions_to_compare("t", "A.t", copied_to, source, target) == {0: "", 4: ""}
    target = replace(target, ends={**target.ends, TopicPartition("A.t", 2): 8})
    assert partitions_to_compare("t", "A.t", {}, source, target) == {
        0: "",
        2: "the source has no such partition, and A.t-2 has records",
    }
    hidden = replace(source, topics={"t": BrokerFailure.of(29, subject="Topic t of cluster A")})
    assert partitions_to_compare("t", "A.t", {}, hidden, target) == {
        0: str(BrokerFailure.of(29, subject="Topic t of cluster A"))
    }
    gone = replace(source, topics={"t": BrokerFailure.of(3, subject="Topic t of cluster A")})
    assert partitions_to_compare("t", "A.t", {}, gone, target) == {}
    of_another = {TopicPartition("u", 2): "A.t"}
    assert partitions_to_compare("t", "A.t", of_another, source, target, {"u"}) == {0: ""}, "a merge"


def merge_of(*dropped: int) -> tuple[Ledger, LedgerEntry]:
    """t-0 and u-0 were copied to A.t-0: 50 records each in turn, 40 more of t, and 10 of u that its entry does not have yet. ``dropped``:
    the numbers of the first chunks that are left.
    """
    first, second = dropped or (0, 0)
    mine = LedgerEntry("t", 0, "A.t", Mark(140, 200, 140), 140, "s", "r", chunk=first)
    other = LedgerEntry("u", 0, "A.t", Mark(50, 100, 50), 50, "u", "r", chunk=second)
    segments = [Segment(0, 0, 50), Segment(50, 100, 50), Segment(100, 160, 40)][2 if first > 1 else 0 :]
    ledger = ledger_of(mine, SegmentChunk(first, segments))
    for row in (chunk_record(other.source, SegmentChunk(second, [Segment(0, 50, 50)])), entry_record(other)):
        ledger.apply(row.key, row.value)
    return ledger, other


def test_in_a_merge_the_records_of_the_other_topic_are_not_compared() -> None:
    """Nor those after its mark, since its entry may be older. Records of neither, at offsets 150 to 159, would be."""
    ledger, other = merge_of(1, 1)  # the processes before have left entries only
    sides = side("t", "s", 0, 140), side("A.t", "r", 0, 210)
    plan = planned(ledger, *sides, merged=[other.replace(mark=Mark(50, 155, 50))])
    assert (ranges(plan), plan.error, plan.notes) == ([(0, 140, 0, 200)], "", [])
    (span,) = plan.spans
    assert [(gap.first, gap.after) for gap in span.cut_off] == [(50, 100), (155, 160)]
    assert not span.in_detail
    assert not span.by_content


def test_in_a_merge_records_that_the_ledger_does_not_contain_any_more_are_not_compared() -> None:
    sides = side("t", "s", 0, 140), side("A.t", "r", 0, 210)
    for dropped, first in (((64, 0), 100), ((0, 64), 50)):
        ledger, other = merge_of(*dropped)
        plan = planned(ledger, *sides, merged=[other])
        assert plan.first == first
        assert f"records before source offset {first} were not compared" in plan.notes[0]


def test_a_merge_is_not_compared_without_the_ledger() -> None:
    sides = side("t", "s", 0, 140), side("A.t", "r", 0, 210)
    message = "not compared: A.t has the records of several topics, and no ledger shows which came from t"
    assert planned(None, *sides, merged=[]).error == message
    ledger, other = merge_of()
    recreated = sides[0], side("A.t", "r2", 0, 210)
    assert planned(ledger, *recreated, merged=[other]).error == message
    plan = planned(ledger_of(other), *sides, merged=[other])
    assert (plan.error, plan.notes, plan.spans) == ("", ["the flow has not copied this topic yet"], [])


def test_requested_offsets_that_do_not_exist_are_reported() -> None:
    place = TopicPartition("t", 0)
    assert [why_not_in_log(place, 100, first) for first in (None, 0, 99)] == ["", "", ""]
    assert (
        why_not_in_log(place, 100, 100)
        == "t-0 ends before offset 100 on the source, so it has none of the requested offsets"
    )


def test_errors_of_a_topic_are_reported_for_its_partitions() -> None:
    existing = side("t", "s", 0, 500)
    unknown = ClusterOffsets({"A.t": BrokerFailure.of(3, subject="Topic A.t of cluster B")}, {}, {}, {})
    plan = planned(ledger_of(ENTRY, CHUNK), existing, unknown)
    assert plan.error.startswith("Topic A.t of cluster B: UNKNOWN_TOPIC_OR_PARTITION")
    assert not plan.spans
    fewer = ClusterOffsets({"A.t": TopicInfo("A.t", "r", internal=False, partitions={1: LEADER})}, {}, {}, {})
    assert planned(ledger_of(ENTRY, CHUNK), existing, fewer).error.startswith("Partition A.t-0: UNKNOWN_TOPIC")
    other = ENTRY.replace(partition=7)
    new = planned(ledger_of(other), side("t", "s", 100, 500), unknown)
    assert (new.error, new.explained) == ("", {"not copied yet": 400}), "not copied yet"
    assert planned(None, existing, unknown).error, "without a ledger it is an error"


def test_large_ranges_are_split_unless_they_are_matched_by_content() -> None:
    entry = ENTRY.replace(mark=Mark(1_000_000, 1_000_000, 1_000_000))
    sides = side("t", "s", 0, 1_000_000), side("A.t", "r", 0, 1_000_000)
    known = planned(ledger_of(entry, SegmentChunk(0, [Segment(0, 0, 1_000_000)])), *sides)
    guessed = planned(None, *sides)
    split_spans([known, guessed], 2)
    assert len(known.spans) == 8
    assert sum(span.size for span in known.spans) == 1_000_000
    assert len(guessed.spans) == 1
