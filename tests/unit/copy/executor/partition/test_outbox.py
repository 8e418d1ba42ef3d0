"""Sequences of an outbox: a record's number in its session, fixed at the first sending, wrapping as a broker expects."""

from __future__ import annotations

import pytest

from mm2.copy.executor.partition.outbox import MAX_IN_FLIGHT, Outbox, OutboxState, OutgoingBatch
from mm2.kafka.records.batch import TRANSACTIONAL, read_header
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import ProducerIdentity, TopicPartition

WRAP = 1 << 31


def outbox(count: int = 0, *, idempotent: bool = True, transactional: bool = False) -> Outbox:
    box = Outbox(TopicPartition("t", 0), ProducerIdentity(-1, -1) if idempotent else None, transactional)
    if idempotent:
        box.begin(ProducerIdentity(77, 3), count, known=False)
    return box


def outgoing(count: int, **options: int) -> OutgoingBatch:
    data = encode_batch([Record(b"k", b"v", timestamp=1)] * count, producer=(5, 5, 5), base_offset=1000, **options)
    return OutgoingBatch(memoryview(data), read_header(data), lambda _: None)


def wire(sent: OutgoingBatch) -> tuple[int, int, int, int]:
    header = read_header(sent.data)
    return header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence


@pytest.mark.parametrize("state", OutboxState)
@pytest.mark.parametrize("paused", [False, True])
@pytest.mark.parametrize("stopped", [False, True])
def test_only_an_open_outbox_sends(state: OutboxState, paused: bool, stopped: bool) -> None:
    box = outbox()
    box.state, box.paused, box.stopped = state, paused, stopped
    assert box.is_blocked is not (state is OutboxState.OPEN and not paused and not stopped)
    assert box.refused is (state is OutboxState.REFUSED)


def test_a_batch_is_in_flight_until_it_is_delivered() -> None:
    box, first = outbox(10), outgoing(3)
    box.leader_epoch = 4
    box.queue.append(first)
    assert box.send_next() is first
    assert (list(box.sent), first.under_way, first.leader_epoch, first.at) == ([first], True, 4, 10)
    box.deliver(first, 100)
    assert (box.acked, box.end_offset) == (13, 103)
    box.deliver(first, -1)
    assert (box.acked, box.end_offset) == (13, -1)


def test_batches_take_as_many_numbers_as_they_have_records() -> None:
    box, first, second = outbox(), outgoing(3), outgoing(2)
    box.stamp(first)
    box.stamp(second)
    assert (wire(first), wire(second), box.next) == ((0, 77, 3, 0), (0, 77, 3, 3), 5)
    assert (second.at, second.end) == (3, 5)


def test_a_session_continues_at_its_count() -> None:
    box, first = outbox(1_000), outgoing(3)
    box.stamp(first)
    assert (first.at, wire(first)[3], box.acked) == (1_000, 1_000, 1_000)


def test_a_number_once_given_stays() -> None:
    box, first, second = outbox(), outgoing(3), outgoing(2)
    box.stamp(first)
    box.stamp(second)
    before = bytes(first.data)
    box.stamp(first)
    assert (bytes(first.data), box.next) == (before, 5)


@pytest.mark.parametrize("round_", [0, 1, 7])
def test_sequences_wrap_to_zero_and_the_count_continues(round_: int) -> None:
    box, first, second = outbox((round_ + 1) * WRAP - 2), outgoing(3), outgoing(1)
    box.stamp(first)
    box.stamp(second)
    assert (wire(first)[3], wire(second)[3]) == (WRAP - 2, 1)
    assert box.next == (round_ + 1) * WRAP + 2


def test_without_a_producer_nothing_is_numbered() -> None:
    box, only = outbox(idempotent=False), outgoing(3)
    box.stamp(only)
    assert (wire(only), only.at, box.next, box.needs_producer_id) == ((0, -1, -1, -1), -1, 0, False)


def test_pieces_share_the_numbers_of_the_whole() -> None:
    box, whole, behind = outbox(10), outgoing(5), outgoing(1)
    box.stamp(whole)
    box.stamp(behind)
    pieces = [outgoing(2), outgoing(2), outgoing(1)]
    box.restamp(whole, pieces)
    assert [wire(piece)[3] for piece in pieces] == [10, 12, 14]
    assert wire(behind)[3] == 15
    box.stamp(pieces[0])
    assert box.next == 16


def test_pieces_wrap_too() -> None:
    box, whole = outbox(WRAP - 1), outgoing(3)
    box.stamp(whole)
    pieces = [outgoing(1), outgoing(2)]
    box.restamp(whole, pieces)
    assert [wire(piece)[3] for piece in pieces] == [WRAP - 1, 0]


def test_pieces_of_what_was_never_sent_have_no_numbers_yet() -> None:
    box, pieces = outbox(4), [outgoing(1), outgoing(1)]
    box.restamp(outgoing(2), pieces)
    assert [piece.at for piece in pieces] == [-1, -1]


def test_another_producer_renumbers_waiting_batches() -> None:
    box, waiting = outbox(10), outgoing(2)
    box.stamp(waiting)
    box.queue.append(waiting)
    box.begin(ProducerIdentity(78, 0), 0, known=False)
    box.stamp(waiting)
    assert (wire(waiting), box.next, box.acked) == ((0, 78, 0, 0), 2, 0)


def test_nothing_is_sent_without_a_producer_id() -> None:
    box = Outbox(TopicPartition("t", 0), ProducerIdentity(-1, -1))
    assert box.needs_producer_id
    box.begin(ProducerIdentity(0, 0), 0, known=False)
    assert not box.needs_producer_id


@pytest.mark.parametrize("of_the_source", [0, TRANSACTIONAL])
def test_a_transaction_is_the_targets(of_the_source: int) -> None:
    for ours in (True, False):
        sent = outgoing(1, attributes=of_the_source)
        outbox(transactional=ours).stamp(sent)
        assert read_header(sent.data).is_transactional is ours


def test_as_many_batches_are_in_flight_as_a_broker_remembers_and_one_while_it_may_not_know_the_producer() -> None:
    def room(box: Outbox, in_flight: int) -> bool:
        box.sent.clear()
        box.sent.extend(outgoing(1) for _ in range(in_flight))
        return box.has_room(remembered_ms=1)

    known, new, plain = outbox(), outbox(), outbox(idempotent=False)
    known.known = plain.known = True
    known.acked_ms = 1
    assert MAX_IN_FLIGHT == 5
    assert [room(known, count) for count in (0, 1, 4, 5)] == [True, True, True, False]
    assert [room(new, count) for count in (0, 1)] == [True, False]
    assert [room(plain, count) for count in (0, 1)] == [True, False]
    known.acked_ms = 0
    assert not room(known, 1), "the producer of records this old may be forgotten"
