"""The offsets of a shared target partition that were acknowledged."""

from __future__ import annotations

import random

from mm2.copy.executor.partition.target_ranges import AcknowledgedRanges


def test_ranges_agree_with_a_set_of_offsets() -> None:
    chance = random.Random(1)
    for _ in range(200):
        ranges, offsets = AcknowledgedRanges(), set[int]()
        for _ in range(chance.randrange(30)):
            first = chance.randrange(100)
            end = first + chance.randrange(1, 10)
            ranges.add(first, end)
            offsets.update(range(first, end))
        first, end = sorted(chance.sample(range(120), 2))
        assert ranges.count(first, end) == len(offsets & set(range(first, end)))
        explained = first
        while explained in offsets:
            explained += 1
        assert ranges.explained_to(first) == explained
