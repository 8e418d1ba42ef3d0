import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.codec import decode, encode
from mm2.copy.progress.ledger import Key, Ledger, chunk_record, chunk_tombstone, entry_record, key_bytes, parse_key
from mm2.copy.progress.segments import CHUNK_SIZE, CHUNKS_KEPT, Gap, Segment, SegmentChunk, Trail, UnwrittenChunks
from mm2.copy.progress.session import (
    SEQUENCES,
    CopyId,
    EndedSession,
    EpochStart,
    FormerTopic,
    Lease,
    LedgerEntry,
    Lost,
    Mark,
    PositionHeader,
    Rules,
    Seen,
    Session,
    Start,
    WrittenPosition,
    count_after,
    sequence_of,
    start_of,
    written_start,
)
from mm2.kafka.structs import ProducerIdentity, TopicPartition

TP = TopicPartition("orders", 0)
ENTRY = LedgerEntry(
    "orders",
    0,
    "A.orders",
    Mark(120, 220, 20),
    110,
    "src",
    "dst",
    3,
    Session(ProducerIdentity(7, 0), Mark(100, 200, 0)),
    {"control": 2},
    (Lost(1, 5, "retention", 1_700_000_000_000),),
    4,
    1000,
    2,
    known_epoch=3,
)


def test_entry_survives_the_ledger() -> None:
    assert decode(LedgerEntry, ENTRY.to_json()) == ENTRY
    many = ENTRY.replace(lost_before=7)
    assert decode(LedgerEntry, many.to_json()) == many
    assert (ENTRY.lost_ranges, many.lost_ranges) == (1, 8)
    ruled = ENTRY.replace(session=Session(ProducerIdentity(7, 0), Mark(1, 2, 0), "isolation=read_committed"))
    assert decode(LedgerEntry, ruled.to_json()) == ruled
    ahead = ENTRY.replace(known_epoch=5, retired=("src0", "dst0"), source_epochs=(EpochStart(2, 7), EpochStart(3, 40)))
    assert decode(LedgerEntry, ahead.to_json()) == ahead
    moved = ENTRY.replace(former=FormerTopic("orders", 40), is_preserved=True, fills_by_transactions=True)
    assert decode(LedgerEntry, moved.to_json()) == moved


def test_sessions_that_ended_before_are_named_until_a_record_is_counted() -> None:
    ended = EndedSession(ProducerIdentity(6, 1), Mark(0, 100, 0), "isolation=read_committed", Mark(80, 190, 80), 2)
    session = Session(ProducerIdentity(7, 0), Mark(80, 200, 0), "isolation=read_uncommitted", (ended,))
    first = ENTRY.replace(session=session, mark=session.start)
    assert first.ended_sessions == (ended,)
    assert decode(LedgerEntry, first.to_json()) == first
    header = PositionHeader.of(first)
    assert PositionHeader.from_bytes(header.to_bytes()) == header
    later = first.replace(mark=Mark(90, 210, 10))
    assert (later.ended_sessions, ENTRY.ended_sessions, ENTRY.replace(session=None).ended_sessions) == ((), (), ())
    settled = Session(session.producer, session.start, session.rules)
    assert decode(LedgerEntry, later.to_json()).session == settled
    assert PositionHeader.from_bytes(PositionHeader.of(later).to_bytes()).session == settled


def test_an_entry_and_a_position_name_their_copy() -> None:
    entry = ENTRY.replace(copy_id=CopyId("connect", "c1", "cluster-1"), seen=Seen(40, "topic-id/3"))
    assert decode(LedgerEntry, entry.to_json()) == entry
    header = PositionHeader.of(entry)
    assert (header.remote_topic, header.copy_id, header.seen) == (ENTRY.remote_topic, entry.copy_id, entry.seen)
    assert PositionHeader.from_bytes(header.to_bytes()) == header
    assert "copy" not in ENTRY.to_json(), "an unknown copy is left out, as in entries of older versions"


def test_offsets_of_another_partition_of_an_offsets_topic_are_not_compared() -> None:
    seen = Seen(40, "topic-id/3")
    assert [seen.at(place) for place in ("topic-id/3", "topic-id/4", "other-id/3", "")] == [40, 0, 0, 40]
    assert (Seen(40).at("topic-id/3"), Seen().at("topic-id/3")) == (40, -1)
    # What Java wrote into a recreated topic is before the offset that was known in the topic before it.
    entry = ENTRY.replace(seen=seen)
    written = WrittenPosition(None, 7, 5, frozenset({7}), "other-id/3")
    assert written_start(entry, None, 7, written).position == 7
    assert written_start(entry, None, 7, written._replace(place="topic-id/3")).position == entry.mark.source


