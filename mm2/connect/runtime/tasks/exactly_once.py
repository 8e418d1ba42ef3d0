"""A source task that commits records and offsets in one transaction (ExactlyOnceWorkerSourceTask; KIP-618)."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from mm2.connect.api import ConnectError, IllegalWorkerStateError, SourceRecord
from mm2.connect.runtime.exactly_once_settings import Boundary, TransactionBoundaries
from mm2.connect.runtime.sending import Sent
from mm2.connect.runtime.tasks.base import Equipment
from mm2.connect.runtime.tasks.source import AbstractWorkerSourceTask, SourceSetup
from mm2.connect.runtime.tasks.submitted import Committable, PartitionKey, Submitted, key_of
from mm2.connect.runtime.tolerance import ProcessingContext
from mm2.connect.stores import internal_json
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, ProducerFenced
from mm2.kafka.producer.producer import RecordMetadata
from mm2.kafka.producer.transactions import TransactionalProducer
from mm2.kafka.records.record import Record


class WorkerTransactionContext:
    """The plugin's requests, each returned once to the runtime. Thread-safe.

    As in Java, records are compared by value.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._commit_on: list[SourceRecord] = []
        self._abort_on: list[SourceRecord] = []
        self._commit_batch = False
        self._abort_batch = False

    # -- for the plugin

    def commit_transaction(self, record: SourceRecord | None = None) -> None:
        """See `mm2.connect.api.TransactionContext`."""
        with self._lock:
            if record is None:
                self._commit_batch = True
            elif record not in self._commit_on:
                self._commit_on.append(record)

    def abort_transaction(self, record: SourceRecord | None = None) -> None:
        """See `mm2.connect.api.TransactionContext`."""
        with self._lock:
            if record is None:
                self._abort_batch = True
            elif record not in self._abort_on:
                self._abort_on.append(record)

    # -- for the runtime; all raise IllegalWorkerStateError when commit and abort were both requested

    def take_commit_on(self, record: SourceRecord) -> bool:
        """Whether to commit after a record."""
        with self._lock:
            return self._take(record, self._commit_on, self._abort_on)

    def take_abort_on(self, record: SourceRecord) -> bool:
        """Whether to abort after a record."""
        with self._lock:
            return self._take(record, self._abort_on, self._commit_on)

    def take_commit_batch(self) -> bool:
        """Whether to commit after this batch."""
        with self._lock:
            self._check_batch()
            requested, self._commit_batch = self._commit_batch, False
            return requested

    def take_abort_batch(self) -> bool:
        """Whether to abort after this batch."""
        with self._lock:
            self._check_batch()
            requested, self._abort_batch = self._abort_batch, False
            return requested

    @staticmethod
    def _take(record: SourceRecord, wanted: list[SourceRecord], other: list[SourceRecord]) -> bool:
        if record not in wanted:
            return False
        if record in other:
            raise IllegalWorkerStateError(
                "Connector requested both commit and abort of same record against topic/partition "
                f"{record.topic}/{record.partition}"
            )
        wanted.remove(record)
        return True

    def _check_batch(self) -> None:
        if self._commit_batch and self._abort_batch:
            raise IllegalWorkerStateError("Connector requested both commit and abort of same transaction")


_SourceOffsets = dict[PartitionKey, Committable]


