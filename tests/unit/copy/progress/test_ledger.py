import json
import zlib
from collections import Counter
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from structlog.testing import capture_logs

from mm2.codec import read_json
from mm2.copy.progress import segments
from mm2.copy.progress.ledger import (
    Key,
    Ledger,
    LedgerLog,
    Pause,
    Verified,
    chunk_record,
    chunk_tombstone,
    entry_record,
    group_record,
    key_bytes,
    note_record,
    pause_record,
    paused,
    throttle_record,
    verified_record,
)
from mm2.copy.progress.segments import Segment, SegmentChunk, Trail, UnwrittenChunks
from mm2.copy.progress.session import CopyOrigin, Lease, LedgerEntry, Mark, PartitionCondition, PreviousCommit, Start
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.reasons import OffsetReason, OffsetReasonCode


def test_a_rate_is_valid_while_its_entry_exists() -> None:
    ledger = Ledger()
    assert ledger.rates() == {}
    for partition, written_ms in ((0, 1_000_000), (1, 1_030_000), (2, 969_999), (3, 1_000_000)):
        row = entry_record(LedgerEntry("t", partition, "A.t", Mark(0, 0, 0), rate=7))
        ledger.apply(row.key, row.value, written_ms)
    assert ledger.rates() == {TopicPartition("t", partition): rate for partition, rate in enumerate((7, 7, 0, 7))}
    row = entry_record(LedgerEntry("t", 3, "A.t", Mark(9, 9, 9), rate=8))
    ledger.apply(row.key, row.value, 1_040_000)
    assert ledger.rates() == {TopicPartition("t", partition): rate for partition, rate in enumerate((0, 7, 0, 8))}


def test_a_pause_of_a_topic_or_partition_is_valid_until_it_is_removed() -> None:
    ledger = Ledger()

    def say(topic: str, partition: int | None, pause: Pause | None) -> None:
        row = pause_record(topic, partition, pause)
        ledger.apply(row.key, row.value)

    ann, bob = Pause("ann@a", 1_700_000_000_000, "Ä: repairs"), Pause("bob@b", 1)
    say("t", None, ann)
    say("t", 1, bob)
    say("u", 2, bob)
    pauses = ledger.pauses()
    assert pauses == {("t", None): ann, ("t", 1): bob, ("u", 2): bob}
    shown = {(topic, n): paused(pauses, TopicPartition(topic, n)) for topic in "tuv" for n in (1, 2)}
    assert shown == {("t", 1): ann, ("t", 2): ann, ("u", 1): None, ("u", 2): bob, ("v", 1): None, ("v", 2): None}
    assert (str(ann), str(bob)) == (
        "paused by ann@a at 2023-11-14 22:13:20 UTC: Ä: repairs",
        "paused by bob@b at 1970-01-01 00:00:00 UTC",
    )
    say("t", None, None)
    say("u", 2, None)
    say("never", None, None)
    assert ledger.pauses() == {("t", 1): bob}


def test_a_pause_with_an_unreadable_value_is_still_a_pause() -> None:
    ledger = Ledger()
    ledger.apply(b'{"pause":["t"]}', b"[]")
    ledger.apply(b'{"pause":["u"]}', b"torn")
    ledger.apply(b'{"pause":[]}', b"{}")
    ledger.apply(b'{"pause":["v","x"]}', b"{}")
    assert ledger.pauses() == {("t", None): Pause("", 0), ("u", None): Pause("", 0)}


@pytest.mark.parametrize("since_ms", [2**63 - 1, -(2**63), 253_402_300_800_000])
def test_a_pause_at_a_time_that_no_calendar_has_can_be_shown(since_ms: int) -> None:
    """Another client has written it: each status of the flow contains it."""
    ledger = Ledger()
    record = pause_record("t", None, Pause("ann", since_ms))
    ledger.apply(record.key, record.value)
    assert str(ledger.pauses()["t", None]) == f"paused by ann at {since_ms} ms"


