"""Age of uncopied records that can only be determined from their timestamps."""

from contextlib import closing

from mm2.kafka.structs import TopicPartition
from mm2.observer.polls import FlowClients, SourcePoll
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, producer_of


def test_timestamps_are_kept_only_while_requested(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_a, unique, 1)
    producer = producer_of(kafka_a)
    producer.produce(unique, b"long ago", timestamp=1_600_000_000_000)
    assert producer.flush(30) == 0
    tp = TopicPartition(unique, 0)
    clients = {
        "source.cluster.alias": "A",
        "target.cluster.alias": "B",
        "source.cluster.bootstrap.servers": kafka_a.bootstrap,
        "target.cluster.bootstrap.servers": kafka_b.bootstrap,
    }
    with closing(SourcePoll(FlowClients(clients))) as ask:
        ask.partitions, ask.wanted = frozenset({tp}), ((tp, 0),)
        for _ in range(2):  # it is kept while it is requested
            ask()
            assert ask.stamps[tp].timestamp_ms == 1_600_000_000_000
        ask.wanted = ()
        ask()
        assert not ask.stamps
