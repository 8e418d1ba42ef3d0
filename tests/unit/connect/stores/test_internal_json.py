"""Bytes of the internal topics, recorded from Java Connect 4.3.0."""

from __future__ import annotations

import pytest

from mm2.connect.api import ConnectError
from mm2.connect.converters import ByteArrayConverter
from mm2.connect.stores import internal_json
from mm2.connect.stores.internal_json import hash_map_order, string_hash
from mm2.connect.stores.offset_table import OffsetJson


def test_string_hash_is_java_s() -> None:
    assert string_hash("hello") == 99162322
    assert string_hash("") == 0
    assert string_hash("polygenelubricants") == 0x80000000
    assert string_hash("\U0001f600") == 1772899  # two UTF-16 units: 0xd83d * 31 + 0xde00


@pytest.mark.parametrize(
    ("connector", "partition", "key"),
    [
        (
            "MirrorSourceConnector",
            {"topic": "t", "partition": 3, "cluster": "A"},
            '["MirrorSourceConnector",{"cluster":"A","partition":3,"topic":"t"}]',
        ),
        (
            "MirrorCheckpointConnector",
            {"group": "g1", "topic": "A.t", "partition": 3},
            '["MirrorCheckpointConnector",{"partition":3,"topic":"A.t","group":"g1"}]',
        ),
        (
            "MirrorHeartbeatConnector",
            {"targetClusterAlias": "B", "sourceClusterAlias": "A"},
            '["MirrorHeartbeatConnector",{"sourceClusterAlias":"A","targetClusterAlias":"B"}]',
        ),
        ("mm", {"topic": "t", "cluster": "A", "partition": 0}, '["mm",{"cluster":"A","partition":0,"topic":"t"}]'),
        ("mm", {"topic": "é✓"}, '["mm",{"topic":"é✓"}]'),
    ],
)
def test_offset_keys_have_java_s_map_order(connector: str, partition: dict[str, object], key: str) -> None:
    assert OffsetJson.key(connector, partition) == key.encode()
    assert OffsetJson.parse_key(key.encode()) == (connector, partition)


@pytest.mark.parametrize(
    ("put", "iterated"),
    [
        ("name connector.class topic tasks.max umlaut", "connector.class umlaut tasks.max name topic"),
        (
            "key.0 key.1 key.2 key.3 key.4 key.5 key.6 key.7 key.8 key.9 key.10 key.11",
            "key.2 key.1 key.0 key.11 key.10 key.6 key.5 key.4 key.3 key.9 key.8 key.7",
        ),
        (  # the thirteenth doubles the table
            "key.0 key.1 key.2 key.3 key.4 key.5 key.6 key.7 key.8 key.9 key.10 key.11 key.12",
            "key.12 key.2 key.1 key.0 key.11 key.10 key.6 key.5 key.4 key.3 key.9 key.8 key.7",
        ),
        (  # with three keys of one hash, and one beyond the basic plane
            "é ✓ 😀 name connector.class source.cluster.alias target.cluster.alias AaAa BBBB AaBB",
            "connector.class target.cluster.alias ✓ 😀 name source.cluster.alias é AaAa BBBB AaBB",
        ),
    ],
)
def test_order_equals_that_of_a_hash_map_of_java_17(put: str, iterated: str) -> None:
    assert hash_map_order(put.split()) == iterated.split()


def test_offset_values() -> None:
    assert OffsetJson.value({"offset": 42}) == b'{"offset":42}'
    assert OffsetJson.value(None) is None
    assert OffsetJson.parse_value(b'{"offset":42}') == {"offset": 42}
    assert OffsetJson.parse_value(None) is None


@pytest.mark.parametrize("bad", [{"a": [1]}, {"a": {"b": 1}}, {1: "a"}, {"a": 2**63}, ["a"]])
def test_offsets_must_be_flat(bad: object) -> None:
    with pytest.raises(ConnectError):
        OffsetJson.value(bad)  # type: ignore[arg-type]


@pytest.mark.parametrize("raw", [b"x", b"{}", b"[1,{}]", b'["a"]', b'["a",1]', b'["a",{},1]', b"\xff"])
def test_foreign_keys_are_not_offsets(raw: bytes) -> None:
    assert OffsetJson.parse_key(raw) is None


@pytest.mark.parametrize(
    ("value", "golden"),
    [
        ({"properties": {"connector.class": "X", "n": None}}, '{"properties":{"connector.class":"X","n":null}}'),
        ({"tasks": 2}, '{"tasks":2}'),
        ({"state": "PAUSED", "state.v2": "STOPPED"}, '{"state":"PAUSED","state.v2":"STOPPED"}'),
        ({"include-tasks": True, "only-failed": False}, '{"include-tasks":true,"only-failed":false}'),
    ],
)
def test_golden_values(value: object, golden: str) -> None:
    assert internal_json.encode(value) == golden.encode()


def test_rare_characters_and_numbers_are_written_as_java_writes_them() -> None:
    assert internal_json.encode({"p": "ä😀\x1f", "f": 1e-5}) == '{"p":"ä\\uD83D\\uDE00\\u001F","f":1.0E-5}'.encode()


def test_byte_array_converter_takes_bytes_only() -> None:
    converter = ByteArrayConverter()
    assert converter.from_connect_data("t", (), None, b"\x00\xff") == b"\x00\xff"
    assert converter.from_connect_data("t", (), None, None) is None
    assert converter.from_connect_data("t", (), None, bytearray(b"a")) == b"a"
    with pytest.raises(ConnectError, match="str"):
        converter.from_connect_data("t", (), None, "text")
