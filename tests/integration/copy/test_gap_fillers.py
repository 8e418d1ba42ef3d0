"""What takes up target offsets without a record, on a real broker and without Spark: markers and empty transactions."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from mm2.copy.empty_transactions import EmptyTransactions
from mm2.copy.executor.producing.marker_sender import MarkerRun, MarkerSender
from mm2.kafka.client.channel import BufferPool
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, ProducerFenced, TimeoutFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create, end_offset, read
from tests.support.waiting import wait_until

COUNT = 500


@pytest.fixture
def cluster(kafka_b: LocalKafka) -> Iterator[Cluster]:
    made = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}), name="B")
    yield made
    made.close()


def partition_of(broker: LocalKafka, cluster: Cluster, topic: str) -> TopicPartition:
    """An empty partition that has a leader."""
    create(broker, topic)

    def has_leader() -> bool:
        cluster.invalidate(topic)
        return topic in cluster.metadata([topic]).topics

    wait_until(has_leader)
    return TopicPartition(topic, 0)


async def write_markers(
    cluster: Cluster, runs: list[tuple[TopicPartition, int, int, int]]
) -> list[KafkaFailure | None]:
    """The result of each run (partition, first, after, generation), sent at the same time."""
    loop = asyncio.get_running_loop()
    with ThreadPoolExecutor(2) as threads:
        sender = MarkerSender(cluster, loop, threads, BufferPool(), may_send=lambda: True)
        try:
            answers = [loop.create_future() for _ in runs]
            for (partition, first, after, generation), answer in zip(runs, answers, strict=True):
                leader = await loop.run_in_executor(threads, cluster.leader, *partition)
                sender.send(leader, MarkerRun(partition, first, after, generation, answer.set_result))
            return [await answer for answer in answers]
        finally:
            sender.close()


def test_markers_of_several_partitions_take_up_their_offsets(
    kafka_b: LocalKafka, cluster: Cluster, unique: str
) -> None:
    partitions = [partition_of(kafka_b, cluster, f"{unique}-{number}") for number in range(3)]
    runs = [(partition, 0, COUNT * (number + 1), 0) for number, partition in enumerate(partitions)]
    assert asyncio.run(write_markers(cluster, runs)) == [None, None, None]
    assert [end_offset(kafka_b, partition.topic) for partition in partitions] == [COUNT, 2 * COUNT, 3 * COUNT]
    assert [record.offset for record in read(kafka_b, partitions[0].topic)] == []


def test_markers_of_an_older_generation_are_rejected(kafka_b: LocalKafka, cluster: Cluster, unique: str) -> None:
    partition = partition_of(kafka_b, cluster, unique)
    assert asyncio.run(write_markers(cluster, [(partition, 0, 10, 1)])) == [None]
    (older,) = asyncio.run(write_markers(cluster, [(partition, 0, 10, 0)]))
    assert isinstance(older, BrokerFailure)
    assert older.code == ErrorCode.INVALID_PRODUCER_EPOCH
    assert end_offset(kafka_b, unique) == 10


def test_empty_transactions_take_up_offsets_and_fence_predecessors(
    kafka_b: LocalKafka, cluster: Cluster, unique: str
) -> None:
    partition = partition_of(kafka_b, cluster, unique)

    async def fill() -> None:
        first, second = (EmptyTransactions(cluster, "A->B", lambda: True) for _ in range(2))
        try:
            assert isinstance(await first.fill(partition, 1), TimeoutFailure), "nothing is sent before the claim"
            assert await first.claim(partition) is None
            assert end_offset(kafka_b, unique) == 0
            assert await first.fill(partition, 3) is None
            assert await first.fill(partition, COUNT) is None
            wait_until(lambda: end_offset(kafka_b, unique) == COUNT + 3)
            assert await second.claim(partition) is None
            assert isinstance(await first.fill(partition, 20), ProducerFenced)
            assert await second.fill(partition, 20) is None
            wait_until(lambda: end_offset(kafka_b, unique) == COUNT + 23)
        finally:
            first.close()
            second.close()

    asyncio.run(fill())
    assert read(kafka_b, unique) == []
    assert end_offset(kafka_b, unique) == COUNT + 23


def test_a_claim_aborts_the_transaction_that_a_predecessor_has_left_open(
    kafka_b: LocalKafka, cluster: Cluster, unique: str
) -> None:
    partition = partition_of(kafka_b, cluster, unique)
    allowed = [True] * 3  # the claims, and the partition is added; then the lease ends

    async def fill() -> None:
        first = EmptyTransactions(cluster, "A->B", lambda: True)
        assert await first.claim(partition) is None
        first._may_send = lambda: bool(allowed) and allowed.pop()
        allowed[:] = [True]
        assert isinstance(await first.fill(partition, 1), TimeoutFailure)
        first.close()
        assert end_offset(kafka_b, unique) == 0
        second = EmptyTransactions(cluster, "A->B", lambda: True)
        assert await second.claim(partition) is None
        assert end_offset(kafka_b, unique) == 1, "the marker is there when the claim returns"
        second.close()

    asyncio.run(fill())
