"""Conversion of the records of source tasks to bytes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

from mm2.connect.api import ConnectError, SourceRecord
from mm2.connect.runtime.errors.tolerance import (
    ConversionFailed,
    Failed,
    ProcessingContext,
    ProcessingStage,
    RetryWithToleranceOperator,
)
from mm2.connect.runtime.tasks.base import Converters
from mm2.kafka.records.record import Record

T = TypeVar("T")

_NO_TIMESTAMP: Final = -1


class SourceRecordConverter:
    """Converts the records of one task, with or without its operator. On the task's thread."""

    def __init__(self, converters: Converters, operator: RetryWithToleranceOperator[Any]) -> None:
        self._converters = converters
        self._operator = operator

    def convert_once(self, record: SourceRecord) -> Record:
        """The record as bytes, without the operator. Raises ConversionFailed, and ConnectError for its timestamp."""
        topic, converters = record.topic, self._converters
        headers: list[tuple[str, bytes | None]] = []
        stage = ProcessingStage.HEADER_CONVERTER
        try:
            for header in record.headers:
                data = converters.header.from_connect_header(topic, header.key, header.schema, header.value)
                headers.append((header.key, data))
            stage = ProcessingStage.KEY_CONVERTER
            key = converters.key.from_connect_data(topic, headers, record.key_schema, record.key)
            stage = ProcessingStage.VALUE_CONVERTER
            value = converters.value.from_connect_data(topic, headers, record.value_schema, record.value)
        except Exception as error:
            raise ConversionFailed(Failed(stage, error)) from error
        return Record(key, value, tuple(headers), _producible_timestamp(record))

    def convert(
        self, context: ProcessingContext[SourceRecord], record: SourceRecord, failed: Failed | None
    ) -> Record | None:
        """The record as bytes, through the operator; None when the conversion fails and errors are tolerated.

        ``failed`` is the failure of `convert_once`, which counts as the first attempt.
        """
        topic, converters = record.topic, self._converters

        def execute(stage: ProcessingStage, executing_class: str, operation: Callable[[], T]) -> T | None:
            if failed is not None and failed.stage is stage:
                operation = failed.before(operation)
            return self._operator.execute(context, stage, executing_class, operation)

        headers: list[tuple[str, bytes | None]] = (
            execute(
                ProcessingStage.HEADER_CONVERTER,
                converters.header_class,
                lambda: [
                    (header.key, converters.header.from_connect_header(topic, header.key, header.schema, header.value))
                    for header in record.headers
                ],
            )
            or []
        )
        key = execute(
            ProcessingStage.KEY_CONVERTER,
            converters.key_class,
            lambda: converters.key.from_connect_data(topic, headers, record.key_schema, record.key),
        )
        value = execute(
            ProcessingStage.VALUE_CONVERTER,
            converters.value_class,
            lambda: converters.value.from_connect_data(topic, headers, record.value_schema, record.value),
        )
        if context.error is not None:
            return None
        return Record(key, value, tuple(headers), _producible_timestamp(record))


def _producible_timestamp(record: SourceRecord) -> int | None:
    timestamp = None if record.timestamp == _NO_TIMESTAMP else record.timestamp
    if timestamp is not None and timestamp < 0:
        raise ConnectError(f"Invalid record timestamp {timestamp}")
    return timestamp
