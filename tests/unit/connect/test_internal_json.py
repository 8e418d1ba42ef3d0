"""Bytes on the internal topics, from Java Connect 4.3.0 (spec connect B.1, B.3; mirrormaker 2.5)."""

from __future__ import annotations

import pytest

from mm2.connect import internal_json
from mm2.connect.api import ConnectError
from mm2.connect.converters import ByteArrayConverter, OffsetJson
from mm2.connect.java_map import hash_map_order, string_hash


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


def test_bigger_tables_are_hashed_over_more_buckets() -> None:
    few = [f"key.{n}" for n in range(12)]
    many = [f"key.{n}" for n in range(13)]
    bucket16 = [((h := string_hash(k)) ^ h >> 16) & 15 for k in hash_map_order(few)]
    bucket32 = [((h := string_hash(k)) ^ h >> 16) & 31 for k in hash_map_order(many)]
    assert bucket16 == sorted(bucket16)
    assert bucket32 == sorted(bucket32)


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


def test_byte_array_converter_takes_bytes_only() -> None:
    converter = ByteArrayConverter()
    assert converter.from_connect("t", b"\x00\xff") == b"\x00\xff"
    assert converter.from_connect("t", None) is None
    assert converter.from_connect("t", bytearray(b"a")) == b"a"
    with pytest.raises(ConnectError, match="str"):
        converter.from_connect("t", "text")
