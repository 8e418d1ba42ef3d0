"""Failed records in the worker's log (``errors.log.*``; LogReporter of Connect)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Generic, TypeVar

import structlog

from mm2.connect.api import SourceRecord
from mm2.connect.runtime.counters import ErrorCounters
from mm2.connect.runtime.errors.tolerance import ProcessingContext
from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.kafka.consumer.records import ConsumerRecord

log = structlog.get_logger(__name__)

T = TypeVar("T")


class LogReporter(Generic[T]):
    """``coordinates`` describes a record's location; None: do not log it. Keys and values are never logged."""

    def __init__(
        self,
        task_id: ConnectorTaskId,
        counters: ErrorCounters,
        coordinates: Callable[[T], dict[str, object]] | None,
    ) -> None:
        self._task_id = task_id
        self._counters = counters
        self._coordinates = coordinates

    def report(self, context: ProcessingContext[T]) -> Future[None] | None:
        where = {} if self._coordinates is None else self._coordinates(context.original)
        log.error(
            "Error encountered in task",
            task_id=str(self._task_id),
            stage=str(context.stage),
            executing_class=context.executing_class,
            exc_info=context.error,
            **where,
        )
        self._counters.errors_logged += 1
        return None

    def close(self) -> None:
        return

    def abandon(self) -> None:
        return


def of_source_record(record: SourceRecord) -> dict[str, object]:
    """The origin and the target of a record."""
    return {
        "source_partition": record.source_partition,
        "source_offset": record.source_offset,
        "topic": record.topic,
        "partition": record.partition,
        "timestamp": record.timestamp,
    }


def of_consumer_record(record: ConsumerRecord) -> dict[str, object]:
    """The location of a consumed record."""
    return {
        "topic": record.topic_partition.topic,
        "partition": record.topic_partition.partition,
        "offset": record.offset,
        "timestamp": record.timestamp,
        "timestamp_type": "LogAppendTime" if record.is_log_append_time else "CreateTime",
    }
