"""Numbers and booleans in a fixed number of bytes, big-endian (org.apache.kafka.connect.converters)."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import Any, ClassVar

from mm2 import __version__
from mm2.config.configdef import ConfigDef
from mm2.connect.api.converter import Converter, HeaderConverter, KafkaHeaders
from mm2.connect.converters.keys import converter_config
from mm2.connect.data.errors import DataError
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import (
    OPTIONAL_BOOLEAN_SCHEMA,
    OPTIONAL_FLOAT32_SCHEMA,
    OPTIONAL_FLOAT64_SCHEMA,
    OPTIONAL_INT16_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_INT64_SCHEMA,
    Schema,
    SchemaAndValue,
    Type,
)
from mm2.connect.data.struct import validate_value


class FixedWidthConverter(Converter, HeaderConverter):
    """Serializes values of one type and deserializes them with the optional schema; None stays None."""

    layout: ClassVar[struct.Struct]
    schema: ClassVar[Schema]

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return converter_config()

    def configure(self, props: Mapping[str, Any], *, is_key: bool = False) -> None:
        return

    def _taken(self, topic: str, schema: Schema | None, value: Any) -> Any:
        name = type(self).__name__
        if schema is not None and schema.type is not self.schema.type:
            raise DataError(f"{name} takes {self.schema.type.value} only, not {schema.type.value} (topic {topic})")
        try:
            validate_value(self.schema, value)
        except DataError as error:
            raise DataError(f"{name} takes {self.schema.type.value} only (topic {topic}): {error}") from error
        return value

    def from_connect_data(self, topic: str, headers: KafkaHeaders, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        taken = self._taken(topic, schema, value)
        try:
            return self.layout.pack(taken)
        except OverflowError:
            return self.layout.pack(Float32(taken))

    def to_connect_data(self, topic: str, headers: KafkaHeaders, data: bytes | None) -> SchemaAndValue:
        if data is None:
            return SchemaAndValue(self.schema, None)
        if len(data) != self.layout.size:
            raise DataError(
                f"{type(self).__name__} reads {self.layout.size} bytes, but there are {len(data)} (topic {topic})"
            )
        return SchemaAndValue(self.schema, self._read(data))

    def _read(self, data: bytes) -> Any:
        return self.layout.unpack(data)[0]

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        return self.from_connect_data(topic, (), schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        return self.to_connect_data(topic, (), data)


class ShortConverter(FixedWidthConverter):
    """INT16 in two bytes."""

    layout = struct.Struct(">h")
    schema = OPTIONAL_INT16_SCHEMA


class IntegerConverter(FixedWidthConverter):
    """INT32 in four bytes."""

    layout = struct.Struct(">i")
    schema = OPTIONAL_INT32_SCHEMA


class LongConverter(FixedWidthConverter):
    """INT64 in eight bytes."""

    layout = struct.Struct(">q")
    schema = OPTIONAL_INT64_SCHEMA


class FloatConverter(FixedWidthConverter):
    """FLOAT32 in four bytes."""

    layout = struct.Struct(">f")
    schema = OPTIONAL_FLOAT32_SCHEMA

    def _read(self, data: bytes) -> Any:
        return Float32(super()._read(data))


class DoubleConverter(FixedWidthConverter):
    """FLOAT64 in eight bytes."""

    layout = struct.Struct(">d")
    schema = OPTIONAL_FLOAT64_SCHEMA


class BooleanConverter(FixedWidthConverter):
    """BOOLEAN as one byte, 0 or 1."""

    layout = struct.Struct(">?")
    schema = OPTIONAL_BOOLEAN_SCHEMA

    def from_connect_data(self, topic: str, headers: KafkaHeaders, schema: Schema | None, value: Any) -> bytes | None:
        # As in Java, only this converter checks the schema of a null value.
        if value is None and schema is not None and schema.type is not Type.BOOLEAN:
            raise DataError(f"BooleanConverter takes BOOLEAN only, not {schema.type.value} (topic {topic})")
        return super().from_connect_data(topic, headers, schema, value)

    def _read(self, data: bytes) -> Any:
        if data not in {b"\x00", b"\x01"}:
            raise DataError(f"BooleanConverter reads 0 or 1, not {data[0]}")
        return data == b"\x01"
