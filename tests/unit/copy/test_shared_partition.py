"""Outboxes of one target partition that share the sequences of a transaction's producer."""

from __future__ import annotations

from mm2.copy.executor.partition.outbox import (
    MAX_IN_FLIGHT,
    Outbox,
    OutboxState,
    OutgoingBatch,
    SharedPartition,
    outgoing_of,
)
from mm2.kafka.records.record import Record
from mm2.kafka.structs import ProducerIdentity, TopicPartition


def batch(records: int) -> OutgoingBatch:
    return outgoing_of([Record(b"k", b"v") for _ in range(records)], lambda: None)


def scene(count: int = 2) -> tuple[SharedPartition, list[Outbox]]:
    outboxes = [Outbox(TopicPartition("t", 0), ProducerIdentity(7, 0), transactional=True) for _ in range(count)]
    shared = SharedPartition(outboxes)
    for outbox in outboxes:
        outbox.shared = shared
    return shared, outboxes


def send(outbox: Outbox) -> OutgoingBatch:
    assert outbox.shared is not None
    if outbox.queue[0].at < 0:
        outbox.shared.sent()
    return outbox.send_next()


def acknowledge(outbox: Outbox) -> None:
    outgoing = outbox.sent.popleft()
    outgoing.under_way = False
    outbox.deliver(outgoing, 100)


def test_the_next_outbox_continues_the_sequences_of_the_one_before() -> None:
    shared, (one, two) = scene()
    one.queue.append(batch(3))
    two.queue.append(batch(4))
    for outbox in (one, two):
        assert not shared.may_send(outbox)
        shared.wait(outbox)
    assert shared.pass_on() is one
    assert send(one).at == 0
    assert shared.pass_on() is None, "a batch is in flight"
    acknowledge(one)
    assert shared.pass_on() is two
    assert not shared.may_send(one) if one.queue else True
    assert send(two).at == 3
    acknowledge(two)
    one.queue.append(batch(1))
    shared.wait(one)
    assert shared.pass_on() is one
    assert send(one).at == 7
    assert shared.records == 7


def test_an_outbox_that_always_has_something_to_send_passes_the_turn_on() -> None:
    shared, (one, two) = scene()
    one.queue.extend(batch(1) for _ in range(2 * MAX_IN_FLIGHT))
    two.queue.append(batch(1))
    shared.wait(one)
    assert shared.pass_on() is one
    shared.wait(two)
    sent = 0
    while shared.may_send(one):
        send(one)
        sent += 1
    assert sent == MAX_IN_FLIGHT
    while one.sent:
        assert shared.pass_on() is None
        acknowledge(one)
    assert shared.pass_on() is two


def test_a_rejected_batch_gets_another_sequence_and_a_doubtful_one_keeps_the_turn() -> None:
    shared, (one, two) = scene()
    one.queue.append(batch(2))
    two.queue.append(batch(5))
    shared.wait(one)
    assert shared.pass_on() is one
    rejected = send(one)
    one.sent.clear()
    one.queue.appendleft(rejected)
    shared.wait(two)
    one.doubt(rejected)
    one.state = OutboxState.REFUSED
    assert shared.pass_on() is None, "it may be in the transaction"
    one.doubtful_to = 0
    assert shared.pass_on() is two
    assert rejected.at == -1
    assert send(two).at == 0
    acknowledge(two)
    one.state = OutboxState.OPEN
    shared.wait(one)
    assert shared.pass_on() is one
    assert send(one).at == 5
