"""How far a producer got: what the broker remembers, what its end and its tail tell. The test plays the brokers' answers."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from mm2.copy.executor.standing import Inspector, Prints, Standing, fingerprint
from mm2.copy.session import SEQUENCES
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import BrokerFailure, DisconnectedFailure
from mm2.kafka.reader import Batch
from mm2.kafka.records.batch import LOG_APPEND_TIME
from mm2.kafka.records.record import Record
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import OffsetInfo, ProducerIdentity, ProducerState, TopicPartition
from tests.unit.copy.batches import batch, record, view_of

T, U = TopicPartition("A.t", 0), TopicPartition("A.u", 0)
OURS = ProducerIdentity(7, 2)
SETTINGS = ClientSettings.from_props({"bootstrap.servers": "localhost:1"}, client_id="c")


class Target:
    """What a target answers, in place of requests to it."""

    def __init__(self) -> None:
        self.producers: dict[TopicPartition, Any] = {T: {}, U: {}}
        self.ends: dict[TopicPartition, Any] = {T: OffsetInfo(0, -1, -1), U: OffsetInfo(0, -1, -1)}
        self.tails: list[tuple[TopicPartition, bytearray]] = []
        self.read: list[dict[TopicPartition, tuple[int, int]]] = []
        self.failure: Exception | None = None
        self.inspector = Inspector(Cluster(SETTINGS, name="B"))
        self.inspector._admin.describe_producers = lambda partitions: {tp: self.producers[tp] for tp in partitions}  # type: ignore[method-assign]
        self.inspector._admin.list_offsets = lambda wanted, **_: {tp: self.ends[tp] for tp in wanted}  # type: ignore[method-assign]
        self.inspector._batches = self._batches  # type: ignore[method-assign]

    def _batches(self, ranges: Mapping[TopicPartition, tuple[int, int]]) -> Iterator[tuple[TopicPartition, Batch]]:
        if ranges:
            self.read.append(dict(ranges))
        if self.failure is not None:
            raise self.failure
        for tp, data in self.tails:
            if tp in ranges:
                yield tp, Batch(tp, view_of(data))

    def remembers(self, tp: TopicPartition, last_sequence: int, identity: ProducerIdentity = OURS) -> None:
        producer, epoch = identity.producer_id, identity.producer_epoch
        self.producers[tp] = {producer: ProducerState(producer, epoch, last_sequence, 0, -1, -1)}

    def ask(self, known: int, behind: int) -> Any:
        return self.inspector.standings({T: (OURS, known, behind)})[T]


def test_the_broker_remembers() -> None:
    target = Target()
    target.remembers(T, 109)
    target.ends[T] = OffsetInfo(260, -1, -1)
    assert target.ask(100, 250) == Standing(110, 260)
    assert target.read == []


def test_sequences_wrap() -> None:
    target = Target()
    target.remembers(T, 4)
    assert target.ask(SEQUENCES - 3, -1) == Standing(SEQUENCES + 5, 0)


def test_another_epoch_is_another_producer() -> None:
    target = Target()
    target.remembers(T, 109, ProducerIdentity(7, 3))
    target.ends[T] = OffsetInfo(250, -1, -1)
    assert target.ask(100, 250) == Standing(100, 250)


def test_a_log_that_ends_before_what_was_acknowledged_was_cut_off() -> None:
    target = Target()
    target.ends[T] = OffsetInfo(240, -1, -1)
    assert target.ask(100, 250) == Standing(90, 240)
    target.ends[T] = OffsetInfo(0, -1, -1)
    assert target.ask(100, 250) == Standing(0, 0)


def test_what_the_broker_forgot_its_tail_tells() -> None:
    target = Target()
    target.ends[T] = OffsetInfo(259, -1, -1)
    target.tails = [
        (T, batch(250, 3, producer=(7, 2, 100))),
        (T, batch(253, 2, producer=(9, 0, 0))),
        (T, batch(255, 4, producer=(7, 2, 103))),
    ]
    assert target.ask(100, 250) == Standing(107, 259)
    assert target.read == [{T: (250, 259)}]


def test_a_tail_of_others_tells_nothing() -> None:
    target = Target()
    target.ends[T] = OffsetInfo(252, -1, -1)
    target.tails = [(T, batch(250, 2, producer=(9, 0, 0)))]
    assert target.ask(100, 250) == Standing(100, 252)


@pytest.mark.parametrize(("behind", "end"), [(-1, 999), (250, 250)])
def test_where_there_is_no_tail_nothing_is_read(behind: int, end: int) -> None:
    target = Target()
    target.ends[T] = OffsetInfo(end, -1, -1)
    assert target.ask(100, behind) == Standing(100, end)
    assert target.read == []


def test_a_partition_that_cannot_be_asked_is_no_other_ones_trouble() -> None:
    target = Target()
    target.producers[T] = failure = BrokerFailure.of(29)
    target.remembers(U, 4)
    found = target.inspector.standings({T: (OURS, 1, 1), U: (OURS, 0, 0)})
    assert found == {T: failure, U: Standing(5, 0)}
    target.producers[T] = {}
    target.ends[T] = failure
    assert target.inspector.standings({T: (OURS, 1, 1)}) == {T: failure}


def test_a_tail_that_cannot_be_read_is_asked_for_again_and_only_that() -> None:
    target = Target()
    target.ends = {T: OffsetInfo(252, -1, -1), U: OffsetInfo(10, -1, -1)}
    target.failure = DisconnectedFailure("gone")
    found = target.inspector.standings({T: (OURS, 100, 250), U: (OURS, 3, 10)})
    assert found == {T: target.failure, U: Standing(3, 10)}


def test_fingerprints_are_of_our_records_in_that_range() -> None:
    target = Target()
    target.tails = [(T, batch(8, 4, producer=(7, 2, 0))), (T, batch(12, 1, producer=(9, 0, 0)))]
    found = target.inspector.fingerprints(T, 9, 11, OURS)
    assert found == Prints([fingerprint(record(9)), fingerprint(record(10))])


def test_a_target_that_stamps_records_itself_is_compared_without_timestamps() -> None:
    """LogAppendTime replaces the timestamps of records."""
    target = Target()
    stamped = batch(8, 2, producer=(7, 2, 0), attributes=LOG_APPEND_TIME)
    target.tails = [(T, batch(6, 2, producer=(7, 2, 0))), (T, stamped)]
    found = target.inspector.fingerprints(T, 7, 10, OURS)
    assert found == Prints([fingerprint(record(offset), with_time=False) for offset in (7, 8, 9)], with_time=False)
    assert found.values[0] == fingerprint(dataclasses.replace(record(7), timestamp=5), with_time=False)


def test_a_fingerprint_is_of_what_a_copy_keeps() -> None:
    base = Record(b"k", b"v", (("h", b"1"),), 5, 10)
    same = Record(b"k", b"v", (("h", b"1"),), 5, 99)
    others = [
        Record(b"K", b"v", (("h", b"1"),), 5),
        Record(b"k", None, (("h", b"1"),), 5),
        Record(b"k", b"v", (), 5),
        Record(b"k", b"v", (("h", b"1"),), 6),
    ]
    assert fingerprint(base) == fingerprint(same)
    assert fingerprint(base) not in {fingerprint(other) for other in others}
