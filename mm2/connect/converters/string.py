"""Text (org.apache.kafka.connect.storage.StringConverter)."""

from __future__ import annotations

import codecs
from collections.abc import Mapping
from typing import Any, Final

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, Type, Width
from mm2.connect.api.converter import Converter, HeaderConverter, KafkaHeaders
from mm2.connect.converters.keys import converter_config, with_type
from mm2.connect.data.java_text import java_text
from mm2.connect.data.schema import OPTIONAL_STRING_SCHEMA, Schema, SchemaAndValue

ENCODING: Final = "converter.encoding"
STRING_CONVERTER_CONFIG: Final = converter_config().define(
    ENCODING,
    Type.STRING,
    "UTF-8",
    importance=Importance.HIGH,
    doc="The name of the Java character set to write and read text with.",
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
