"""Comparison of two lists of records after edits: exactly the edits are reported, regardless of the batches."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.codec import decode, encode
from mm2.copy.changes import ChangedBatch
from mm2.copy.progress.segments import Gap, Segment
from mm2.kafka.errors import BatchOverLimit
from mm2.kafka.records.batch import LOG_APPEND_TIME, BatchView, iter_batches
from mm2.kafka.records.record import Record, decode_batch, encode_batch
from mm2.verify.comparing import comparison
from mm2.verify.comparing.comparison import Comparison, originals
from mm2.verify.comparing.findings import Difference, DifferenceKind, Explained, Findings
from mm2.verify.comparing.passes import Pass, Route
from mm2.verify.comparing.records import Change
from mm2.verify.comparing.spans import Span
from tests.support import bombs

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


@dataclass
class ListFeed:
    """Batches of a list of (offset, record), of any sizes; adjacent records in a batch may have holes between them."""

    records: Sequence[tuple[int, Record]]
    sizes: Sequence[int] = (7,)
    codecs: Sequence[str] = ("none",)
    log_start: int = 0
    log_end: int = 1 << 40
    attributes: int = 0
    _batches: list[BatchView] | None = field(default=None, repr=False)

    def read(self) -> BatchView | None:
        if self._batches is None:
            self._batches = list(self._encoded())[::-1]
        return self._batches.pop() if self._batches else None

    def _encoded(self) -> list[BatchView]:
        batches: list[BatchView] = []
        at = turn = 0
        while at < len(self.records):
            size = self.sizes[turn % len(self.sizes)]
            run = [self.records[at]]
            # A producer's batch has no holes: one ends there.
            while len(run) < size and at + len(run) < len(self.records):
                following = self.records[at + len(run)]
                if following[0] != run[-1][0] + 1:
                    break
                run.append(following)
            data = encode_batch(
                [record for _, record in run],
                codec=self.codecs[turn % len(self.codecs)],
                base_offset=run[0][0],
                attributes=self.attributes,
            )
            batches += iter_batches(memoryview(data))
            at += len(run)
            turn += 1
        return batches


def record(number: int) -> Record:
    headers = (("trace", b"%d" % number), ("null", None)) if number % 3 == 0 else ()
    value = None if number % 5 == 4 else b"value-%d" % number
    return Record(b"key-%d" % number, value, headers, 1_700_000_000_000 + 10 * number)


def offsets(records: Sequence[Record]) -> list[tuple[int, Record]]:
    return list(enumerate(records))


def span(source: int, target: int, segments: Sequence[Segment], **changes: object) -> Span:
    one = Span("t", 0, "A.t", Pass(0, source, 0, target, Route(tuple(segments))), in_detail=True, whole=(0, source))
    return replace(one, **changes)  # type: ignore[arg-type]


def compare(one: Span, source: ListFeed, target: ListFeed, change: Change | None = None) -> Findings:
    compared = Comparison(one, source, target, change)
    if not compared.run():
        again = replace(source, _batches=None)
        compared.resolve(originals(again, *one.whole, compared.wanted, lambda: None, change))
    return compared.findings


def reported(findings: Findings, *, displaced: bool = False) -> Counter[tuple[DifferenceKind, int | None]]:
    """Each reported record, by kind and source offset."""
    found: Counter[tuple[DifferenceKind, int | None]] = Counter()
    for difference in findings.differences:
        for step in range(difference.records):
            if displaced or difference.kind is not DifferenceKind.DISPLACED:
                source = difference.source
                found[difference.kind, None if source is None else source + step] += 1
    return found


EDITS = ("delete", "double", "insert", "key", "value", "headers", "timestamp", "swap")


@dataclass(frozen=True)
class History:
    """Edits that are not adjacent."""

    count: int
    edits: tuple[tuple[int, str], ...]

    def play(self) -> tuple[list[Record], list[Record], Counter[tuple[str, int]]]:
        source = [record(number) for number in range(self.count)]
        target: list[Record] = []
        expected: Counter[tuple[str, int]] = Counter()
        edits = dict(self.edits)
        number = 0
        while number < self.count:
            one, edit = source[number], edits.get(number)
            if edit is not None:
                expected[edit, -1 if edit == "insert" else number] += 1
            if edit == "delete":
                pass
            elif edit == "double":
                target += [one, one]
            elif edit == "insert":
                target += [Record(b"foreign-%d" % number, b"?", (), 1), one]
            elif edit == "key":
                target.append(one._replace(key=b"another"))
            elif edit == "value":
                target.append(one._replace(value=b"another"))
            elif edit == "headers":
                target.append(one._replace(headers=(*one.headers, ("new", b""))))
            elif edit == "timestamp":
                target.append(one._replace(timestamp=(one.timestamp or 0) + 1))
            elif edit == "swap":
                target += [source[number + 1], one]
                number += 1
            else:
                target.append(one)
            number += 1
        return source, target, expected


@st.composite
def histories(draw: st.DrawFn) -> History:
    count = draw(st.integers(1, 120))
    places = draw(st.lists(st.integers(0, max(0, count // 3 - 1)), unique=True, max_size=8))
    edits = [(3 * place, draw(st.sampled_from(EDITS))) for place in places if 3 * place + 1 < count]
    return History(count, tuple(sorted(edits)))


def edits_of(findings: Findings) -> Counter[tuple[str, int]]:
    words = {
        DifferenceKind.MISSING: "delete",
        DifferenceKind.DOUBLED: "double",
        DifferenceKind.EXTRA: "insert",
        DifferenceKind.SWAPPED: "swap",
        DifferenceKind.ALTERED_KEY: "key",
        DifferenceKind.ALTERED_VALUE: "value",
        DifferenceKind.ALTERED_HEADERS: "headers",
        DifferenceKind.ALTERED_TIMESTAMP: "timestamp",
    }
    edits: Counter[tuple[str, int]] = Counter()
    for (kind, source), count in reported(findings).items():
        place = -1 if source is None else source
        # If two records are swapped, either one may be reported as the one that moved.
        edits[words[kind], place - place % 3 if kind is DifferenceKind.SWAPPED else place] += count
    return edits


sizes = st.lists(st.integers(1, 9), min_size=1, max_size=4)
codecs = st.lists(st.sampled_from(CODECS), min_size=1, max_size=3)


@given(histories(), sizes, sizes, codecs, codecs, st.booleans(), st.sampled_from([2, 16, 1024]))
@settings(max_examples=150)
def test_exactly_the_edits_are_reported(
    history: History,
    mine: list[int],
    theirs: list[int],
    codec: list[str],
    other: list[str],
    with_ledger: bool,
    window: int,
) -> None:
    source, target, expected = history.play()
    route = [Segment(0, 0, len(source))] if with_ledger else []
    one = span(len(source), len(target), route)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison, "_WINDOW", window)
        feeds = ListFeed(offsets(source), mine, codec), ListFeed(offsets(target), theirs, other)
        findings = compare(one, *feeds)
    assert edits_of(findings) == expected
    assert findings.is_equal == (not expected)
    quick = compare(replace(one, in_detail=False), ListFeed(offsets(source), mine), ListFeed(offsets(target), theirs))
    assert quick.is_equal == (not expected), "a comparison without details detects that there is a difference"
    if expected:
        first = min(place for place, _ in history.edits)
        assert quick.first_mismatch is not None
        assert quick.first_mismatch <= first + 1
        assert findings.first_difference is not None
        assert findings.first_difference <= first + 1


@given(st.integers(1, 60), st.data())
def test_missing_and_extra_records_are_reported(count: int, data: st.DataObject) -> None:
    source = [record(number) for number in range(count)]
    kept = data.draw(st.sets(st.sampled_from(range(count))))
    foreign = data.draw(st.lists(st.integers(0, count), max_size=10))
    target = [source[number] for number in sorted(kept)]
    for number, place in enumerate(foreign):
        target.insert(min(place, len(target)), Record(b"foreign-%d" % number, b"%d" % number, (), number))
    findings = compare(
        span(count, len(target), [Segment(0, 0, count)]), ListFeed(offsets(source)), ListFeed(offsets(target))
    )
    expected: Counter[tuple[DifferenceKind, int | None]] = Counter()
    expected.update((DifferenceKind.MISSING, number) for number in range(count) if number not in kept)
    if foreign:
        expected[DifferenceKind.EXTRA, None] = len(foreign)
    assert reported(findings) == expected


@given(st.lists(st.integers(0, 3), max_size=40), st.lists(st.integers(0, 3), max_size=40))
def test_counts_add_up_when_many_records_are_equal(mine: list[int], theirs: list[int]) -> None:
    source, target = ([Record(b"k", b"%d" % number, (), 5) for number in numbers] for numbers in (mine, theirs))
    findings = compare(span(len(mine), len(theirs), []), ListFeed(offsets(source)), ListFeed(offsets(target)))
    counts = findings.counts
    altered = counts.get(DifferenceKind.ALTERED_VALUE, 0)
    assert findings.records + counts.get(DifferenceKind.MISSING, 0) + altered == len(mine)
    more = counts.get(DifferenceKind.EXTRA, 0) + counts.get(DifferenceKind.DOUBLED, 0)
    assert findings.records + more + altered == len(theirs)
    assert findings.is_equal == (mine == theirs)


@given(st.integers(1, 80), st.data())
def test_records_removed_by_compaction_and_retention_are_explained(count: int, data: st.DataObject) -> None:
    """Holes on both sides, at different offsets; the ledger has the target offset of each record."""
    everything = [(number, record(number)) for number in range(count)]
    places = st.sets(st.sampled_from(range(count)))
    removed, removed_on_target = data.draw(places), data.draw(places)
    source = [row for row in everything if row[0] not in removed]
    target = [row for row in everything if row[0] not in removed_on_target]
    route = [Segment(0, 0, count)]
    explained = compare(
        span(count, count, route, source_compacted=True, target_compacted=True, in_detail=False),
        ListFeed(source),
        ListFeed(target),
    )
    assert explained.is_equal
    assert explained.records == count - len(removed | removed_on_target)
    assert explained.explained.get(Explained.SOURCE_COMPACTED, 0) == len(removed - removed_on_target)
    assert explained.explained.get(Explained.TARGET_COMPACTED, 0) == len(removed_on_target - removed)
    assert compare(span(count, count, route, source_compacted=True), ListFeed(source), ListFeed(target)).counts.get(
        DifferenceKind.MISSING, 0
    ) == len(removed_on_target - removed), "in a topic without compaction, holes are differences"
    late = max(removed_on_target, default=-1) + 1
    deleted = compare(
        span(count, count, route, in_detail=False),
        ListFeed(everything),
        ListFeed(everything[late:], log_start=late),
    )
    assert deleted.is_equal
    assert deleted.explained.get(Explained.TARGET_DELETED, 0) == late


def test_a_batch_that_was_sent_twice_is_reported_as_doubled_with_the_original_offsets() -> None:
    source = [record(number) for number in range(5_000)]
    target = [*source[:4_000], *source[1_000:1_100], *source[4_000:]]
    one = span(5_000, 5_100, [Segment(0, 0, 5_000)])
    findings = compare(one, ListFeed(offsets(source), [100]), ListFeed(offsets(target), [100]))
    doubled, displaced = findings.differences
    assert (doubled.kind, doubled.source, doubled.target, doubled.records) == (
        DifferenceKind.DOUBLED,
        1_000,
        4_000,
        100,
    )
    assert (displaced.kind, displaced.source, displaced.target, displaced.records) == (
        DifferenceKind.DISPLACED,
        4_000,
        4_100,
        1_000,
    )
    assert findings.first_difference == 1_000


def test_a_record_that_is_much_later_on_the_target_is_swapped_and_not_missing() -> None:
    source = [record(number) for number in range(5_000)]
    target = [*source[:10], *source[11:4_500], source[10], *source[4_500:]]
    findings = compare(
        span(5_000, 5_000, [Segment(0, 0, 5_000)]), ListFeed(offsets(source), [50]), ListFeed(offsets(target), [50])
    )
    assert reported(findings) == {(DifferenceKind.SWAPPED, 10): 1}
    assert findings.counts == {DifferenceKind.SWAPPED: 1}, "the records between are not reported as displaced"


def test_gaps_and_records_of_another_pass_are_not_expected() -> None:
    source = offsets([record(number) for number in range(30)])
    target = [(place, one) for place, (_, one) in enumerate([*source[:10], *source[15:20]])]
    route = [Segment(0, 0, 10), Segment(15, 10, 5)]
    excluded = (Gap(10, 15, "retention"), Gap(20, 30, "copied in another pass"))
    assert compare(span(30, 15, route, excluded=excluded, in_detail=False), ListFeed(source), ListFeed(target)).is_equal
    findings = compare(span(30, 15, route, excluded=excluded[:1]), ListFeed(source), ListFeed(target))
    (missing,) = findings.differences
    assert (missing.kind, missing.source, missing.records) == (DifferenceKind.MISSING, 20, 10)


def test_broker_timestamps_of_the_target_are_explained_and_not_compared() -> None:
    source = [record(number) for number in range(20)]
    target = [one._replace(timestamp=1_800_000_000_000) for one in source]
    target[7] = target[7]._replace(value=b"another")
    feeds = ListFeed(offsets(source)), ListFeed(offsets(target), attributes=LOG_APPEND_TIME)
    findings = compare(span(20, 20, [Segment(0, 0, 20)]), *feeds)
    assert reported(findings) == {(DifferenceKind.ALTERED_VALUE, 7): 1}
    assert findings.explained == {Explained.TARGET_TIMESTAMPS: 19}


def test_broker_timestamps_of_the_source_are_compared() -> None:
    """Given a source with LogAppendTime, whose timestamps the flow has copied; only a real difference is reported."""
    source = [record(number)._replace(timestamp=1_800_000_000_000) for number in range(20)]
    target = [*source[:7], source[7]._replace(value=b"another"), *source[8:12], source[3], *source[12:]]
    feeds = ListFeed(offsets(source), attributes=LOG_APPEND_TIME), ListFeed(offsets(target))
    findings = compare(span(20, 21, [Segment(0, 0, 20)]), *feeds)
    assert reported(findings) == {(DifferenceKind.ALTERED_VALUE, 7): 1, (DifferenceKind.DOUBLED, 3): 1}


def test_without_a_ledger_both_ends_are_open_but_no_common_record_is_a_difference() -> None:
    source = offsets([record(number) for number in range(40)])
    target = [(place, one) for place, (_, one) in enumerate(source[10:30])]
    one = span(40, 20, [], open_start=True, open_end=True)
    findings = compare(one, ListFeed(source), ListFeed(target))
    assert findings.is_equal
    assert findings.explained == {Explained.BEFORE: 10, Explained.PENDING: 10}
    foreign = [(place, Record(b"x", b"%d" % place, (), place)) for place in range(20)]
    findings = compare(one, ListFeed(source), ListFeed(foreign))
    assert findings.counts == {DifferenceKind.MISSING: 40, DifferenceKind.EXTRA: 20}
    empty = compare(one, ListFeed(source), ListFeed([]))
    assert empty.is_equal
    assert empty.explained == {Explained.PENDING: 40}


def test_records_that_were_copied_to_a_recreated_topic_are_expected_there() -> None:
    """The ledger has offsets 10 to 29 as copied, of which 12 is a gap; later ones may not have been copied yet."""
    source = offsets([record(number) for number in range(40)])
    one = replace(span(40, 0, [], open_start=True, open_end=True), copied=(10, 30), excluded=(Gap(12, 13, "filtered"),))
    findings = compare(one, ListFeed(source), ListFeed([]))
    assert findings.counts == {DifferenceKind.MISSING: 19}
    assert findings.explained == {Explained.PENDING: 20}
    again = [(place, one) for place, (_, one) in enumerate([*source[10:12], *source[13:35]])]
    findings = compare(replace(one, piece=replace(one.piece, target_after=24)), ListFeed(source), ListFeed(again))
    assert findings.is_equal, findings


def test_without_a_ledger_only_the_source_may_have_more_records_at_the_end() -> None:
    """Another program has written to the remote topic after Java's MirrorMaker was stopped."""
    source = offsets([record(number) for number in range(20)])
    foreign = [(20 + place, Record(b"x", b"%d" % place, (), place)) for place in range(3)]
    one = span(20, 23, [], open_start=True, open_end=True, by_content=True)
    findings = compare(one, ListFeed(source), ListFeed([*source, *foreign]))
    assert reported(findings) == {(DifferenceKind.EXTRA, None): 3}
    again = [(20 + place, one) for place, (_, one) in enumerate(source[:2])]
    findings = compare(one, ListFeed(source), ListFeed([*source, *again]))
    assert reported(findings) == {(DifferenceKind.DOUBLED, 0): 1, (DifferenceKind.DOUBLED, 1): 1}


