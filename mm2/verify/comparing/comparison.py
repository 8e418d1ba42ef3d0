"""Compares source and target of one range: whole batches first, then records, then which records differ and how. Pure.

==== what is equal ============================ what is compared ====================================================
  batches, as the copier passed them on         the bytes after their headers, and the header fields that affect records
  batches that were re-encoded, merged or cut   each record's body, timestamp and offset
  neither                                       nothing more (`Span.in_detail` off), or the new location of each record
========================================================================================================================

Both sides are read once and in step. Memory holds one or two Fetch responses and, where the sides differ, a window. A
record for which the ledger has a target offset must be at that offset. A record that is shifted because of another one
is reported as displaced; the records after it are expected with the same shift.

If the flow changes its records, the source's records are what it makes of them (`mm2.verify.comparing.records.Change`), and nothing
is compared as batches. Records that it drops are expected to be absent.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final, NamedTuple, Protocol

from mm2.copy.changes import DroppedRange
from mm2.copy.progress.segments import Gap
from mm2.kafka.errors import BatchOverLimit
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.verify.comparing.alignment import Alignment, align, pair_similar
from mm2.verify.comparing.findings import Difference, DifferenceKind, Explained, Findings
from mm2.verify.comparing.passes import Route, merge_gaps
from mm2.verify.comparing.records import Block, Change, Item
from mm2.verify.comparing.spans import Span

_WINDOW: Final = 1 << 10
#: Records that differ are compared in windows; a window holds at most so many times decompression.max.bytes.
_WINDOW_LIMITS: Final = 4
_LARGEST_WINDOW: Final = 1 << 15
#: The number of unmatched records that are kept to be matched later.
_MAX_UNMATCHED: Final = 50_000

#: Source offsets of records, by content.
Originals = Mapping[Hashable, int]


class BatchFeed(Protocol):
    """One side of a range. ``log_start`` and ``log_end`` are the offsets of its partition, as far as known."""

    @property
    def log_start(self) -> int:
        """The log start offset: records before it are deleted."""

    @property
    def log_end(self) -> int:
        """The offset after the last record."""

    def read(self) -> BatchView | None:
        """The next batch that is visible to a consumer, with its CRC checked; None at the end."""


class _RangeRecords:
    """The records of a feed within a range, block by block.

    ``is_copy``: the timestamps of a broker (LogAppendTime) are not those of the copied records, and are left out.
    ``change``: what the flow makes of the records; None: it copies them as they are. ``records`` were read, ``dropped`` of
    them, by reason, have no record on the target. ``limit`` is ``decompression.max.bytes``.
    """

    def __init__(
        self,
        feed: BatchFeed,
        first: int,
        after: int,
        *,
        is_copy: bool = False,
        change: Change | None = None,
        limit: int = DECOMPRESSION_MAX_BYTES,
    ) -> None:
        self.feed = feed
        self._limit = limit
        self.records = 0
        self.dropped: dict[str, int] = {}
        self._dropped_ranges: deque[DroppedRange] = deque()
        self._is_copy = is_copy
        self._change = change
        self._first = first
        self._after = after
        self._blocks: deque[Block] = deque()
        self._ended = False

    def head(self) -> Block | None:
        """The next block to compare; None at the end."""
        while self._blocks or self._fill():
            block = self._blocks[0]
            if block.offsets is None or block.at < len(block.offsets):
                return block
            self._blocks.popleft()
        return None

    def first(self) -> int | None:
        """The offset of the next record; None at the end."""
        while (block := self.head()) is not None:
            if block.left:
                return block.load()[block.at]
        return None

    def skip_block(self, records: int) -> None:
        """Skip the first block, which was compared as a whole."""
        self._blocks.popleft()
        self.records += records

    def skip(self, records: int) -> None:
        """Skip this many records."""
        self.records += records
        while records:
            block = self._blocks[0]
            taken = min(records, block.left)
            block.at += taken
            records -= taken
            if not block.left:
                self._blocks.popleft()

    def window(self, size: int) -> tuple[list[Item], bool]:
        """The next records, at most ``size``, and whether these are the last ones.

        Raises BatchOverLimit when the records take more memory than some batches may.
        """
        items: list[Item] = []
        number = held = 0
        while len(items) < size and (number < len(self._blocks) or self._fill()):
            block = self._blocks[number]
            stop = min(len(block.load()), block.at + size - len(items))
            held += block.held_bytes
            if held > _WINDOW_LIMITS * self._limit:
                message = (
                    f"the records from offset {self._blocks[0].first} on differ, and comparing them takes more than "
                    f"{_WINDOW_LIMITS} times {self._limit} bytes (decompression.max.bytes)"
                )
                raise BatchOverLimit(message)
            found = [block.item(index) for index in range(block.at, stop)]
            is_stamped = self._is_copy and block.has_broker_timestamps
            items += [item.without_timestamp() for item in found] if is_stamped else found
            number += 1
        return items, self._ended and len(items) < size

    def why_dropped(self, offset: int) -> str | None:
        """The reason for which the flow drops a record that was read and not forgotten; None if it does not."""
        index = bisect_right(self._dropped_ranges, offset, key=_end_of)
        found = self._dropped_ranges[index] if index < len(self._dropped_ranges) else None
        return found.reason if found is not None and found.first <= offset else None

    def forget_dropped(self, before: int) -> None:
        """`why_dropped` is not needed for offsets before this one any more."""
        while self._dropped_ranges and self._dropped_ranges[0].after <= before:
            self._dropped_ranges.popleft()

    def _fill(self) -> bool:
        while not self._ended:
            view = self.feed.read()
            header = None if view is None else view.header
            if view is None or (header is not None and header.base_offset >= self._after):
                self._ended = True
            elif header is None or (header.last_offset >= self._first and header.records_count > 0):
                block = self._block(view)
                if block is not None:
                    self._blocks.append(block)
                    return True
        return False

    def _block(self, view: BatchView) -> Block | None:
        """The records of a batch; None if the flow drops all of them."""
        if self._change is None:
            return Block(view, self._first, self._after, self._limit)
        changed = self._change(view, self._first, self._after)
        for one in changed.dropped:
            self._drop(one)
        return Block.of(changed.records, self._limit) if changed.records else None

    def _drop(self, one: DroppedRange) -> None:
        count = one.after - one.first
        self.records += count
        self.dropped[one.reason] = self.dropped.get(one.reason, 0) + count
        last = self._dropped_ranges[-1] if self._dropped_ranges else None
        if last is not None and (last.after, last.reason) == (one.first, one.reason):
            self._dropped_ranges[-1] = DroppedRange(last.first, one.after, one.reason)
        else:
            self._dropped_ranges.append(one)


def _end_of(dropped: DroppedRange) -> int:
    return dropped.after


class _ExcludedOffsets:
    """Source offsets that are not expected on the target although they are readable."""

    def __init__(self, gaps: Iterable[Gap]) -> None:
        self._gaps = merge_gaps(gaps)
        self._starts = [gap.first for gap in self._gaps]

    def at(self, first: int, after: int) -> Gap | None:
        """The gap that contains some of these source offsets."""
        index = bisect_right(self._starts, after - 1) - 1
        gap = self._gaps[index] if index >= 0 else None
        return gap if gap is not None and gap.after > first else None

    def next_after(self, offset: int) -> int | None:
        """The start of the next gap after an offset."""
        index = bisect_right(self._starts, offset)
        return self._starts[index] if index < len(self._starts) else None


class _Extra(NamedTuple):
    """A record of the target without one of the source, ``near`` a source offset.

    ``dropped`` is the reason for which the flow drops the record that the ledger has there; "" for any other record.
    """

    item: Item
    near: int
    dropped: str


@dataclass(slots=True)
class _Unmatched:
    """What is unmatched since the last pair, which ends before these offsets.

    ``sources`` and ``targets`` records were read. ``missing``, ``extra`` and ``differences`` are the lengths of these lists
    at the last pair.
    """

    source: int
    target: int
    sources: int = 0
    targets: int = 0
    missing: int = 0
    extra: int = 0
    differences: int = 0


class Comparison:
    """The comparison of one range; ``change`` is what the flow makes of the source's records, None: nothing.

    ``limit`` is ``decompression.max.bytes``. Raises what the feeds and the change raise, and CorruptBatch.
    """

    def __init__(
        self,
        span: Span,
        source: BatchFeed,
        target: BatchFeed,
        change: Change | None = None,
        limit: int = DECOMPRESSION_MAX_BYTES,
    ) -> None:
        piece = span.piece
        self.findings = Findings()
        self._span = span
        self._route = piece.route
        self._source = _RangeRecords(source, piece.first, piece.after, change=change, limit=limit)
        self._target = _RangeRecords(target, piece.target_first, piece.target_after, is_copy=True, limit=limit)
        self._excluded = _ExcludedOffsets(span.excluded)
        self._cut_off = _ExcludedOffsets(span.cut_off)
        self._shift = 0  # of target offsets from those in the ledger
        self._first_pair: tuple[int, int] | None = None
        self._last_pair: tuple[int, int] | None = None
        self._unmatched = _Unmatched(piece.first, piece.target_first)
        self._missing: list[Item] = []
        self._extra: list[_Extra] = []
        self._differences: list[tuple[Difference, int | None]] = []

    def run(self) -> bool:
        """Compare. False if some records on the target may be duplicates: `resolve` must then be called."""
        while True:
            if self._span.cut_off and self._skip_cut_off():
                continue
            mine, theirs = self._source.head(), self._target.head()
            if (mine is None and theirs is None) or (theirs is None and self._is_in_next_pass(self._source.first())):
                break
            is_equal = mine is not None and theirs is not None and self._pass(mine, theirs)
            if is_equal or self._explain_head():
                continue
            if not self._span.in_detail:
                offset = self._source.first()
                self.findings.first_mismatch = self._next_source() if offset is None else offset
                return True
            self._compare_in_detail()
        piece = self._span.piece
        self._explain_holes(
            piece.after if piece.joint < 0 else max(piece.joint, self._unmatched.source), piece.target_after
        )
        self._match_leftovers()
        self._extra = [one for one in self._extra if not self._is_uncertain(None, one.item.offset, 1)]
        if not self._extra:
            self._finish()
        return not self._extra

    @property
    def wanted(self) -> set[Hashable]:
        """Contents whose original source offsets `resolve` needs."""
        return {one.item.content for one in self._extra}

    def resolve(self, originals: Originals) -> None:
        """Classify unmatched target records as duplicates of others, or as extra records."""
        self._report_extra(originals)
        self._finish()

    def _skip_cut_off(self) -> bool:
        """Skip records of the target that are not compared (`Span.cut_off`)."""
        theirs = self._target.head()
        header = None if theirs is None else theirs.view.header
        if header is not None and self._cut_off.at(header.base_offset, header.last_offset + 1) is None:
            return False  # without decoding it
        other = self._target.first()
        gap = None if theirs is None or other is None else self._cut_off.at(other, other + 1)
        if theirs is None or gap is None:
            return False
        count = bisect_left(theirs.load(), gap.after, theirs.at) - theirs.at
        self._target.skip(count)
        self._unmatched.targets += count
        return True

    # -- equal records -----------------------------------------------------------------------------------------------

    def _pass(self, mine: Block, theirs: Block) -> bool:
        return self._pass_batch(mine, theirs) or self._pass_records(mine, theirs)

    def _pass_batch(self, mine: Block, theirs: Block) -> bool:
        """Skip a batch on both sides if it is equal."""
        if not (mine.whole and theirs.whole):
            return False
        one, other = mine.view.header, theirs.view.header
        if one is None or other is None or one.is_log_append_time:
            return False
        is_equal = one.batch_length == other.batch_length and one.codec == other.codec
        is_equal = is_equal and one.records_count == other.records_count
        with_timestamps = not other.is_log_append_time
        if not is_equal or (with_timestamps and one.base_timestamp != other.base_timestamp):
            return False
        if not self._belong(one.base_offset, one.last_offset, other.base_offset, other.last_offset):
            return False
        # A bytearray is compared by memcmp; two memoryviews are compared byte by byte, which is twenty times slower.
        if bytearray(mine.payload) != theirs.payload:
            return False
        count = one.records_count
        self._source.skip_block(count)
        self._target.skip_block(count)
        self._passed(one.base_offset, other.base_offset, count, with_timestamps=with_timestamps)
        return True

    def _belong(self, first: int, last: int, target_first: int, target_last: int) -> bool:
        """Whether two batches with consecutive offsets are where the ledger has them, or where it has no segment."""
        segment = self._route.at_source(first)
        if segment is not None:
            expected = segment.target + first - segment.source + self._shift
            return expected == target_first and last < segment.source_end
        following = self._route.next_source(first)
        return (
            (following is None or following > last)
            and self._excluded.at(first, last + 1) is None
            and self._route.at_target(target_first - self._shift) is None
            and self._route.at_target(target_last - self._shift) is None
        )

    def _pass_records(self, mine: Block, theirs: Block) -> bool:
        """Skip as many equal records of two blocks as possible; False if not even the first ones are equal."""
        offsets, others = mine.load(), theirs.load()
        if not (mine.left and theirs.left):
            return True  # no record of this batch is in the range
        at, there = mine.at, theirs.at
        offset, other = offsets[at], others[there]
        segment = self._route.at_source(offset)
        if segment is None:
            if self._excluded.at(offset, offset + 1) or self._route.at_target(other - self._shift) is not None:
                return False
            stops = [
                stop
                for stop in (self._route.next_source(offset), self._excluded.next_after(offset))
                if stop is not None
            ]
            until = min(stops, default=None)
        else:
            if segment.target + offset - segment.source + self._shift != other:
                return False
            until = segment.source_end
        count = min(mine.left, theirs.left)
        if until is not None:
            count = min(count, bisect_left(offsets, until, at) - at)
        with_timestamps = not theirs.has_broker_timestamps
        if not _is_same_run(mine, theirs, count, with_timestamps=with_timestamps, with_offsets=segment is not None):
            count = _count_same(mine, theirs, count, with_timestamps=with_timestamps, with_offsets=segment is not None)
        if not count:
            return False
        self._source.skip(count)
        self._target.skip(count)
        self._passed(offset, other, count, with_timestamps=with_timestamps)
        return True

    def _passed(self, source: int, target: int, count: int, *, with_timestamps: bool = True) -> None:
        """Count equal records, and check their target offset if the ledger has one."""
        joint = self._span.piece.joint
        repeated = max(0, source + count - max(source, joint)) if joint >= 0 else 0
        self.findings.records += count - repeated
        self._repeated(source + count - repeated, target + count - repeated, repeated)
        self._explain_holes(source, target)
        self._source.forget_dropped(source)
        if not with_timestamps:
            self.findings.explain(Explained.TARGET_TIMESTAMPS, count)
        self._first_pair = self._first_pair or (source, target)
        self._last_pair = (source + count - 1, target + count - 1)
        self._start_unmatched(source + count, target + count)
        expected = self._route.target_of(source)
        if expected is None:
            return
        self._shift = target - expected
        if self._shift:
            known = "an offset sync" if self._span.by_content else "the ledger"
            detail = f"{self._shift:+,} from the target offset in {known}"
            self._add(Difference(DifferenceKind.DISPLACED, source, target, count, detail), source)

    def _repeated(self, source: int, target: int, count: int) -> None:
        """Records from before the ledger, which the flow has copied again."""
        if not self._span.twice:
            self.findings.explain(Explained.REPEATED, count)
        elif count:
            self._add(Difference(DifferenceKind.DOUBLED, source, target, count, self._span.twice), source)

    def _is_in_next_pass(self, source: int | None) -> bool:
        """Whether the ledger contains this source offset, and this pass is before the ledger."""
        piece = self._span.piece
        return piece.is_before_ledger and source is not None and source >= piece.joint

    def _start_unmatched(self, source: int, target: int) -> None:
        if not self._span.by_content:
            return
        lists = len(self._missing), len(self._extra), len(self._differences)
        self._unmatched = _Unmatched(source, target, 0, 0, *lists)

    def _explain_holes(self, source: int, target: int) -> None:
        """Explain unmatched records before the pair of these offsets if the log cleaner may have removed the other ones.

        This is for records that the ledger does not contain. Where the other ones were is not known, but at least as many
        offsets have to be missing on the other side, between the same two pairs.
        """
        since, span = self._unmatched, self._span
        if not span.by_content or not (since.sources or since.targets):
            return
        if span.source_compacted:
            holes = source - since.source - since.sources
            kept = [one for one in self._extra[since.extra :] if self._route.source_of(one.item.offset) is not None]
            left = self._explain_ranges(
                DifferenceKind.EXTRA,
                len(self._extra) - since.extra - len(kept),
                holes,
                Explained.PERHAPS_SOURCE_COMPACTED,
            )
            if not left:
                self._extra[since.extra :] = kept
        if span.target_compacted:
            holes = target - since.target - since.targets
            lost = [item for item in self._missing[since.missing :] if self._route.target_of(item.offset) is not None]
            left = self._explain_ranges(
                DifferenceKind.MISSING,
                len(self._missing) - since.missing - len(lost),
                holes,
                Explained.PERHAPS_TARGET_COMPACTED,
            )
            if not left:
                self._missing[since.missing :] = lost

    def _explain_ranges(self, kind: DifferenceKind, waiting: int, holes: int, reason: Explained) -> bool:
        """Explain ``waiting`` records and those of a kind that are differences already; returns whether they are too many."""
        since = self._unmatched.differences
        ranges = self._differences[since:]
        count = waiting + sum(one.records for one, _ in ranges if one.kind is kind)
        if count > holes:
            return True
        self.findings.explain(reason, count)
        self._differences[since:] = [row for row in ranges if row[0].kind is not kind]
        return False

    # -- explained records -------------------------------------------------------------------------------------------

    def _explain_head(self) -> bool:
        """Skip a record that is not expected on the other side."""
        offset, other = self._source.first(), self._target.first()
        mine = self._source.head()
        if mine is not None and offset is not None:
            expected = self._route.target_of(offset)
            if expected is None:
                gap = self._excluded.at(offset, offset + 1)
                if gap is not None:
                    # Offsets that were left out once but copied in this pass must be on the target.
                    until = min(gap.after, self._route.next_source(offset) or gap.after)
                    count = bisect_left(mine.load(), until, mine.at) - mine.at
                    self._source.skip(count)
                    self._unmatched.sources += count
                    return True
            elif other is None or other > expected + self._shift:
                reason = self._why_not_on_target(expected + self._shift)
                if reason is not None:
                    self.findings.explain(reason)
                    self._source.skip(1)
                    self._unmatched.sources += 1
                    return True
        if other is not None:
            origin = self._route.source_of(other - self._shift)
            if origin is not None and (offset is None or offset > origin):
                reason = self._why_not_on_source(origin)
                if reason is not None:
                    self.findings.explain(reason)
                    self._target.skip(1)
                    self._unmatched.targets += 1
                    return True
        return False

    def _why_not_on_target(self, offset: int) -> Explained | None:
        if offset < self._target.feed.log_start:
            return Explained.TARGET_DELETED
        # On a broker, compaction is the only cause of missing offsets; after the log end offset there are none yet.
        holes = self._span.target_compacted and offset < self._target.feed.log_end
        return Explained.TARGET_COMPACTED if holes else None

    def _why_not_on_source(self, offset: int) -> Explained | None:
        if self._source.why_dropped(offset) is not None:
            return None  # it is there, but not to be copied
        if offset < self._source.feed.log_start:
            return Explained.SOURCE_DELETED
        holes = self._span.source_compacted and offset < self._source.feed.log_end
        return Explained.SOURCE_COMPACTED if holes else None

    # -- differences -------------------------------------------------------------------------------------------------

    def _compare_in_detail(self) -> None:
        """Match the next records as far as this is certain, and classify the records between matches."""
        size = _WINDOW
        while True:
            sources, source_ends = self._source.window(size)
            targets, target_ends = self._target.window(size)
            visible = [index for index, item in enumerate(sources) if not self._is_excluded(item.offset)]
            kept = [
                index for index, item in enumerate(targets) if self._cut_off.at(item.offset, item.offset + 1) is None
            ]
            with_timestamps = all(item.timestamp is not None for item in targets)
            shown = [sources[index] if with_timestamps else sources[index].without_timestamp() for index in visible]
            theirs = [targets[index] if with_timestamps else targets[index].without_timestamp() for index in kept]
            found = align([item.content for item in shown], [item.content for item in theirs])
            ends = source_ends and target_ends
            if ends or not sources or not targets or size >= _LARGEST_WINDOW:
                break
            if len(found.pairs) * 8 >= min(len(visible), len(targets)) > 0:
                break
            size *= 4
        if ends:
            until, end = len(shown), len(theirs)
        elif found.pairs:
            until, end = found.pairs[-1][0] + 1, found.pairs[-1][1] + 1
        else:
            # No records in common; on the side that ends first, matches may follow later on the other side. So they may if
            # that side is compacted, and the other has many records that were removed there.
            compacted = self._span.by_content and self._span.source_compacted and bool(targets)
            until = 0 if sources and not target_ends and (source_ends or compacted) else len(shown)
            end = 0 if target_ends and targets and not source_ends else len(theirs)
        self._take_window(shown, theirs, found, until, end)
        self._source.skip(len(sources) if until == len(shown) else visible[until])
        self._target.skip(len(targets) if end == len(theirs) else kept[end])

    def _take_window(self, sources: list[Item], targets: list[Item], found: Alignment, until: int, end: int) -> None:
        crossed = [(one, other) for one, other in found.crossed if one < until and other < end]
        moved, moved_target = {one for one, _ in crossed}, {other for _, other in crossed}
        seen = {item.offset for item in sources}, {item.offset for item in targets}
        pairs = [pair for pair in found.pairs if pair[0] < until and pair[1] < end]
        before, before_target = 0, 0
        for here, there in [*pairs, (until, end)]:
            left = [sources[index] for index in range(before, here) if index not in moved]
            left_target = [targets[index] for index in range(before_target, there) if index not in moved_target]
            self._take_gap(left, left_target, seen)
            self._unmatched.sources += here - before
            self._unmatched.targets += there - before_target
            if here < until or there < end:
                self._passed(
                    sources[here].offset, targets[there].offset, 1, with_timestamps=targets[there].timestamp is not None
                )
            before, before_target = here + 1, there + 1
        for one, other in crossed:
            self._swapped(sources[one], targets[other])

    def _take_gap(self, sources: list[Item], targets: list[Item], seen: tuple[set[int], set[int]]) -> None:
        """Classify unmatched records between two pairs."""
        left: list[Item] = []
        for item in sources:
            if self._is_in_next_pass(item.offset):
                break
            expected = self._route.target_of(item.offset)
            offset = None if expected is None else expected + self._shift
            reason = None if offset is None or offset in seen[1] else self._why_not_on_target(offset)
            if reason is None:
                left.append(item)
            else:
                self.findings.explain(reason)
        left_target: list[Item] = []
        for item in targets:
            origin = self._route.source_of(item.offset - self._shift)
            reason = None if origin is None or origin in seen[0] else self._why_not_on_source(origin)
            if reason is None:
                left_target.append(item)
            else:
                self.findings.explain(reason)
        altered = pair_similar(left, left_target)
        for one, other in altered:
            self._altered(left[one], left_target[other])
        known, known_target = {one for one, _ in altered}, {other for _, other in altered}
        near = self._next_source()
        self._missing += [item for index, item in enumerate(left) if index not in known]
        self._extra += [
            _Extra(item, near, self._why_dropped(item.offset))
            for index, item in enumerate(left_target)
            if index not in known_target
        ]
        if len(self._missing) > _MAX_UNMATCHED or len(self._extra) > _MAX_UNMATCHED:
            self._match_leftovers()
            if len(self._extra) > _MAX_UNMATCHED:
                self._report_extra({})
            self._unmatched.missing, self._unmatched.extra = 0, min(self._unmatched.extra, len(self._extra))

    def _why_dropped(self, target: int) -> str:
        origin = self._route.source_of(target - self._shift)
        return "" if origin is None else self._source.why_dropped(origin) or ""

    def _altered(self, one: Item, other: Item) -> None:
        offsets = (one.offset, other.offset)
        if one.key != other.key:
            self._differ(DifferenceKind.ALTERED_KEY, *offsets, f"{_describe(one.key)} became {_describe(other.key)}")
        if one.value != other.value:
            self._differ(
                DifferenceKind.ALTERED_VALUE, *offsets, f"{_describe(one.value)} became {_describe(other.value)}"
            )
        if one.headers != other.headers:
            self._differ(DifferenceKind.ALTERED_HEADERS, *offsets, _describe_headers(one, other))
        if one.timestamp != other.timestamp:
            self._differ(DifferenceKind.ALTERED_TIMESTAMP, *offsets, f"{one.timestamp} became {other.timestamp}")
        self._passed_altered(*offsets)

    def _passed_altered(self, source: int, target: int) -> None:
        """Update the expected shift by an altered record."""
        expected = self._route.target_of(source)
        if expected is not None:
            self._shift = target - expected

    def _swapped(self, one: Item, other: Item) -> None:
        self.findings.records += 1
        self._differ(DifferenceKind.SWAPPED, one.offset, other.offset)

    def _match_leftovers(self) -> None:
        """Match the records that have remained unmatched on both sides, then report the missing ones."""
        waiting: dict[Hashable, list[int]] = {}
        for index in range(len(self._extra) - 1, -1, -1):
            waiting.setdefault(self._extra[index].item.content, []).append(index)
        taken: set[int] = set()
        for item in self._missing:
            indexes = waiting.get(item.content) or waiting.get(item.without_timestamp().content)
            if indexes:
                taken.add(indexes[-1])
                self._swapped(item, self._extra[indexes.pop()].item)
            else:
                self._differ(DifferenceKind.MISSING, item.offset, None)
        self._missing.clear()
        self._extra = [one for index, one in enumerate(self._extra) if index not in taken]

    def _report_extra(self, originals: Originals) -> None:
        for item, near, dropped in self._extra:
            original = originals.get(item.content)
            if original is not None and self._is_in_next_pass(original):
                self._repeated(original, item.offset, 1)
                continue
            kind = DifferenceKind.EXTRA if original is None else DifferenceKind.DOUBLED
            detail = f"the flow drops the record that the ledger has there ({dropped})" if dropped else ""
            self._add(Difference(kind, original, item.offset, 1, detail), near)
        self._extra.clear()

    def _is_uncertain(self, source: int | None, target: int | None, records: int) -> bool:
        """Whether unmatched records are at an end where the copied range is uncertain; they are then explained."""
        offset = source if source is not None else target
        if offset is None or not (self._span.open_start or self._span.open_end):
            return False
        if source is not None and self._span.copied[0] <= source < self._span.copied[1]:
            return False
        side, route = (0, self._route.target_of) if offset == source else (1, self._route.source_of)
        if route(offset) is not None:
            return False
        piece = self._span.piece
        joint = (piece.joint, piece.target_after) if piece.is_before_ledger else None
        first_pair, last_pair = self._first_pair or joint, self._last_pair or joint
        # The log of an empty range is not read; an uncertain range begins at the log start offset.
        began = self._span.open_start and (side == 0 or max(self._source.feed.log_start, piece.first) > 0)
        if first_pair is None or last_pair is None:
            # No record in common is a difference, unless one side is empty.
            if (self._target.records if side == 0 else self._source.records) or (side == 1 and not began):
                return False
            self.findings.explain(Explained.PENDING if side == 0 else Explained.SOURCE_DELETED, records)
            return True
        if began and offset < first_pair[side]:
            self.findings.explain(Explained.BEFORE if side == 0 else Explained.SOURCE_DELETED, records)
            return True
        # The end of the target is read before that of the source, so each of its records has been on the source.
        if side == 0 and self._span.open_end and offset > last_pair[side]:
            self.findings.explain(Explained.PENDING, records)
            return True
        return False

    def _is_excluded(self, offset: int) -> bool:
        return self._route.target_of(offset) is None and self._excluded.at(offset, offset + 1) is not None

    def _next_source(self) -> int:
        return self._span.piece.first if self._last_pair is None else self._last_pair[0] + 1

    def _differ(self, kind: DifferenceKind, source: int | None, target: int | None, detail: str = "") -> None:
        self._add(Difference(kind, source, target, 1, detail), source)

    def _add(self, difference: Difference, near: int | None) -> None:
        """Store a difference, merged with the last one if adjacent: whole partitions may be missing or displaced.

        Not across the ends of what was copied: missing records are explained on one side of them only.
        """
        last, before = self._differences[-1] if self._differences else (None, None)
        if last is not None and last.is_followed_by(difference) and difference.source not in self._span.copied:
            self._differences[-1] = (replace(last, records=last.records + difference.records), before)
        else:
            self._differences.append((difference, near))

    def _finish(self) -> None:
        swaps = _swapped_ranges((difference for difference, _ in self._differences), self._route, self._shift)
        for difference, near in sorted(self._differences, key=lambda row: (row[0].sort_key, row[0].target or 0)):
            kind, source, target, records = difference.kind, difference.source, difference.target, difference.records
            if kind is DifferenceKind.DISPLACED and _within(swaps, target or 0, (target or 0) + records):
                continue
            if kind in (DifferenceKind.MISSING, DifferenceKind.EXTRA) and self._is_uncertain(source, target, records):
                continue
            self.findings.differ(difference, near)
        self._differences.clear()
        for reason, records in self._source.dropped.items():
            self.findings.explain(reason, records)
        self.findings.source_records, self.findings.target_records = self._source.records, self._target.records


def _is_same_run(mine: Block, theirs: Block, count: int, *, with_timestamps: bool, with_offsets: bool) -> bool:
    """Whether the next ``count`` records of two blocks are equal."""
    here, there = slice(mine.at, mine.at + count), slice(theirs.at, theirs.at + count)
    if mine.bodies[here] != theirs.bodies[there] or (
        with_timestamps and mine.timestamps[here] != theirs.timestamps[there]
    ):
        return False
    apart = theirs.load()[theirs.at] - mine.load()[mine.at]
    return not with_offsets or [offset + apart for offset in mine.load()[here]] == theirs.load()[there]


def _count_same(mine: Block, theirs: Block, count: int, *, with_timestamps: bool, with_offsets: bool) -> int:
    """The number of consecutive equal records."""
    at, there = mine.at, theirs.at
    offsets, others = mine.load(), theirs.load()
    apart = others[there] - offsets[at]
    for step in range(count):
        one, other = at + step, there + step
        if with_offsets and offsets[one] + apart != others[other]:
            return step
        if with_timestamps and mine.timestamps[one] != theirs.timestamps[other]:
            return step
        # Equal records may have different encodings: a length may use more bytes than needed.
        is_equal = mine.bodies[one] == theirs.bodies[other]
        if not is_equal and mine.item(one).content[1:] != theirs.item(other).content[1:]:
            return step
    return count


def _swapped_ranges(differences: Iterable[Difference], route: Route, shift: int) -> list[tuple[int, int]]:
    """Ranges of target offsets in which records are shifted because of one in the wrong position."""
    ranges: list[tuple[int, int]] = []
    for difference in differences:
        expected = None if difference.source is None else route.target_of(difference.source)
        if difference.kind is DifferenceKind.SWAPPED and expected is not None and difference.target is not None:
            ranges.append((min(expected, difference.target) - abs(shift), max(expected, difference.target) + 1))
    merged: list[tuple[int, int]] = []
    for first, after in sorted(ranges):
        if merged and first <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(after, merged[-1][1]))
        else:
            merged.append((first, after))
    return merged


def _within(ranges: list[tuple[int, int]], first: int, after: int) -> bool:
    previous = bisect_right(ranges, (first, after)) - 1
    around = [ranges[index] for index in (previous, previous + 1) if 0 <= index < len(ranges)]
    return any(low <= first and after <= high for low, high in around)


def originals(
    feed: BatchFeed,
    first: int,
    after: int,
    wanted: set[Hashable],
    on_progress: Callable[[], None],
    change: Change | None = None,
    limit: int = DECOMPRESSION_MAX_BYTES,
) -> dict[Hashable, int]:
    """The first source offset of each wanted content in a range; ``on_progress`` is called after each window."""
    found: dict[Hashable, int] = {}
    side = _RangeRecords(feed, first, after, change=change, limit=limit)
    while side.head() is not None and len(found) < len(wanted):
        items, _ = side.window(_WINDOW)
        for item in items:
            for content in (item.content, item.without_timestamp().content):
                if content in wanted:
                    found.setdefault(content, item.offset)
        side.skip(len(items))
        side.forget_dropped(after)
        on_progress()
    return found


def _describe(part: object) -> str:
    return "null" if part is None else str(part)


def _describe_headers(one: Item, other: Item) -> str:
    mine, theirs = dict(one.headers), dict(other.headers)
    if len(one.headers) == len(other.headers) == len(mine) and mine == theirs:
        return "the order changed"
    missing = [f"{name} is missing" for name in mine if name not in theirs]
    new = [f"{name} is new" for name in theirs if name not in mine]
    changed = [
        f"{name}: {_describe(mine[name])} became {_describe(theirs[name])}"
        for name in mine
        if name in theirs and mine[name] != theirs[name]
    ]
    return "; ".join([*missing, *new, *changed]) or f"{len(one.headers)} became {len(other.headers)}"
