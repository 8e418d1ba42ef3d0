"""Keys and values of the offsets topic (JSON without schema, maps in Java's order)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mm2.connect.api import ConnectError
from mm2.connect.stores import internal_json


class OffsetJson:
    """Keys and values of the offsets topic (JSON without schema, maps in Java's order)."""

    @staticmethod
    def key(connector: str, partition: Mapping[str, Any] | None) -> bytes:
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