def test_without_a_ledger_records_of_a_source_that_never_had_any_are_extra() -> None:
    """The source is another cluster, or its topic was recreated; or retention has deleted all of its records."""
    target = ListFeed(offsets([record(number) for number in range(5)]))
    one = span(0, 5, [], open_start=True, open_end=True, by_content=True)
    assert compare(one, ListFeed([]), target).counts == {DifferenceKind.EXTRA: 5}
    deleted = replace(one, piece=replace(one.piece, first=30, after=30), whole=(30, 30))
    findings = compare(deleted, ListFeed([]), replace(target, _batches=None))
    assert (findings.is_equal, findings.explained) == (True, {Explained.SOURCE_DELETED: 5})


def test_header_differences_contain_names_but_no_values() -> None:
    one = Record(b"k", b"v", (("a", b"1"), ("b", b"2"), ("c", None)), 5)
    other = one._replace(headers=(("a", b"1"), ("b", b"secret"), ("d", b"3")))
    findings = compare(span(1, 1, [Segment(0, 0, 1)]), ListFeed(offsets([one])), ListFeed(offsets([other])))
    (difference,) = findings.differences
    assert difference.kind is DifferenceKind.ALTERED_HEADERS
    assert difference.detail.startswith("c is missing; d is new; b: 1 bytes (")
    assert "secret" not in difference.detail


