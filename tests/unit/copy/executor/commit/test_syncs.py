"""Offset syncs: their bytes (Kafka's OffsetSync) and when they are emitted (Kafka's MirrorSourceTask)."""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mm2.copy.executor.commit.syncs import Syncs, sync_record
from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.records.record import Record, decode_batch
from mm2.kafka.structs import TopicPartition

T = TopicPartition("t", 3)


@dataclass
class RecordRule:
    """Kafka's own rule, record by record (MirrorSourceTask.PartitionState)."""

    lag_max: int
    previous_up: int = -1
    previous_down: int = -1
    last_sync_down: int = -1

    def update(self, up: int, down: int) -> bool:
        due = (
            self.last_sync_down == -1
            or down - (self.last_sync_down + 1) >= self.lag_max
            or up - self.previous_up != 1
            or down < self.previous_down
        )
        self.previous_up, self.previous_down = up, down
        if due:
            self.last_sync_down = down
        return due


class Desk:
    """What `Syncs` needs of a sink: outboxes, and outgoing batches that stay until they are acknowledged."""

    def __init__(self) -> None:
        self.outgoing_batches: list[tuple[Outbox, OutgoingBatch]] = []

    def outbox(self, partition: TopicPartition, *, idempotent: bool) -> Outbox:
        assert not idempotent
        return Outbox(partition, None)

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        outbox.queue.append(outgoing)
        self.outgoing_batches.append((outbox, outgoing))

    def ack(self) -> list[tuple[TopicPartition, Record]]:
        """Acknowledge all that waits; what it was."""
        outgoing_batches, self.outgoing_batches = self.outgoing_batches, []
        found = []
        for outbox, outgoing in outgoing_batches:
            outbox.queue.remove(outgoing)
            (view,) = iter_batches(outgoing.data)
            found += [(outbox.partition, record) for record in decode_batch(view)]
            outgoing.acked(0)
        return found


def syncs_of(desk: Desk) -> list[tuple[int, int]]:
    return [struct.unpack(">qq", record.value or b"") for _, record in desk.ack()]


def test_bytes_of_offset_syncs_are_javas() -> None:
    # recorded from Kafka 4.3.0: offset sync (t-3, 100, 57)
    record = sync_record(T, 100, 57)
    assert (record.key or b"").hex() == "00017400000003"
    assert (record.value or b"").hex() == "00000000000000640000000000000039"
    assert record.headers == ()


def syncs_to(desk: Desk, lag_max: int = 100) -> Syncs:
    return Syncs(desk, "syncs", lag_max)  # type: ignore[arg-type]


def test_the_first_batch_is_due_with_its_first_record_and_its_last() -> None:
    desk = Desk()
    syncs_to(desk).acked(T, 10, 12, 5, 3)
    assert syncs_of(desk) == [(10, 5), (12, 7)]


def test_the_start_of_a_batch_with_holes_is_not_named() -> None:
    # If offset 10 is a hole and 11 went to 5, the pair (10, 5) would take a group at 11 to 6.
    desk = Desk()
    syncs_to(desk).acked(T, 10, 12, 5, 2)
    assert syncs_of(desk) == [(12, 6)]


def test_a_batch_close_to_the_last_sync_waits_for_the_commit() -> None:
    desk = Desk()
    syncs = syncs_to(desk)
    syncs.acked(T, 0, 2, 0, 3)
    desk.ack()
    syncs.acked(T, 3, 5, 3, 3)
    assert (desk.outgoing_batches, syncs.idle) == ([], False)
    syncs.commit()
    assert syncs_of(desk) == [(5, 5)]
    assert syncs.idle


def test_a_batch_far_from_the_last_sync_is_due() -> None:
    desk = Desk()
    syncs = syncs_to(desk, 10)
    syncs.acked(T, 0, 0, 0, 1)
    desk.ack()
    syncs.acked(T, 1, 9, 1, 9)
    assert desk.outgoing_batches == []
    syncs.acked(T, 10, 11, 10, 2)
    assert syncs_of(desk) == [(11, 11)]


@pytest.mark.parametrize(
    ("ack", "expected"),
    [
        ((5, 6, 3, 2), [(6, 4)]),  # gap upstream
        ((1, 2, 3, 2), [(1, 3), (2, 4)]),  # rewind upstream
        ((3, 9, 3, 2), [(9, 4)]),  # holes within
        ((3, 4, 1, 2), [(4, 2)]),  # step back on the target
    ],
)
def test_a_break_in_either_log_is_due(ack: tuple[int, int, int, int], expected: list[tuple[int, int]]) -> None:
    desk = Desk()
    syncs = syncs_to(desk)
    syncs.acked(T, 0, 2, 0, 3)
    desk.ack()
    syncs.acked(T, *ack)
    assert syncs_of(desk) == expected


def test_a_batch_with_an_unknown_offset_gives_no_sync_and_makes_the_next_one_due() -> None:
    desk = Desk()
    syncs = syncs_to(desk)
    syncs.acked(T, 0, 2, 0, 3)
    desk.ack()
    syncs.acked(T, 3, 5, -1, 3)
    assert syncs.idle
    syncs.acked(T, 6, 6, 6, 1)
    assert syncs_of(desk) == [(6, 6)]


def test_newer_syncs_replace_those_that_wait() -> None:
    desk = Desk()
    syncs = syncs_to(desk, 0)
    for offset in range(5):
        syncs.acked(T, offset, offset, offset, 1)
    assert syncs_of(desk) == [(0, 0)]
    assert syncs_of(desk) == [(4, 4)]


# Vectors of Kafka's MirrorSourceTaskTest, offset.lag.max=50.
VECTORS = [
    (0, 100, True),
    (2, 102, True),
    (3, 152, False),
    (4, 153, True),
    (5, 154, False),
    (6, 203, False),
    (7, 204, True),
    (2, 206, True),
    (3, 207, False),
    (4, 3, True),
    (5, 4, False),
]


def test_batches_of_one_record_follow_mm2s_rule() -> None:
    desk, rule = Desk(), RecordRule(50)
    syncs = syncs_to(desk, 50)
    for up, down, due in VECTORS:
        syncs.acked(T, up, up, down, 1)
        assert syncs_of(desk) == ([(up, down)] if due else [])
        assert rule.update(up, down) == due


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.integers(0, 2), st.integers(-1, 2)), max_size=40), st.integers(0, 100))
def test_our_syncs_are_no_staler_than_mm2s(plan: list[tuple[int, int, int]], lag_max: int) -> None:
    desk, rule = Desk(), RecordRule(lag_max)
    syncs = syncs_to(desk, lag_max)
    up, down, newest = 0, 100, -1
    for count, gap_up, gap_down in plan:
        up, down = up + gap_up, down + gap_down
        syncs.acked(T, up, up + count - 1, down, count)
        for i in range(count):
            rule.update(up + i, down + i)
        up, down = up + count, down + count
        sent = syncs_of(desk)
        assert not sent or sent[-1] == (up - 1, down - 1), "the newest sync names the last record of its batch"
        assert sent[:-1] in ([], [(up - count, down - count)]), "and one before it the first"
        newest = sent[-1][1] if sent else newest
        assert down - 1 - newest <= max(lag_max, 0)
        assert down - 1 - rule.last_sync_down <= max(lag_max, 0)
