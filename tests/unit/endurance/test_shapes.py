from collections import Counter

import pytest

from bench.shapes import SHAPES, Shape


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
def test_values_have_the_size_of_the_shape(shape: Shape) -> None:
    assert {len(value) for value in shape.values()} == {shape.record_bytes}
    assert len(set(shape.values())) > 1000


def test_a_batch_is_filled_before_the_next_one_begins() -> None:
    shape = Shape("small", "", records=300, record_bytes=90, batch_bytes=1000, partitions=3)
    partitions = list(shape.record_partitions())
    assert len(partitions) == 300
    assert partitions[:30] == [0] * 10 + [1] * 10 + [2] * 10


def test_a_hot_partition_gets_its_multiple_of_batches() -> None:
    shape = Shape("hot", "", records=2800, record_bytes=90, batch_bytes=1000, partitions=8, hot=21)
    counted = Counter(shape.record_partitions())
    assert counted[0] == 21 * counted[1] == 21 * counted[7]
