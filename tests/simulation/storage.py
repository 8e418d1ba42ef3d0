"""One replica of one partition: log, producer state, transactions, leader epochs.

The rules are those of `UnifiedLog`, `ProducerStateManager`, `ProducerAppendInfo` and `LeaderEpochFileCache`.
"""

from __future__ import annotations

import bisect
import struct
from collections import deque
from dataclasses import dataclass, field

from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.records.batch import CONTROL, HEADER, TRANSACTIONAL, BatchView, read_header
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.records.transactions import control_type
from tests.simulation.world import Event

SEQUENCES = 1 << 31
_ABORT = 0
_BATCHES_KEPT = 5


@dataclass(slots=True, eq=False)
class Batch:
    """A batch in the log."""

    base: int
    after: int
    epoch: int
    producer: tuple[int, int, int]  # id, epoch, base sequence
    newest_ms: int
    data: bytes
    control: int | None = None
    transactional: bool = False
    _records: list[Record] | None = None

    @property
    def records(self) -> list[Record]:
        """Its records with their offsets."""
        if self._records is None:
            view = memoryview(self.data)
            self._records = decode_batch(BatchView(read_header(view), self.base, 2, view))
        return self._records


def batch_at(data: bytes | memoryview, base: int, epoch: int) -> Batch:
    """A produced batch with the offsets and the leader epoch of the log."""
    raw = bytearray(data)
    struct.pack_into(">q", raw, 0, base)
    struct.pack_into(">i", raw, 12, epoch)
    fields = HEADER.unpack_from(raw, 0)
    attributes, last_delta, newest_ms, producer = fields[5], fields[6], fields[8], tuple(fields[9:12])
    control = None
    if attributes & CONTROL:
        control = control_type(read_header(raw), memoryview(raw))
    return Batch(
        base,
        base + last_delta + 1,
        epoch,
        producer,
        newest_ms,
        bytes(raw),
        control,
        bool(attributes & TRANSACTIONAL),
    )


@dataclass(slots=True, eq=False)
class Producer:
    """A replica's state of a producer."""

    epoch: int
    newest_ms: int
    batches: deque[tuple[int, int, int]] = field(default_factory=lambda: deque(maxlen=_BATCHES_KEPT))

    @property
    def last_sequence(self) -> int:
        return self.batches[-1][1] if self.batches else -1


