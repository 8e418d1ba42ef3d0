"""What becomes ranges of what ledger and clusters say, and what cannot."""

from __future__ import annotations

from collections.abc import Sequence

from mm2.copy.ledger import Ledger, Verified, chunk_record, entry_record
from mm2.copy.segments import Gap, Segment, SegmentChunk
from mm2.copy.session import LedgerEntry, Mark, PreviousCommit
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.structs import PartitionInfo, TopicInfo, TopicPartition
from mm2.verify.passes import Pass
from mm2.verify.planning import Certainty, ClusterOffsets, PartitionPlan, plan_partition, split_spans

LEADER = PartitionInfo(1, 0, (1,), (1,))
ENTRY = LedgerEntry("t", 0, "A.t", Mark(100, 98, 98), 100, "s", "r")
CHUNK = SegmentChunk(0, [Segment(0, 0, 50), Segment(52, 50, 48)], [Gap(50, 52, "control")])


def side(topic: str, topic_id: str, start: int, end: int, *, compacted: bool = False) -> ClusterOffsets:
    place = TopicPartition(topic, 0)
    info = TopicInfo(topic, topic_id, internal=False, partitions={0: LEADER})
    return ClusterOffsets({topic: info}, {place: start}, {place: end}, {topic: compacted})


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
) -> PartitionPlan:
    plan = PartitionPlan("t", 0, "A.t")
    plan_partition(plan, ledger, syncs, (source, target), (first, after))
    return plan


def ranges(plan: PartitionPlan) -> list[tuple[int, int, int, int]]:
    def of(one: Pass) -> tuple[int, int, int, int]:
        return one.first, one.after, one.target_first, one.target_after

    return [of(span.stretch) for span in plan.spans]


def test_the_end_is_where_the_copying_was_and_not_where_the_logs_end() -> None:
    plan = planned(ledger_of(ENTRY, CHUNK), side("t", "s", 0, 500, compacted=True), side("A.t", "r", 0, 300))
    assert (plan.certainty, plan.trouble, plan.notes) == (Certainty.LEDGER, "", [])
    assert (plan.first, plan.after, ranges(plan)) == (0, 100, [(0, 100, 0, 98)])
    (span,) = plan.spans
    assert (span.source_compacted, span.target_compacted) == (True, False)
    assert (span.closely, span.open_start, span.open_end, span.hidden) == (False, False, False, ())
    part = planned(ledger_of(ENTRY, CHUNK), side("t", "s", 0, 500), side("A.t", "r", 0, 300), first=10, after=60)
    assert (ranges(part), part.explained) == ([(10, 60, 10, 58)], {"control": 2})
    late = planned(ledger_of(ENTRY, CHUNK), side("t", "s", 0, 500), side("A.t", "r", 0, 300), first=90, after=200)
    assert (ranges(late), late.explained) == ([(90, 100, 88, 98)], {"not copied yet": 100})


def test_a_transaction_that_is_still_open_is_left_for_later() -> None:
    before = PreviousCommit(Mark(52, 50, 50), {"control": 2}, 0, (1, 1, 0), 0)
    ledger = ledger_of(ENTRY.replace(before=before, previous=52), CHUNK)
    still_open = planned(ledger, side("t", "s", 0, 100), side("A.t", "r", 0, 50))
    assert (still_open.after, ranges(still_open)) == (52, [(0, 52, 0, 50)])
    over = planned(ledger, side("t", "s", 0, 100), side("A.t", "r", 0, 99))
    assert (over.after, ranges(over)) == (100, [(0, 100, 0, 98)])


def test_what_a_ledger_says_of_another_topic_of_that_name_counts_nothing() -> None:
    for source_id, target_id, which in (("s2", "r", "source"), ("s", "r2", "remote")):
        plan = planned(ledger_of(ENTRY, CHUNK), side("t", source_id, 0, 40), side("A.t", target_id, 0, 30))
        assert (plan.certainty, ranges(plan)) == (Certainty.CONTENT, [(0, 40, 0, 30)])
        assert plan.notes == [f"the {which} topic was recreated, so the ledger does not apply to it"]
        assert plan.spans[0].closely