# -- flows that change their records ----------------------------------------------------------------------------------

DROPS = {b"f": "filtered", b"s": "skipped"}


def stamped(one: Record) -> Record:
    """What the flow of these tests makes of a record."""
    value = None if one.value is None else one.value.upper()
    return one._replace(value=value, headers=(*one.headers, ("by", b"A")))


def changing(view: BatchView, first: int, after: int) -> ChangedBatch:
    """Records with the keys ``f`` and ``s`` are dropped, the others `stamped`."""
    batch = ChangedBatch(after)
    for one in decode_batch(view):
        if first <= one.offset < after and one.key in DROPS:
            batch.drop(one.offset, DROPS[one.key])
        elif first <= one.offset < after:
            batch.records.append(stamped(one))
    return batch


def runs_of(places: Sequence[int]) -> list[Segment]:
    """The ledger's segments of records with these source offsets."""
    segments: list[Segment] = []
    for target, place in enumerate(places):
        if segments and segments[-1].source_end == place:
            segments[-1] = segments[-1]._replace(records=segments[-1].records + 1)
        else:
            segments.append(Segment(place, target, 1))
    return segments


@given(
    histories(),
    st.lists(st.tuples(st.integers(0, 120), st.sampled_from(sorted(DROPS)), st.integers(1, 20)), max_size=8),
    sizes,
    sizes,
    codecs,
    st.sampled_from(["ledger", "compacted", "content"]),
    st.sampled_from([2, 16, 1024]),
)
@settings(max_examples=150)
def test_exactly_the_edits_to_a_changed_flow_are_reported(
    history: History,
    dropped: list[tuple[int, bytes, int]],
    mine: list[int],
    theirs: list[int],
    codec: list[str],
    matching: str,
    window: int,
) -> None:
    """Given a source between whose records others are dropped; when the changed records on the target are edited;
    validates that each edit is reported, and that those which are dropped are explained.
    """
    kept, target, expected = history.play()
    source: list[Record] = []
    places: list[int] = []
    for number in range(len(kept) + 1):
        source += [
            Record(key, b"%d" % number, (), 1) for at, key, count in dropped if at == number for _ in range(count)
        ]
        if number < len(kept):
            places.append(len(source))
            source.append(kept[number])
    one = replace(
        span(len(source), len(target), [] if matching == "content" else runs_of(places)),
        source_compacted=matching == "compacted",
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison, "_WINDOW", window)
        feeds = ListFeed(offsets(source), mine, codec), ListFeed(offsets([*map(stamped, target)]), theirs)
        findings = compare(one, *feeds, changing)
    original = {place: number for number, place in enumerate(places)}
    found = [
        dataclasses.replace(one, source=None if one.source is None else original[one.source + step], records=1)
        for one in findings.differences
        for step in range(one.records)
    ]
    assert edits_of(replace(findings, differences=found)) == expected
    counts = Counter(DROPS[one.key] for one in source if one.key in DROPS)
    assert findings.explained == counts
    assert findings.source_records == len(source)
    quick = compare(
        replace(one, in_detail=False),
        ListFeed(offsets(source), mine),
        ListFeed(offsets([*map(stamped, target)]), theirs),
        changing,
    )
    assert quick.is_equal == (not expected)


