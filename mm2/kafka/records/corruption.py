"""Tells corruption on a disk from errors of the transmission."""

from __future__ import annotations

from typing import Final

from crc32c import crc32c

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import HEADER_BYTES, iter_batches
from mm2.kafka.records.visibility import last_offset

#: So many different reads at one offset are reported: the network or the broker changes bytes all the time.
_MANY: Final = 3


class CorruptReads:
    """Reads of a partition that failed because of corrupt bytes.

    A disk returns the same bytes again; an error of the transmission, whose 16-bit checksum TCP passes now and then,
    does not repeat.
    """

    __slots__ = ("_checksum", "_count", "_offset")

    def __init__(self) -> None:
        self._offset = -1
        self._checksum = -1
        self._count = 0

    @property
    def are_many(self) -> bool:
        """Whether the last ones at this offset have returned other bytes each time."""
        return self._count >= _MANY

    def is_known(self, offset: int, batch: memoryview) -> bool:
        """Whether the last failed read was that of the same bytes at this offset."""
        return self._offset == offset and self._checksum == crc32c(batch)

    def add(self, offset: int, records: memoryview) -> bool:
        """A Fetch response is corrupt in the batch with this offset; returns whether that batch is the same as in the last one."""
        batch = _batch_of(offset, records)
        if self.is_known(offset, batch):
            return True
        self._count = self._count + 1 if self._offset == offset else 1
        self._offset, self._checksum = offset, crc32c(batch)
        return False


def _batch_of(offset: int, records: memoryview) -> memoryview:
    """The batch with this offset; only the first bytes if a batch does not parse, which comes first in the next response."""
    try:
        for view in iter_batches(records):
            if view.base_offset >= offset or last_offset(view) >= offset:  # the last offset may be what is corrupt
                return view.data
    except CorruptBatch:
        pass
    return records[:HEADER_BYTES]