def test_the_verified_offset_is_stored_beside_the_entry() -> None:
    ledger, place = Ledger(), TopicPartition("ä", 3)
    assert ledger.verified(place) is None
    verified = Verified(0, 90, 120, 1_700_000_000_000, 118, {"missing": 1, "altered value": 1}, "s", "t")
    row = verified_record(place, verified)
    ledger.apply(row.key, row.value)
    assert ledger.verified(place) == verified
    assert ledger.entry(place) is None
    ledger.apply(b'{"verified":["t"]}', b"{}")
    ledger.apply(b'{"verified":["t",0]}', b'{"offset":5}')
    ledger.apply(b'{"verified":["t",0]}', b"[]")
    assert ledger.verified(TopicPartition("t", 0)) is None
    newer = b'{"first":0,"offset":1,"checked":1,"at_ms":2,"unknown":7}'
    ledger.apply(row.key, newer)
    assert ledger.verified(place) == Verified(0, 1, 1, 2), "what a later version adds is no reason to read nothing"
    row = verified_record(place, None)
    ledger.apply(row.key, row.value)
    assert ledger.verified(place) is None


@settings(max_examples=300, deadline=None)
@given(
    runs=st.lists(
        st.tuples(st.sampled_from(["", "", "control", "compacted"]), st.integers(1, 4)), min_size=1, max_size=60
    ),
    steps=st.lists(st.tuples(st.integers(1, 7), st.booleans()), min_size=1, max_size=60),
)
def test_with_any_aborted_transaction_the_ledger_has_every_offset_once(
    runs: list[tuple[str, int]], steps: list[tuple[int, bool]]
) -> None:
    """Ledger first, commit second: a crash in between undoes the ledger's changes of the transaction, and no more."""
    place, partition = TopicPartition("t", 0), "A.t"
    ledger, committed, target, behind, done = Ledger(), None, 0, 0, 0
    reasons: dict[int, str] = {}
    there: dict[int, int] = {}
    with patch.object(segments, "CHUNK_SIZE", 5):
        for wanted, crashes in steps:
            count = wanted
            start = ledger.start(place, committed)
            trail = Trail(start.chunk, None if start.entry is None else start.entry.gaps)
            position = committed or 0
            while True:
                before = PreviousCommit(
                    Mark(position, behind, 0), dict(trail.gaps), trail.newest.number, trail.newest.extent(), 0
                )
                taken = runs[done : done + count]
                for reason, length in taken:
                    if reason:
                        trail.missing(position, position + length, reason)
                        reasons.update(dict.fromkeys(range(position, position + length), reason))
                    else:
                        trail.copied(position, target, length)
                        there.update(
                            zip(range(position, position + length), range(target, target + length), strict=True)
                        )
                        target = behind = target + length
                    position += length
                changed, forgotten = trail.take_changed()
                written = LedgerEntry(
                    "t", 0, partition, Mark(position, behind, 0), committed, gaps=dict(trail.gaps), before=before
                )
                for record in (
                    *(chunk_record(place, chunk) for chunk in changed),
                    *(chunk_tombstone(place, number) for number in forgotten),
                    entry_record(written.replace(chunk=trail.newest.number)),
                ):
                    ledger.apply(record.key, record.value)
                target += 1  # the transaction's marker
                if crashes or not taken:
                    break
                committed, done = position, done + count
                count = 1  # and on, by the same executor
                if done >= len(runs):
                    break
    start = ledger.start(place, committed)
    reached = committed or 0
    reasons = {offset: reason for offset, reason in reasons.items() if offset < reached}
    if start.entry is not None:
        assert start.entry.gaps == Counter(reasons.values())
    chunks = [*(chunk for chunk in ledger.chunks(place) if start.chunk and chunk.number < start.chunk.number)]
    chunks += [start.chunk] if start.chunk else []
    shown = {offset: gap.reason for chunk in chunks for gap in chunk.gaps for offset in range(gap.first, gap.after)}
    assert shown == reasons
    lie = {
        segment.source + index: segment.target + index
        for chunk in chunks
        for segment in chunk.segments
        for index in range(segment.records)
    }
    assert lie == {offset: at for offset, at in there.items() if offset < reached}


def test_full_chunks_are_kept_compressed_and_read_as_they_were_written() -> None:
    ledger, source = Ledger(), TopicPartition("t", 0)
    written = []
    for number in range(3):
        chunk = SegmentChunk(
            number, [Segment(1000 * number + 10 * row, 900 * number + 9 * row, 9) for row in range(100)]
        )
        record = chunk_record(source, chunk)
        ledger.apply(record.key, record.value)
        written.append(chunk)
    assert [value[:1] == b"{" for _, value in sorted(ledger._chunks[source].items())] == [False, False, True]
    entry = entry_record(LedgerEntry("t", 0, "A.t", Mark(2990, 2691, 2691), chunk=2))
    ledger.apply(entry.key, entry.value)
    assert ledger.chunks(source)[:2] == written[:2]


