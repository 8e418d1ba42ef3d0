"""Converters of single values: strings, bytes, numbers, booleans (org.apache.kafka.connect.converters and .storage)."""

from __future__ import annotations

import codecs
import struct
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import structlog

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, Width, one_of
from mm2.config.configdef import Type as ConfigType
from mm2.connect.api.converter import Converter, HeaderConverter, KafkaHeaders
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import (
    BYTES_SCHEMA,
    NULL,
    OPTIONAL_BOOLEAN_SCHEMA,
    OPTIONAL_BYTES_SCHEMA,
    OPTIONAL_FLOAT32_SCHEMA,
    OPTIONAL_FLOAT64_SCHEMA,
    OPTIONAL_INT16_SCHEMA,
    OPTIONAL_INT32_SCHEMA,
    OPTIONAL_INT64_SCHEMA,
    OPTIONAL_STRING_SCHEMA,
    Schema,
    SchemaAndValue,
    Type,
)
from mm2.connect.data.struct import validate_value
from mm2.connect.data.values import convert_to_string, java_text, parse_string
from mm2.connect.errors import DataError

log = structlog.get_logger(__name__)

TYPE: Final = "converter.type"
_BYTES: Final = Type.BYTES  # a global name: see mm2.connect.data.schema


def converter_config() -> ConfigDef:
    """A definition that begins with ``converter.type``, which the runtime sets."""
    return ConfigDef().define(
        TYPE,
        ConfigType.STRING,
        validator=one_of("key", "value", "header"),
        importance=Importance.LOW,
        doc="What the converter is used for; set by the worker.",
    )


def with_type(props: Mapping[str, Any], *, is_key: bool) -> dict[str, Any]:
    """A converter's settings with ``converter.type``; a header converter's settings already have it."""
    return {TYPE: "key" if is_key else "value", **props}


ENCODING: Final = "converter.encoding"
STRING_CONVERTER_CONFIG: Final = converter_config().define(
    ENCODING,
    ConfigType.STRING,
    "UTF-8",
    importance=Importance.HIGH,
    doc="The name of the Java character set for writing and reading text.",
    width=Width.MEDIUM,
    display_name="Encoding",
)


class StringConverter(Converter, HeaderConverter):
    """Writes any value as Java's toString does, regardless of its schema; reads an optional string."""

    def __init__(self) -> None:
        self._encoding = "utf-8"

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return STRING_CONVERTER_CONFIG

    def configure(self, props: Mapping[str, Any], *, is_key: bool = False) -> None:
        encoding = AbstractConfig(STRING_CONVERTER_CONFIG, with_type(props, is_key=is_key)).str(ENCODING)
        try:
            self._encoding = codecs.lookup(encoding).name
        except LookupError as error:
            raise ConfigException(ENCODING, encoding, "Unknown character set") from error

    def from_connect_data(self, topic: str, headers: KafkaHeaders, schema: Schema | None, value: Any) -> bytes | None:
        if value is None:
            return None
        text = java_text(schema, value)
        if self._encoding == "utf-16":
            # Java writes a byte order mark and big-endian code units.
            return codecs.BOM_UTF16_BE + text.encode("utf-16-be", "replace") if text else b""
        return text.encode(self._encoding, "replace")

    def to_connect_data(self, topic: str, headers: KafkaHeaders, data: bytes | None) -> SchemaAndValue:
        text = None if data is None else self._decoded(data)
        return SchemaAndValue(OPTIONAL_STRING_SCHEMA, text)

    def _decoded(self, data: bytes) -> str:
        if self._encoding == "utf-16" and not data.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
            return data.decode("utf-16-be", "replace")
        return data.decode(self._encoding, "replace")

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        return self.from_connect_data(topic, (), schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        return self.to_connect_data(topic, (), data)


class ByteArrayConverter(Converter, HeaderConverter):
    """Passes bytes through unchanged; deserialized values have the optional bytes schema."""

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return converter_config()

    def configure(self, props: Mapping[str, Any], *, is_key: bool = False) -> None:
        return

    def from_connect_data(self, topic: str, headers: KafkaHeaders, schema: Schema | None, value: Any) -> bytes | None:
        if schema is not None and schema.type is not _BYTES:
            raise DataError(f"Invalid schema type for ByteArrayConverter: {schema.type.value} (topic {topic})")
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise DataError(f"ByteArrayConverter accepts only bytes, not {type(value).__name__} (topic {topic})")

    def to_connect_data(self, topic: str, headers: KafkaHeaders, data: bytes | None) -> SchemaAndValue:
        return SchemaAndValue(OPTIONAL_BYTES_SCHEMA, data)

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        return self.from_connect_data(topic, (), schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        return self.to_connect_data(topic, (), data)


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
            raise DataError(f"{name} accepts only {self.schema.type.value}, not {schema.type.value} (topic {topic})")
        try:
            validate_value(self.schema, value)
        except DataError as error:
            raise DataError(f"{name} accepts only {self.schema.type.value} (topic {topic}): {error}") from error
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
            raise DataError(f"BooleanConverter accepts only BOOLEAN, not {schema.type.value} (topic {topic})")
        return super().from_connect_data(topic, headers, schema, value)

    def _read(self, data: bytes) -> Any:
        if data not in {b"\x00", b"\x01"}:
            raise DataError(f"BooleanConverter reads 0 or 1, not {data[0]}")
        return data == b"\x01"


class SimpleHeaderConverter(HeaderConverter):
    """Writes values with `convert_to_string` and reads them with `parse_string`, or as bytes where that fails."""

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return ConfigDef()

    def configure(self, props: Mapping[str, Any]) -> None:
        return

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        text = convert_to_string(schema, value)
        return None if text is None else text.encode("utf-8", "replace")

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        if data is None:
            return NULL
        try:
            return parse_string(data.decode("utf-8", "replace"))
        except Exception as error:  # noqa: BLE001 - fall back to the bytes after any error
            log.warning("header could not be parsed, keeping it as bytes", header=key, topic=topic, reason=str(error))
            return SchemaAndValue(BYTES_SCHEMA, data)
