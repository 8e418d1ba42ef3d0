"""Administrative calls: a result or an error for each item."""

from __future__ import annotations

import time
from collections.abc import Iterator

import confluent_kafka
import pytest

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, DisconnectedFailure, KafkaFailure, RefusedFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import (
    EARLIEST,
    LATEST,
    AlterOp,
    AlterOpType,
    ConfigSource,
    GroupDescription,
    NewTopic,
    OffsetAndMetadata,
    OffsetInfo,
    ProducerIdentity,
    TopicInfo,
    TopicPartition,
)
from mm2.sandbox.kafka import LocalKafka
from tests.support.waiting import wait_until


@pytest.fixture
def cluster(kafka_a: LocalKafka) -> Iterator[Cluster]:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_a.bootstrap}, client_id="admin"), name="A")
    yield cluster
    cluster.close()


@pytest.fixture
def admin(cluster: Cluster) -> Admin:
    return Admin(cluster)


def partition_count(admin: Admin, topic: str) -> int:
    info = admin.describe_topics([topic])[topic]
    assert isinstance(info, TopicInfo)
    return len(info.partitions)


def code_of(outcome: object) -> int:
    assert isinstance(outcome, BrokerFailure), outcome
    return outcome.code


def test_topics_are_created_described_extended_and_deleted_independently(
    admin: Admin, kafka_a: LocalKafka, unique: str
) -> None:
    good, bad, other = f"{unique}-good", f"{unique}/bad", f"{unique}-other"
    created = admin.create_topics(
        [NewTopic(good, 3, 1, {"cleanup.policy": "compact"}), NewTopic(bad), NewTopic(other, 1)]
    )
    assert created[good] is None
    assert created[other] is None
    assert code_of(created[bad]) == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert code_of(admin.create_topics([NewTopic(good)])[good]) == ErrorCode.TOPIC_ALREADY_EXISTS

    assert {good, other} <= admin.list_topics()
    described = admin.describe_topics([good, "no-such-topic"])
    info = described[good]
    assert isinstance(info, TopicInfo)
    assert sorted(info.partitions) == [0, 1, 2]
    assert info.partitions[0].leader == 1
    assert len(info.topic_id) == 22
    assert code_of(described["no-such-topic"]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    grown = admin.create_partitions({good: 2, other: 4})
    assert code_of(grown[good]) == ErrorCode.INVALID_PARTITIONS
    assert grown[other] is None
    assert partition_count(admin, other) == 4

    deleted = admin.delete_topics([good, "no-such-topic"])
    assert deleted[good] is None
    assert code_of(deleted["no-such-topic"]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert admin.describe_cluster().cluster_id == kafka_a.cluster_id


def test_configs_of_a_missing_topic_are_an_error_and_not_empty(admin: Admin, unique: str) -> None:
    admin.create_topics([NewTopic(unique, 1, 1, {"retention.ms": "60000"})])
    configs = admin.describe_configs([unique, "no-such-topic"])
    assert code_of(configs["no-such-topic"]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    entries = configs[unique]
    assert not isinstance(entries, KafkaFailure)
    assert entries["retention.ms"].value == "60000"
    assert entries["retention.ms"].source is ConfigSource.DYNAMIC_TOPIC_CONFIG
    assert entries["segment.ms"].is_default
    assert entries["segment.ms"].source is ConfigSource.DEFAULT_CONFIG

    changes = {
        unique: [AlterOp("retention.ms", None, AlterOpType.DELETE), AlterOp("segment.ms", "1000000")],
        "no-such-topic": [AlterOp("segment.ms", "1")],
    }
    altered = admin.incremental_alter_configs(changes)
    assert altered[unique] is None
    assert code_of(altered["no-such-topic"]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION

    def is_altered() -> bool:
        entries = admin.describe_configs([unique])[unique]
        assert not isinstance(entries, KafkaFailure)
        return entries["segment.ms"].value == "1000000" and entries["retention.ms"].is_default

    wait_until(is_altered)


def test_offsets_of_logs_by_position_and_by_time(admin: Admin, kafka_a: LocalKafka, unique: str) -> None:
    admin.create_topics([NewTopic(unique, 2)])
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_a.bootstrap})
    for timestamp in (1_000, 2_000, 3_000):
        producer.produce(unique, b"v", partition=1, timestamp=timestamp)
    assert producer.flush(10) == 0
    empty, full, missing = TopicPartition(unique, 0), TopicPartition(unique, 1), TopicPartition(unique, 7)
    ends = admin.list_offsets({empty: LATEST, full: LATEST, missing: LATEST})
    assert ends[empty] == OffsetInfo(0, -1, 0)
    assert ends[full] == OffsetInfo(3, -1, 0)
    assert code_of(ends[missing]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    start = admin.list_offsets({full: EARLIEST}, "read_committed")[full]
    assert start == OffsetInfo(0, -1, 0)
    assert admin.list_offsets({full: 1_500})[full] == OffsetInfo(1, 2_000, 0)
    late = admin.list_offsets({full: 9_000})[full]
    assert isinstance(late, OffsetInfo)
    assert late.offset == -1


def test_a_cached_partition_count_that_is_too_small_is_refreshed(admin: Admin, cluster: Cluster, unique: str) -> None:
    admin.create_topics([NewTopic(unique, 1)])
    assert cluster.leader(unique, 0) == 1
    other = Cluster(cluster.settings, name="A")
    Admin(other).create_partitions({unique: 2})
    other.close()
    key = TopicPartition(unique, 1)
    assert not isinstance(admin.list_offsets({key: LATEST})[key], KafkaFailure)


def test_group_offsets_of_many_groups_at_once(admin: Admin, unique: str) -> None:
    admin.create_topics([NewTopic(unique, 2)])
    first, second, missing = f"{unique}-1", f"{unique}-2", f"{unique}-3"
    offsets = {
        TopicPartition(unique, 0): OffsetAndMetadata(5, "note", 0),
        TopicPartition(unique, 1): OffsetAndMetadata(7),
    }
    assert admin.alter_group_offsets(first, offsets) == dict.fromkeys(offsets)
    gone = TopicPartition("no-such-topic", 0)
    outcome = admin.alter_group_offsets(
        second, {TopicPartition(unique, 1): OffsetAndMetadata(9), gone: OffsetAndMetadata(1)}
    )
    assert outcome[TopicPartition(unique, 1)] is None
    assert code_of(outcome[gone]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    listed = admin.list_group_offsets([first, second, missing])
    assert listed == {first: offsets, second: {TopicPartition(unique, 1): OffsetAndMetadata(9)}, missing: {}}

    listings = {listing.group_id: listing for listing in admin.list_groups(types=["classic"], states=["Empty"])}
    assert {first, second} <= set(listings)
    described = admin.describe_groups([first, missing])
    group = described[first]
    assert isinstance(group, GroupDescription)
    assert (group.state, group.members) == ("Empty", ())
    assert code_of(described[missing]) == ErrorCode.GROUP_ID_NOT_FOUND
    deleted = admin.delete_groups([first, missing])
    assert deleted[first] is None
    assert code_of(deleted[missing]) == ErrorCode.GROUP_ID_NOT_FOUND


def test_a_list_of_groups_above_the_limit_names_broker_request_and_limit(admin: Admin, unique: str) -> None:
    admin.create_topics([NewTopic(unique, 1)])
    at = {TopicPartition(unique, 0): OffsetAndMetadata(0)}
    groups = [f"{unique}-{number}-{'x' * 32_000}" for number in range(265)]
    try:
        assert not any(admin.alter_group_offsets(group, at)[TopicPartition(unique, 0)] for group in groups)
        with pytest.raises(
            CorruptBatch, match=r"of cluster A sent an answer to a ListGroups request of 8[0-9]{6} bytes"
        ):
            admin.list_groups()
    finally:
        for first in range(0, len(groups), 50):  # their answer has the same limit
            admin.delete_groups(groups[first : first + 50])
    assert not [one for one in admin.list_groups() if one.group_id in groups]


def test_start_offsets_of_share_groups(admin: Admin, unique: str) -> None:
    admin.create_topics([NewTopic(unique, 2)])
    wait_until(lambda: unique in admin.list_topics())
    place, other = TopicPartition(unique, 0), TopicPartition(unique, 1)
    group, classic = f"{unique}, shared", f"{unique}, classic"
    assert admin.alter_group_offsets(classic, {place: OffsetAndMetadata(0)}) == {place: None}
    # This creates the group, without members; coordinators get the metadata of a new topic a little later.
    done = {place: None, other: None}
    wait_until(lambda: admin.alter_share_group_offsets(group, {place: 0, other: 7}) == done)
    answers = admin.list_share_group_offsets([group, classic, "no-such-group"])
    assert answers[group] == {place: OffsetAndMetadata(0), other: OffsetAndMetadata(7)}
    assert answers[classic] == {}
    assert answers["no-such-group"] == {}
    described = admin.describe_groups([group])[group]
    assert isinstance(described, GroupDescription)
    assert (described.group_type.lower(), described.state.lower()) == ("share", "empty")

    assert code_of(admin.alter_share_group_offsets(classic, {place: 1})[place]) == ErrorCode.GROUP_ID_NOT_FOUND
    missing = TopicPartition("no-such-topic", 0)
    mixed = admin.alter_share_group_offsets(group, {place: 3, missing: 3})
    assert mixed[place] is None
    assert code_of(mixed[missing]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert admin.list_share_group_offsets([group])[group] == {place: OffsetAndMetadata(3), other: OffsetAndMetadata(7)}


@pytest.mark.parametrize("protocol", ["classic", "consumer"])
def test_group_with_members_is_described_and_cannot_be_altered(
    admin: Admin, kafka_a: LocalKafka, unique: str, protocol: str
) -> None:
    admin.create_topics([NewTopic(unique, 1)])
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": kafka_a.bootstrap, "group.id": unique, "group.protocol": protocol}
    )
    consumer.subscribe([unique])

    def is_assigned() -> bool:
        consumer.poll(0.1)
        return bool(consumer.assignment())

    wait_until(is_assigned, 20, what="the assignment")
    group = admin.describe_groups([unique])[unique]
    assert isinstance(group, GroupDescription)
    assert (group.state, group.group_type) == ("Stable", protocol)
    if protocol == "classic":
        assert group.members is not None
        assert [member.client_id for member in group.members] == ["rdkafka"]
    else:
        assert group.members is None
    key = TopicPartition(unique, 0)
    refused = code_of(admin.alter_group_offsets(unique, {key: OffsetAndMetadata(0)})[key])
    assert refused in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.STALE_MEMBER_EPOCH}
    assert code_of(admin.delete_groups([unique])[unique]) == ErrorCode.NON_EMPTY_GROUP
    consumer.close()


def test_fencing_raises_the_epoch_and_partitions_remember_producers(
    admin: Admin, kafka_a: LocalKafka, unique: str
) -> None:
    admin.create_topics([NewTopic(unique, 1)])
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_a.bootstrap, "transactional.id": unique})
    producer.init_transactions(20)
    producer.begin_transaction()
    producer.produce(unique, b"v", partition=0)
    producer.flush(10)
    key = TopicPartition(unique, 0)
    states = admin.describe_producers([key, TopicPartition("no-such-topic", 0)])
    assert code_of(states[TopicPartition("no-such-topic", 0)]) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    producers = states[key]
    assert not isinstance(producers, KafkaFailure)
    (state,) = producers.values()
    assert (state.last_sequence, state.current_transaction_start_offset) == (0, 0)

    identity = admin.fence_producers([unique])[unique]
    assert isinstance(identity, ProducerIdentity)
    assert identity.producer_id == state.producer_id
    assert identity.producer_epoch > state.producer_epoch
    with pytest.raises(confluent_kafka.KafkaException):
        producer.commit_transaction(10)


def test_acl_calls_on_a_cluster_without_an_authorizer_report_it(admin: Admin) -> None:
    with pytest.raises(BrokerFailure) as raised:
        admin.describe_acls()
    assert raised.value.code == ErrorCode.SECURITY_DISABLED


def test_an_unreachable_cluster_is_reported_immediately_for_each_item() -> None:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": "127.0.0.1:1"}), name="nowhere")
    admin = Admin(cluster)
    start = time.monotonic()
    for outcome in (
        *admin.describe_topics(["a", "b"]).values(),
        *admin.describe_configs(["a"]).values(),
        *admin.create_topics([NewTopic("a")]).values(),
        *admin.list_group_offsets(["g"]).values(),
        *admin.list_offsets({TopicPartition("a", 0): LATEST}).values(),
    ):
        assert isinstance(outcome, RefusedFailure)
        assert "cluster nowhere" in str(outcome)
    with pytest.raises(RefusedFailure):
        admin.list_topics()
    assert time.monotonic() - start < 25, "a request has 30 s"
    cluster.close()


@pytest.mark.parametrize(("limit", "succeeds"), [({}, False), ({"default.api.timeout.ms": "60000"}, True)])
def test_a_call_is_retried_for_the_time_of_default_api_timeout(limit: dict[str, str], succeeds: bool) -> None:
    """Without the key for the time of a request."""
    props = {"bootstrap.servers": "127.0.0.1:1", "request.timeout.ms": "1", **limit}
    cluster = Cluster(ClientSettings.from_props(props), name="A")
    failures = [DisconnectedFailure("lost")] * 2

    def ask(keys: list[str], _timeout_s: float) -> dict[str, int | KafkaFailure]:
        if failures:
            raise failures.pop()
        return dict.fromkeys(keys, 7)

    results = Admin(cluster)._settle(["k"], ask, repeatable=True)
    assert (results["k"] == 7) is succeeds
    cluster.close()