def test_a_session_in_another_remote_topic_of_which_the_ledger_has_lost_the_entry_continues_there() -> None:
    """The ledger was read from a deposed leader, and the position was not."""
    session = Session(ProducerIdentity(8, 0), Mark(130, 7, 0), str(Rules(read_committed=False)))
    lost = ENTRY.replace(
        remote_topic="orders",
        mark=Mark(133, 10, 3),
        session=session,
        lease=Lease(9, 4),
        former=FormerTopic(ENTRY.remote_topic, 130),
    )
    written = WrittenPosition(PositionHeader.of(lost), positions=frozenset({133}))
    start = written_start(ENTRY, SegmentChunk(3, [Segment(100, 200, 20)]), 133, written)
    entry = start.entry
    assert entry is not None
    assert (entry.remote_topic, entry.target_id, entry.former) == ("orders", "", lost.former)
    assert (entry.session, entry.mark, start.position) == (session, lost.mark, 133)
    assert start.chunk == SegmentChunk(4), "offsets of the other topic are not used"
    assert start.unwritten.forgotten == (0, 1, 2, 3)
    same = lost.replace(remote_topic=ENTRY.remote_topic)
    known = written_start(
        ENTRY, SegmentChunk(3), 133, WrittenPosition(PositionHeader.of(same), positions=frozenset({133}))
    )
    assert known.entry is not None
    assert (known.entry.target_id, known.entry.former, known.chunk) == (ENTRY.target_id, None, SegmentChunk(3))


def test_an_older_entry_names_its_epoch_once() -> None:
    data = ENTRY.replace(known_epoch=5).to_json()
    del data["source"]["known"]
    assert decode(LedgerEntry, data).known_epoch == ENTRY.source_epoch


def test_start_survives_the_channel() -> None:
    for start in (
        Start(None),
        Start(5),
        Start(120, 120, ENTRY, SegmentChunk(3, [Segment(1, 2, 3)]), True),
        Start(7, 7, ENTRY.replace(session=None), moved=True),
    ):
        assert decode(Start, encode(start)) == start


@pytest.mark.parametrize("committed", [110, 120])
def test_either_position_of_the_last_commit_continues_at_the_mark(committed: int) -> None:
    assert start_of(ENTRY, None, committed) == Start(120, committed, ENTRY)


def test_a_session_whose_first_position_was_never_written_continues() -> None:
    entry = ENTRY.replace(previous=None)
    assert start_of(entry, None, None) == Start(120, None, entry)


@pytest.mark.parametrize("committed", [None, 0, 109, 111, 500])
def test_a_foreign_position_is_used_and_ends_the_session(committed: int | None) -> None:
    start = start_of(ENTRY, None, committed)
    assert start.position == committed
    assert start.moved
    assert start.entry is not None
    assert start.entry.session is None
    assert start.entry.gaps == ENTRY.gaps


def test_without_a_ledger_the_committed_position_counts() -> None:
    assert start_of(None, None, 17) == Start(17, 17)


@settings(deadline=None)
@given(st.integers(0, 1 << 40), st.integers(-1000, 1000))
def test_count_after_is_the_nearest_count_with_that_sequence(known: int, ahead: int) -> None:
    count = max(1, known + ahead)
    assert count_after(sequence_of(count - 1), known) == count


def test_count_after_wraps() -> None:
    assert count_after(4, SEQUENCES - 3) == SEQUENCES + 5


def test_keys_as_in_the_topic() -> None:
    assert key_bytes(Key(TP, None)) == b'{"partition":0,"topic":"orders"}'
    assert key_bytes(Key(TP, 3)) == b'{"chunk":3,"partition":0,"topic":"orders"}'
    for key in (Key(TP, None), Key(TP, 3)):
        assert parse_key(key_bytes(key)) == key
    assert parse_key(b"[1]") is None
    assert parse_key(b"\xff") is None


