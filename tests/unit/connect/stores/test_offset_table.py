from __future__ import annotations

import json

import pytest

from mm2.connect.api import ConnectError
from mm2.connect.stores.offset_table import OffsetTable

KEY = b'["c",{"cluster":"A","partition":0,"topic":"t"}]'
OTHER_ORDER = b'["c",{"topic":"t","partition":0,"cluster":"A"}]'
PARTITION = {"topic": "t", "cluster": "A", "partition": 0}


def table(*records: tuple[bytes, bytes | None]) -> OffsetTable:
    made = OffsetTable()
    for key, value in records:
        made.update({key: value})
    return made


def test_offsets_are_found_by_their_partition() -> None:
    offsets = table((KEY, b'{"offset":42}'))
    assert offsets.offset("c", PARTITION) == {"offset": 42}
    assert offsets.offset("d", PARTITION) is None
    assert offsets.offset("c", {**PARTITION, "partition": 1}) is None
    offsets.update({KEY: None})
    assert offsets.offset("c", PARTITION) is None
    assert offsets.all_offsets("c") == []


def test_a_key_in_another_order_is_the_same_partition() -> None:
    offsets = table((OTHER_ORDER, b'{"offset":1}'))
    assert offsets.offset("c", PARTITION) == {"offset": 1}
    assert offsets.all_offsets("c") == [(PARTITION, {"offset": 1})]
    offsets.update({KEY: b'{"offset":2}'})
    assert offsets.offset("c", PARTITION) == {"offset": 2}
    assert offsets.all_offsets("c") == [(PARTITION, {"offset": 2})]
    assert offsets.keys_of("c", PARTITION) == [KEY, OTHER_ORDER]
    offsets.update({KEY: None})
    assert offsets.offset("c", PARTITION) == {"offset": 1}
    offsets.update({OTHER_ORDER: None})
    assert offsets.offset("c", PARTITION) is None
    assert offsets.keys_of("c", PARTITION) == [KEY]


def test_foreign_keys_are_ignored() -> None:
    offsets = table(*((key, b'{"offset":1}') for key in (b"x", b'["c"]', b'{"c":1}', b'["\xff",{"a":1}]')))
    assert offsets.all_offsets("c") == []
    assert len(offsets) == 4


@pytest.mark.parametrize("name", ['say "c"', "a\\b", 'x",{"', "ü€😀", "", "line\nbreak"])
def test_names_that_json_must_escape_are_found(name: str) -> None:
    written = [
        json.dumps([name, {"p": 1}], ensure_ascii=ascii_only, separators=separators).encode()
        for ascii_only in (False, True)
        for separators in ((",", ":"), (", ", ": "))
    ]
    for key in written:
        offsets = table((key, b'{"o":1}'), (b'["other",{"p":1}]', b'{"o":2}'))
        assert offsets.all_offsets(name) == [({"p": 1}, {"o": 1})]
        assert offsets.offset(name, {"p": 1}) == {"o": 1}


def test_offsets_deleted_between_two_reads_are_not_kept() -> None:
    offsets = table((KEY, b'{"offset":1}'))
    assert len(offsets.all_offsets("c")) == 1
    for number in range(1000):
        key = b'["c",{"partition":%d}]' % number
        offsets.update({key: b'{"offset":1}'})
        offsets.update({key: b'{"offset":2}'})
        offsets.update({key: None})
        offsets.update({key: None})
    assert not offsets._changed
    offsets.update({KEY: None})
    offsets.update({KEY: b'{"offset":3}'})
    assert offsets.all_offsets("c") == [(PARTITION, {"offset": 3})]


def test_the_last_value_of_a_key_wins_and_a_tombstone_of_an_unknown_key_is_accepted() -> None:
    offsets = OffsetTable()
    offsets.update({b'["c",{"p":1}]': None, b'["c",{"p":2}]': b'{"o":2}'})
    assert offsets.all_offsets("c") == [({"p": 2}, {"o": 2})]


def test_an_invalid_offset_fails_only_its_own_connector() -> None:
    offsets = table((KEY, b"[1]"), (b'["d",{"p":1}]', b'{"o":2}'))
    with pytest.raises(ConnectError, match="must be a JSON object"):
        offsets.offset("c", PARTITION)
    assert offsets.offset("d", {"p": 1}) == {"o": 2}
