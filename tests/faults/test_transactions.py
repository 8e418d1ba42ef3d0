"""Source transactions that stay open, are aborted, or end unexpectedly (rows T of docs/reference/reliability.md).

The copy engine runs alone with read_committed. The flow's own transactions are tested in test_exactly_once.py.
"""

from __future__ import annotations

import time

import pytest
from confluent_kafka import Producer
from kafka.protocol.producer import WriteTxnMarkersRequest

from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.faults.environment import Environment, kill
from tests.faults.oracle import ClusterTopic, Judgment, judge
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import Flow, producer_of, rows_of
from tests.integration.spark_workers import workers
from tests.support.waiting import wait_until


@pytest.fixture
def flow(engine: CopyEngine, environment: Environment, unique: str) -> Flow:
    return Flow(engine, environment.a, environment.b, unique)


def transactional(broker: LocalKafka, name: str) -> Producer:
    producer = producer_of(broker, transactional__id=name, transaction__timeout__ms=300_000)
    producer.init_transactions(30)
    return producer


def send(producer: Producer, topics: list[str], first: int, count: int) -> None:
    for number in range(first, first + count):
        for topic in topics:
            producer.produce(topic, b"%d" % number, key=b"k", partition=0)
    assert producer.flush(30) == 0


def judged(flow: Flow, topic: str) -> Judgment:
    source, target = ClusterTopic(flow.source.bootstrap, topic), ClusterTopic(flow.target.bootstrap, flow.remote(topic))
    return judge(source, target, isolation="read_committed")


def await_blocked(job: CopyJob, tp: TopicPartition, at: int) -> None:
    """Assert that the partition reports the open transaction and its offset, and not a stall."""
    wait_until(lambda: tp in rows_of(job) and rows_of(job)[tp].state == "BLOCKED_BY_OPEN_TXN", 30, detail=job.progress)
    row = rows_of(job)[tp]
    assert row.position == at
    assert row.offset == at
    assert f"began at source offset {at} " in row.reason
    assert row.since_ms > 0
    assert row.lag > 0


def test_t1_an_open_transaction_blocks_only_its_partition_and_is_reported(flow: Flow) -> None:
    held, free = flow.topic("held"), flow.topic("free")
    write(flow.source, held, numbered(0, 10))
    producer = transactional(flow.source, flow.name)
    producer.begin_transaction()
    send(producer, [held], 100, 5)
    write(flow.source, held, numbered(10, 10))
    spec = flow.spec(held, free, read_committed=True)
    tp = TopicPartition(held, 0)
    with flow.copying(spec) as job:
        await_blocked(job, tp, 10)
        write(flow.source, free, numbered(0, 20))
        wait_until(lambda: rows_of(job)[TopicPartition(free, 0)].position == 20, detail=job.status)
        time.sleep(2)
        assert rows_of(job)[tp].state == "BLOCKED_BY_OPEN_TXN", "the partition did not stay blocked"
        producer.commit_transaction(30)
        flow.wait_until_copied(job, spec)
        wait_until(lambda: rows_of(job)[tp].state == "RUNNING", 10, detail=job.progress)
    for topic in (held, free):
        judged(flow, topic).assert_exactly_once()


def test_t2_aborted_transactions_between_committed_ones_are_never_copied(flow: Flow) -> None:
    topic = flow.topic()
    one, two = transactional(flow.source, f"{flow.name}-1"), transactional(flow.source, f"{flow.name}-2")
    for number in range(6):  # they overlap, and every third is aborted
        one.begin_transaction()
        send(one, [topic], number * 100, 3)
        two.begin_transaction()
        send(two, [topic], number * 100 + 50, 3)
        send(one, [topic], number * 100 + 3, 2)
        (one.abort_transaction if number % 3 == 0 else one.commit_transaction)(30)
        (two.abort_transaction if number % 3 == 1 else two.commit_transaction)(30)
    spec = flow.spec(topic, read_committed=True)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        gaps = job.status()["gaps"]
    judgment = judged(flow, topic)
    judgment.assert_exactly_once()
    assert judgment.source_records == 4 * 5 + 4 * 3
    assert gaps == {"control": 12, "aborted": 2 * 5 + 2 * 3}


def test_t3_an_interrupted_transaction_over_two_topics_is_complete_on_both_in_the_end(flow: Flow) -> None:
    """Until then its records become visible separately: the target has no transaction that contains both topics."""
    topics = [flow.topic("one"), flow.topic("two")]
    producer = transactional(flow.source, flow.name)
    spec = flow.spec(*topics, read_committed=True)
    with flow.copying(spec) as job:
        for number in range(6):
            producer.begin_transaction()
            send(producer, topics, number * 1000, 200)
            if number % 3 == 2:
                producer.abort_transaction(30)
            else:
                producer.commit_transaction(30)
            time.sleep(0.05 * number)
            kill(workers())
        flow.wait_until_copied(job, spec, 60)
    for topic in topics:
        judgment = judged(flow, topic)
        judgment.assert_exactly_once()
        assert judgment.source_records == 4 * 200


def test_t4_copying_continues_once_a_hanging_transaction_is_aborted_by_an_admin(flow: Flow) -> None:
    topic = flow.topic()
    tp = TopicPartition(topic, 0)
    write(flow.source, topic, numbered(0, 10))
    producer = transactional(flow.source, flow.name)
    producer.begin_transaction()
    send(producer, [topic], 100, 5)
    write(flow.source, topic, numbered(10, 10))
    spec = flow.spec(topic, read_committed=True)
    with flow.copying(spec) as job:
        await_blocked(job, tp, 10)
        abort_by_admin(flow.source, tp)
        flow.wait_until_copied(job, spec)
        assert job.status()["gaps"] == {"aborted": 5, "control": 1}
    judged(flow, topic).assert_exactly_once()


def abort_by_admin(broker: LocalKafka, tp: TopicPartition) -> None:
    """Write an ABORT marker for the producer of the open transaction, as `kafka-transactions abort` does."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="A")
    try:
        found = Admin(cluster).describe_producers([tp])[tp]
        assert not isinstance(found, KafkaFailure), found
        (open_one,) = [state for state in found.values() if state.current_transaction_start_offset >= 0]
        marker = WriteTxnMarkersRequest.WritableTxnMarker
        request = WriteTxnMarkersRequest(
            markers=[
                marker(
                    producer_id=open_one.producer_id,
                    producer_epoch=open_one.producer_epoch,
                    transaction_result=False,
                    topics=[marker.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
                    coordinator_epoch=max(0, open_one.coordinator_epoch),
                )
            ]
        )
        answer = cluster.send(cluster.leader(*tp), request)
        (result,) = answer.markers[0].topics[0].partitions
        assert result.error_code == 0, result
    finally:
        cluster.close()
