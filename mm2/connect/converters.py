"""From a record's Python values to the bytes on the topic and back (org.apache.kafka.connect.storage.Converter)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from mm2.connect.api import ConnectError
from mm2.connect.stores import internal_json


class Converter(ABC):
    """Serialises keys, values or headers of one connector. ``topic`` is given because some formats depend on it."""

    def configure(self, props: Mapping[str, str], *, is_key: bool) -> None:
        """Called once with the keys behind the converter's prefix. Raises ConnectError when they are bad."""
        return

    @abstractmethod
    def from_connect(self, topic: str, value: Any) -> bytes | None:
        """Bytes for a value; None stays None. Raises ConnectError when the value has the wrong type."""

    @abstractmethod
    def to_connect(self, topic: str, data: bytes | None) -> Any:
        """The value in some bytes. Raises ConnectError when they are not what this converter writes."""


class ByteArrayConverter(Converter):
    """Passes bytes through untouched (org.apache.kafka.connect.converters.ByteArrayConverter)."""

    def from_connect(self, topic: str, value: Any) -> bytes | None:
        if value is None or isinstance(value, bytes):
            return value
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        raise ConnectError(f"ByteArrayConverter takes bytes only, not {type(value).__name__} (topic {topic})")

    def to_connect(self, topic: str, data: bytes | None) -> Any:
        return data


class OffsetJson:
    """Keys and values of the offsets topic (JSON without schema, maps in Java's order; spec connect B.3)."""

    @staticmethod
    def key(connector: str, partition: Mapping[str, Any]) -> bytes:
        """Key bytes of a source partition. Raises ConnectError when it is not a flat map with string keys."""
        internal_json.require_flat("partition", partition)
        encoded = internal_json.encode([connector, internal_json.hash_ordered(partition)])
        if encoded is None:
            raise AssertionError("an array is never null")
        return encoded

    @staticmethod
    def value(offset: Mapping[str, Any] | None) -> bytes | None:
        """Value bytes of a source offset; None is a tombstone. Raises ConnectError when it is not flat."""
        internal_json.require_flat("offset", offset)
        return internal_json.encode(internal_json.hash_ordered(offset))

    @staticmethod
    def parse_key(data: bytes) -> tuple[str, dict[str, Any]] | None:
        """Connector and partition in a key; None when the key is not one of Connect's."""
        try:
            parsed = internal_json.decode(data)
        except ConnectError:
            return None
        if not isinstance(parsed, list) or len(parsed) != 2:
            return None
        connector, partition = parsed
        if not isinstance(connector, str) or not isinstance(partition, dict):
            return None
        return connector, partition

    @staticmethod
    def parse_value(data: bytes | None) -> dict[str, Any] | None:
        """The offset in a value. Raises ConnectError when it is not a map."""
        parsed = internal_json.decode(data)
        if parsed is not None and not isinstance(parsed, dict):
            raise ConnectError(f"An offset must be a JSON object, not {type(parsed).__name__}")
        return parsed
