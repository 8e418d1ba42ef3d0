"""Exactly-once mode of the copy engine on real brokers, as seen by a read_committed consumer of the target."""

from __future__ import annotations

import random
import struct
import time
from dataclasses import replace

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.progress.ledger import Pause
from mm2.copy.progress.session import Mark, PartitionCondition
from mm2.copy.spec import CopySpec, TransactionsSpec
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.producer.transactions import TransactionCoordinatorClient
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import Flow, Traffic, batches, end_offset, read, rows_of
from tests.integration.spark_workers import workers
from tests.support.waiting import wait_until

COMMITTED = "read_committed"


@pytest.fixture
def flow(engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> Flow:
    return Flow(engine, kafka_a, kafka_b, unique)


def transactional(flow: Flow, topic: str, partitions: int = 1, *, interval_ms: int | None = None) -> CopySpec:
    transactions = TransactionsSpec(f"{flow.name}-0", 30_000, interval_ms)
    return flow.spec(topic, partitions=partitions, read_committed=True, transactions=transactions)


def test_after_repeated_kills_a_committed_reader_sees_every_record_once(flow: Flow) -> None:
    topic = flow.topic(partitions=3)
    spec = transactional(flow, topic, 3)
    random.seed(5)
    with Traffic(flow.source, topic, 3, per_second=3000) as traffic, flow.copying(spec) as job:
        for _ in range(3):
            before = job.status()
            wait_until(lambda: job.status()["records"] > before["records"] + 100, detail=job.status)  # noqa: B023
            time.sleep(random.random())
            for worker in workers():
                worker.kill()
            wait_until(lambda: job.status()["batches"] > before["batches"], detail=job.status)  # noqa: B023
        traffic.finish()
        flow.wait_until_copied(job, spec, 60)
    for partition in range(3):
        flow.assert_equal(topic, partition, isolation=COMMITTED)
    assert flow.committed(spec) == {part.source: end_offset(flow.source, *part.source) for part in spec.partitions}


def test_positions_are_in_the_transaction_of_their_records(flow: Flow) -> None:
    topic = flow.topic()
    spec = transactional(flow, topic)
    write(flow.source, topic, numbered(0, 10))
    with flow.copying(spec) as job:
        wait_until(lambda: flow.committed(spec) == {TopicPartition(topic, 0): 10}, detail=job.status)
        write(flow.source, topic, numbered(10, 10))
        wait_until(lambda: flow.committed(spec) == {TopicPartition(topic, 0): 20}, detail=job.status)
    headers = [header for header, _ in batches(flow.target, flow.remote(topic))]
    data = [header for header in headers if not header.is_control]
    assert all(header.is_transactional for header in data)
    assert len({(header.producer_id, header.producer_epoch) for header in data}) == len(data)
    stored = [
        header
        for partition in range(5)
        for header, _ in batches(flow.target, flow.offsets_topic, partition)
        if not header.is_control
    ]
    assert {(h.producer_id, h.producer_epoch) for h in stored} == {(h.producer_id, h.producer_epoch) for h in data}


def test_syncs_name_true_target_offsets_behind_markers(flow: Flow) -> None:
    topic = flow.topic()
    spec = transactional(flow, topic)
    with flow.copying(spec) as job:
        for number in range(5):
            write(flow.source, topic, numbered(number * 10, 10))
            tp = TopicPartition(topic, 0)
            wait_until(lambda: flow.committed(spec) == {tp: number * 10 + 10}, detail=job.status)  # noqa: B023
    wanted = read(flow.source, topic, isolation=COMMITTED)
    got = {record.offset: record.content for record in read(flow.target, flow.remote(topic), isolation=COMMITTED)}
    pairs = [struct.unpack(">qq", record.value or b"") for record in read(flow.source, flow.syncs_topic)]
    assert len(pairs) >= 5
    by_offset = {record.offset: record.content for record in wanted}
    for upstream, downstream in pairs:
        assert by_offset[upstream] == got[downstream]
    assert pairs[-1] == (49, 53), "one marker for each transaction before the last"


def test_an_interval_reduces_the_number_of_transactions(flow: Flow) -> None:
    topic = flow.topic()
    spec = transactional(flow, topic, interval_ms=1500)
    with Traffic(flow.source, topic, per_second=500) as traffic, flow.copying(spec) as job:
        wait_until(lambda: job.status()["records"] > 2000, detail=job.status)
        traffic.finish()
        flow.wait_until_copied(job, spec)
        wait_until(lambda: flow.committed(spec) == {TopicPartition(topic, 0): traffic.sent}, detail=job.status)
    flow.assert_equal(topic, isolation=COMMITTED)
    markers = [header for header, _ in batches(flow.target, flow.remote(topic)) if header.is_control]
    assert 2 <= len(markers) <= 8


def test_exactly_once_can_be_switched_off_and_on_again(flow: Flow) -> None:
    """Records of the default mode are before the position then, and not those of the transaction that was committed before."""
    topic = flow.topic()
    spec = transactional(flow, topic)
    for number, mode in enumerate((spec, replace(spec, transactions=None), spec)):
        write(flow.source, topic, numbered(number * 10, 10))
        with flow.copying(mode) as job:
            wait_until(
                lambda: flow.committed(spec) == {TopicPartition(topic, 0): number * 10 + 10},  # noqa: B023
                detail=job.status,
            )
    flow.assert_equal(topic, isolation=COMMITTED)


def test_hand_offs_between_micro_batches_keep_the_count(flow: Flow) -> None:
    topic = flow.topic(partitions=2)
    spec = replace(transactional(flow, topic, 2), batch_duration_ms=500)
    with Traffic(flow.source, topic, 2, per_second=1000) as traffic, flow.copying(spec) as job:
        wait_until(lambda: job.status()["batches"] >= 6, detail=job.status)
        traffic.finish()
        flow.wait_until_copied(job, spec)
    for partition in range(2):
        flow.assert_equal(topic, partition, isolation=COMMITTED)


@pytest.mark.parametrize("exactly_once", [True, False])
def test_a_blocked_partition_is_reported_while_idle_and_its_state_is_kept(flow: Flow, exactly_once: bool) -> None:
    topic = flow.topic(partitions=2)
    spec = transactional(flow, topic, 2) if exactly_once else flow.spec(topic, partitions=2)
    spec = replace(spec, batch_duration_ms=500)
    held, other = (TopicPartition(topic, index) for index in range(2))
    for tp in (held, other):
        write(flow.source, topic, numbered(0, 10), partition=tp.partition)
    pauses: dict[tuple[str, int | None], Pause] = {}

    def condition() -> PartitionCondition | None:
        entry = flow.ledger().entry(held)
        assert entry is not None
        return entry.condition

    with flow.copying(spec, pauses=lambda: dict(pauses)) as job:
        wait_until(lambda: flow.committed(spec) == {held: 10, other: 10}, detail=job.status)
        pauses[topic, 0] = Pause("ann@ops1", 1_000)
        job.follow_pauses()
        wait_until(lambda: (found := condition()) is not None and found.state == "PAUSED", detail=job.status)
        before = job.status()["batches"]
        wait_until(lambda: job.status()["batches"] > before + 1, detail=job.status)
        kept = flow.ledger().entry(held)
        assert kept is not None
        assert kept.mark == Mark(10, 10, 10)
        assert kept.end == 10, "a lane without fetched records must keep the end offset of the source"
        assert kept.condition is not None
        write(flow.source, topic, numbered(10, 10), partition=1)
        wait_until(lambda: flow.committed(spec) == {held: 10, other: 20}, detail=job.status)
        pauses.clear()
        job.follow_pauses()
        wait_until(lambda: condition() is None, detail=job.status)
        write(flow.source, topic, numbered(10, 10), partition=0)
        wait_until(lambda: flow.committed(spec) == {held: 20, other: 20}, detail=job.status)
    for tp in (held, other):
        flow.assert_equal(topic, tp.partition, isolation=COMMITTED)
        entry = flow.ledger().entry(tp)
        assert entry is not None
        assert (entry.mark.source, entry.mark.records, entry.foreign) == (20, 20, 0)


def test_the_end_offset_of_an_empty_partition_is_kept_without_an_offset_to_commit(flow: Flow) -> None:
    topic = flow.topic()
    spec = replace(transactional(flow, topic), auto_offset_reset="latest")
    tp = TopicPartition(topic, 0)
    with flow.copying(spec) as job:
        wait_until(lambda: flow.ledger().entry(tp), detail=job.status)
    write(flow.source, topic, numbered(0, 10))
    with flow.copying(spec) as job:
        wait_until(lambda: flow.committed(spec) == {tp: 10}, detail=job.status)
    flow.assert_equal(topic, isolation=COMMITTED)


def test_another_producer_with_the_transactional_id_fences_ours(flow: Flow) -> None:
    """Fence the flow like Java's task with the same id, or our own successor in another process."""
    topic = flow.topic()
    spec = transactional(flow, topic)
    tp = TopicPartition(topic, 0)
    with flow.copying(spec) as job:
        write(flow.source, topic, numbered(0, 10))
        wait_until(lambda: flow.committed(spec) == {tp: 10}, detail=job.status)
        settings = ClientSettings.from_props({"bootstrap.servers": flow.target.bootstrap}, client_id="other")
        cluster = Cluster(settings, name="B")
        assert spec.transactions is not None
        try:
            TransactionCoordinatorClient(cluster, spec.transactions.transactional_id).init_producer_id(30_000)
        finally:
            cluster.close()
        before = job.status()["batches"]
        write(flow.source, topic, numbered(10, 10))
        # This micro-batch is fenced; the next one uses the id again, as a restarted task does.
        wait_until(lambda: job.status()["batches"] > before, detail=job.status)
        wait_until(lambda: flow.committed(spec) == {tp: 20}, detail=job.status)
        wait_until(lambda: rows_of(job)[tp].position == 20, detail=job.status)
    flow.assert_equal(topic, isolation=COMMITTED)


def test_a_record_that_is_too_large_blocks_only_its_partition(flow: Flow) -> None:
    topic = flow.topic(partitions=2, target={"max__message__bytes": "100000"})
    spec = transactional(flow, topic, 2)
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(flow.source, topic, numbered(0, 3), numbered(3, 1, size=150_000), numbered(4, 3), partition=0)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].state == "TOO_LARGE", detail=job.status)
        for number in range(3):
            write(flow.source, topic, numbered(number * 5, 5), partition=1)
            wait_until(lambda: flow.committed(spec) == {bad: 3, good: number * 5 + 5}, detail=job.status)  # noqa: B023
    flow.assert_equal(topic, 1, isolation=COMMITTED)