@pytest.mark.parametrize("compacted", [False, True])
def test_a_record_that_had_to_be_dropped_is_extra(compacted: bool) -> None:
    """Given a ledger by which all records were copied, two of which the flow drops."""
    source = [*map(record, range(40))]
    source[20] = source[21] = source[20]._replace(key=b"f")
    one = span(40, 40, [Segment(0, 0, 40)], source_compacted=compacted)
    findings = compare(one, ListFeed(offsets(source)), ListFeed(offsets([*map(stamped, source)])), changing)
    (difference,) = findings.differences
    assert (difference.kind, difference.source, difference.target, difference.records) == (
        DifferenceKind.EXTRA,
        None,
        20,
        2,
    )
    assert difference.detail == "the flow drops the record that the ledger has there (filtered)"
    assert (findings.records, findings.explained) == (38, {"filtered": 2})


def test_without_a_ledger_records_that_had_to_be_dropped_are_extra() -> None:
    source = [Record(b"f", b"%d" % number, (), number) for number in range(10)]
    one = span(10, 10, [], open_start=True, open_end=True)
    findings = compare(one, ListFeed(offsets(source)), ListFeed(offsets([*map(stamped, source)])), changing)
    assert (findings.counts, findings.explained) == ({DifferenceKind.EXTRA: 10}, {"filtered": 10})
    empty = compare(one, ListFeed(offsets(source)), ListFeed([]), changing)
    assert (empty.counts, empty.explained) == ({}, {"filtered": 10})


