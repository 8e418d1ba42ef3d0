"""Checkpoints that skip records or move backwards are detected."""

import struct

from tests.endurance.group import GROUP, Checkpoint, parse, wrong
from tests.faults.oracle import Rows


def point(upstream: int, downstream: int, group: str = GROUP) -> Checkpoint:
    return Checkpoint(group, "A.t", 0, upstream, downstream)


SOURCE = Rows((offset, offset) for offset in (0, 1, 4, 5))  # a hole at 2 and 3
TARGET = Rows((offset, 0) for offset in (10, 11, 13, 14))  # a marker at 12


def test_a_checkpoint_may_be_exact_or_behind() -> None:
    points = [point(0, 10), point(1, 10), point(2, 12), point(4, 13), point(6, 15)]
    assert wrong(points, "A.t", 0, SOURCE, TARGET) == []


def test_a_checkpoint_that_would_skip_a_record_is_wrong() -> None:
    assert wrong([point(4, 14)], "A.t", 0, SOURCE, TARGET) == [
        "partition 0: the checkpoint 4 -> 14 skips records, 13 would be right"
    ]
    assert len(wrong([point(6, 16)], "A.t", 0, SOURCE, TARGET)) == 1


def test_a_checkpoint_that_goes_back_without_its_group_is_wrong_and_other_groups_are_ignored() -> None:
    points = [point(4, 13), point(1, 99, "other"), point(5, 12)]
    assert wrong(points, "A.t", 0, SOURCE, TARGET) == ["partition 0: the checkpoint 5 -> 12 comes after 4 -> 13"]


def test_a_checkpoint_goes_back_with_its_group() -> None:
    assert wrong([point(5, 13), point(1, 11), point(4, 13)], "A.t", 0, SOURCE, TARGET) == []


def test_the_format_equals_mirrormakers() -> None:
    key = struct.pack(">h1sh3si", 1, b"g", 3, b"A.t", 2)
    value = struct.pack(">hqqh", 0, 7, 8, 0)
    assert parse(key, value) == Checkpoint("g", "A.t", 2, 7, 8)