def test_what_was_copied_once_more_since_the_last_time_is_compared_and_said() -> None:
    trail = SegmentChunk(0, [Segment(0, 0, 100), Segment(30, 100, 20)])
    ledger = ledger_of(ENTRY.replace(mark=Mark(50, 120, 20)), trail)
    sides = side("t", "s", 0, 500), side("A.t", "r", 0, 120)
    plan = PartitionPlan("t", 0, "A.t", before=Verified(0, 100, 100, 1, 100, {}, "s", "r", 100))
    plan_partition(plan, ledger, (), sides, (100, None))
    assert (plan.first, plan.after, plan.target_after, ranges(plan)) == (30, 50, 120, [(30, 50, 100, 120)])
    assert plan.notes == ["the flow was sent back below 100, and what it has copied since is compared"]
    assert not plan.spans[0].open_start
    waiting = PartitionPlan("t", 0, "A.t", before=Verified(0, 100, 100, 1, 100, {}, "s", "r", 120))
    plan_partition(waiting, ledger, (), sides, (100, None))
    assert (waiting.after, waiting.spans, waiting.notes) == (50, [], [])


def test_without_a_ledger_offset_syncs_hold_the_sides_together_as_far_as_they_agree() -> None:
    sides = side("t", "s", 10, 100), side("A.t", "r", 0, 80)
    syncs = [(5, 0), (20, 10), (30, 9), (60, 50), (60, 50), (99, 79), (120, 100)]
    plan = planned(None, *sides, syncs=syncs)
    assert (plan.certainty, ranges(plan)) == (Certainty.SYNCS, [(10, 100, 0, 80)])
    (span,) = plan.spans
    assert [segment.source for segment in span.stretch.route.segments] == [20, 60, 99]
    assert (span.open_start, span.open_end) == (True, True)
    part = planned(None, *sides, syncs=syncs, first=25, after=50)
    assert ranges(part) == [(20, 60, 10, 50)], "a range is widened to what is known"
    assert (part.spans[0].open_start, part.spans[0].open_end) == (False, False)


def test_a_topic_that_cannot_be_seen_is_trouble_for_its_partitions() -> None:
    there = side("t", "s", 0, 500)
    gone = ClusterOffsets({"A.t": BrokerFailure.of(3, subject="Topic A.t of cluster B")}, {}, {}, {})
    plan = planned(ledger_of(ENTRY, CHUNK), there, gone)
    assert plan.trouble.startswith("Topic A.t of cluster B: UNKNOWN_TOPIC_OR_PARTITION")
    assert not plan.spans
    fewer = ClusterOffsets({"A.t": TopicInfo("A.t", "r", internal=False, partitions={1: LEADER})}, {}, {}, {})
    assert planned(ledger_of(ENTRY, CHUNK), there, fewer).trouble.startswith("Partition A.t-0: UNKNOWN_TOPIC")
    other = ENTRY.replace(partition=7)
    new = planned(ledger_of(other), side("t", "s", 100, 500), gone)
    assert (new.trouble, new.explained) == ("", {"not copied yet": 400}), "the flow has not come to it yet"
    assert planned(None, there, gone).trouble, "nobody knows of a flow"


def test_large_ranges_become_pieces_and_what_nobody_knows_stays_whole() -> None:
    entry = ENTRY.replace(mark=Mark(1_000_000, 1_000_000, 1_000_000))
    sides = side("t", "s", 0, 1_000_000), side("A.t", "r", 0, 1_000_000)
    known = planned(ledger_of(entry, SegmentChunk(0, [Segment(0, 0, 1_000_000)])), *sides)
    guessed = planned(None, *sides)
    split_spans([known, guessed], 2)
    assert len(known.spans) == 8
    assert sum(span.size for span in known.spans) == 1_000_000
    assert len(guessed.spans) == 1