def test_findings_and_spans_are_serialized_without_changes() -> None:
    source = [record(number) for number in range(20)]
    findings = compare(
        span(20, 19, [Segment(0, 0, 20)]), ListFeed(offsets(source)), ListFeed(offsets(source[:5] + source[6:]))
    )
    assert decode(Findings, encode(findings)) == findings
    one = span(20, 19, [Segment(0, 0, 20)], excluded=(Gap(1, 2, "lost"),), named="before a router")
    assert decode(Span, encode(one)) == one


@dataclass
class BatchesFeed:
    """One side of a range, as batches."""

    batches: list[bytes | bytearray]
    log_start: int = 0
    log_end: int = 1 << 40

    def read(self) -> BatchView | None:
        if not self.batches:
            return None
        (view,) = iter_batches(memoryview(self.batches.pop(0)))
        return view


def test_batches_over_the_limit_are_compared_only_as_a_whole() -> None:
    """Equal bytes are equal records. Where a batch has to be decompressed, the range cannot be compared."""
    bomb = bytes(bombs.one_record(128 << 20, append_time=False))
    one = span(1, 1, [Segment(0, 0, 1)])
    compared = Comparison(one, BatchesFeed([bomb]), BatchesFeed([bomb]))
    assert compared.run()
    assert (compared.findings.records, compared.findings.is_equal) == (1, True)
    other = encode_batch([Record(b"k", b"v", (), 0)])
    with pytest.raises(BatchOverLimit, match="is not decompressed"):
        Comparison(one, BatchesFeed([bomb]), BatchesFeed([other])).run()


