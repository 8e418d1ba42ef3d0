"""Vectors printed by `org.apache.kafka.common.utils.Utils.murmur2` and `toPositive(…) % 25` of kafka-clients 4.3.0."""

import pytest
from kafka.partitioner import murmur2

from mm2.kafka.producer.partitioner import partition_for


@pytest.mark.parametrize(
    ("text", "hash_value", "partition"),
    [
        ("", 275646681, 6),
        ("a", -1563381124, 24),
        ("ab", 316155434, 9),
        ("abc", 479470107, 7),
        ("abcd", -1323649548, 0),
        ("21", -973932308, 15),
        ("foobar", -790332482, 16),
        ("a-little-bit-long-string", -985981536, 12),
        ("a-little-bit-longer-string", -1486304829, 19),
        ("lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8", -58897971, 2),
        ("äöü€", 563110447, 22),
    ],
)
def test_same_as_java(text: str, hash_value: int, partition: int) -> None:
    assert murmur2(text.encode()) == hash_value & 0xFFFFFFFF, "kafka-python's hash is unsigned"
    assert partition_for(text.encode(), 25) == partition
