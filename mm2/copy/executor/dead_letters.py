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

from collections.abc import Callable

from mm2.copy.executor.outbox import OutgoingBatch, outgoing_of
from mm2.copy.executor.sink import Sink
from mm2.kafka.records.record import Record
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
