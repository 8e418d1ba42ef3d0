"""A member of a consumer group on a real broker."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import AdminClient

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.consumer import Consumer
from mm2.kafka.consumer.membership import Topics
from mm2.kafka.consumer.server_assigned import ConsumerGroupHeartbeatRequest
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import GroupDescription, OffsetAndMetadata, TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic
from tests.support.waiting import wait_until
from tests.systems.sink_events import committed, produce


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


class Members:
    """Consumers of one group with the KIP-848 protocol, polled together; what each of them read, by client id."""

    def __init__(self, broker: LocalKafka, group: str, topics: Topics) -> None:
        self._broker = broker
        self._group = group
        self._topics = topics
        self.consumers: dict[str, Consumer] = {}
        self.lost: list[frozenset[TopicPartition]] = []
        self.read: list[tuple[str, int, int]] = []

    def add(self, name: str, **more: str) -> Consumer:
        props = {
            "bootstrap.servers": self._broker.bootstrap,
            "group.id": self._group,
            "client.id": name,
            "group.protocol": "consumer",
            "auto.offset.reset": "earliest",
            "metadata.max.age.ms": "500",
        }
        more = {key.replace("__", "."): value for key, value in more.items()}
        consumer = Consumer(ConsumerSettings.from_props(props | more), name="B")
        consumer.subscribe(self._topics, Committing(consumer, self.lost))
        self.consumers[name] = consumer
        return consumer

    def poll(self, *names: str) -> None:
        for name in names or self.consumers:
            records = self.consumers[name].poll(0.1)
            self.read += [(name, record.topic_partition.partition, record.offset) for record in records]

    def have_read(self, count: int) -> bool:
        """Whether that many records were read by all members."""
        self.poll()
        return len(self.read) == count

    def share(self, *sizes: int) -> bool:
        """Whether the members, in the order of their addition, have that many partitions."""
        self.poll()
        return [len(consumer.assignment()) for consumer in self.consumers.values()] == list(sizes)

    def close(self, *names: str) -> None:
        for name in names or list(self.consumers):
            self.consumers.pop(name).close()


class Committing(Silent):
    """Commits the positions of revoked partitions, as a sink task does, and notes the lost ones."""

    def __init__(self, consumer: Consumer, lost: list[frozenset[TopicPartition]]) -> None:
        self._consumer = consumer
        self._lost = lost

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        try:
            self._consumer.commit_sync({tp: OffsetAndMetadata(self._consumer.position(tp)) for tp in partitions})
        except BrokerFailure as failure:
            if failure.code != ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:  # the topic has been deleted
                raise

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        self._lost.append(partitions)


@pytest.fixture
def members(kafka_b: LocalKafka, unique: str) -> Iterator[Members]:
    create_topic(kafka_b.bootstrap, unique, 4)
    members = Members(kafka_b, unique, Topics(frozenset({unique})))
    yield members
    members.close()


def group_of(broker: LocalKafka, group: str) -> GroupDescription:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="B")
    try:
        found = Admin(cluster).describe_groups([group])[group]
        assert isinstance(found, GroupDescription)
        return found
    finally:
        cluster.close()


def test_the_coordinator_shares_partitions_among_members_that_come_and_go(
    kafka_b: LocalKafka, unique: str, members: Members
) -> None:
    members.add("one")
    wait_until(lambda: members.share(4), 30)
    assert group_of(kafka_b, unique).group_type.lower() == "consumer"
    for number in range(40):
        produce(kafka_b.bootstrap, unique, [f"{number}"], partition=number % 4)
    wait_until(lambda: members.have_read(40), 30)
    members.add("two")
    wait_until(lambda: members.share(2, 2), 30)
    for number in range(40):
        produce(kafka_b.bootstrap, unique, [f"{number}"], partition=number % 4)
    wait_until(lambda: members.have_read(80), 30)
    assert {name for name, _, offset in members.read if offset >= 10} == {"one", "two"}
    # The positions of the partitions that moved were committed before.
    assert len({(partition, offset) for _, partition, offset in members.read}) == 80
    members.close("one")
    wait_until(lambda: members.share(4), 30)
    members.close("two")
    wait_until(lambda: group_of(kafka_b, unique).state.lower() == "empty", 30)
    assert not members.lost


def test_a_member_that_polls_too_late_loses_its_partitions_and_joins_again(
    kafka_b: LocalKafka, unique: str, members: Members
) -> None:
    late = members.add("late", max__poll__interval__ms="2000")
    wait_until(lambda: members.share(4), 30)
    produce(kafka_b.bootstrap, unique, ["before"], partition=0)
    wait_until(lambda: members.have_read(1), 30)
    wait_until(lambda: group_of(kafka_b, unique).state.lower() == "empty", 30, what="the end of the membership")
    with pytest.raises(BrokerFailure, match="no member of the group"):
        late.commit_sync({TopicPartition(unique, 0): OffsetAndMetadata(1)})
    wait_until(lambda: members.share(4) and members.lost, 30)
    assert members.lost == [frozenset(TopicPartition(unique, partition) for partition in range(4))]
    # It had committed nothing.
    wait_until(lambda: members.have_read(2), 30)
    assert members.read == [("late", 0, 0)] * 2


def remove(broker: LocalKafka, group: str, member_id: str) -> None:
    """Let the coordinator remove a member, by leaving on behalf of it."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="B")
    request: Any = ConsumerGroupHeartbeatRequest
    try:
        answer = cluster.send(
            cluster.coordinator(group), request(group_id=group, member_id=member_id, member_epoch=-1, instance_id=None)
        )
        assert answer.error_code == 0
    finally:
        cluster.close()


