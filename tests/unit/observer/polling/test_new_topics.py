"""Which partitions of the source are counted before the flow has found them. `tests.integration.observer.test_loss_figures` has the figures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.progress.ledger import Ledger, entry_record, note_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.copy.states import PartitionState
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, OffsetInfo, PartitionInfo, TopicInfo, TopicPartition
from mm2.mirror.notes.promotions import Promotion
from mm2.observer.flow import FlowObserver, WatchedFlow
from mm2.observer.polling.new_topics import NewTopicsPoll
from mm2.observer.polling.polls import FlowClients
from tests.unit.observer.test_observer import PAIR
from tests.unit.observer.unreachable import PROPS

NO_LEADER = BrokerFailure.of(5, subject="Partition late-0 of cluster A")
GONE = BrokerFailure.of(3, subject="Partition late-0 of cluster A")
LATE = TopicPartition("late", 0)


class _Source:
    """A cluster with these partitions: (log start offset, end offset), or the failure; some topics cannot be described."""

    def __init__(self, partitions: dict[tuple[str, int], tuple[int, int] | KafkaFailure]) -> None:
        self.partitions = {TopicPartition(*tp): found for tp, found in partitions.items()}
        self.unknown: set[str] = set()
        self.requests = 0

    def list_topics(self) -> set[str]:
        self.requests += 1
        return {tp.topic for tp in self.partitions}

    def describe_topics(self, names: list[str], **_: object) -> Mapping[str, TopicInfo | KafkaFailure]:
        some = PartitionInfo(1, 0, (1,), (1,))
        return {
            name: NO_LEADER
            if name in self.unknown
            else TopicInfo(name, "", False, {tp.partition: some for tp in self.partitions if tp.topic == name})
            for name in names
        }

    def list_offsets(self, asked: dict[TopicPartition, int]) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        found = {tp: self.partitions[tp] for tp in asked}
        return {
            tp: one if isinstance(one, KafkaFailure) else OffsetInfo(one[asked[tp] != EARLIEST], -1, 0)
            for tp, one in found.items()
        }


def poll_of(source: _Source, **props: str) -> Any:
    """A flow that has copied t-0."""
    made: Any = NewTopicsPoll(FlowClients({**PROPS, **{key.replace("_", "."): value for key, value in props.items()}}))
    made._admin = source
    made.ledger = Ledger()
    apply(made, entry_record(LedgerEntry("t", 0, "A.t", Mark(90, 90, 90))))
    return made


def apply(poll: Any, record: Any) -> None:
    poll.ledger.apply(record.key, record.value, 1)


def test_partitions_with_records_are_found_that_are_neither_copied_nor_assigned() -> None:
    source = _Source({("t", 0): (0, 90), ("t", 1): (5, 9), ("late", 0): (0, 3), ("empty", 0): (4, 4), ("x", 0): (0, 1)})
    poll = poll_of(source, topics="t,late,empty")
    poll()
    assert {tp: (one.state, one.remote_topic) for tp, one in poll.found.items()} == {
        TopicPartition("t", 1): (PartitionState.PREPARING, "A.t"),
        LATE: (PartitionState.PREPARING, "A.late"),
    }
    first = poll.found
    poll()
    assert poll.found == first, "the time when it was first seen is kept"
    poll.assigned = {LATE}
    apply(poll, Promotion("t", "A.t", "failover", 5).record())
    poll()
    assert poll.found == {}, "a promoted topic is not copied"


def test_a_partition_whose_offsets_are_unknown_may_have_records() -> None:
    """Otherwise the number of records at risk is called exact, and is too low."""
    source = _Source({("late", 0): (0, 3)})
    poll = poll_of(source)
    poll()
    found = poll.found
    assert set(found) == {LATE}
    source.partitions[LATE] = NO_LEADER
    poll()
    assert poll.found == found
    source.unknown = {"late"}
    poll()
    assert poll.found == found
    source.unknown, source.partitions[LATE] = set(), GONE
    poll()
    assert poll.found == {}


def test_the_reason_does_not_promise_a_refresh_that_does_not_happen() -> None:
    poll = poll_of(_Source({("late", 0): (0, 3)}), refresh_topics_enabled="false")
    poll()
    assert "when the connector is restarted" in poll.found[LATE].reason
    apply(poll, note_record("limit", ("topics",), {"message": "A.late is limited to 1 partitions"}))
    poll()
    assert poll.found[LATE].reason.endswith("not copied at all: A.late is limited to 1 partitions")


@pytest.mark.parametrize(
    "props",
    [
        {"topic.filter.class": "no.such.Filter"},
        {
            "transforms": "dated",
            "transforms.dated.type": "org.apache.kafka.connect.transforms.TimestampRouter",
        },
        {"enabled": "false"},
    ],
    ids=str,
)
def test_a_flow_that_cannot_find_topics_is_observed(props: dict[str, str]) -> None:
    """The observer of a process has one thread for all flows: an error in the file of one hid them all."""
    flow = WatchedFlow(PAIR, {**PROPS, **props})
    FlowObserver(flow, CopyEngine({}))
    source = _Source({("late", 0): (0, 3)})
    poll = poll_of(source)
    broken: Any = NewTopicsPoll(FlowClients(flow.props))
    broken._admin, broken.ledger = source, poll.ledger
    broken()
    assert (broken.found, source.requests) == ({}, 0)
    broken.close()