def test_many_differing_batches_below_the_limit_are_not_held_at_once() -> None:
    """Records that differ are compared in windows of a thousand."""
    mine = [encode_batch([Record(b"k%d" % n, bytes(20_000), (), n)], codec="zstd", base_offset=n) for n in range(50)]
    theirs = [encode_batch([Record(b"l%d" % n, b"", (), n)], base_offset=n) for n in range(50)]
    one = span(50, 50, [Segment(0, 0, 50)])
    with pytest.raises(BatchOverLimit, match="differ, and comparing them takes more than 4 times 30000 bytes"):
        Comparison(one, BatchesFeed([*mine]), BatchesFeed([*theirs]), limit=30_000).run()


# -- records that the ledger does not contain ---------------------------------------------------------------------------


def before_ledger(after: int, target: int, joint: int, **changes: object) -> Span:
    """The pass before the ledger's first segment, at source offset ``joint`` and target offset ``target``."""
    piece = Pass(0, after, 0, target, Route(), joint=joint)
    return replace(span(after, target, []), piece=piece, open_start=True, by_content=True, **changes)  # type: ignore[arg-type]


def test_records_that_another_program_copied_after_its_last_position_are_explained() -> None:
    """Given 250 records that Java copied, 50 of them after its last commit; the ledger begins at the 200th."""
    source = offsets([record(number) for number in range(300)])
    findings = compare(before_ledger(300, 250, 200), ListFeed(source), ListFeed(source[:250]))
    assert findings.is_equal
    assert (findings.records, findings.explained) == (200, {Explained.REPEATED: 50})


