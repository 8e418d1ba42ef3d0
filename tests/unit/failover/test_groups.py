"""Which offset a group gets on the target."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from mm2.failover.evidence import FoundBy
from mm2.failover.groups import Groups
from mm2.kafka.structs import TopicPartition
from mm2.mirror.translator import Translated

P0 = TopicPartition("t", 0)


@pytest.mark.parametrize(("end", "found"), [(70, FoundBy.EXACT), (69, FoundBy.NOTHING)])
def test_an_exact_offset_beyond_the_end_of_the_target_is_not_used(end: int, found: FoundBy) -> None:
    """The target has lost its end since the ledger was written: the group would skip what is written up to this offset."""
    moves = Groups.__new__(Groups)
    moves._translator = SimpleNamespace(  # type: ignore[assignment]
        translate=lambda *_: Translated("A.t", 70, is_exact=True), topic_on_target=lambda topic: f"A.{topic}"
    )
    moves._ends = {TopicPartition("A.t", 0): end}
    row = moves._translate("g", P0, 50, {}, ({}, {}))
    assert row.found is found
    assert row.translated == (70 if found is FoundBy.EXACT else None)
