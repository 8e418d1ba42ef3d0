"""Bytes without conversion (org.apache.kafka.connect.converters.ByteArrayConverter)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mm2 import __version__
from mm2.config.configdef import ConfigDef
from mm2.connect.api.converter import Converter, HeaderConverter, KafkaHeaders
from mm2.connect.converters.keys import converter_config
from mm2.connect.data.errors import DataError
from mm2.connect.data.schema import OPTIONAL_BYTES_SCHEMA, Schema, SchemaAndValue, Type


class ByteArrayConverter(Converter, HeaderConverter):
    """Passes bytes through unchanged; deserialized values have the optional bytes schema."""

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return converter_config()

    def configure(self, props: Mapping[str, Any], *, is_key: bool = False) -> None:
        return

    def from_connect_data(self, topic: str, headers: KafkaHeaders, schema: Schema | None, value: Any) -> bytes | None:
        if schema is not None and schema.type is not Type.BYTES:
            raise DataError(f"Invalid schema type for ByteArrayConverter: {schema.type.value} (topic {topic})")
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise DataError(f"ByteArrayConverter takes bytes only, not {type(value).__name__} (topic {topic})")

    def to_connect_data(self, topic: str, headers: KafkaHeaders, data: bytes | None) -> SchemaAndValue:
        return SchemaAndValue(OPTIONAL_BYTES_SCHEMA, data)

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        return self.from_connect_data(topic, (), schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        return self.to_connect_data(topic, (), data)