def test_records_that_the_flow_has_copied_again_without_evidence_of_another_program_are_doubled() -> None:
    source = offsets([record(number) for number in range(300)])
    span = before_ledger(300, 250, 200, twice="why")
    findings = compare(span, ListFeed(source), ListFeed(source[:250]))
    assert (findings.records, findings.explained) == (200, {})
    assert findings.differences == [Difference(DifferenceKind.DOUBLED, 200, 200, 50, "why")]


def test_records_that_another_program_copied_twice_are_doubled() -> None:
    rows = [record(number) for number in range(200)]
    target = offsets([*rows[:150], *rows[100:200]])
    findings = compare(before_ledger(300, 250, 200), ListFeed(offsets(rows)), ListFeed(target))
    assert reported(findings) == {(DifferenceKind.DOUBLED, number): 1 for number in range(100, 150)}


def test_missing_and_foreign_records_before_the_ledger_are_differences() -> None:
    rows = [record(number) for number in range(200)]
    foreign = Record(b"foreign", b"?", (), 1)
    target = offsets([*rows[:50], *rows[53:120], foreign, *rows[120:]])
    findings = compare(before_ledger(200, 198, 200), ListFeed(offsets(rows)), ListFeed(target))
    assert findings.counts == {DifferenceKind.MISSING: 3, DifferenceKind.EXTRA: 1}
    assert findings.explained == {}


