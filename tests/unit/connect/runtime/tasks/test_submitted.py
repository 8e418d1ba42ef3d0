from __future__ import annotations

import pytest

from mm2.connect.api import ConnectError, SourceRecord
from mm2.connect.runtime.tasks.submitted import SubmittedRecords


def record(partition: object, offset: int) -> SourceRecord:
    return SourceRecord({"p": partition}, {"o": offset}, "t", None, None, None)


def test_only_the_acknowledged_prefix_of_each_partition_is_committed() -> None:
    submitted = SubmittedRecords()
    a = [submitted.submit(record("a", n)) for n in range(4)]
    b = [submitted.submit(record("b", n)) for n in range(2)]
    for one in (a[0], a[1], a[3], b[1]):
        submitted.ack(one)
    assert submitted.take_committable() == [({"p": "a"}, {"o": 1})]
    assert submitted.take_committable() == []
    submitted.ack(a[2])
    submitted.ack(b[0])
    assert submitted.take_committable() == [({"p": "a"}, {"o": 3}), ({"p": "b"}, {"o": 1})]


@pytest.mark.parametrize("partition", [[1], {"x": 1}, object()])
def test_partitions_must_be_flat(partition: object) -> None:
    with pytest.raises(ConnectError, match="'p'"):
        SubmittedRecords().submit(record(partition, 1))
