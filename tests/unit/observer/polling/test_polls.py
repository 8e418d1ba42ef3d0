"""Which topics the source has, and where the logs begin to which positions do not belong."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import pytest

from mm2.kafka.structs import EARLIEST, Metadata, OffsetInfo, TopicInfo, TopicPartition
from mm2.observer.polling.polls import FlowClients, SourcePoll
from mm2.observer.polling.timestamps import LOOKS, BatchTimestamp
from tests.unit.observer.unreachable import PROPS

T0, T1 = TopicPartition("t", 0), TopicPartition("t", 1)


class FakeCluster:
    """A cluster whose topics have this id."""

    topic_id = "first"

    def metadata(self, topics: Iterable[str], **_: object) -> Metadata:
        found = {name: TopicInfo(name, self.topic_id, internal=False, partitions={}) for name in topics}
        return Metadata("c", 0, {}, found)

    def close(self) -> None:
        pass


class FakeAdmin:
    """Logs from 5 to 40; counts requests for log start offsets."""

    def __init__(self) -> None:
        self.starts_of: list[set[TopicPartition]] = []

    def list_offsets(self, wanted: Mapping[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo]:
        if EARLIEST in wanted.values():
            self.starts_of.append(set(wanted))
        return {tp: OffsetInfo(5 if when == EARLIEST else 40, -1, 0) for tp, when in wanted.items()}


@pytest.fixture
def poll(monkeypatch: pytest.MonkeyPatch) -> SourcePoll:
    made = SourcePoll(FlowClients(PROPS))
    made.partitions = frozenset({T0, T1})
    monkeypatch.setattr(made, "_cluster", FakeCluster())
    monkeypatch.setattr(made, "_admin", FakeAdmin())
    return made


def test_log_start_offsets_are_requested_only_where_they_are_needed(poll: SourcePoll) -> None:
    poll()
    assert (poll.logs.ends, poll.logs.starts, poll.logs.topic_ids) == ({T0: 40, T1: 40}, {}, {"t": "first"})
    poll.other_logs = frozenset({T1})
    poll()
    assert poll.logs.starts == {T1: 5}
    poll.other_logs = frozenset()
    poll()
    assert poll.logs.starts == {}
    assert poll._admin.starts_of == [{T1}]  # type: ignore[attr-defined]


def test_topic_ids_are_read_again_after_a_while(poll: SourcePoll, monkeypatch: pytest.MonkeyPatch) -> None:
    poll()
    poll._cluster.topic_id = "second"  # type: ignore[attr-defined]
    poll()
    assert poll.logs.topic_ids == {"t": "first"}
    monkeypatch.setattr(poll, "_ids_at_s", -1_000.0)
    poll()
    assert poll.logs.topic_ids == {"t": "second"}


def test_partitions_whose_timestamps_cannot_be_read_do_not_displace_the_others(
    poll: SourcePoll, monkeypatch: pytest.MonkeyPatch
) -> None:
    lost = [TopicPartition("lost", number) for number in range(LOOKS)]

    class Reader:
        def read(self, wanted: list[tuple[TopicPartition, int]]) -> dict[TopicPartition, BatchTimestamp]:
            return {tp: BatchTimestamp(7, 9, 1) for tp, _ in wanted[:LOOKS] if tp.topic == "t"}

    monkeypatch.setattr(poll, "_stamps", Reader())
    poll.wanted = (*((tp, 7) for tp in lost), (T0, 7), (T1, 7))
    poll()
    assert not poll.logs.stamps
    poll()
    assert set(poll.logs.stamps) == {T0, T1}
