"""What changes records between source and target: transformations and converters, applied batch by batch.

`RecordChanges` is made by a higher layer from `mm2.copy.spec.ChangesSpec`; this module knows when records are changed and
what becomes of their offsets. Partitions without changes stay on the byte path of `mm2.copy.executor.partition.cursor`.

The loop that also renews the lease calls this, so changing records must not block it: after `SLICE_S` the rest of a
fetched batch is left, and fetched again. At least one record is changed each time.
"""

from __future__ import annotations

import importlib
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple, Protocol

from mm2.copy.spec import ChangesSpec, PartitionSpec
from mm2.kafka.records.batch import BatchView
from mm2.kafka.records.codec import DECOMPRESSION_MAX_BYTES
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.structs import TopicPartition

#: Reason of a source offset whose record the transformations have dropped.
FILTERED: Final = "filtered"
#: Reason of a source offset whose record could not be transformed or converted, with ``errors.tolerance=all``.
SKIPPED: Final = "skipped"


class Passing(str):
    """A reason for which a record is left out now, and may not be when it is read again: a RetriableError is tolerated."""

    __slots__ = ()


#: For how long records are changed at a stretch, in seconds, and batches re-encoded. The lease ends after five seconds.
SLICE_S: Final = 0.25
REENCODING_SLICE_S: Final = 1.0


class ChangeFailed(Exception):
    """A record cannot be changed, and that is not tolerated. The partition stops. ``key``: the setting with the step that failed."""

    def __init__(self, reason: str, key: str = "") -> None:
        super().__init__(reason)
        self.key = key


class ChangeDelayed(Exception):
    """A record cannot be changed at the moment; it is tried again after so many seconds."""

    def __init__(self, reason: str, after_s: float) -> None:
        super().__init__(reason)
        self.after_s = after_s


class Attempts(NamedTuple):
    """Failed attempts to change the record at a source offset; the first was at ``since_s`` (monotonic)."""

    offset: int
    failed: int
    since_s: float


class RecordChanges(Protocol):
    """Changes the records of one micro-batch. ``attempts`` are those for which ChangeDelayed was raised last, by source
    partition.
    """

    attempts: dict[TopicPartition, Attempts]

    def apply(self, part: PartitionSpec, record: Record, *, may_pass: bool = True) -> Record | str:
        """The record to be written to the target partition, with its source offset; or the reason why there is none.

        ``may_pass``: whether the reason may be a `Passing` one. Raises ChangeFailed or ChangeDelayed.
        """

    def close(self) -> None:
        """No more records follow."""


def record_changes(spec: ChangesSpec) -> RecordChanges:
    """The changes of a job. Raises what their factory raises."""
    module, _, name = spec.factory.partition(":")
    changes: RecordChanges = getattr(importlib.import_module(module), name)(spec.settings)
    return changes


@dataclass(frozen=True, slots=True)
class DroppedRange:
    """Source offsets ``first .. after-1``, which have no record for the target."""

    first: int
    after: int
    reason: str


def dropped_in(
    dropped: Sequence[DroppedRange], first: int, after: int, otherwise: str
) -> Iterator[tuple[int, int, str]]:
    """Source offsets ``first .. after-1`` as ranges with one reason each; ``otherwise`` is that of offsets which are in no
    dropped range.
    """
    at = first
    for index in range(bisect_right(dropped, first, key=_end_of), len(dropped)):
        one = dropped[index]
        if one.first >= after:
            break
        if one.first > at:
            yield at, one.first, otherwise
        at = min(one.after, after)
        yield max(one.first, first), at, one.reason
    if at < after:
        yield at, after, otherwise


def _end_of(dropped: DroppedRange) -> int:
    return dropped.after