class Replica:
    """``leads``, ``epoch`` and ``isr`` are the broker's view."""

    def __init__(self, topic: str, partition: int, broker: int) -> None:
        self.topic = topic
        self.partition = partition
        self.broker = broker
        self.log: list[Batch] = []
        self.start = 0
        self.high_watermark = 0
        self.epochs: list[tuple[int, int]] = []  # (leader epoch, first offset)
        self.producers: dict[int, Producer] = {}
        self.open: dict[int, int] = {}  # producer id -> first offset of its transaction
        self.done: list[tuple[int, int, int, bool]] = []  # producer id, first, marker's offset, aborted
        self.epoch = -1
        self.leader = -1
        self.leads = False
        self.isr: tuple[int, ...] = ()
        self.epoch_start = 0
        self.remote: dict[int, int] = {}  # broker -> its log end offset, as this leader knows
        self.fetch: Event | None = None  # of this follower, when it is due
        self.fetch_at_s = 0.0
        self._bases: list[int] = []

    @property
    def end(self) -> int:
        """Log end offset."""
        return self.log[-1].after if self.log else self.start

    @property
    def last_stable(self) -> int:
        first = min(self.open.values(), default=self.high_watermark)
        undecided = min((row[1] for row in self.done if row[2] >= self.high_watermark), default=self.high_watermark)
        return min(self.high_watermark, first, undecided)

    # -- leader epochs

    def end_of_epoch(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch up to ``epoch``; (-1, -1) when none is known."""
        if epoch < 0 or not self.epochs:
            return -1, -1
        if epoch == self.epochs[-1][0]:
            return epoch, self.end
        if epoch > self.epochs[-1][0]:
            return -1, -1
        later = next((place for place, (known, _) in enumerate(self.epochs) if known > epoch), len(self.epochs))
        if later == 0:
            return epoch, self.epochs[0][1]
        return self.epochs[later - 1][0], self.epochs[later][1]

    # -- appends

    def check(self, batch: Batch) -> tuple[int, int]:
        """(error code, base offset of the batch that this one duplicates or -1), for a batch of a client."""
        producer_id, epoch, sequence = batch.producer
        known = self.producers.get(producer_id) if producer_id >= 0 else None
        if known is None:
            return 0, -1
        last = (sequence + batch.after - batch.base - 1) % SEQUENCES
        if known.epoch == epoch:
            for first, end, base in known.batches:
                if (first, end) == (sequence, last):
                    return 0, base
        if epoch < known.epoch:
            return int(ErrorCode.INVALID_PRODUCER_EPOCH), -1
        if epoch != known.epoch:
            return (int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER) if sequence else 0), -1
        if sequence != (known.last_sequence + 1) % SEQUENCES:
            return int(ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER), -1
        return 0, -1

    def append(self, batch: Batch) -> None:
        if not self.epochs or self.epochs[-1][0] < batch.epoch:
            self.epochs.append((batch.epoch, batch.base))
        self.log.append(batch)
        self._bases.append(batch.base)
        self._remember(batch)

    def _remember(self, batch: Batch) -> None:
        producer_id, epoch, sequence = batch.producer
        if producer_id < 0:
            return
        if batch.control is not None:
            first = self.open.pop(producer_id, None)
            if first is not None:
                self.done.append((producer_id, first, batch.base, batch.control == _ABORT))
            return
        if batch.transactional:
            self.open.setdefault(producer_id, batch.base)
        known = self.producers.get(producer_id)
        if known is None or known.epoch != epoch:
            known = self.producers[producer_id] = Producer(epoch, batch.newest_ms)
        last = (sequence + batch.after - batch.base - 1) % SEQUENCES
        known.batches.append((sequence, last, batch.base))
        known.newest_ms = batch.newest_ms

    def forget(self, now_ms: int, expiration_ms: int) -> list[int]:
        """Remove producers whose last batch is too old (`removeExpiredProducers`)."""
        old = [
            producer_id
            for producer_id, known in self.producers.items()
            if producer_id not in self.open and now_ms - known.newest_ms >= expiration_ms
        ]
        for producer_id in old:
            del self.producers[producer_id]
        return old

    def truncate(self, end: int) -> None:
        """Truncate the log and rebuild producer state from the rest (`truncateAndReload`)."""
        while self.log and self.log[-1].after > end:
            self.log.pop()
            self._bases.pop()
        while self.epochs and self.epochs[-1][1] >= max(end, self.end):
            self.epochs.pop()
        self.high_watermark = min(self.high_watermark, self.end)
        self.rebuild()

    def begin_at(self, start: int) -> None:
        """Delete the batches before an offset."""
        self.log = [batch for batch in self.log if batch.after > start]
        self._bases = [batch.base for batch in self.log]
        self.start = start
        self.high_watermark = max(self.high_watermark, start)
        before = [entry for entry in self.epochs if entry[1] <= start]
        epochs = [entry for entry in self.epochs if entry[1] > start]
        self.epochs = [(before[-1][0], start), *epochs] if before else epochs
        self.open = {producer: max(first, start) for producer, first in self.open.items()}

    def rebuild(self) -> None:
        """Rebuild producer state from the log."""
        self.producers.clear()
        self.open.clear()
        self.done.clear()
        for batch in self.log:
            self._remember(batch)

    # -- reads

    def read(self, offset: int, limit: int, max_bytes: int) -> list[Batch]:
        """Batches from the one that contains ``offset``, up to ``limit``; at least one if any exists."""
        found: list[Batch] = []
        size = 0
        place = max(0, bisect.bisect_right(self._bases, offset) - 1)
        for index in range(place, len(self.log)):
            batch = self.log[index]
            if batch.after <= offset:
                continue
            if batch.base >= limit or (found and size + len(batch.data) > max_bytes):
                break
            found.append(batch)
            size += len(batch.data)
        return found

    def aborted(self, first: int, after: int) -> list[tuple[int, int]]:
        """(producer id, first offset) of aborted transactions that overlap a range."""
        return [(row[0], row[1]) for row in self.done if row[3] and row[2] >= first and row[1] < after]

    def common_end(self, leader: Replica) -> int:
        """The offset up to which both logs are equal."""
        mine, theirs = self.log, leader.log
        place = min(len(mine), len(theirs))
        while place and not (
            mine[place - 1].base == theirs[place - 1].base and mine[place - 1].epoch == theirs[place - 1].epoch
        ):
            place -= 1
        return mine[place - 1].after if place else self.start
