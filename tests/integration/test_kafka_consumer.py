"""A member of a consumer group on a real broker."""

from __future__ import annotations

from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.consumer.membership import Topics
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.settings import ClientSettings
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic
from tests.support.waiting import wait_until


class Silent:
    """A rebalance listener without effect."""

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        return

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        return

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        return


def test_a_synchronous_commit_is_not_overtaken_by_an_older_one(kafka_b: LocalKafka, unique: str) -> None:
    create_topic(kafka_b.bootstrap, unique)
    props = {"bootstrap.servers": kafka_b.bootstrap, "group.id": unique, "client.id": unique}
    consumer = Consumer(ConsumerSettings.from_props(props), name="B")
    cluster = Cluster(ClientSettings.from_props(props), name="B")
    admin, tp = Admin(cluster), TopicPartition(unique, 0)

    def assigned() -> bool:
        consumer.poll(0.1)
        return consumer.assignment() == {tp}

    try:
        consumer.subscribe(Topics(frozenset({unique})), Silent())
        wait_until(assigned, 30)
        for number in range(0, 400, 20):
            for older in range(number, number + 19):
                consumer.commit_async({tp: OffsetAndMetadata(older)}, lambda _failure: None)
            consumer.commit_sync({tp: OffsetAndMetadata(number + 19)})
            found = admin.list_group_offsets([unique])[unique]
            assert isinstance(found, dict)
            assert found[tp].offset == number + 19
    finally:
        consumer.close()
        cluster.close()