def test_runs_are_joined_and_jumps_begin_a_segment() -> None:
    trail = Trail()
    trail.copied(100, 50, 10)
    trail.copied(110, 60, 5)
    trail.missing(115, 116, "control")
    trail.missing(116, 117, "control")
    trail.copied(117, 65, 3)
    assert trail.newest.segments == [Segment(100, 50, 15), Segment(117, 65, 3)]
    assert trail.newest.gaps == [Gap(115, 117, "control")]
    assert trail.gaps == {"control": 2}
    assert [trail.last_source(end) for end in (0, 50, 51, 65, 66, 68, 69)] == [None, None, 100, 114, 117, 119, None]
    assert [trail.source_before(end) for end in (50, 51, 65, 66, 68, 90)] == [None, 101, 115, 118, 120, 120]


def test_what_the_target_may_have_lost_begins_after_the_newest_record_that_it_has() -> None:
    """Records of other source partitions are between those of this one."""
    trail = Trail()
    trail.copied(0, 10, 5)
    trail.copied(5, 30, 5)
    assert [trail.source_before(end) for end in (10, 12, 20, 30, 33, 50)] == [None, 2, 5, 5, 8, 10]
    assert [trail.own_end(start) for start in (10, 34, 35)] == [35, 35, -1]
    trail.target_cut(20)
    assert (trail.source_before(50), trail.own_end(10)) == (5, 15)
    trail.cut(3)
    trail.copied(3, 60, 1)
    assert [trail.source_before(end) for end in (20, 61)] == [3, 4]


def test_a_target_that_ends_before_a_cut_of_the_source_lacks_what_replaced_the_records_there() -> None:
    trail = Trail()
    trail.copied(0, 0, 150)
    trail.cut(120)
    trail.copied(120, 150, 50)
    assert [trail.last_source(end) for end in (100, 120, 121, 150, 151, 200)] == [99, 119, 119, 119, 120, 169]
    trail.cut(0)  # the topic was recreated
    trail.copied(0, 200, 10)
    assert [trail.last_source(end) for end in (100, 200, 201)] == [-1, -1, 0]
    for number in range(CHUNK_SIZE):
        trail.copied(10 + 2 * number, 210 + number, 1)
    assert len(trail.take_changed().changed) == 2, "in the next chunk"
    assert [trail.last_source(end) for end in (100, 200, 201, 211)] == [-1, -1, 0, 10]


def test_only_chunks_that_changed_are_written_and_a_growing_segment_is_no_change() -> None:
    trail = Trail()
    trail.copied(0, 0, 1)
    assert [chunk.number for chunk in trail.take_changed()[0]] == [0]
    trail.copied(1, 1, 1)
    assert trail.take_changed() == UnwrittenChunks()


def test_old_chunks_are_forgotten_by_a_tombstone() -> None:
    trail, forgotten = Trail(), list[int]()
    for index in range(CHUNK_SIZE * (CHUNKS_KEPT + 1) + 1):
        trail.copied(index * 2, index, 1)
        if index % CHUNK_SIZE == 0:
            forgotten += trail.take_changed()[1]
    assert trail.newest.number == CHUNKS_KEPT + 1
    assert forgotten == [0, 1]


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(-1000, 1 << 40), st.integers(-1000, 1 << 40), st.integers(1, 1 << 20)), max_size=30),
    st.lists(st.tuples(st.integers(0, 1 << 40), st.integers(1, 100), st.sampled_from(["control", "aborted"]))),
)
def test_chunks_survive_the_ledger(segments: list[tuple[int, int, int]], gaps: list[tuple[int, int, str]]) -> None:
    chunk = SegmentChunk(4, [Segment(*row) for row in segments], [Gap(first, first + n, why) for first, n, why in gaps])
    assert SegmentChunk.from_json(chunk.to_json()) == chunk


def test_the_newest_segment_ends_at_the_mark() -> None:
    ledger = Ledger()
    ledger.apply(*_pair(chunk_record(TP, SegmentChunk(2, [Segment(100, 200, 1)]))))
    ledger.apply(*_pair(entry_record(ENTRY)))
    assert ledger.chunks(TP)[0].segments == [Segment(100, 200, 20)]
    assert ledger.entry(TP) == ENTRY
    assert ledger.rates() == {TP: 1000.0}
    ledger.apply(*_pair(chunk_tombstone(TP, 2)))
    assert ledger.chunks(TP) == []


def test_unreadable_entries_count_as_missing() -> None:
    ledger = Ledger()
    ledger.apply(key_bytes(Key(TP, None)), b'{"version":1}')
    assert ledger.entry(TP) is None
    ledger.apply(b"foreign", b"x")
    assert ledger.partitions() == [TP]


