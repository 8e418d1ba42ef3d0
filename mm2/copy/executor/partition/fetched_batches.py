"""Turns the fetched batches of a partition into outgoing ones: passed on unchanged, re-encoded, or dropped.

A broker accepts a batch from a producer only if it is magic 2, without holes, with CreateTime and without control
records (`LogValidator`). Fetched batches are handled as follows:

    control batches, aborted ones under read_committed, empty ones   dropped, and counted by reason
    holes, LogAppendTime, magic 0/1, batches begun before our offset  re-encoded with the same codec
    tiny ones in a row                                               merged
    all, where there are changes                                     decoded, changed, encoded with the same codec if
                                                                     any of their records has changed
    everything else                                                  passed on as bytes

Records that a predecessor has put on the target are skipped, see `mm2.copy.executor.partition.predecessor`.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from mm2.copy.changes import ChangeDelayed, Changer
from mm2.copy.executor.partition import history
from mm2.copy.executor.partition.copy_state import CopyState
from mm2.copy.executor.partition.events import CorruptFetched
from mm2.copy.executor.partition.outgoing_records import CopiedRange, OutgoingRecords
from mm2.copy.executor.partition.predecessor import PredecessorRecords
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.progress.target_progress import records_at
from mm2.copy.states import PartitionState
from mm2.copy.tally import PASSTHROUGH
from mm2.kafka.errors import BatchOverLimit, CorruptBatch
from mm2.kafka.records.batch import BatchHeader, BatchView, check_crc, iter_batches
from mm2.kafka.records.corruption import CorruptReads
from mm2.kafka.records.merge import Merged, coalesce
from mm2.kafka.records.record import Record, decode_batch, rewrite
from mm2.kafka.records.transactions import AbortedTransactions
from mm2.kafka.wire.fetch import Fetched

QUARANTINED: Final = "quarantined"
#: Why a source log has no record at an offset: it was compacted, or the topic is not compacted and the record is missing.
COMPACTED: Final = "compacted"
MISSING: Final = "missing"
_CORRUPT_PAUSE_S: Final = 0.2
#: Responses that differ, as those of replicas of which one was compacted further, are not requested for ever.
_MOST_DOUBTS: Final = 5


@dataclass(slots=True, eq=False)
class FetchedBatches:
    """``delayed_until_s`` (monotonic): a record cannot be changed before. ``is_doubted``: the last response ended at a batch that is
    fetched again, see `_is_believed`.
    """

    state: CopyState
    outgoing: OutgoingRecords
    predecessor: PredecessorRecords
    delayed_until_s: float = 0.0
    is_doubted: bool = False
    _corrupt: CorruptReads = field(default_factory=CorruptReads)
    _places: frozenset[tuple[int, int]] = frozenset()  # of the last response with an unexpected one
    _doubted_at: int = -1
    _doubts: int = 0  # responses in a row at this offset
    _is_cut: bool = False  # the rest of what was fetched has to be fetched again, to be changed or re-encoded

    def take(self, fetched: Fetched) -> None:
        """Turn them into outgoing batches. Raises an exception for an internal error."""
        aborted = AbortedTransactions(fetched.aborted)
        self._is_cut = self.is_doubted = False
        try:
            for view in self._batches(fetched):
                if not self._is_believed(view, fetched):
                    return
                is_taken = self._take_merged(view) if isinstance(view, Merged) else self._take_checked(view, aborted)
                if not is_taken:
                    return
        except CorruptBatch as error:
            self._failed(error, fetched)

    def _batches(self, fetched: Fetched) -> Iterable[BatchView | Merged]:
        state = self.state
        if self.predecessor.remaining or state.changes is not None or self.outgoing.copied is not None:
            return iter_batches(fetched.records)
        # Merging compressed ones costs more than passing them on, unless there are too many for the connection to the target. Others
        # are merged while they wait for it (`Outbox.merge_waiting`).
        return coalesce(
            fetched.records,
            state.offset,
            compressed=state.behind,
            transactional=not (state.read_committed and fetched.aborted),
            limit=state.limit,
        )

    def _is_believed(self, view: BatchView | Merged, fetched: Fetched) -> bool:
        """Whether base offset and leader epoch of a batch, which its CRC does not cover, are those that are expected, or were the same in
        another response. Otherwise it is fetched again: a wrong bit in them would leave out records, or copy them twice.
        """
        state, place = self.state, _place_of(view)
        first, leader_epoch = place
        # Compacted topics have holes everywhere.
        is_hole = first > state.offset and state.window.hole_reason == MISSING
        is_other_epoch = state.leader_epoch >= 0 and leader_epoch not in {state.leader_epoch, -1}
        if not (is_hole or is_other_epoch) or place in self._places:
            return True
        self._doubts = self._doubts + 1 if self._doubted_at == state.offset else 1
        self._doubted_at, self._places = state.offset, _places(fetched.records)
        self.is_doubted = self._doubts <= _MOST_DOUBTS
        return not self.is_doubted

    def _failed(self, error: CorruptBatch, fetched: Fetched) -> None:
        state = self.state
        if isinstance(error, BatchOverLimit):
            state.fail(PartitionState.OVER_LIMIT, f"{state.partition}: {error}", at_source=True)
            return
        if self._corrupt.add(state.offset, fetched.records):
            state.fail(PartitionState.CORRUPT, f"{state.partition}: {error}", at_source=True)
        elif self._corrupt.are_many:
            self.delayed_until_s = time.monotonic() + _CORRUPT_PAUSE_S
            state.set_read_error(PartitionState.UNREACHABLE, f"{state.partition}: {error}; other bytes with each read")

    def _take_checked(self, view: BatchView, aborted: AbortedTransactions) -> bool:
        """Take a batch; False when later batches have to wait."""
        state = self.state
        before = state.offset
        try:
            self._take_batch(view, aborted)
        except CorruptBatch as error:
            header = view.header
            is_known = isinstance(error, BatchOverLimit) or self._corrupt.is_known(before, view.data)
            if self.predecessor.is_counted and is_known:
                self.predecessor.compare()  # a predecessor may have read it intact, so counting is not possible
                return False
            if header is None or not is_known:
                raise
            # Not done yet: the position may pass it only after it has been written to the dead letter topic.
            entry = SourceRange(before, max(header.last_offset + 1, before), reason=QUARANTINED)
            state.emit(CorruptFetched(view, error, entry))
            if not state.suspended:
                raise
            state.window.append(entry)
            state.offset = entry.next_offset
        return not (state.suspended or state.stopped or self._is_cut)

    def _take_merged(self, merged: Merged) -> bool:
        """Take tiny batches; False when later ones have to wait."""
        state = self.state
        if self._is_changed(merged.first, merged.after, merged.leader_epoch, is_dense=True):
            state.replace_session()
            return False
        if merged.first > state.offset:
            self.outgoing.drop(state.offset, merged.first, state.window.hole_reason)
        state.leader_epoch = merged.leader_epoch
        self._know(merged.leader_epoch)
        state.epochs = history.read(state.epochs, merged.leader_epoch, merged.first)
        self.state.tally.count("merged", merged.batches)
        self.outgoing.send(memoryview(merged.data), merged.header, merged.first, merged.after, is_merged=True)
        state.offset = merged.after
        return True

    def _is_changed(self, first: int, after: int, leader_epoch: int, *, is_dense: bool) -> bool:
        """Whether a predecessor may have read other records than these, and have sent them with the same sequences (rule S9).

        What it has read of this leader epoch or an older one is the same, unless compaction or retention has removed records.
        """
        state = self.state
        # Where offsets are preserved, what is on the target has no sequences any more.
        begin = self.outgoing.after_copied(state.offset)
        if after <= begin or self.predecessor.remaining or not state.shares(begin):
            return False
        return first > begin or not is_dense or leader_epoch > state.known_epoch

    def _know(self, leader_epoch: int) -> None:
        """A batch of this leader epoch was read; a predecessor may have read those that follow, up to a later epoch."""
        state = self.state
        if leader_epoch > state.known_epoch or not state.shares(state.offset):
            state.known_epoch = leader_epoch

    def _take_batch(self, view: BatchView, aborted: AbortedTransactions) -> None:
        state = self.state
        header, predecessor = view.header, self.predecessor
        if header is None:
            self._take_legacy(view)
            return
        hidden = aborted.covers(view)
        check_crc(header, view.data)  # first, because it includes the last offset
        if header.last_offset < state.offset:
            return  # a fetch starts at the batch that contains the offset, which may have been handled
        is_newer = header.leader_epoch > state.known_epoch
        if header.base_offset > state.offset or is_newer:
            predecessor.has_holes = predecessor.has_holes or (
                predecessor.remaining > 0 and header.base_offset > state.offset
            )
            if predecessor.is_counted:
                predecessor.compare()
                return
        after = header.last_offset + 1
        if self._is_changed(header.base_offset, after, header.leader_epoch, is_dense=header.is_dense):
            state.replace_session()
            return
        if header.base_offset > state.offset:
            self.outgoing.drop(state.offset, header.base_offset, state.window.hole_reason)
            state.offset = header.base_offset
        state.leader_epoch = header.leader_epoch
        state.epochs = history.read(state.epochs, header.leader_epoch, state.offset)
        if not predecessor.remaining and self.outgoing.copied is None:
            self._know(header.leader_epoch)
        if header.is_control:
            self.outgoing.drop(state.offset, after, "control")
        elif hidden and state.read_committed:
            self.outgoing.drop(state.offset, after, "aborted")
        elif state.changes is not None:
            self._change(state.changes, view, after, header.codec)
            return
        elif self.outgoing.copied is not None:
            self._read_past(view, after, self.outgoing.copied)
            if state.stopped:
                return
        elif predecessor.remaining:
            self._skip(view, after)
            if state.suspended or state.stopped:
                return
        elif self._is_whole(header):
            paths = self.state.tally.paths
            paths[PASSTHROUGH] = paths.get(PASSTHROUGH, 0) + 1
            self.outgoing.send(view.data, header, state.offset, after)
        else:
            self._reencode(view, state.offset, after)
        state.offset = after

    def _take_legacy(self, view: BatchView) -> None:
        state = self.state
        rewritten = rewrite(view, keep=lambda offset: offset >= state.offset, limit=state.limit)
        self._is_cut = state.reencoding is not None and state.reencoding.is_over
        if rewritten is None:
            return
        after = rewritten.offsets[-1] + 1
        if self._is_changed(state.offset, after, -1, is_dense=False):  # it has no leader epoch
            state.replace_session()
            return
        if state.changes is not None:
            self._change(state.changes, view, after, view.legacy_codec)
            return
        if self.outgoing.copied is not None:
            self._read_past(view, after, self.outgoing.copied)
            if state.stopped:
                return
        elif self.predecessor.remaining:
            self._skip(view, after)
            if state.suspended or state.stopped:
                return
        else:
            self.state.tally.count("old_format")
            self.outgoing.send_rewritten(rewritten, state.offset, after)
        state.offset = after

    def _change(self, changes: Changer, view: BatchView, after: int, codec: int) -> None:
        """Change the records of a batch that ends before source offset ``after``, and send those that are left."""
        state = self.state
        copied = self.outgoing.copied
        # What a predecessor has copied, it could change.
        is_new = not self.predecessor.remaining and (copied is None or state.offset >= copied.end)
        changed = changes.change(state.spec, view, state.offset, after, may_pass=is_new, is_counted=state.is_counted)
        self._is_cut = changed.is_last
        if self.predecessor.remaining:
            fresh = self.predecessor.skip(view, changed.after, changed)
            if state.suspended or state.stopped:
                return
            state.offset = fresh
        elif copied is not None and state.offset < min(copied.end, changed.after):
            end = min(copied.end, changed.after)
            offsets = [record.offset for record in changed.records]
            if self._has_marker_at(offsets, copied) or self._is_replaced(view, changed.records, copied):
                return
            self.outgoing.add_copied(offsets, state.offset, end, changed)
            state.offset = end
        header = view.header
        records = [record for record in changed.records if record.offset >= state.offset]
        if records and changed.is_unchanged and header is not None and self._is_whole(header):
            self.state.tally.count(PASSTHROUGH)
            self.outgoing.send(view.data, header, state.offset, after)
        elif records:
            self.state.tally.count("transformed")
            self.outgoing.send_changed(records, state.offset, changed, codec)
        elif state.offset < changed.after:
            self.outgoing.drop_holes(state.offset, changed.after, changed)
        state.offset = changed.after
        if not changed.is_repeatable:
            state.replace_session()
        if isinstance(changed.failure, ChangeDelayed):
            self.delayed_until_s = time.monotonic() + changed.failure.after_s
            # Not FAILED, which fails the task with partition.error=fail: it may succeed later.
            state.set_read_error(PartitionState.UNREACHABLE, str(changed.failure))
        elif changed.failure is not None:
            state.fail(PartitionState.FAILED, str(changed.failure), at_source=True)

    def _is_replaced(self, view: BatchView, records: Iterable[Record], copied: CopiedRange) -> bool:
        """Whether the target has other records than these, which are read where a predecessor has copied. Then the
        partition stops.
        """
        state, header = self.state, view.header
        if copied.content is None or (header is not None and header.leader_epoch <= copied.known_epoch):
            return False
        own = records_at(record for record in records if state.offset <= record.offset < copied.end)
        offset = own.differs(copied.content)
        if offset is not None:
            state.fail(
                PartitionState.DIVERGED,
                f"{state.spec.target} has another record at offset {offset} than {state.partition}, which lost what was copied "
                "before the last crash; delete the remote topic and reset the position to copy it again",
            )
        return offset is not None

    def _has_marker_at(self, offsets: Iterable[int], copied: CopiedRange) -> bool:
        """Whether the target has a marker at one of these offsets, which have records now. Then the partition stops."""
        state = self.state
        for offset in offsets:
            if offset >= state.offset and copied.has_marker_at(offset):
                state.fail(
                    PartitionState.DIVERGED,
                    f"{state.spec.target} has no record at offset {offset}, where {state.partition} has one that was not there "
                    "before the last crash; delete the remote topic and reset the position to copy it again",
                )
                return True
        return False

    def _is_whole(self, header: BatchHeader) -> bool:
        """Whether a batch can be passed on as it is, and nothing of it was read before."""
        state = self.state
        return header.is_plain and header.base_offset == state.offset

    def _skip(self, view: BatchView, after: int) -> None:
        """Skip the records of a batch that a predecessor has copied, and send the others."""
        state = self.state
        fresh = self.predecessor.skip(view, after)
        if fresh < after and not (state.suspended or state.stopped):
            state.offset = fresh
            self._reencode(view, fresh, after)

    def _reencode(self, view: BatchView, start: int, after: int) -> None:
        state = self.state
        rewritten = rewrite(view, keep=lambda offset: offset >= start, limit=state.limit)
        self._is_cut = state.reencoding is not None and state.reencoding.is_over
        if rewritten is None:
            self.outgoing.drop(state.offset, after, state.window.hole_reason)
            return
        self.state.tally.count(_reencode_reason(view, start))
        self.outgoing.send_rewritten(rewritten, state.offset, after)

    def _read_past(self, view: BatchView, after: int, copied: CopiedRange) -> None:
        """Pass over the records of a batch that are on the target, and send the others."""
        state = self.state
        offsets = [record.offset for record in decode_batch(view, state.limit)]
        end = min(copied.end, after)
        if state.offset < end:
            if self._has_marker_at(offsets, copied):
                return
            self.outgoing.add_copied(offsets, state.offset, end, None)
            state.offset = end
        if state.offset < after:
            self._reencode(view, state.offset, after)


def _reencode_reason(view: BatchView, start: int) -> str:
    """Why a batch had to be re-encoded."""
    header = view.header
    if header is None:
        return "old_format"
    if header.is_log_append_time:
        return "log_append_time"
    return "begun" if header.is_dense and header.base_offset < start else COMPACTED


def _place_of(view: BatchView | Merged) -> tuple[int, int]:
    """Base offset and leader epoch (-1: unknown)."""
    if isinstance(view, Merged):
        return view.first, view.leader_epoch
    return view.base_offset, -1 if view.header is None else view.header.leader_epoch


def _places(records: memoryview) -> frozenset[tuple[int, int]]:
    """Those of all batches, up to one that does not parse."""
    found: set[tuple[int, int]] = set()
    with contextlib.suppress(CorruptBatch):
        found.update(_place_of(view) for view in iter_batches(records))
    return frozenset(found)
