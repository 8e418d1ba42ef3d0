"""A source task whose records and offsets become visible together (ExactlyOnceWorkerSourceTask; KIP-618, spec D.12).

Deviation from Java: with the boundary "interval" the time is looked at after each poll, not only after those that
brought records. There, the last records before a quiet time stay invisible until the next ones come, or until the
transaction has taken too long and the task fails.
"""

from __future__ import annotations

import time
from typing import Any

from mm2.connect.api import ConnectError, SourceRecord
from mm2.connect.converters import OffsetJson
from mm2.connect.runtime.exactly_once import Boundary, Transactions
from mm2.connect.runtime.tasks.source import AbstractWorkerSourceTask, Converted, TaskSetup, by_target
from mm2.connect.stores import internal_json
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, ProducerFenced
from mm2.kafka.producer import RecordMetadata
from mm2.kafka.records.record import Record
from mm2.kafka.transactions import TransactionalProducer


class ExactlyOnceWorkerSourceTask(AbstractWorkerSourceTask):
    """Exactly once. ``producer`` is the setup's, ``offsets_topic`` lies on the same cluster as the records' topics.

    Whatever fails in a transaction fails the task, also when errors are tolerated: its records may be there or not, and
    only a new start can find out.
    """

    def __init__(
        self,
        setup: TaskSetup,
        producer: TransactionalProducer,
        transactions: Transactions,
        *,
        offsets_topic: str,
    ) -> None:
        super().__init__(setup)
        self._transactional = producer
        self._transactions = transactions
        self._offsets_topic = offsets_topic
        #: Of the open transaction: the newest offset of each partition, and the records in order.
        self._offsets: dict[frozenset[tuple[str, Any]], tuple[dict[str, Any], dict[str, Any]]] = {}
        self._records: list[tuple[SourceRecord, RecordMetadata | None]] = []
        self._committed_s = time.monotonic()

    def commit_offsets(self) -> bool:
        """Does nothing: offsets are committed with their records, when the transaction ends."""
        return True

    def _claim(self) -> None:
        by_interval = self._transactions.boundary is Boundary.INTERVAL
        if by_interval and self._transactions.interval_ms >= self._transactions.timeout_ms:
            self._log.warning(
                "transactions last as long as their timeout or longer and will be aborted; raise "
                "producer.override.transaction.timeout.ms or lower transaction.boundary.interval.ms",
                interval_ms=self._transactions.interval_ms,
                timeout_ms=self._transactions.timeout_ms,
            )
        try:
            self._transactional.init()
        except KafkaFailure as failure:
            raise ConnectError(f"Task {self.id} cannot begin to write in transactions: {failure}") from failure

    def _enter_loop(self) -> None:
        self._committed_s = time.monotonic()

    def _dropped(self, record: SourceRecord) -> None:
        self._records.append((record, None))

    def _send(self, batch: Converted) -> None:
        for record, _ in batch:
            internal_json.require_flat("partition", record.source_partition)
            internal_json.require_flat("offset", record.source_offset)
            if record.topic == self._offsets_topic:
                # The task could not read its offsets any more, since that waits for the end of its own transaction.
                raise ConnectError(
                    f"Task {self.id} must not write to the topic of its own offsets, {record.topic}, with exactly-once"
                )
        written: list[RecordMetadata | None] = [None] * len(batch)
        try:
            if batch and not self._transactional.in_transaction:
                self._transactional.begin()
            for (topic, partition), places in by_target(batch).items():
                sent = self._produce(topic, partition, [batch[place][1] for place in places])
                for place, acked in zip(places, sent, strict=True):
                    written[place] = acked
        except KafkaFailure as failure:
            raise self._explained(failure) from failure
        for (record, _), metadata in zip(batch, written, strict=True):
            self._offsets[frozenset(record.source_partition.items())] = (record.source_partition, record.source_offset)
            self._records.append((record, metadata))
        if self._transactions.boundary is Boundary.POLL:
            self._commit()

    def _after_poll(self) -> None:
        if self._transactions.boundary is not Boundary.INTERVAL:
            return
        if time.monotonic() >= self._committed_s + self._transactions.interval_ms / 1000:
            self._commit()

    def _before_pause(self) -> None:
        if self._started:
            self._commit()

    def _final_commit(self, *, failed: bool) -> None:
        if not failed:
            self._commit()
        elif self._transactional.in_transaction and not self._transactional.has_failed:
            # Left open it would keep readers waiting until it has timed out.
            try:
                self._transactional.abort()
            except KafkaFailure as failure:
                self._log.warning("transaction of the failed task not aborted", reason=str(failure))

    def _commit(self) -> None:
        """End the transaction, with the offsets of its records in it; then tell the task."""
        self._committed_s = time.monotonic()
        if self._transactional.in_transaction:
            offsets = [
                Record(OffsetJson.key(self.id.connector, partition), OffsetJson.value(offset))
                for partition, offset in self._offsets.values()
            ]
            try:
                self._transactional.send(self._offsets_topic, offsets)
                self._transactional.commit()
            except KafkaFailure as failure:
                raise self._explained(failure) from failure
            self._offsets.clear()
        records, self._records = self._records, []
        for record, metadata in records:
            self._tell(record, metadata)
        self._tell_commit()

    def _explained(self, failure: KafkaFailure) -> ConnectError:
        if self._cancelled:
            return ConnectError(f"Task {self.id} was cancelled in a transaction: {failure}")
        what = f"Task {self.id} could not finish a transaction"
        gone = isinstance(failure, BrokerFailure) and failure.code == ErrorCode.INVALID_TXN_STATE
        if not (gone or isinstance(failure, ProducerFenced)):
            return ConnectError(f"{what}: {failure}")
        slow = (
            f"the transaction took longer than the transaction.timeout.ms of its producer, "
            f"{self._transactions.timeout_ms} ms: raise that (producer.override.transaction.timeout.ms), or end "
            "transactions sooner (transaction.boundary=poll, or a shorter transaction.boundary.interval.ms)"
        )
        return ConnectError(
            f"{what}: {failure} The task was started elsewhere or its connector was reconfigured, or {slow}"
        )
