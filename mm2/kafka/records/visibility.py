"""The batches of a Fetch answer that a consumer returns."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Self

from mm2.kafka.records.batch import BatchView, check_crc, iter_batches
from mm2.kafka.records.legacy import check_message_crc
from mm2.kafka.records.transactions import AbortedTransactions


class VisibleBatches:
    """Iterates over the batches from offset ``position`` on, without control batches and aborted transactions.

    ``position`` is then the offset after the last batch that was read, visible or not, and ``leader_epoch`` the epoch of that
    batch (-1: unknown, or none was read). The first batch may begin before the initial position: the caller filters its
    records. ``aborted`` lists the aborted transactions in the answer as (producer id, first offset); None:
    read_uncommitted, records of aborted transactions are visible. ``with_control``: control batches are returned, too.
    Raises CorruptBatch at a batch that does not match its CRC or does not parse; ``position`` is then before that batch.
    """

    __slots__ = ("_aborted", "_check_crcs", "_views", "_with_control", "leader_epoch", "position")

    def __init__(
        self,
        records: memoryview,
        position: int,
        *,
        aborted: Iterable[tuple[int, int]] | None = None,
        check_crcs: bool = True,
        with_control: bool = False,
    ) -> None:
        self.position = position
        self.leader_epoch = -1
        self._views = iter_batches(records)
        self._aborted = None if aborted is None else AbortedTransactions(aborted)
        self._check_crcs = check_crcs
        self._with_control = with_control

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> BatchView:
        for view in self._views:
            header = view.header
            # Also for batches before the position and for control batches: they may end a transaction.
            hidden = self._aborted is not None and self._aborted.covers(view)
            if self._check_crcs:  # first, because it includes the last offset
                if header is None:
                    check_message_crc(view)
                else:
                    check_crc(header, view.data)
            if (last := last_offset(view)) < self.position:
                continue
            self.position = last + 1
            self.leader_epoch = -1 if header is None else header.leader_epoch
            if not hidden and (header is None or not header.is_control or self._with_control):
                return view
        raise StopIteration


def last_offset(view: BatchView) -> int:
    """The last offset of a batch. The offset of a message set of magic 0 or 1 is that of its last message."""
    return view.base_offset if view.header is None else view.header.last_offset


def end_of(records: memoryview) -> tuple[int | None, int]:
    """The offset after the last complete batch, None without one, and the leader epoch of that batch (-1: unknown)."""
    last: BatchView | None = None
    for last in iter_batches(records):  # noqa: B007
        pass
    if last is None:
        return None, -1
    return last_offset(last) + 1, -1 if last.header is None else last.header.leader_epoch
