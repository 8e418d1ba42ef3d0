"""Headers as text from which the type can be inferred (org.apache.kafka.connect.storage.SimpleHeaderConverter)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import structlog

from mm2 import __version__
from mm2.config.configdef import ConfigDef
from mm2.connect.api.converter import HeaderConverter
from mm2.connect.data.schema import BYTES_SCHEMA, NULL, Schema, SchemaAndValue
from mm2.connect.data.values import convert_to_string
from mm2.connect.data.values_parser import parse_string

log = structlog.get_logger(__name__)


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
            log.warning("a header could not be read and stays bytes", header=key, topic=topic, reason=str(error))
            return SchemaAndValue(BYTES_SCHEMA, data)