def test_records_from_before_the_copy_began_are_not_differences() -> None:
    source = offsets([record(number) for number in range(200)])
    findings = compare(before_ledger(200, 0, 200), ListFeed(source), ListFeed([]))
    assert (findings.is_equal, findings.explained) == (True, {Explained.BEFORE: 200})
    late = compare(before_ledger(200, 80, 200), ListFeed(source), ListFeed(offsets([one for _, one in source[120:]])))
    assert (late.is_equal, late.records, late.explained) == (True, 80, {Explained.BEFORE: 120})


@given(st.integers(1, 80), st.data())
def test_records_removed_by_compaction_are_perhaps_explained_without_a_ledger(count: int, data: st.DataObject) -> None:
    """Holes on the source, made before or after copying, are as many offsets as the target may have more records."""
    rows = [record(number) for number in range(count)]
    before = data.draw(st.sets(st.sampled_from(range(count))))
    since = data.draw(st.sets(st.sampled_from(range(count)))) - before
    copied = [number for number in range(count) if number not in before]
    source = [(number, rows[number]) for number in copied if number not in since]
    target = offsets([rows[number] for number in copied])
    one = before_ledger(count, len(target), count)
    findings = compare(replace(one, source_compacted=True), ListFeed(source), ListFeed(target))
    assert (findings.is_equal, findings.records) == (True, len(source))
    assert findings.explained == ({Explained.PERHAPS_SOURCE_COMPACTED: len(since)} if since else {})
    kept = compare(one, ListFeed(source), ListFeed(target))
    assert kept.counts.get(DifferenceKind.EXTRA, 0) == len(since), "in a topic without compaction they are differences"


def test_records_removed_on_the_target_are_perhaps_explained_without_a_ledger() -> None:
    rows = offsets([record(number) for number in range(100)])
    target = [row for row in rows if row[0] not in range(30, 60)]
    one = before_ledger(100, 100, 100)
    findings = compare(replace(one, target_compacted=True), ListFeed(rows), ListFeed(target))
    assert (findings.is_equal, findings.explained) == (True, {Explained.PERHAPS_TARGET_COMPACTED: 30})
    assert compare(one, ListFeed(rows), ListFeed(target)).counts == {DifferenceKind.MISSING: 30}


def test_more_extra_records_than_missing_offsets_are_differences() -> None:
    rows = [record(number) for number in range(100)]
    source = [(number, rows[number]) for number in range(100) if number not in range(40, 45)]
    foreign = [Record(b"foreign", b"%d" % number, (), number) for number in range(6)]
    target = offsets([*rows[:40], *foreign, *rows[45:]])
    findings = compare(before_ledger(100, 101, 100, source_compacted=True), ListFeed(source), ListFeed(target))
    assert findings.counts == {DifferenceKind.EXTRA: 6}


def test_many_records_removed_by_compaction_are_perhaps_explained() -> None:
    """More than are kept to be matched later."""
    rows = [record(number) for number in range(3_000)]
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(comparison, "_MAX_UNMATCHED", 100)
        patched.setattr(comparison, "_WINDOW", 16)
        patched.setattr(comparison, "_LARGEST_WINDOW", 64)
        findings = compare(
            before_ledger(3_000, 3_000, 3_000, source_compacted=True),
            ListFeed(offsets(rows)[2_500:]),
            ListFeed(offsets(rows)),
        )
    assert findings.is_equal
    assert (findings.records, findings.explained) == (500, {Explained.PERHAPS_SOURCE_COMPACTED: 2_500})