def test_a_removed_member_joins_again_and_loses_no_record(kafka_b: LocalKafka, unique: str, members: Members) -> None:
    one = members.add("one")
    wait_until(lambda: members.share(4), 30)
    for partition in range(4):
        produce(kafka_b.bootstrap, unique, ["a", "b"], partition=partition)
    wait_until(lambda: members.have_read(8), 30)
    one.commit_sync({TopicPartition(unique, partition): OffsetAndMetadata(1) for partition in range(4)})
    assert one._membership is not None
    remove(kafka_b, unique, one._membership.identity().member_id)
    wait_until(lambda: members.share(4) and members.lost, 30, what="the member's return")
    assert members.lost == [frozenset(TopicPartition(unique, partition) for partition in range(4))]
    # It continues at the committed offsets.
    wait_until(lambda: members.have_read(12), 30)
    assert sorted(members.read[8:]) == [("one", partition, 1) for partition in range(4)]


def test_a_commit_that_was_delayed_beyond_the_loss_of_its_partitions_is_not_sent(
    kafka_b: LocalKafka, unique: str, members: Members
) -> None:
    """The member has joined again, so the coordinator would accept it and set back its successor's offset."""
    one = members.add("one")
    wait_until(lambda: members.share(4), 30)
    tp, answers, delay = TopicPartition(unique, 0), deque[KafkaFailure | None](), threading.Event()
    one._commits.submit(delay.wait)  # as a coordinator that does not answer
    one.commit_async({tp: OffsetAndMetadata(3)}, answers.append)
    assert one._membership is not None
    remove(kafka_b, unique, one._membership.identity().member_id)
    wait_until(lambda: members.share(4) and members.lost, 30, what="the member's return")
    delay.set()
    wait_until(lambda: members.have_read(0) and bool(answers), 30)
    assert isinstance(answers[0], BrokerFailure)
    assert "the partitions were lost before their offsets were committed" in str(answers[0])
    assert committed(kafka_b.bootstrap, unique) == {}
    one.commit_sync({tp: OffsetAndMetadata(2)})
    assert committed(kafka_b.bootstrap, unique) == {str(tp): 2}


def test_a_pattern_follows_created_and_deleted_topics(kafka_b: LocalKafka, unique: str) -> None:
    create_topic(kafka_b.bootstrap, unique, 2)
    members = Members(kafka_b, unique, Topics(matches=lambda topic: topic.startswith(unique)))
    try:
        members.add("one")
        wait_until(lambda: members.share(2), 30)
        create_topic(kafka_b.bootstrap, f"{unique}-more", 3)
        wait_until(lambda: members.share(5), 30)
        admin = AdminClient({"bootstrap.servers": kafka_b.bootstrap})
        admin.delete_topics([f"{unique}-more"])[f"{unique}-more"].result(60)
        wait_until(lambda: members.share(2), 30)
    finally:
        members.close()


def test_a_static_member_returns_to_its_partitions(kafka_b: LocalKafka, unique: str, members: Members) -> None:
    members.add("one", group__instance__id="first")
    members.add("two", group__instance__id="second")
    wait_until(lambda: members.share(2, 2), 30)
    before = members.consumers["two"].assignment()
    members.close("two")
    members.poll()
    members.add("two", group__instance__id="second")
    wait_until(lambda: members.share(2, 2), 30)
    assert members.consumers["two"].assignment() == before
    assert not members.lost
    twin = members.add("twin", group__instance__id="first")
    with pytest.raises(BrokerFailure, match="UNRELEASED_INSTANCE_ID"):
        wait_until(lambda: twin.poll(0.1), 30)


def test_an_unknown_assignor_of_the_coordinator_is_refused(members: Members) -> None:
    consumer = members.add("one", group__remote__assignor="none-such")
    with pytest.raises(BrokerFailure, match=r"UNSUPPORTED_ASSIGNOR.*none-such"):
        wait_until(lambda: consumer.poll(0.1), 30)


def test_brokers_without_the_protocol_are_reported_with_the_remedy(tmp_path: Path) -> None:
    with LocalKafka("old", tmp_path, heap="256m", format_args=["--feature", "group.version=0"]) as broker:
        create_topic(broker.bootstrap, "t")
        members = Members(broker, "g", Topics(frozenset({"t"})))
        try:
            consumer = members.add("one")
            with pytest.raises(BrokerFailure, match=r"do not support group.protocol=consumer.* set group.protocol=cl"):
                wait_until(lambda: consumer.poll(0.1), 30)
        finally:
            members.close()
