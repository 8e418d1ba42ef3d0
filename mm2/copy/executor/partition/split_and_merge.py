"""Batches for the target that can be split and merged, each with its source offsets in the window of its partition."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from mm2.copy.executor.partition.outbox import OutgoingBatch
from mm2.copy.executor.partition.window import SourceRange, Window
from mm2.copy.tally import Tally
from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import BatchHeader, BatchView, read_header
from mm2.kafka.records.merge import TINY_BYTES, merge
from mm2.kafka.records.record import decode_batch, rewrite, split


def outgoing_batch(
    data: memoryview,
    header: BatchHeader,
    entry: SourceRange,
    window: Window,
    tally: Tally,
    limit: int,
    *,
    is_merged: bool = False,
) -> OutgoingBatch:
    """A batch to be sent. It is done in the window once it is acknowledged; its parts get entries of their own.

    ``limit`` is ``decompression.max.bytes``: a batch that exceeds it is not split. ``is_merged``: it is made of several batches
    of the source.
    """

    def acked(base: int) -> None:
        entry.target_base = base
        window.done(entry)

    def cut(why: str = "too_large") -> list[OutgoingBatch] | None:
        if header.records_count < 2:
            return None
        try:
            parts = split(BatchView(header, header.base_offset, 2, data), 2, limit)
        except CorruptBatch:
            return None  # its header was valid, so it was passed on; the target's error counts
        tally.count(why)
        entries = window.cut(entry, [len(part.offsets) for part in parts], [len(part.data) for part in parts])
        return [
            outgoing_batch(
                memoryview(part.data), read_header(part.data), piece, window, tally, limit, is_merged=is_merged
            )
            for part, piece in zip(parts, entries, strict=True)
        ]

    def without(count: int, base: int) -> OutgoingBatch:
        keep_from = header.base_offset + count
        view = BatchView(header, header.base_offset, 2, data)
        rest = rewrite(view, keep=lambda offset: offset >= keep_from, limit=limit)
        if rest is None:
            message = f"{window.remote}: a batch of {header.records_count} records has no record after number {count}"
            raise CorruptBatch(message)
        head, tail = window.cut(entry, [count, header.records_count - count], [0, len(rest.data)])
        head.already_copied, head.target_base = True, base
        window.done(head)
        rest_data = memoryview(rest.data)
        return outgoing_batch(rest_data, read_header(rest_data), tail, window, tally, limit, is_merged=is_merged)

    separate = functools.partial(cut, "refused") if is_merged else None
    merging = functools.partial(_merged, window, tally, limit) if len(data) <= TINY_BYTES else None
    return OutgoingBatch(data, header, acked, cut, separate, without, entry, merging)


def _merged(window: Window, tally: Tally, limit: int, run: Sequence[OutgoingBatch]) -> tuple[OutgoingBatch, int]:
    """One batch of the first ones of a run, and their number. See `Outbox.merge_waiting`."""
    try:
        views = [BatchView(one.header, one.header.base_offset, 2, one.data) for one in run]
        batch = merge(views, limit=limit, first_only=True)[0]
    except (CorruptBatch, ValueError):
        run[0].merge = None  # passed on as it is; the target's error counts
        return run[0], 1
    if batch.batches == 1:
        return run[0], 1
    joined = window.join([one.entry for one in run[: batch.batches] if one.entry is not None], len(batch.data))
    whole = outgoing_batch(memoryview(batch.data), batch.header, joined, window, tally, limit, is_merged=True)
    return whole, batch.batches


def content_error(outgoing: OutgoingBatch, limit: int) -> CorruptBatch | None:
    """The error in the content of a batch that was passed on without decoding; None: none.

    BatchOverLimit: the content is not known, because decoding it takes more than ``limit`` bytes.
    """
    try:
        decode_batch(BatchView(outgoing.header, outgoing.header.base_offset, 2, outgoing.data), limit)
    except CorruptBatch as error:
        return error
    return None
