"""Batches of aborted transactions, found with the list in a Fetch answer under read_committed.

A broker lists the aborted transactions that overlap the fetched range as (producer id, first offset); an abort marker
in the log ends each of them (KIP-98). Same algorithm as `CompletedFetch` of the Java consumer.
"""

from __future__ import annotations

import heapq
import struct
from collections.abc import Iterable

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import HEADER_BYTES, BatchHeader, BatchView
from mm2.kafka.records.codec import decompress
from mm2.kafka.records.record import read_varint

_ABORT = 0
_MARKER_BYTES = 4096


class AbortedTransactions:
    """State of one partition in one Fetch answer; create a new one for each answer."""

    def __init__(self, aborted: Iterable[tuple[int, int]]) -> None:
        self._starts = [(first_offset, producer_id) for producer_id, first_offset in aborted]
        heapq.heapify(self._starts)
        self._open: set[int] = set()

    def covers(self, view: BatchView) -> bool:
        """Whether to drop this batch as aborted. Call it for every batch in order, including control batches."""
        header = view.header
        if header is None or (not self._starts and not self._open):
            return False
        while self._starts and self._starts[0][0] <= header.last_offset:
            self._open.add(heapq.heappop(self._starts)[1])
        if header.is_control:
            if control_type(header, view.data) == _ABORT:
                self._open.discard(header.producer_id)
            return False
        return header.is_transactional and header.producer_id in self._open


def control_type(header: BatchHeader, data: memoryview) -> int | None:
    """Type of the control record: 0 abort, 1 commit; None for anything else."""
    if not header.records_count:
        return None
    try:
        # Kafka does not compress markers, and its clients read compressed ones.
        records = (
            decompress(header.codec, data[HEADER_BYTES:], _MARKER_BYTES)
            if header.codec
            else bytes(data[HEADER_BYTES : HEADER_BYTES + 64])
        )
        _, at = read_varint(records, 0)
        _, at = read_varint(records, at + 1)
        _, at = read_varint(records, at)
        size, at = read_varint(records, at)
        if size < 4:
            return None
        _, kind = struct.unpack_from(">hh", records, at)
    except (IndexError, struct.error, CorruptBatch):
        return None
    return int(kind)
