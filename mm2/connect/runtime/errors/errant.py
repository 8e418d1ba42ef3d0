"""Records that a sink task could not deliver and reports (KIP-610; WorkerErrantRecordReporter of Connect)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Final

from mm2.connect.api import ConnectError, SinkRecord
from mm2.connect.runtime.errors.tolerance import ProcessingContext, ProcessingStage, RetryWithToleranceOperator
from mm2.connect.runtime.errors.under_way import ReportsUnderWay
from mm2.kafka.consumer.records import ConsumerRecord

_SINK_TASK: Final = "org.apache.kafka.connect.sink.SinkTask"


class WorkerErrantRecordReporter:
    """``original`` returns the consumed record; ``rebuild`` creates one for a record that the task has made itself.

    Reports are added to ``under_way`` until they are complete.
    """

    def __init__(
        self,
        operator: RetryWithToleranceOperator[ConsumerRecord],
        *,
        original: Callable[[SinkRecord], ConsumerRecord | None],
        rebuild: Callable[[SinkRecord], ConsumerRecord],
        under_way: ReportsUnderWay,
    ) -> None:
        self._operator = operator
        self._original = original
        self._rebuild = rebuild
        self._under_way = under_way
        self._lock = threading.Lock()
        self._first_error: BaseException | None = None

    def report(self, record: SinkRecord, error: BaseException) -> Future[None]:
        """See `mm2.connect.api.ErrantRecordReporter`."""
        read = self._original(record) or self._rebuild(record)
        with self._lock:
            self._first_error = self._first_error or error
        future = self._operator.execute_failed(ProcessingContext(read), ProcessingStage.TASK_PUT, _SINK_TASK, error)
        if not future.done():
            self._under_way.add(read.topic_partition, future)
        return future

    def raise_error(self) -> None:
        """Raises ConnectError when a reported error is not tolerated, even if the task has ignored the exception."""
        if self._first_error is not None and not self._operator.within_tolerance_limits:
            raise ConnectError("Tolerance exceeded in error handler") from self._first_error
