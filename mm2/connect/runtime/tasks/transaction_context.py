"""A task's requests to end transactions (WorkerTransactionContext of Connect; KIP-618)."""

from __future__ import annotations

import threading

from mm2.connect.api import IllegalWorkerStateError, SourceRecord


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
            asked, self._commit_batch = self._commit_batch, False
            return asked

    def take_abort_batch(self) -> bool:
        """Whether to abort after this batch."""
        with self._lock:
            self._check_batch()
            asked, self._abort_batch = self._abort_batch, False
            return asked

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
