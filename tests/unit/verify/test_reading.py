"""Where the log of a side ends, by the answers of its replicas, and reads of corrupt bytes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import OffsetInfo, TopicPartition
from mm2.kafka.wire.fetch import Fetched
from mm2.verify import reading
from mm2.verify.pace import RateLimit
from mm2.verify.reading import RangeReader

PLACE = TopicPartition("t", 0)


def reader_of() -> RangeReader:
    settings = SimpleNamespace(request_timeout_ms=1000, client_rack="r")
    return RangeReader(
        cast("Cluster", SimpleNamespace(settings=settings, name="A")),
        BufferPool(0),
        PLACE,
        50,
        90,
        read_committed=False,
        pace=RateLimit(0, lambda: None),
        patience_s=1,
        on_response=lambda: None,
    )


@pytest.mark.parametrize(("leader_end", "is_over"), [(100, False), (40, True)])
def test_a_replica_that_lags_does_not_end_the_log(
    leader_end: int, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its high watermark is below the offsets to be read, which the leader has, or has lost."""

    class LeaderAdmin:
        def __init__(self, _cluster: object) -> None: ...

        def list_offsets(self, wanted: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
            return {place: OffsetInfo(leader_end, -1, 0) for place in wanted}

    monkeypatch.setattr(reading, "Admin", LeaderAdmin)
    reader = reader_of()
    nothing: Any = Fetched(PLACE, 0, 40, 40, 0, (), memoryview(b""))
    for _ in range(2):
        reader._take(nothing)
    assert reader._finished is is_over


def test_only_bytes_that_are_the_same_again_are_corrupt() -> None:
    reader = reader_of()
    valid = encode_batch([Record(b"k", b"v", timestamp=1)], base_offset=50)
    for bit, is_corrupt in ((0, False), (1, False), (2, False), (2, True)):
        data = bytearray(valid)
        data[-1] ^= 1 << bit
        with pytest.raises(CorruptBatch):
            reader._take(Fetched(PLACE, 0, 100, 100, 0, (), memoryview(data)))
        assert (reader._is_corrupt, reader._position) == (is_corrupt, 50)
