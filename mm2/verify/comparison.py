"""Compares source and target of one range: whole batches first, then records, then which records differ and how. Pure.

==== what is alike ============================ what is compared ====================================================
  batches, as the copier passed them on         the bytes after their headers, and the header fields that affect records
  batches that were re-encoded, merged or cut   each record's body, timestamp and offset
  neither                                       nothing more (`Span.closely` off), or the new location of each record
========================================================================================================================

Both sides are read once and in step. Memory holds one or two Fetch responses and, where the sides differ, a window. A
record for which the ledger has a target offset must be at that offset. A record that is shifted because of another one
is reported as displaced; the records after it are expected with the same shift.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Final, Protocol

from mm2.copy.segments import Gap
from mm2.kafka.records.batch import BatchView
from mm2.verify.alignment import Alignment, align, liken
from mm2.verify.findings import Difference, DifferenceKind, Explained, Findings
from mm2.verify.passes import side_by_side
from mm2.verify.records import Block, Item
from mm2.verify.spans import Span

_WINDOW: Final = 1 << 10
_LARGEST_WINDOW: Final = 1 << 15
#: The number of unmatched records that are kept to be matched later.
_HELD: Final = 50_000

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


class _Side:
    """The records of a feed within a range, block by block."""

    def __init__(self, feed: BatchFeed, first: int, after: int) -> None:
        self.feed = feed
        self.records = 0
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
        """The next records, at most ``size``, and whether these are the last ones."""
        items: list[Item] = []
        place = 0
        while len(items) < size and (place < len(self._blocks) or self._fill()):
            block = self._blocks[place]
            stop = min(len(block.load()), block.at + size - len(items))
            found = [block.item(index) for index in range(block.at, stop)]
            items += [item.untimed() for item in found] if block.is_untimed else found
            place += 1
        return items, self._ended and len(items) < size

    def _fill(self) -> bool:
        while not self._ended:
            view = self.feed.read()
            header = None if view is None else view.header
            if view is None or (header is not None and header.base_offset >= self._after):
                self._ended = True
            elif header is None or (header.last_offset >= self._first and header.records_count > 0):
                self._blocks.append(Block(view, self._first, self._after))
                return True
        return False


class Comparison:
    """The comparison of one range. Raises what the feeds raise, and CorruptBatch."""

    def __init__(self, span: Span, source: BatchFeed, target: BatchFeed) -> None:
        stretch = span.stretch
        self.findings = Findings()
        self._span = span
        self._route = stretch.route
        self._source = _Side(source, stretch.first, stretch.after)
        self._target = _Side(target, stretch.target_first, stretch.target_after)
        self._hidden = side_by_side(span.hidden)
        self._hidden_from = [gap.first for gap in self._hidden]
        self._shift = 0  # of target offsets from those in the ledger
        self._first_pair: tuple[int, int] | None = None
        self._last_pair: tuple[int, int] | None = None
        self._missing: list[Item] = []
        self._extra: list[tuple[Item, int]] = []  # with a source offset nearby
        self._differences: list[tuple[Difference, int | None]] = []

    def run(self) -> bool:
        """Compare. False if some records on the target may be duplicates: `resolve` must then be called."""
        while True:
            mine, theirs = self._source.head(), self._target.head()
            if mine is None and theirs is None:
                break
            alike = mine is not None and theirs is not None and self._pass(mine, theirs)
            if alike or self._explain_head():
                continue
            if not self._span.closely:
                offset = self._source.first()
                self.findings.unlike = self._near() if offset is None else offset
                return True
            self._look_closer()
        self._settle()
        self._extra = [(item, near) for item, near in self._extra if not self._is_open(None, item.offset, 1)]
        if not self._extra:
            self._conclude()
        return not self._extra

    @property
    def wanted(self) -> set[Hashable]:
        """Contents whose original source offsets `resolve` needs."""
        return {item.content for item, _ in self._extra}

    def resolve(self, originals: Originals) -> None:
        """Classify unmatched target records as duplicates of others, or as extra records."""
        self._give_up_extra(originals)
        self._conclude()

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
        alike = one.batch_length == other.batch_length and one.codec == other.codec
        alike = alike and one.records_count == other.records_count
        timed = not other.is_log_append_time
        if not alike or (timed and one.base_timestamp != other.base_timestamp):
            return False
        if not self._belong(one.base_offset, one.last_offset, other.base_offset, other.last_offset):
            return False
        # A bytearray is compared by memcmp; two memoryviews are compared byte by byte, which is twenty times slower.
        if bytearray(mine.payload) != theirs.payload:
            return False
        count = one.records_count
        self._source.skip_block(count)
        self._target.skip_block(count)
        self._passed(one.base_offset, other.base_offset, count, timed=timed)
        return True

    def _belong(self, first: int, last: int, target_first: int, target_last: int) -> bool:
        """Whether two batches with consecutive offsets are where the ledger has them, or where it has no segment."""
        segment = self._route.at_source(first)
        if segment is not None:
            place = segment.target + first - segment.source + self._shift
            return place == target_first and last < segment.source_end
        following = self._route.next_source(first)
        return (
            (following is None or following > last)
            and self._hidden_at(first, last + 1) is None
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
            if self._hidden_at(offset, offset + 1) or self._route.at_target(other - self._shift) is not None:
                return False
            stops = [stop for stop in (self._route.next_source(offset), self._next_hidden(offset)) if stop is not None]
            until = min(stops, default=None)
        else:
            if segment.target + offset - segment.source + self._shift != other:
                return False
            until = segment.source_end
        count = min(mine.left, theirs.left)
        if until is not None:
            count = min(count, bisect_left(offsets, until, at) - at)
        timed = not theirs.is_untimed
        if not self._same_run(mine, theirs, count, timed=timed, placed=segment is not None):
            count = self._same_from_here(mine, theirs, count, timed=timed, placed=segment is not None)
        if not count:
            return False
        self._source.skip(count)
        self._target.skip(count)
        self._passed(offset, other, count, timed=timed)
        return True

    @staticmethod
    def _same_run(mine: Block, theirs: Block, count: int, *, timed: bool, placed: bool) -> bool:
        here, there = slice(mine.at, mine.at + count), slice(theirs.at, theirs.at + count)
        if mine.bodies[here] != theirs.bodies[there] or (timed and mine.stamps[here] != theirs.stamps[there]):
            return False
        apart = theirs.load()[theirs.at] - mine.load()[mine.at]
        return not placed or [offset + apart for offset in mine.load()[here]] == theirs.load()[there]

    @staticmethod
    def _same_from_here(mine: Block, theirs: Block, count: int, *, timed: bool, placed: bool) -> int:
        """The number of consecutive equal records."""
        at, there = mine.at, theirs.at
        offsets, others = mine.load(), theirs.load()
        apart = others[there] - offsets[at]
        for step in range(count):
            one, other = at + step, there + step
            if placed and offsets[one] + apart != others[other]:
                return step
            if timed and mine.stamps[one] != theirs.stamps[other]:
                return step
            # Equal records may have different encodings: a length may use more bytes than needed.
            alike = mine.bodies[one] == theirs.bodies[other]
            if not alike and mine.item(one).content[1:] != theirs.item(other).content[1:]:
                return step
        return count

    def _passed(self, source: int, target: int, count: int, *, timed: bool = True) -> None:
        """Count equal records, and check their target offset if the ledger has one."""
        self.findings.records += count
        if not timed:
            self.findings.explain(Explained.UNTIMED, count)
        self._first_pair = self._first_pair or (source, target)
        self._last_pair = (source + count - 1, target + count - 1)
        expected = self._route.target_of(source)
        if expected is None:
            return
        self._shift = target - expected
        if self._shift:
            detail = f"{self._shift:+,} from where the ledger has them"
            self._note(Difference(DifferenceKind.DISPLACED, source, target, count, detail), source)

    # -- explained records -------------------------------------------------------------------------------------------

    def _explain_head(self) -> bool:
        """Skip a record that need not be on the other side."""
        offset, other = self._source.first(), self._target.first()
        mine = self._source.head()
        if mine is not None and offset is not None:
            expected = self._route.target_of(offset)
            if expected is None:
                gap = self._hidden_at(offset, offset + 1)
                if gap is not None:
                    # Offsets that were left out once but copied in this pass must be on the target.
                    until = min(gap.after, self._route.next_source(offset) or gap.after)
                    self._source.skip(bisect_left(mine.load(), until, mine.at) - mine.at)
                    return True
            elif other is None or other > expected + self._shift:
                reason = self._gone_on_target(expected + self._shift)
                if reason is not None:
                    self.findings.explain(reason)
                    self._source.skip(1)
                    return True
        if other is not None:
            origin = self._route.source_of(other - self._shift)
            if origin is not None and (offset is None or offset > origin):
                reason = self._gone_on_source(origin)
                if reason is not None:
                    self.findings.explain(reason)
                    self._target.skip(1)
                    return True
        return False

    def _gone_on_target(self, offset: int) -> Explained | None:
        if offset < self._target.feed.log_start:
            return Explained.TARGET_DELETED
        # On a broker, compaction is the only cause of missing offsets; after the log end offset there are none yet.
        holes = self._span.target_compacted and offset < self._target.feed.log_end
        return Explained.TARGET_COMPACTED if holes else None

    def _gone_on_source(self, offset: int) -> Explained | None:
        if offset < self._source.feed.log_start:
            return Explained.SOURCE_DELETED
        holes = self._span.source_compacted and offset < self._source.feed.log_end
        return Explained.SOURCE_COMPACTED if holes else None

    def _hidden_at(self, first: int, after: int) -> Gap | None:
        """The gap that contains some of these source offsets."""
        place = bisect_right(self._hidden_from, after - 1) - 1
        gap = self._hidden[place] if place >= 0 else None
        return gap if gap is not None and gap.after > first else None

    def _next_hidden(self, offset: int) -> int | None:
        place = bisect_right(self._hidden_from, offset)
        return self._hidden_from[place] if place < len(self._hidden_from) else None

    # -- differences -------------------------------------------------------------------------------------------------

    def _look_closer(self) -> None:
        """Match the next records as far as this is certain, and classify the records between matches."""
        size = _WINDOW
        while True:
            sources, source_ends = self._source.window(size)
            targets, target_ends = self._target.window(size)
            visible = [place for place, item in enumerate(sources) if not self._is_hidden(item.offset)]
            timed = all(item.stamp is not None for item in targets)
            shown = [sources[place] if timed else sources[place].untimed() for place in visible]
            theirs = targets if timed else [item.untimed() for item in targets]
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
            # No records in common; on the side that ends first, matches may follow later on the other side.
            until = 0 if source_ends and sources and not target_ends else len(shown)
            end = 0 if target_ends and targets and not source_ends else len(theirs)
        self._take_window(shown, theirs, found, until, end)
        self._source.skip(len(sources) if until == len(shown) else visible[until])
        self._target.skip(end)

    def _take_window(self, sources: list[Item], targets: list[Item], found: Alignment, until: int, end: int) -> None:
        crossed = [(one, other) for one, other in found.crossed if one < until and other < end]
        moved, moved_there = {one for one, _ in crossed}, {other for _, other in crossed}
        seen = {item.offset for item in sources}, {item.offset for item in targets}
        pairs = [pair for pair in found.pairs if pair[0] < until and pair[1] < end]
        before, before_there = 0, 0
        for here, there in [*pairs, (until, end)]:
            left = [sources[place] for place in range(before, here) if place not in moved]
            left_there = [targets[place] for place in range(before_there, there) if place not in moved_there]
            self._take_gap(left, left_there, seen)
            if here < until or there < end:
                self._passed(sources[here].offset, targets[there].offset, 1, timed=targets[there].stamp is not None)
            before, before_there = here + 1, there + 1
        for one, other in crossed:
            self._swapped(sources[one], targets[other])

    def _take_gap(self, sources: list[Item], targets: list[Item], seen: tuple[set[int], set[int]]) -> None:
        """Classify unmatched records between two pairs."""
        left: list[Item] = []
        for item in sources:
            expected = self._route.target_of(item.offset)
            place = None if expected is None else expected + self._shift
            reason = None if place is None or place in seen[1] else self._gone_on_target(place)
            if reason is None:
                left.append(item)
            else:
                self.findings.explain(reason)
        left_there: list[Item] = []
        for item in targets:
            origin = self._route.source_of(item.offset - self._shift)
            reason = None if origin is None or origin in seen[0] else self._gone_on_source(origin)
            if reason is None:
                left_there.append(item)
            else:
                self.findings.explain(reason)
        altered = liken(left, left_there)
        for one, other in altered:
            self._altered(left[one], left_there[other])
        known, known_there = {one for one, _ in altered}, {other for _, other in altered}
        near = self._near()
        self._missing += [item for place, item in enumerate(left) if place not in known]
        self._extra += [(item, near) for place, item in enumerate(left_there) if place not in known_there]
        if len(self._missing) > _HELD or len(self._extra) > _HELD:
            self._settle()
            if len(self._extra) > _HELD:
                self._give_up_extra({})

    def _altered(self, one: Item, other: Item) -> None:
        place = (one.offset, other.offset)
        if one.key != other.key:
            self._differ(DifferenceKind.ALTERED_KEY, *place, f"{_told(one.key)} became {_told(other.key)}")
        if one.value != other.value:
            self._differ(DifferenceKind.ALTERED_VALUE, *place, f"{_told(one.value)} became {_told(other.value)}")
        if one.headers != other.headers:
            self._differ(DifferenceKind.ALTERED_HEADERS, *place, _headers_told(one, other))
        if one.stamp != other.stamp:
            self._differ(DifferenceKind.ALTERED_TIMESTAMP, *place, f"{one.stamp} became {other.stamp}")
        self._passed_altered(*place)

    def _passed_altered(self, source: int, target: int) -> None:
        """Update the expected shift by an altered record."""
        expected = self._route.target_of(source)
        if expected is not None:
            self._shift = target - expected

    def _swapped(self, one: Item, other: Item) -> None:
        self.findings.records += 1
        self._differ(DifferenceKind.SWAPPED, one.offset, other.offset)

    def _settle(self) -> None:
        """Match the records that have remained unmatched on both sides, then report the missing ones."""
        waiting: dict[Hashable, list[int]] = {}
        for place in range(len(self._extra) - 1, -1, -1):
            waiting.setdefault(self._extra[place][0].content, []).append(place)
        taken: set[int] = set()
        for item in self._missing:
            places = waiting.get(item.content) or waiting.get(item.untimed().content)
            if places:
                taken.add(places[-1])
                self._swapped(item, self._extra[places.pop()][0])
            else:
                self._differ(DifferenceKind.MISSING, item.offset, None)
        self._missing.clear()
        self._extra = [pair for place, pair in enumerate(self._extra) if place not in taken]

    def _give_up_extra(self, originals: Originals) -> None:
        for item, near in self._extra:
            original = originals.get(item.content)
            kind = DifferenceKind.EXTRA if original is None else DifferenceKind.DOUBLED
            self._note(Difference(kind, original, item.offset), near)
        self._extra.clear()

    def _is_open(self, source: int | None, target: int | None, records: int) -> bool:
        """Whether unmatched records are at an end where the copied range is uncertain; they are then explained."""
        place = source if source is not None else target
        if place is None or not (self._span.open_start or self._span.open_end):
            return False
        side, route = (0, self._route.target_of) if place == source else (1, self._route.source_of)
        if route(place) is not None:
            return False
        if self._first_pair is None or self._last_pair is None:
            # No record in common is a difference, unless one side is empty.
            if self._target.records if side == 0 else self._source.records:
                return False
            self.findings.explain(Explained.PENDING if side == 0 else Explained.SOURCE_DELETED, records)
            return True
        began = self._span.open_start and (side == 0 or self._source.feed.log_start > 0)
        if began and place < self._first_pair[side]:
            self.findings.explain(Explained.BEFORE if side == 0 else Explained.SOURCE_DELETED, records)
            return True
        if self._span.open_end and place > self._last_pair[side]:
            self.findings.explain(Explained.PENDING, records)
            return True
        return False

    def _is_hidden(self, offset: int) -> bool:
        return self._route.target_of(offset) is None and self._hidden_at(offset, offset + 1) is not None

    def _near(self) -> int:
        return self._span.stretch.first if self._last_pair is None else self._last_pair[0] + 1

    def _differ(self, kind: DifferenceKind, source: int | None, target: int | None, detail: str = "") -> None:
        self._note(Difference(kind, source, target, 1, detail), source)

    def _note(self, difference: Difference, near: int | None) -> None:
        """Store a difference, merged with the last one if adjacent: whole partitions may be missing or displaced."""
        last, before = self._differences[-1] if self._differences else (None, None)
        if last is not None and last.goes_on_with(difference):
            self._differences[-1] = (last._replace(records=last.records + difference.records), before)
        else:
            self._differences.append((difference, near))

    def _conclude(self) -> None:
        swaps = self._swaps()
        for difference, near in sorted(self._differences, key=lambda row: (row[0].place, row[0].target or 0)):
            kind, source, target, records, _ = difference
            if kind is DifferenceKind.DISPLACED and _within(swaps, target or 0, (target or 0) + records):
                continue
            if kind in (DifferenceKind.MISSING, DifferenceKind.EXTRA) and self._is_open(source, target, records):
                continue
            self.findings.differ(difference, near)
        self._differences.clear()
        self.findings.source_records, self.findings.target_records = self._source.records, self._target.records

    def _swaps(self) -> list[tuple[int, int]]:
        """Ranges of target offsets in which records are shifted because of one in the wrong position."""
        ranges: list[tuple[int, int]] = []
        for difference, _ in self._differences:
            expected = None if difference.source is None else self._route.target_of(difference.source)
            if difference.kind is DifferenceKind.SWAPPED and expected is not None and difference.target is not None:
                ranges.append(
                    (min(expected, difference.target) - abs(self._shift), max(expected, difference.target) + 1)
                )
        merged: list[tuple[int, int]] = []
        for first, after in sorted(ranges):
            if merged and first <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(after, merged[-1][1]))
            else:
                merged.append((first, after))
        return merged


def _within(ranges: list[tuple[int, int]], first: int, after: int) -> bool:
    place = bisect_right(ranges, (first, after)) - 1
    around = [ranges[index] for index in (place, place + 1) if 0 <= index < len(ranges)]
    return any(low <= first and after <= high for low, high in around)


def originals(
    feed: BatchFeed, first: int, after: int, wanted: set[Hashable], heard: Callable[[], None]
) -> dict[Hashable, int]:
    """The first source offset of each wanted content in a range; ``heard`` is called periodically."""
    found: dict[Hashable, int] = {}
    side = _Side(feed, first, after)
    while side.head() is not None and len(found) < len(wanted):
        items, _ = side.window(_WINDOW)
        for item in items:
            for content in (item.content, item.untimed().content):
                if content in wanted:
                    found.setdefault(content, item.offset)
        side.skip(len(items))
        heard()
    return found


def _told(part: object) -> str:
    return "null" if part is None else str(part)


def _headers_told(one: Item, other: Item) -> str:
    mine, theirs = dict(one.headers), dict(other.headers)
    if len(one.headers) == len(other.headers) == len(mine) and mine == theirs:
        return "their order"
    gone = [f"{name} is missing" for name in mine if name not in theirs]
    new = [f"{name} is new" for name in theirs if name not in mine]
    changed = [
        f"{name}: {_told(mine[name])} became {_told(theirs[name])}"
        for name in mine
        if name in theirs and mine[name] != theirs[name]
    ]
    return "; ".join([*gone, *new, *changed]) or f"{len(one.headers)} became {len(other.headers)}"