def test_reasons_of_a_group_are_read_as_written_also_without_their_codes() -> None:
    ledger = Ledger()
    reasons = {
        TopicPartition("t", 0): OffsetReason(OffsetReasonCode.AHEAD, "the group is ahead"),
        TopicPartition("t", 1): OffsetReason(OffsetReasonCode.NO_SYNC, "no offset sync"),
    }
    row = group_record("g", reasons)
    ledger.apply(row.key, row.value)
    assert ledger.group_reasons() == {"g": reasons}
    # As versions before 0.2 wrote it, and as one with more codes might.
    for value in (b'{"reasons":{"t":{"0":"x"}}}', b'{"reasons":{"t":{"0":"x"}},"codes":{"t":{"0":"newer"}}}'):
        ledger.apply(row.key, value)
        assert ledger.group_reasons() == {"g": {TopicPartition("t", 0): OffsetReason(OffsetReasonCode.OTHER, "x")}}
    gone = group_record("g", {})
    ledger.apply(gone.key, gone.value)
    assert ledger.group_reasons() == {}


def test_a_late_chunk_is_ignored_and_written_again_by_the_next_holder() -> None:
    """A write without a response may be appended after later commits; compaction would keep only the late chunk."""
    ledger, source = Ledger(), TopicPartition("t", 0)
    short = SegmentChunk(0, [Segment(0, 0, 10)])
    full = SegmentChunk(0, [Segment(0, 0, 10), Segment(11, 10, 5)])
    following = SegmentChunk(1, [Segment(17, 15, 3)])

    def commit(lease: Lease, mark: Mark, *chunks: SegmentChunk) -> LedgerEntry:
        entry = LedgerEntry("t", 0, "A.t", mark, chunk=chunks[-1].number, lease=lease)
        for row in (*(chunk_record(source, chunk, lease) for chunk in chunks), entry_record(entry)):
            ledger.apply(row.key, row.value)
        return entry

    first = commit(Lease(7, 1), Mark(10, 10, 10), short)
    newest = commit(Lease(7, 2), Mark(20, 18, 18), full, following)
    assert ledger.late() == set()
    commit(Lease(7, 1), Mark(10, 10, 10), short)
    ghost = chunk_record(source, SegmentChunk(-1), Lease(7, 1))
    ledger.apply(ghost.key, ghost.value)
    assert ledger.late() == {source}
    assert ledger.entry(source) == newest
    assert ledger.chunks(source) == [full, following]

    wanted = UnwrittenChunks((full,), (-1,))
    assert ledger.start(source, 20).unwritten == wanted
    handed_over = Start(20, 20, newest, following, clean=True)
    assert ledger.with_late_chunks(source, handed_over).unwritten == wanted
    assert ledger.with_late_chunks(source, Start(10, 10, first, short)).unwritten == wanted
    ahead = Start(20, 20, newest.replace(lease=Lease(7, 3)), following, clean=True)
    assert ledger.with_late_chunks(source, ahead) is ahead, "the ledger has not been read up to its last commit"
    newer = SegmentChunk(0, [*full.segments, Segment(16, 15, 0)])
    own = Start(20, 20, newest, following, unwritten=UnwrittenChunks((newer,)))
    assert ledger.with_late_chunks(source, own).unwritten == UnwrittenChunks((newer,), (-1,))

    changed, forgotten = Trail(following, unwritten=wanted).take_changed()
    commit(Lease(7, 3), Mark(20, 18, 18), *changed, following)
    gone = chunk_tombstone(source, *forgotten)
    ledger.apply(gone.key, gone.value)
    assert ledger.late() == set()
    assert ledger.chunks(source) == [full, following]


def test_a_chunk_that_another_client_has_written_is_not_decompressed_without_a_limit() -> None:
    """Chunks are compressed in memory only; these bytes would take a gigabyte."""
    bomb = zlib.compress(bytes(64 << 20))
    ledger = Ledger()
    record = chunk_record(TopicPartition("t", 0), SegmentChunk(0, [Segment(0, 0, 1)]))
    ledger.apply(record.key, bomb)
    entry = entry_record(LedgerEntry("t", 0, "A.t", Mark(1, 1, 1), chunk=1))
    ledger.apply(entry.key, entry.value)
    with capture_logs() as logs:
        assert ledger.chunks(TopicPartition("t", 0)) == []
    assert [entry["error"] for entry in logs] == ["ValueError('more than 16777216 bytes')"]