@dataclass(slots=True)
class ChangedBatch:
    """A fetched batch after its records were changed, up to source offset ``after``.

    ``records`` are in the order of the source, each with its source offset. ``failure`` is what prevents the record at
    ``after`` from being changed. ``is_last``: the rest of what was fetched has to be fetched again. ``is_unchanged``: the
    records are those that were fetched from the offset on at which changing began. ``is_repeatable``: a successor
    that reads the batch again counts the same records. Otherwise no record follows one that was left out for a `Passing` reason.
    """

    after: int
    records: list[Record] = field(default_factory=list)
    dropped: list[DroppedRange] = field(default_factory=list)
    failure: ChangeFailed | ChangeDelayed | None = None
    is_last: bool = False
    is_unchanged: bool = False
    is_repeatable: bool = True

    def drop(self, offset: int, reason: str) -> None:
        """The record at the next source offset has no record on the target."""
        last = self.dropped[-1] if self.dropped else None
        if last is not None and last.after == offset and last.reason == reason:
            self.dropped[-1] = DroppedRange(last.first, offset + 1, reason)
        else:
            self.dropped.append(DroppedRange(offset, offset + 1, reason))


class TimeSlice:
    """How long one iteration of the loop may work on records; ``call_soon`` is the loop's.

    The time begins with the first question of an iteration.
    """

    def __init__(self, slice_s: float, call_soon: Callable[[Callable[[], None]], object]) -> None:
        self._slice_s = slice_s
        self._call_soon = call_soon
        self._until_s: float | None = None

    @property
    def is_over(self) -> bool:
        """Whether the rest has to wait for the next iteration."""
        return time.monotonic() > self.until_s

    @property
    def until_s(self) -> float:
        """The end of the slice (monotonic time)."""
        until_s = self._until_s
        if until_s is None:
            until_s = self._until_s = time.monotonic() + self._slice_s
            self._call_soon(self._next)
        return until_s

    def _next(self) -> None:
        self._until_s = None


class Changer:
    """Applies changes. All calls within one iteration of the loop share the time `SLICE_S`; ``call_soon`` is the loop's.

    ``limit`` is ``decompression.max.bytes``.
    """

    def __init__(
        self,
        changes: RecordChanges,
        call_soon: Callable[[Callable[[], None]], object],
        limit: int = DECOMPRESSION_MAX_BYTES,
    ) -> None:
        self._changes = changes
        self._slice = TimeSlice(SLICE_S, call_soon)
        self._limit = limit

    def change(
        self,
        part: PartitionSpec,
        view: BatchView,
        start: int,
        after: int,
        *,
        may_pass: bool = True,
        is_counted: bool = False,
    ) -> ChangedBatch:
        """Change the records of a batch from source offset ``start`` on; the batch ends before ``after``.

        ``may_pass``: whether records may be left out for a `Passing` reason. ``is_counted``: a successor reads them again to
        know which of them are on the target. Raises CorruptBatch.
        """
        batch, until_s, apply = ChangedBatch(after), self._slice.until_s, self._changes.apply
        fetched = [record for record in decode_batch(view, self._limit) if record.offset >= start]
        for index, record in enumerate(fetched):
            offset = record.offset
            if index and time.monotonic() > until_s:
                batch.after = offset
                break
            try:
                changed = apply(part, record, may_pass=may_pass)
            except (ChangeFailed, ChangeDelayed) as failure:
                batch.after, batch.failure = offset, failure
                break
            if isinstance(changed, str):
                batch.drop(offset, changed)
                if is_counted and isinstance(changed, Passing):
                    batch.is_repeatable = False
            elif not batch.is_repeatable:
                batch.after = offset
                break
            else:
                batch.records.append(changed)
        batch.is_unchanged = batch.records == fetched
        batch.is_last = batch.after < after or not batch.is_repeatable or time.monotonic() > until_s
        return batch

    def attempts(self) -> list[Any]:
        """The attempts that a successor continues, for the progress channel: the last value of each row is their age in ms."""
        now = time.monotonic()
        found = self._changes.attempts.items()
        return [[*tp, offset, failed, int((now - since_s) * 1000)] for tp, (offset, failed, since_s) in found]

    def continue_attempts(self, rows: list[Any]) -> None:
        """Continue the attempts of a predecessor: errors.retry.timeout may be longer than a micro-batch."""
        now = time.monotonic()
        for topic, partition, offset, failed, age_ms in rows:
            tp = TopicPartition(topic, partition)
            self._changes.attempts[tp] = Attempts(offset, failed, now - age_ms / 1000)

    def close(self) -> None:
        """No more records follow."""
        self._changes.close()
