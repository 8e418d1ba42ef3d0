"""Age of uncopied records that can only be determined from their timestamps."""

from __future__ import annotations

from contextlib import closing

from mm2.kafka.structs import TopicPartition
from mm2.observer.polling.polls import FlowClients, SourcePoll
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, producer_of

LONG_AGO_MS = 1_600_000_000_000


def poll_of(source: LocalKafka, target: LocalKafka) -> SourcePoll:
    clients = {
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": source.bootstrap,
        "target.cluster.bootstrap.servers": target.bootstrap,
    }
    return SourcePoll(FlowClients(clients))


def test_timestamps_are_kept_only_while_requested(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_a, unique, 1)
    producer = producer_of(kafka_a)
    producer.produce(unique, b"long ago", timestamp=LONG_AGO_MS)
    assert producer.flush(30) == 0
    tp = TopicPartition(unique, 0)
    with closing(poll_of(kafka_a, kafka_b)) as ask:
        ask.partitions, ask.wanted = frozenset({tp}), ((tp, 0),)
        for _ in range(2):  # it is kept while it is requested
            ask()
            assert ask.logs.stamps[tp].timestamp_ms == LONG_AGO_MS
        ask.wanted = ()
        ask()
        assert not ask.logs.stamps


def test_one_poll_reads_batches_of_any_size(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    """A broker leaves out batches above the limit of a partition, except the first of a request."""
    count = 40
    create(kafka_a, unique, count)
    producer = producer_of(kafka_a)
    for number in range(count):
        value = b"x" * (100_000 if number % 10 == 3 else 10)
        producer.produce(unique, value, partition=number, timestamp=LONG_AGO_MS + number)
    assert producer.flush(30) == 0
    tps = [TopicPartition(unique, number) for number in range(count)]
    end = TopicPartition(unique, 0), 1  # without a record
    with closing(poll_of(kafka_a, kafka_b)) as ask:
        ask.partitions, ask.wanted = frozenset(tps), (end, *((tp, 0) for tp in tps[1:]))
        ask()
        assert {tp: one.timestamp_ms for tp, one in ask.logs.stamps.items()} == {
            tp: LONG_AGO_MS + number for number, tp in enumerate(tps) if number
        }