def test_notes_of_one_kind_are_read_without_those_of_others() -> None:
    """Tasks ask several times a second which topics are promoted, and there are notes of every topic's end offsets."""
    ledger = Ledger()
    for name in ("orders", "payments"):
        record = note_record("source", [name], {"ends": [1]})
        ledger.apply(record.key, record.value)
    one = note_record("promoted", ["orders"], {"verb": "promote"})
    ledger.apply(one.key, one.value)
    with patch("mm2.copy.progress.ledger.read_json", side_effect=read_json) as parse:
        assert ledger.notes("promoted") == {("orders",): {"verb": "promote"}}
    assert [call.args[0] for call in parse.mock_calls] == [one.value]
    gone = note_record("promoted", ["orders"], None)
    ledger.apply(gone.key, gone.value)
    assert ledger.notes("promoted") == {}
    assert set(ledger.notes("source")) == {("orders",), ("payments",)}


def test_a_reason_with_half_a_surrogate_pair_does_not_prevent_the_entry() -> None:
    condition = PartitionCondition("FAILED", "no column a\ud83db", 7, 1)
    record = entry_record(LedgerEntry("t", 0, "A.t", Mark(7, 7, 7), condition=condition))
    ledger = Ledger()
    ledger.apply(record.key, record.value, 1)
    entry = ledger.entry(TopicPartition("t", 0))
    assert entry is not None
    assert entry.condition == condition._replace(reason="no column a?b")


_LONG = "t" * 250
_PAUSE = Pause("ann", 1)


@pytest.mark.parametrize(
    "record",
    [
        entry_record(LedgerEntry(_LONG, 0, "A.t", Mark(0, 0, 0))),
        chunk_record(TopicPartition(_LONG, 0), SegmentChunk(0)),
        throttle_record(_LONG, 1),
        pause_record(_LONG, None, _PAUSE),
        pause_record(_LONG, 0, _PAUSE),
        verified_record(TopicPartition(_LONG, 0), Verified(0, 1, 1, 1)),
        note_record("promoted", ["t" * 70_000], {}),
        group_record("g" * 70_000, {TopicPartition("t", 0): OffsetReason(OffsetReasonCode.OTHER, "")}),
        Record(b"k" * 900_000, b"{}"),
    ],
)
def test_names_that_no_topic_can_have_and_long_keys_are_neither_kept_nor_logged(record: Record) -> None:
    """Whoever may write to the topic would fill the memory and the logs of all processes that read it."""
    ledger = Ledger()
    with capture_logs() as logs:
        ledger.apply(record.key, record.value)
    assert (ledger.partitions(), ledger.versions(), ledger.throttles(), ledger.pauses()) == ([], {}, {}, {})
    assert (ledger.verifications(), ledger.notes("promoted"), ledger.group_reasons()) == ({}, {}, {})
    assert len(logs) == 1
    assert len(str(logs[0])) < 1_000


_DEEP = b'{"a":' * 50_000
_HUGE = b'{"bytes.per.sec":1' + b"0" * 400 + b"}"


@pytest.mark.parametrize(
    "value", [_DEEP, b"[" * 50_000, b"NaN", b"[1e400]", b'{"a":-Infinity}', _HUGE, b"5", b'"text"']
)
def test_no_record_of_another_client_prevents_reading_the_ledger(value: bytes) -> None:
    """The value is in all kinds of records. Each reader asks for all of them: one such note stopped every task of the flow."""
    ledger, one = Ledger(), TopicPartition("t", 0)
    for key in (
        key_bytes(Key(one, None)),
        key_bytes(Key(one, 0)),
        b'{"note":["promoted","t"]}',
        b'{"group":"g"}',
        b'{"verified":["t",0]}',
        b'{"throttle":"t"}',
        b'{"pause":["u"]}',
        b'{"note":%s}' % value,
        b'{"pause":["t",%s]}' % value,
        b'{"partition":%s,"topic":"t"}' % value,
        b'{"chunk":%s,"partition":0,"topic":"t"}' % value,
    ):
        ledger.apply(key, value)
    assert ledger.entry(one) is None
    assert ledger.unbegun() == []
    assert ledger.chunks(one) == []
    assert set(ledger.partitions()) <= {one, TopicPartition("t", 5)}
    assert ledger.notes("promoted") == {}
    assert ledger.group_reasons() == {}
    assert ledger.verified(one) is None
    assert ledger.throttles() == {}
    assert ledger.pauses().keys() <= {("u", None), ("t", 5)}


