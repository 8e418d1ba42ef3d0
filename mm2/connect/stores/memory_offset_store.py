"""Source offsets in memory, not persistent (MemoryOffsetBackingStore of Java)."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from mm2.connect.stores.offset_json import OffsetJson
from mm2.connect.stores.offset_store import OffsetStore, SourceOffset
from mm2.connect.stores.offset_table import OffsetTable


class MemoryOffsetStore(OffsetStore):
    """Offsets of a standalone worker. Subclasses override `_save` for persistence."""

    def __init__(self) -> None:
        self._table = OffsetTable()
        self._writing = threading.Lock()

    def start(self) -> None:
        return

    def stop(self) -> None:
        return

    def offsets(
        self, connector: str, partitions: Sequence[Mapping[str, Any]], timeout_s: float
    ) -> list[dict[str, Any] | None]:
        return [self._table.offset(connector, partition) for partition in partitions]

    def all_offsets(self, connector: str, timeout_s: float) -> list[tuple[dict[str, Any], dict[str, Any]]]:
        return self._table.all_offsets(connector)

    def write(self, connector: str, offsets: Iterable[SourceOffset], timeout_s: float) -> None:
        values: dict[bytes, bytes | None] = {}
        for partition, offset in offsets:
            if offset is None:
                values.update(dict.fromkeys(self._table.keys_of(connector, partition)))
            else:
                values[OffsetJson.key(connector, partition)] = OffsetJson.value(offset)
        if not values:
            return
        with self._writing:
            whole = self._table.snapshot()
            for key, value in values.items():
                if value is None:
                    whole.pop(key, None)
                else:
                    whole[key] = value
            # Save first: readers must not see an offset that would be unknown after a restart.
            self._save(whole)
            self._table.update(values)

    def _save(self, values: Mapping[bytes, bytes]) -> None:
        return
