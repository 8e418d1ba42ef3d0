"""Changing the offsets of a source connector from outside."""

from __future__ import annotations

from mm2.connect.herder.connector_offsets import StoredOffsets
from mm2.connect.stores.offset_store import MemoryOffsetStore

P1, P2 = {"p": 1}, {"p": 2}


class Behind(MemoryOffsetStore):
    """Other processes have written records to it that it has not read yet, with other key bytes."""

    def refresh(self, timeout_s: float) -> None:
        self._table.update({b'["c", {"p": 1}]': b'{"o":7}'})


def test_an_offset_is_also_removed_under_keys_written_just_before() -> None:
    store = Behind()
    store.write("c", [(P1, {"o": 1}), (P2, {"o": 2})], 1)
    StoredOffsets(store, "c").write([(P1, None)], 1)
    assert store.all_offsets("c", 1) == [(P2, {"o": 2})]