@pytest.mark.parametrize("number", [-7, -(1 << 63), (1 << 63) - 1])
@pytest.mark.parametrize(("field", "place"), [("mark", 0), ("mark", 1), ("origin", 1), ("written_by", None)])
def test_an_entry_of_another_client_with_numbers_that_no_log_has_is_none(
    field: str, place: int | None, number: int
) -> None:
    """What is at such an offset cannot be read, and what is written after it has no offset."""
    record = entry_record(LedgerEntry("t", 0, "A.t", Mark(5, 7, 2), written_by=3, origin=CopyOrigin("", 4)))
    value = json.loads(record.value or b"")
    ledger = Ledger()
    ledger.apply(record.key, record.value)
    assert ledger.entry(TopicPartition("t", 0)) is not None
    if place is None:
        value[field] = number
    else:
        value[field][place] = number
    ledger.apply(record.key, json.dumps(value).encode())
    assert ledger.entry(TopicPartition("t", 0)) is None


@pytest.mark.parametrize("forged", [None, True, 1.5, "x", [], {}, [1, 2, 3, 4], "\ud800"])
def test_any_value_in_a_field_of_an_entry_is_read_or_refused(forged: object) -> None:
    """Each field of an entry by itself, with the newest ones."""
    record = entry_record(LedgerEntry("t", 0, "A.t", Mark(5, 7, 2), written_by=3, origin=CopyOrigin("", 4)))
    value = json.loads(record.value or b"")
    for field in value:
        ledger = Ledger()
        ledger.apply(record.key, json.dumps({**value, field: forged}).encode())
        entry = ledger.entry(TopicPartition("t", 0))
        assert entry is None or entry_record(entry).value, field


def test_thousands_of_records_of_another_client_do_not_fill_the_log() -> None:
    """Each process that reads the ledger logged all of them at each start: a topic of 1 GB made a log of 1 GB."""
    ledger = Ledger()
    with capture_logs() as logs:
        for number in range(3_000):
            ledger.apply(b"nonsense-%d" % number, b"{}")
    assert len(logs) == 50 + 3
    assert [one["records"] for one in logs[50:]] == [1_000, 2_000, 3_000]


def test_half_a_surrogate_pair_of_another_client_is_not_in_metrics_and_pages() -> None:
    """Neither the text format of Prometheus nor the messages of the dashboard can contain it: both failed as a whole."""
    ledger = Ledger()
    ledger.apply(b'{"group":"\\ud800g"}', b'{"reasons":{"t":{"0":"\\udfff"}}}')
    ledger.apply(b'{"note":["limit","groups"]}', b'{"message":"\\ud83d\\ude00\\ud83d"}')
    assert ledger.group_reasons() == {"?g": {TopicPartition("t", 0): OffsetReason(OffsetReasonCode.OTHER, "?")}}
    assert ledger.notes("limit") == {("groups",): {"message": "\U0001f600?"}}


@pytest.mark.parametrize(
    "value", [b'{"first":0,"offset":"x","checked":1,"at_ms":1}', b'{"first":0,"offset":null,"checked":1,"at_ms":1}']
)
def test_a_verification_of_another_client_has_numbers_or_no_effect(value: bytes) -> None:
    ledger = Ledger()
    ledger.apply(b'{"verified":["t",0]}', value)
    assert ledger.verified(TopicPartition("t", 0)) is None


def test_the_longest_names_are_kept() -> None:
    ledger = Ledger()
    for row in (pause_record(_LONG[:249], None, _PAUSE), note_record("acl", ["t" * 249, "User:" + "u" * 32_000], {})):
        ledger.apply(row.key, row.value)
    assert len(ledger.pauses()) == len(ledger.notes("acl")) == 1


def test_a_reader_that_cannot_start_is_stopped() -> None:
    log = LedgerLog(ClientSettings.from_props({"bootstrap.servers": "127.0.0.1:1"}), "mm2-ledger.A.internal", name="B")
    with pytest.raises(KafkaFailure):
        log.start(0.1)
    assert log._cluster.closed
