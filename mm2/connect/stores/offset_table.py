"""Source offsets in memory, as stored bytes: read in bulk, parsed on demand.

Keys and values are JSON without schema, with maps in the order of Java's HashMap.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import structlog

from mm2.connect.api import ConnectError
from mm2.connect.stores import internal_json
from mm2.kafka.readers.log import RecordWarnings, in_log

log = structlog.get_logger(__name__)


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


class OffsetTable:
    """Latest value per key. Thread-safe.

    A worker may read two million records at startup and use few of them, so nothing is parsed while reading. Keys are
    sorted by connector on the first request that needs it, and then kept sorted.

    Java looks up offsets by the bytes of their key. Other programs may write the same map in another order. So when
    there is no exact match, keys with equal content in other bytes (*aliases*) are used.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._warnings = RecordWarnings(log)
        self._values: dict[bytes, bytes] = {}
        self._keys: dict[str, set[bytes]] | None = None
        # Keys added or removed since the index was updated; a key that was added and removed is not in it.
        self._changed: set[bytes] = set()
        # By connector and the key that Java would write; filled on demand.
        self._aliases: dict[str, dict[bytes, set[bytes]]] = {}

    def __len__(self) -> int:
        return len(self._values)

    def update(self, values: Mapping[bytes, bytes | None]) -> None:
        """Apply the latest value of each key; None removes it."""
        gone = [key for key, value in values.items() if value is None]
        with self._lock:
            if self._keys is not None:
                present = self._values.keys()
                self._changed ^= {key for key in values.keys() - present if values[key] is not None}
                self._changed ^= {key for key in gone if key in present}
            # Keys with None are removed below.
            self._values.update(values)  # type: ignore[arg-type]
            for key in gone:
                del self._values[key]

    def snapshot(self) -> dict[bytes, bytes]:
        """All keys and values as stored."""
        with self._lock:
            return dict(self._values)

    def offset(self, connector: str, partition: Mapping[str, Any]) -> dict[str, Any] | None:
        """The offset of a partition, None when there is none. Raises ConnectError when it cannot be read."""
        key = OffsetJson.key(connector, partition)
        with self._lock:
            value = self._values.get(key)
            if value is None:
                for alias in self._aliases_of(connector).get(key, ()):
                    value = self._values[alias]
        return OffsetJson.parse_value(value)

    def keys_of(self, connector: str, partition: Mapping[str, Any] | None) -> list[bytes]:
        """The key that Java would write for a partition, and all existing keys with equal content."""
        key = OffsetJson.key(connector, partition)
        with self._lock:
            return [key, *sorted(self._aliases_of(connector).get(key, ()))]

    def all_offsets(self, connector: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        """Every partition of a connector with its offset, ordered by key. Raises ConnectError like `offset`."""
        with self._lock:
            aliases = self._aliases_of(connector)
            hidden = {alias for key, others in aliases.items() for alias in others if key in self._values}
            found = [(key, self._values[key]) for key in sorted(self._index().get(connector, set()) - hidden)]
        offsets = []
        for key, value in found:
            named, offset = OffsetJson.parse_key(key), OffsetJson.parse_value(value)
            if named is not None and offset is not None:
                offsets.append((named[1], offset))
        return offsets

    def _index(self) -> dict[str, set[bytes]]:
        if self._keys is None:
            self._keys = {}
            self._changed = set(self._values)
        for key in self._changed:
            connector = _connector_of(key)
            if connector is None:
                if key in self._values:
                    self._warnings.warning("offset record with an unknown key", key=in_log(key))
                continue
            keys = self._keys.setdefault(connector, set())
            if key in self._values:
                keys.add(key)
            else:
                keys.discard(key)
            if connector in self._aliases:
                self._sort_in(connector, key)
        self._changed.clear()
        return self._keys

    def _aliases_of(self, connector: str) -> dict[bytes, set[bytes]]:
        keys = self._index().get(connector, set())
        if connector not in self._aliases:
            self._aliases[connector] = {}
            for key in keys:
                self._sort_in(connector, key)
        return self._aliases[connector]

    def _sort_in(self, connector: str, key: bytes) -> None:
        canonical = _canonical(key)
        if canonical in {None, key}:
            return
        others = self._aliases[connector].setdefault(canonical or b"", set())
        if key in self._values:
            others.add(key)
        else:
            others.discard(key)


def _connector_of(key: bytes) -> str | None:
    """The connector in a key, without parsing keys written by Connect; None when the key is not one of Connect's."""
    if key.startswith(b'["') and key.endswith(b"}]"):
        end = key.find(b'",{', 2)
        name = key[2:end]
        if end > 0 and b"\\" not in name and b'"' not in name:
            try:
                return name.decode("utf-8", "surrogatepass")
            except UnicodeDecodeError:
                return None
    named = OffsetJson.parse_key(key)
    return None if named is None else named[0]


def _canonical(key: bytes) -> bytes | None:
    named = OffsetJson.parse_key(key)
    if named is None:
        return None
    try:
        return OffsetJson.key(*named)
    except ConnectError:
        return None  # nested maps: not valid in a request
