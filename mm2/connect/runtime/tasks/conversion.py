"""Converters of a task: built from configurations, and used for the records of source tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from mm2.connect.api import ConnectError, Converter, HeaderConverter, SourceRecord
from mm2.connect.plugins import PluginLoader, Plugins
from mm2.connect.runtime.tasks.base import Converters
from mm2.connect.runtime.tolerance import (
    ConversionFailed,
    Failed,
    ProcessingContext,
    ProcessingStage,
    RetryWithToleranceOperator,
)
from mm2.kafka.records.record import Record, record_of

C = TypeVar("C", Converter, HeaderConverter)
T = TypeVar("T")

_NO_TIMESTAMP: Final = -1
# In every record; a member's look-up in its class takes longer than that of a global name.
_HEADER: Final = ProcessingStage.HEADER_CONVERTER
_KEY: Final = ProcessingStage.KEY_CONVERTER
_VALUE: Final = ProcessingStage.VALUE_CONVERTER


def build_converters(
    plugins: Plugins,
    props: Mapping[str, str],
    loader: PluginLoader | None,
    worker_props: Mapping[str, str],
    worker_class: Callable[[str], str],
) -> Converters:
    """The connector's converters where ``props`` name them, otherwise the worker's, each with the settings beside its name.

    ``worker_class`` returns the worker's class for a key. Raises ConnectError or ConfigException.
    """

    def build(key: str, kind: type[C]) -> C:
        own = props.get(key) is not None
        given = props if own else worker_props
        converter = plugins.new(
            given.get(key) or worker_class(key),
            kind,
            key=key,
            version=given.get(f"{key}.plugin.version"),
            loader=loader if own else None,
        )
        prefix = f"{key}."
        settings = {name.removeprefix(prefix): value for name, value in given.items() if name.startswith(prefix)}
        with plugins.swap(plugins.loader_of(converter)):
            if isinstance(converter, Converter) and kind is Converter:
                converter.configure(settings, is_key=key == "key.converter")
            elif isinstance(converter, HeaderConverter):
                converter.configure({**settings, "converter.type": "header"})
        return converter

    key, value = build("key.converter", Converter), build("value.converter", Converter)
    header = build("header.converter", HeaderConverter)
    return Converters(
        key,
        value,
        header,
        plugins.name_of(type(key), Converter),
        plugins.name_of(type(value), Converter),
        plugins.name_of(type(header), HeaderConverter),
    )


class SourceRecordConverter:
    """Converts the records of one task, with or without its operator. On the task's thread."""

    def __init__(self, converters: Converters, operator: RetryWithToleranceOperator[Any]) -> None:
        self._converters = converters
        self._operator = operator
        self._header = converters.header.from_connect_header
        self._key = converters.key.from_connect_data
        self._value = converters.value.from_connect_data

    def convert_once(self, record: SourceRecord, offset: int = -1) -> Record:
        """The record as bytes, with this offset, without the operator. Raises ConversionFailed, and ConnectError for its
        timestamp.
        """
        topic, stage, convert = record.topic, _HEADER, self._header
        try:
            headers = [(name, convert(topic, name, schema, content)) for name, content, schema in record.headers]
            stage = _KEY
            key = self._key(topic, headers, record.key_schema, record.key)
            stage = _VALUE
            value = self._value(topic, headers, record.value_schema, record.value)
        except Exception as error:
            raise ConversionFailed(Failed(stage, error)) from error
        return record_of((key, value, tuple(headers), _producible_timestamp(record.timestamp), offset))

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
        return Record(key, value, tuple(headers), _producible_timestamp(record.timestamp))


def _producible_timestamp(timestamp: int | None) -> int | None:
    if timestamp is None or timestamp >= 0:
        return timestamp
    if timestamp == _NO_TIMESTAMP:
        return None
    raise ConnectError(f"Invalid record timestamp {timestamp}")
