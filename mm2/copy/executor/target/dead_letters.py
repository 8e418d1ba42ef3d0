"""Writes batches and records that cannot be copied to a dead letter topic on the target (``errors.tolerance=all``).

==== header ============== content ================================================================================
  mm2.flow                  A->B
  mm2.topic, mm2.partition  source topic and partition
  mm2.first, mm2.last       first and last source offset
  mm2.reason                the reason
  mm2.form                  batch: the value is a whole record batch; record: the record's own key and value
===================================================================================================================
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import structlog

from mm2.copy.executor.fetching.source import Source
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.fetched_batches import QUARANTINED
from mm2.copy.executor.partition.outbox import OutboxState, OutgoingBatch, outgoing_of
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.executor.producing.sink import Sink
from mm2.kafka.errors import BatchOverLimit, CorruptBatch, KafkaFailure
from mm2.kafka.records.batch import BatchView, unpatched
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.structs import TopicPartition


class DeadLetters:
    """Partition 0 of the dead letter topic."""

    def __init__(self, sink: Sink, topic: str, flow: str) -> None:
        self._sink = sink
        self._flow = flow
        self.outbox = sink.outbox(TopicPartition(topic, 0), idempotent=False)

    def batch(
        self, source: TopicPartition, first: int, last: int, data: memoryview, reason: str, written: Callable[[], None]
    ) -> None:
        """Write a record batch unchanged; ``written`` is called when it is acknowledged."""
        record = Record(None, bytes(data), self._headers(source, first, last, reason, "batch"))
        self._put(outgoing_of([record], written))

    def record(
        self, source: TopicPartition, offset: int, record: Record, reason: str, written: Callable[[], None]
    ) -> None:
        """Write a record, with its headers after the headers above; ``written`` is called when it is acknowledged."""
        headers = (*self._headers(source, offset, offset, reason, "record"), *record.headers)
        self._put(outgoing_of([Record(record.key, record.value, headers, record.timestamp)], written))

    def _put(self, outgoing: OutgoingBatch) -> None:
        self._sink.put(self.outbox, outgoing)

    def _headers(
        self, source: TopicPartition, first: int, last: int, reason: str, form: str
    ) -> tuple[tuple[str, bytes], ...]:
        rows = {
            "mm2.flow": self._flow,
            "mm2.topic": source.topic,
            "mm2.partition": source.partition,
            "mm2.first": first,
            "mm2.last": last,
            "mm2.reason": reason,
            "mm2.form": form,
        }
        return tuple((name, str(value).encode()) for name, value in rows.items())


@dataclass(eq=False)
class Quarantine:
    """Writes what cannot be copied to the dead letter topic, and keeps each partition blocked until it is there.

    ``then(cursor, call)`` writes a cursor's ledger entry and calls ``call``. ``replace_session(cursor)`` ends its session
    at the position, and opens another one.
    """

    _letters: DeadLetters
    _source: Source
    _sink: Sink
    _then: Callable[[Cursor, Callable[[], None]], None]
    _replace_session: Callable[[Cursor], None]

    def __post_init__(self) -> None:
        self._unwritten: Counter[Cursor] = Counter()  # dead letters of each partition that are not acknowledged
        self._log = structlog.get_logger("mm2.copy.executor.dead_letters")

    @property
    def last_error(self) -> KafkaFailure | None:
        """Why the dead letter topic cannot be written at the moment."""
        return self._letters.outbox.last_error

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch, entry: SourceRange) -> None:
        """Write a corrupt batch of the source, or one over the limit. The window is about to get this entry for it."""
        self._log.error(
            "unreadable batch written to the dead letter topic", partition=str(cursor.partition), error=str(error)
        )
        cursor.suspended = True
        # A predecessor may have read it intact.
        is_shared = cursor.is_counted and cursor.shares(entry.first)

        def written() -> None:
            if cursor.finish_quarantine(entry):
                # The position may pass it only when all previous records are acknowledged.
                cursor.when_idle(lambda: self._after(cursor, release=True, is_shared=is_shared))

        self._letters.batch(
            cursor.partition,
            view.base_offset,
            entry.next_offset - 1,
            view.data,
            str(error),
            self._when_written(cursor, written),
        )

    def too_large(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> None:
        """Write a record that the target never accepts."""
        header = outgoing.header
        if outgoing.count != 1:
            return
        try:
            records = decode_batch(BatchView(header, header.base_offset, 2, outgoing.data), cursor.limit)
        except BatchOverLimit:
            return
        except CorruptBatch as error:
            self.malformed(cursor, entry, outgoing, error)
            return
        reason = f"{cursor.spec.target} does not accept a record of {len(outgoing.data)} bytes"
        self._log.error("record written to the dead letter topic", partition=str(cursor.partition), reason=reason)
        offset = next(entry.runs())[0]
        self._letters.record(cursor.partition, offset, records[0], reason, self._set_aside(cursor, entry, outgoing))

    def malformed(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch, error: CorruptBatch) -> None:
        """Write a batch that the target rejects because of its content."""
        self._log.error(
            "malformed batch written to the dead letter topic", partition=str(cursor.partition), error=str(error)
        )
        raw = memoryview(unpatched(outgoing.data, outgoing.header))
        written = self._set_aside(cursor, entry, outgoing)
        self._letters.batch(cursor.partition, entry.first, entry.next_offset - 1, raw, str(error), written)

    def _set_aside(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> Callable[[], None]:
        """Block the partition until its rejected batch is in the dead letter topic. The returned function ends that."""
        outbox = cursor.outbox
        outbox.state = OutboxState.QUARANTINING
        outbox.paused = True  # longer than that, until the ledger has the entry

        def written() -> None:
            outbox.state = OutboxState.OPEN
            if not (outbox.queue and outbox.queue[0] is outgoing):
                return  # the successor writes it to the dead letter topic again
            cursor.set_target_error(None)
            if cursor.shares(entry.first):
                outbox.doubt(outgoing)  # an unanswered request of a predecessor may have its sequence
            # The records before it may be acknowledged, and the position wait for a search of the target (rule L7). If nothing
            # follows, and the source has changed meanwhile, the session ends or the position moves for that reason.
            cursor.window.when_passed(entry.next_offset, lambda: self._after(cursor, release=False))
            cursor.quarantine(entry, QUARANTINED)

        return self._when_written(cursor, written)

    def _when_written(self, cursor: Cursor, then: Callable[[], None]) -> Callable[[], None]:
        """The callback of a dead letter. Until then its errors are those of the partition."""
        self._unwritten[cursor] += 1
        cursor.dead_letter_outbox = self._letters.outbox

        def written() -> None:
            self._unwritten[cursor] -= 1
            if not self._unwritten[cursor]:
                cursor.dead_letter_outbox = None
            then()

        return written

    def _after(self, cursor: Cursor, *, release: bool, is_shared: bool = False) -> None:
        """Send nothing after a dead letter before the position has passed it and the ledger has that; otherwise a successor
        would count it.

        ``release``: the cursor was suspended for it. Otherwise it may be suspended because it is about to move. ``is_shared``:
        a predecessor may have sent its records.
        """
        # Among records that a predecessor has copied it ends with them.
        if (is_shared or cursor.is_sequence_shared) and not cursor.predecessor.remaining:
            self._replace_session(cursor)
            return

        def known() -> None:
            cursor.suspended = cursor.suspended and not release
            self._sink.end_pause(cursor.outbox)
            self._source.resume()

        self._then(cursor, known)