class ExactlyOnceWorkerSourceTask(AbstractWorkerSourceTask):
    """Exactly-once.

    ``producer`` is the sender's producer; the offset store's topic is in the same cluster as the records. Any failure
    in a transaction fails the task, even when errors are tolerated: its records may or may not have been written, and
    only a restart can determine it.
    """

    def __init__(
        self,
        equipment: Equipment,
        setup: SourceSetup,
        producer: TransactionalProducer,
        transactions: TransactionBoundaries,
        boundaries: WorkerTransactionContext | None = None,
        *,
        flush_timeout_s: float,
    ) -> None:
        super().__init__(equipment, setup)
        self._flush_timeout_s = flush_timeout_s
        self._transactional = producer
        self._transactions = transactions
        self._boundaries = boundaries
        #: Newest offset of each partition since the last commit; kept when a transaction is aborted.
        self._offsets: _SourceOffsets = {}
        self._outcomes_lock = threading.Lock()
        #: Records since the last commit that were written, with their metadata, or dropped, with None.
        self._outcomes: list[tuple[SourceRecord, RecordMetadata | None]] = []
        self._records = 0
        self._committed_s = time.monotonic()

    def commit_offsets(self) -> bool:
        """Does nothing: offsets are committed with their records, when the transaction ends."""
        return True

    def _claim(self) -> None:
        by_interval = self._transactions.boundary is Boundary.INTERVAL
        if by_interval and self._transactions.interval_ms >= self._transactions.timeout_ms:
            self._log.warning(
                "the transaction interval is not shorter than the transaction timeout, transactions will be aborted; increase "
                "producer.override.transaction.timeout.ms or decrease transaction.boundary.interval.ms",
                interval_ms=self._transactions.interval_ms,
                timeout_ms=self._transactions.timeout_ms,
            )
        try:
            self._transactional.init()
        except KafkaFailure as failure:
            raise ConnectError(f"Task {self.id} cannot initialize its transactional producer: {failure}") from failure

    def _enter_loop(self) -> None:
        self._committed_s = time.monotonic()

    def _before_poll(self) -> None:
        self._raise_failure()

    def _raise_failure(self) -> None:
        failure = self._sender.failure
        if failure is not None:
            raise self._explained(failure) from failure

    def _before_send(self, record: SourceRecord, topic: str) -> Submitted | None:
        internal_json.require_flat("partition", record.source_partition)
        internal_json.require_flat("offset", record.source_offset)
        if topic == self._store.topic:
            # Reading offsets waits for the end of the task's own transaction, so the task could no longer read them.
            raise ConnectError(
                f"Task {self.id} must not write to the topic of its own offsets, {topic}, with exactly-once"
            )
        self._raise_failure()
        self._begin()
        return None

    def _sends_together(self, topic: str) -> bool:
        # With the boundary "connector" a transaction may end after any record.
        return self._boundaries is None and topic != self._store.topic

    def _before_run(self, submitted: Sequence[Submitted]) -> None:
        self._raise_failure()
        self._begin()

    def _run_sent(self, submitted: Sequence[Submitted], sent: Sent) -> None:
        if self._notifies_records:
            records = [one.record for one in submitted]
            with self._outcomes_lock:
                self._outcomes.extend(zip(records, sent.metadata(), strict=True))

    def _begin(self) -> None:
        # No record is in flight: between two transactions the sender is idle.
        if not self._transactional.in_transaction:
            self._transactional.begin()

    def _dispatched(self, record: SourceRecord) -> None:
        self._offsets[key_of(record.source_partition)] = (record.source_partition, record.source_offset)
        self._records += 1
        self._end_after(record)

    def _dropped(self, record: SourceRecord) -> None:
        self._note(record, None)
        self._end_after(record)

    def _sent(self, record: SourceRecord, submitted: Submitted | None, metadata: RecordMetadata) -> None:
        self._note(record, metadata)

    def _note(self, record: SourceRecord, metadata: RecordMetadata | None) -> None:
        """Notify the plugin with the next commit."""
        if self._notifies_records:
            with self._outcomes_lock:
                self._outcomes.append((record, metadata))

    def _send_failed(
        self, context: ProcessingContext[SourceRecord], submitted: Submitted | None, failure: KafkaFailure
    ) -> None:
        if threading.current_thread() is self._thread:
            raise self._explained(failure) from failure
        # On the sender's thread the sender keeps the failure, and the next poll or commit raises it.

    # -- boundaries

    def _end_after(self, record: SourceRecord) -> None:
        boundaries = self._boundaries
        if boundaries is None:
            return
        if boundaries.take_abort_on(record):
            self._abort(f"record on topic {record.topic}")
            # Their offsets are still committed, otherwise the task would read the same records again.
            self._commit()
        elif boundaries.take_commit_on(record):
            self._commit()

    def _after_batch(self) -> None:
        boundary = self._transactions.boundary
        if boundary is Boundary.POLL:
            self._commit()
        elif boundary is Boundary.INTERVAL:
            if time.monotonic() >= self._committed_s + self._transactions.interval_ms / 1000:
                self._commit()
        else:
            self._end_batch()

    def _end_batch(self) -> None:
        boundaries = self._boundaries
        if boundaries is None:
            return
        if boundaries.take_abort_batch():
            self._abort("batch")
            self._commit()
        elif boundaries.take_commit_batch():
            self._commit()

    def _end_if_allowed(self) -> None:
        """End the transaction before a pause or the end of the task, if its boundary allows it."""
        if self._transactions.boundary is Boundary.CONNECTOR:
            self._end_batch()
        else:
            self._commit()

    def _before_pause(self) -> None:
        super()._before_pause()
        if self._started:
            self._end_if_allowed()

    def _final_commit(self, *, failed: bool) -> None:
        try:
            if not failed:
                self._end_if_allowed()
        finally:
            self._abort_open_transaction()

    def _abort_open_transaction(self) -> None:
        """Abort the open transaction; it would block readers until it times out."""
        failure = self._transactional.failure
        # Do not wait again for brokers that do not respond. After fencing, the successor has ended the transaction.
        answered = isinstance(failure, BrokerFailure) and not isinstance(failure, ProducerFenced)
        if not self._transactional.in_transaction or not (failure is None or answered):
            return
        self._sender.flush(5.0)
        try:
            self._transactional.abort()
        except KafkaFailure as refused:
            self._log.warning("open transaction not aborted when the task ended", reason=str(refused))

    def _abort(self, what: str) -> None:
        if not self._transactional.in_transaction:
            self._log.warning("Ignoring request by task to abort transaction as the current transaction is empty")
            return
        self._log.info("aborting the transaction as requested by the connector", after=what)
        self._sender.flush(give_up=lambda: self._cancelled)
        self._raise_failure()
        try:
            self._transactional.abort()
        except KafkaFailure as failure:
            raise self._explained(failure) from failure
        self._records = 0

    def _commit(self) -> None:
        """End the transaction, with the offsets of its records in it; then notify the task."""
        began_s = self._committed_s = time.monotonic()
        try:
            if self._offsets:
                # After an abort no transaction is open, but the offsets must be written.
                self._begin()
            if self._transactional.in_transaction:
                self._end_transaction()
        except ConnectError:
            self.counters.committed(time.monotonic() - began_s, failed=True)
            raise
        self.counters.committed(time.monotonic() - began_s)
        with self._outcomes_lock:
            outcomes, self._outcomes = self._outcomes, []
        for record, metadata in outcomes:
            self._notify_record(record, metadata)
        self._notify_commit()

    def _end_transaction(self) -> None:
        self._sender.flush(give_up=lambda: self._cancelled or self._sender.failure is not None)
        self._raise_failure()
        if self._cancelled:
            raise ConnectError(f"Task {self.id} was cancelled in a transaction")
        offsets = list(self._offsets.values())
        records = [Record(key, value) for key, value in self._store.records(self.id.connector, offsets)]
        self._store.before_commit(self.id.connector, offsets, self._flush_timeout_s)
        try:
            if records:
                self._transactional.send(self._store.topic, records)
            self._transactional.commit()
        except KafkaFailure as failure:
            raise self._explained(failure) from failure
        self._offsets.clear()
        self._source_counters.transaction_records.add(self._records)
        self._records = 0
        self._store.after_commit(self.id.connector, offsets)

    def _explained(self, failure: KafkaFailure) -> ConnectError:
        if self._cancelled:
            return ConnectError(f"Task {self.id} was cancelled in a transaction: {failure}")
        what = f"Task {self.id} could not finish a transaction"
        fenced = isinstance(failure, BrokerFailure) and failure.code == ErrorCode.INVALID_TXN_STATE
        if not (fenced or isinstance(failure, ProducerFenced)):
            return ConnectError(f"{what}: {failure}")
        slow = (
            f"the transaction took longer than the transaction.timeout.ms of its producer, "
            f"{self._transactions.timeout_ms} ms: raise that (producer.override.transaction.timeout.ms), or end "
            "transactions sooner (transaction.boundary=poll, or a shorter transaction.boundary.interval.ms)"
        )
        return ConnectError(
            f"{what}: {failure} The task was started elsewhere or its connector was reconfigured, or {slow}"
        )