def _pair(record: object) -> tuple[bytes | None, bytes | None]:
    return record.key, record.value  # type: ignore[attr-defined]


def test_a_full_chunk_is_written_with_what_its_last_segment_has_grown_to() -> None:
    trail = Trail()
    for index in range(CHUNK_SIZE):
        trail.copied(index * 2, index, 1)
    trail.take_changed()
    trail.copied(CHUNK_SIZE * 2 - 1, CHUNK_SIZE, 4)
    assert trail.take_changed() == UnwrittenChunks()
    trail.missing(CHUNK_SIZE * 2 + 3, CHUNK_SIZE * 2 + 5, "control")
    changed, _ = trail.take_changed()
    assert [(chunk.number, len(chunk.segments), len(chunk.gaps)) for chunk in changed] == [
        (0, CHUNK_SIZE, 0),
        (1, 0, 1),
    ]
    assert changed[0].segments[-1].records == 5


def test_chunks_of_an_unacknowledged_commit_are_written_by_the_successor() -> None:
    """A commit that fills a chunk and starts the next one may be in flight at a hand-off."""
    trail = Trail()
    for index in range(CHUNK_SIZE - 1):
        trail.copied(index * 2, index, 1)
    trail.take_changed()
    trail.written()
    assert trail.unwritten() == UnwrittenChunks()
    trail.copied(CHUNK_SIZE * 2, CHUNK_SIZE - 1, 1)
    trail.missing(CHUNK_SIZE * 2 + 1, CHUNK_SIZE * 2 + 2, "control")
    trail.take_changed()
    handed_over = Start(0, chunk=trail.newest, unwritten=trail.unwritten())

    start = decode(Start, json.loads(json.dumps(encode(handed_over))))
    successor = Trail(start.chunk, unwritten=start.unwritten)
    changed, _ = successor.take_changed()
    assert [(chunk.number, len(chunk.segments), len(chunk.gaps)) for chunk in changed] == [
        (0, CHUNK_SIZE, 0),
        (1, 0, 1),
    ]
    successor.written()
    assert successor.unwritten() == UnwrittenChunks()


def test_an_exactly_once_position_is_the_committed_one_wherever_the_ledger_is() -> None:
    entry = ENTRY.replace(session=None, previous=None)
    assert start_of(entry, None, None) == Start(None, None, entry)
    assert start_of(entry, None, 120).position == 120
    behind = start_of(entry.replace(previous=110), None, 110)
    assert (behind.position, behind.moved) == (110, False)
    ahead = start_of(entry, None, 130)
    assert (ahead.position, ahead.moved) == (130, True)


def test_a_partition_that_was_empty_is_known_to_be_copied_from_its_beginning() -> None:
    entry = ENTRY.replace(session=None, previous=None, mark=Mark(0, -1, 0))
    assert start_of(entry, None, None) == Start(0, None, entry)
    assert start_of(entry, None, None, undone=True).position is None, "the start of its first transaction is unknown"
    assert start_of(entry.replace(previous=110), None, None).position is None, "a user has removed the position"


def test_a_successor_continues_the_chunk_of_the_entry_or_the_next() -> None:
    ledger = Ledger()
    assert ledger.newest_chunk(TP) is None
    ledger.apply(*_pair(entry_record(ENTRY)))
    assert ledger.newest_chunk(TP) == SegmentChunk(3)
    ledger.apply(*_pair(chunk_record(TP, SegmentChunk(2, [Segment(100, 200, 1)]))))
    assert ledger.newest_chunk(TP) == SegmentChunk(2, [Segment(100, 200, 20)])


@pytest.mark.parametrize(
    ("rules", "text"),
    [
        (Rules(read_committed=False), "isolation=read_uncommitted"),
        (Rules(read_committed=True, changes="0a1f"), "isolation=read_committed;changes=0a1f"),
    ],
)
def test_rules_are_readable_in_the_ledger(rules: Rules, text: str) -> None:
    assert str(rules) == text
    assert Rules.parse(text) == rules


@pytest.mark.parametrize("text", ["", "isolation=snapshot", "isolation=read_committed;changes=", "x"])
def test_rules_of_an_unknown_version_are_not_guessed(text: str) -> None:
    assert Rules.parse(text) is None
