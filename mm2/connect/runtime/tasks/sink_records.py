"""Records of a sink task, from the consumer to the plugin: conversion, and the batch for the next ``put``."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any, Final, Self, TypeVar

from mm2.connect.api import ConnectError, Headers, OffsetAndMetadata, SinkRecord, TimestampType
from mm2.connect.data.record import NO_HEADERS, Header
from mm2.connect.data.schema import SchemaAndValue
from mm2.connect.runtime.error_reporters import PendingReports
from mm2.connect.runtime.tasks.base import Converters
from mm2.connect.runtime.tolerance import (
    Failed,
    ProcessingContext,
    ProcessingStage,
    RetryWithToleranceOperator,
)
from mm2.connect.runtime.transformation_chain import TransformationChain
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.structs import TopicPartition

T = TypeVar("T")

_NO_TIMESTAMP: Final = -1
Offsets = dict[TopicPartition, OffsetAndMetadata]


@dataclass(frozen=True)
class InternalSinkRecord(SinkRecord):
    """A record that keeps its consumed form through transformations."""

    read: ConsumerRecord | None = field(default=None, repr=False, compare=False)

    @classmethod
    def of(
        cls, record: ConsumerRecord, key: SchemaAndValue, value: SchemaAndValue, headers: Headers, *, keep: bool
    ) -> Self:
        """A record after conversion; ``keep``: keep the consumed record, too."""
        topic, partition = record.topic_partition
        has_timestamp = record.timestamp != _NO_TIMESTAMP
        made = object.__new__(cls)
        # The assignments that dataclass would generate, field by field, take three times as long.
        object.__setattr__(
            made,
            "__dict__",
            {
                "topic": topic,
                "partition": partition,
                "key": key.value,
                "value": value.value,
                "kafka_offset": record.offset,
                "headers": headers,
                "timestamp": record.timestamp if has_timestamp else None,
                "timestamp_type": _timestamp_type(record),
                "key_schema": key.schema,
                "value_schema": value.schema,
                "original_topic": topic,
                "original_kafka_partition": partition,
                "original_kafka_offset": record.offset,
                "read": record if keep else None,
            },
        )
        return made


def _timestamp_type(record: ConsumerRecord) -> TimestampType:
    if record.timestamp == _NO_TIMESTAMP:
        return TimestampType.NO_TIMESTAMP_TYPE
    return TimestampType.LOG_APPEND_TIME if record.is_log_append_time else TimestampType.CREATE_TIME


def original_of(record: SinkRecord) -> ConsumerRecord | None:
    """The consumed record; None for a record that the plugin has created, or if it was not kept."""
    return record.read if isinstance(record, InternalSinkRecord) else None


class SinkBatch:
    """Records for the next ``put``, and the offsets that they cover."""

    def __init__(self) -> None:
        self.records: list[SinkRecord] = []
        #: Position after the last record of the batch, by partition.
        self.offsets: Offsets = {}

    def add(self, consumed: ConsumerRecord, converted: SinkRecord | None) -> None:
        """Add a record; None: it is skipped, and only its offset counts."""
        self.offsets[consumed.topic_partition] = OffsetAndMetadata(consumed.offset + 1)
        if converted is not None:
            self.records.append(converted)

    def drop(self, partitions: Collection[TopicPartition]) -> None:
        """Remove the records of some partitions."""
        self.records = [
            record
            for record in self.records
            if TopicPartition(record.original_topic, record.original_kafka_partition) not in partitions
        ]
        for tp in partitions:
            self.offsets.pop(tp, None)

    def clear(self) -> None:
        """Remove all records."""
        self.offsets.clear()
        self.records.clear()


class SinkRecordConverter:
    """Converts and transforms the consumed records of one task; errors go through its operator.

    ``keep_consumed``: converted records keep their consumed form, for reports. ``on_topic`` is called with the topic of
    each record.
    """

    def __init__(
        self,
        converters: Converters,
        transformations: TransformationChain,
        operator: RetryWithToleranceOperator[Any],
        pending_reports: PendingReports,
        *,
        keep_consumed: bool,
        on_topic: Callable[[str], None],
    ) -> None:
        self._converters = converters
        self._transformations = transformations
        self._operator = operator
        self._pending_reports = pending_reports
        self._keep_consumed = keep_consumed
        self._note_topic = on_topic

    def convert(self, record: ConsumerRecord) -> SinkRecord | None:
        """The record for the task; None when it is filtered, or its conversion failed and that is tolerated."""
        topic, converters = record.topic_partition.topic, self._converters
        stage = ProcessingStage.KEY_CONVERTER
        try:
            key = converters.key.to_connect_data(topic, record.headers, record.key)
            stage = ProcessingStage.VALUE_CONVERTER
            value = converters.value.to_connect_data(topic, record.headers, record.value)
            stage = ProcessingStage.HEADER_CONVERTER
            headers = self._headers(topic, record) if record.headers else NO_HEADERS
        except Exception as error:  # noqa: BLE001 - plugins may raise any exception
            return self._convert_again(record, Failed(stage, error))
        made = self._sink_record(record, key, value, headers)
        if not self._transformations.stages:
            return made
        context = ProcessingContext(record)
        return self._track_report(context, self._transformations.apply(context, made))

    def _convert_again(self, record: ConsumerRecord, failed: Failed) -> SinkRecord | None:
        """Like `convert`, after a failed first attempt."""
        topic, converters = record.topic_partition.topic, self._converters
        context = ProcessingContext(record)

        def execute(stage: ProcessingStage, executing_class: str, operation: Callable[[], T]) -> T | None:
            if failed.stage is stage:
                operation = failed.before(operation)
            return self._operator.execute(context, stage, executing_class, operation)

        key = execute(
            ProcessingStage.KEY_CONVERTER,
            converters.key_class,
            lambda: converters.key.to_connect_data(topic, record.headers, record.key),
        )
        value = execute(
            ProcessingStage.VALUE_CONVERTER,
            converters.value_class,
            lambda: converters.value.to_connect_data(topic, record.headers, record.value),
        )
        headers = execute(
            ProcessingStage.HEADER_CONVERTER,
            converters.header_class,
            lambda: self._headers(topic, record) if record.headers else NO_HEADERS,
        )
        if key is None or value is None or headers is None:
            return self._track_report(context, None)
        return self._track_report(
            context, self._transformations.apply(context, self._sink_record(record, key, value, headers))
        )

    def _track_report(
        self, context: ProcessingContext[ConsumerRecord], converted: SinkRecord | None
    ) -> SinkRecord | None:
        """Return ``converted``; if its error report is incomplete, commits of later offsets wait for the report."""
        if converted is None and context.reported is not None and not context.reported.done():
            self._pending_reports.add(context.original.topic_partition, context.reported)
        return converted

    def _sink_record(
        self, record: ConsumerRecord, key: SchemaAndValue, value: SchemaAndValue, headers: Headers
    ) -> InternalSinkRecord:
        if record.timestamp < _NO_TIMESTAMP:
            raise ConnectError(f"Invalid record timestamp {record.timestamp}")
        self._note_topic(record.topic_partition.topic)
        return InternalSinkRecord.of(record, key, value, headers, keep=self._keep_consumed)

    def _headers(self, topic: str, record: ConsumerRecord) -> Headers:
        convert = self._converters.header.to_connect_header
        headers = []
        for name, data in record.headers:
            found = convert(topic, name, data)
            headers.append(Header(name, found.value, found.schema))
        return Headers(headers)

    def rebuild(self, record: SinkRecord) -> ConsumerRecord:
        """A consumed record for one that the task has created itself, or kept from an earlier batch."""
        topic, converters = record.topic, self._converters
        headers = [
            (header.key, converters.header.from_connect_header(topic, header.key, header.schema, header.value))
            for header in record.headers
        ]
        return ConsumerRecord(
            TopicPartition(record.original_topic, record.original_kafka_partition),
            record.original_kafka_offset,
            converters.key.from_connect_data(topic, headers, record.key_schema, record.key),
            converters.value.from_connect_data(topic, headers, record.value_schema, record.value),
            tuple(headers),
            _NO_TIMESTAMP if record.timestamp is None else record.timestamp,
            record.timestamp_type is TimestampType.LOG_APPEND_TIME,
        )
