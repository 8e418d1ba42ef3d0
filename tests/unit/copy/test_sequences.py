"""Sequence numbers of an outbox: fixed at the first sending, kept through cutting, wrapping as a broker expects."""

from __future__ import annotations

from mm2.copy.executor.outbox import MAX_IN_FLIGHT, Outbox, Parcel
from mm2.copy.executor.sink import Sink
from mm2.kafka.records.batch import read_header
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import ProducerIdentity, TopicPartition

WRAP = 1 << 31


def outbox(sequence: int = 0, *, idempotent: bool = True) -> Outbox:
    return Outbox(TopicPartition("t", 0), ProducerIdentity(77, 3) if idempotent else None, sequence=sequence)


def parcel(count: int) -> Parcel:
    data = encode_batch([Record(b"k", b"v", timestamp=1)] * count, producer=(5, 5, 5), base_offset=1000)
    return Parcel(memoryview(data), read_header(data), lambda _: None)


def wire(sent: Parcel) -> tuple[int, int, int, int]:
    header = read_header(sent.data)
    return header.base_offset, header.producer_id, header.producer_epoch, header.base_sequence


def test_batches_take_as_many_numbers_as_they_have_records() -> None:
    box, first, second = outbox(), parcel(3), parcel(2)
    Sink._stamp(box, first)
    Sink._stamp(box, second)
    assert (wire(first), wire(second), box.sequence) == ((0, 77, 3, 0), (0, 77, 3, 3), 5)


def test_a_number_once_given_stays() -> None:
    box, first, second = outbox(), parcel(3), parcel(2)
    Sink._stamp(box, first)
    Sink._stamp(box, second)
    before = bytes(first.data)
    Sink._stamp(box, first)
    assert (bytes(first.data), box.sequence) == (before, 5)


def test_numbers_wrap_to_zero() -> None:
    box, first, second = outbox(WRAP - 2), parcel(3), parcel(1)
    Sink._stamp(box, first)
    Sink._stamp(box, second)
    assert (first.sequence, second.sequence, box.sequence) == (WRAP - 2, 1, 2)


def test_without_a_producer_nothing_is_numbered() -> None:
    box, only = outbox(idempotent=False), parcel(3)
    Sink._stamp(box, only)
    assert (wire(only), box.sequence) == ((0, -1, -1, -1), 0)


def test_pieces_share_the_numbers_of_the_whole() -> None:
    box, whole, behind = outbox(10), parcel(5), parcel(1)
    Sink._stamp(box, whole)
    Sink._stamp(box, behind)
    pieces = [parcel(2), parcel(2), parcel(1)]
    Sink._resequence(box, whole, pieces)
    assert [wire(piece)[3] for piece in pieces] == [10, 12, 14]
    assert wire(behind)[3] == 15


def test_pieces_wrap_too() -> None:
    box, whole = outbox(WRAP - 1), parcel(3)
    Sink._stamp(box, whole)
    pieces = [parcel(1), parcel(2)]
    Sink._resequence(box, whole, pieces)
    assert [piece.sequence for piece in pieces] == [WRAP - 1, 0]


def test_as_many_are_under_way_as_a_broker_remembers() -> None:
    known, plain = outbox(), outbox(idempotent=False)
    known.known = plain.known = True
    assert (known.depth, plain.depth) == (MAX_IN_FLIGHT, 1)
    assert MAX_IN_FLIGHT == 5
