from __future__ import annotations

from mm2.connect.stores.offset_store import OffsetFold

KEY = b'["c",{"cluster":"A","partition":0,"topic":"t"}]'
PARTITION = {"topic": "t", "cluster": "A", "partition": 0}


def test_offsets_are_found_by_their_partition() -> None:
    fold = OffsetFold()
    fold.apply(KEY, b'{"offset":42}')
    assert fold.offset("c", PARTITION) == {"offset": 42}
    assert fold.offset("d", PARTITION) is None
    assert fold.offset("c", {**PARTITION, "partition": 1}) is None
    fold.apply(KEY, None)
    assert fold.offset("c", PARTITION) is None
    assert fold.partitions("c") == []


def test_a_key_in_another_order_is_the_same_partition() -> None:
    fold = OffsetFold()
    fold.apply(b'["c",{"topic":"t","partition":0,"cluster":"A"}]', b'{"offset":1}')
    assert fold.offset("c", PARTITION) == {"offset": 1}
    fold.apply(KEY, b'{"offset":2}')
    assert fold.offset("c", PARTITION) == {"offset": 2}


def test_foreign_keys_are_kept_out() -> None:
    fold = OffsetFold()
    for key in (b"x", b'["c"]', b'{"c":1}', None):
        fold.apply(key, b'{"offset":1}')
    assert fold.partitions("c") == []
