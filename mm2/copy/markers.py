"""Transaction markers that take up target offsets without a record, for offset preservation. Pure.

A broker appends the abort marker of a producer that has no open transaction, and never delivers it to a consumer
(WriteTxnMarkers, KIP-98). Such a request has no sequence numbers. What fences a late request of a predecessor is in the
markers themselves: a broker rejects one whose producer epoch or coordinator epoch is lower than the last one of the same
producer in the partition (``ProducerAppendInfo``).

==== field =========== value ================================ why =================================================
  producer id          constant, one for each `SPAN` offsets  the coordinator epoch has 31 bits
  producer epoch       grows with each `generation`           fences the requests of predecessors
  coordinator epoch    grows with the offset; for the same    a marker that is there, or a later one, excludes a
                       offset it is lower in a later          second one for its offset
                       generation
===================================================================================================================

So if a predecessor's request is appended after a successor has read the log end, but before the successor's markers, then
all of the successor's are rejected; and if it is appended after the first of them, it is rejected itself. A successor
cannot see the generation of a predecessor of which no marker was appended. If two of them in a row have died with an
unanswered request, both may be appended; the next acknowledged batch then shows it, and the partition stops.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

#: Brokers assign producer ids in ascending order from 0, so they never reach it.
FIRST_PRODUCER_ID: Final = 1 << 62
#: Offsets for which markers have the same producer id.
SPAN: Final = 1 << 16
_GENERATIONS: Final = 1 << 15


class Marker(NamedTuple):
    """The fields of a marker in a WriteTxnMarkers request."""

    producer_id: int
    producer_epoch: int
    coordinator_epoch: int


def marker_at(offset: int, generation: int) -> Marker:
    """The marker for a target offset, written by the holder of this generation."""
    place, within = divmod(offset, SPAN)
    epoch = min(generation, _GENERATIONS - 1)
    return Marker(FIRST_PRODUCER_ID + place, epoch, within * _GENERATIONS + _GENERATIONS - 1 - epoch)


def is_ours(producer_id: int) -> bool:
    """Whether this producer id is that of markers of this project."""
    return producer_id >= FIRST_PRODUCER_ID


def next_generation(epochs: Iterable[int], *, is_clean: bool) -> int:
    """The generation of a new writer, from the producer epochs of our markers in the partition.

    ``is_clean``: no request of the predecessor is unanswered, so its generation can be used.
    """
    known = max(epochs, default=0)
    return known if is_clean else min(known + 1, _GENERATIONS - 1)
