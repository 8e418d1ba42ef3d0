"""Copy sessions on real brokers: no data loss and no duplicates after any crash."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psutil
import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.copy.executor.clusters.discovery import new_producer
from mm2.copy.progress.session import SEQUENCES, LedgerEntry, Mark, Rules, Session, Start
from mm2.copy.progress.target_progress import ProgressQuestion, TargetLookUp, TargetProgress
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import ProducerIdentity, TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import (
    Flow,
    Traffic,
    admin_of,
    batches,
    create,
    delete_before,
    end_offset,
    producer_of,
    read,
    rows_of,
)
from tests.integration.spark_workers import workers
from tests.support.waiting import wait_until

ONE_SECOND_MS = 1000


@pytest.fixture
def flow(engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> Flow:
    return Flow(engine, kafka_a, kafka_b, unique)


def kill_workers() -> None:
    for worker in workers():
        worker.send_signal(signal.SIGKILL)


def assigned_producer(cluster: Cluster) -> ProducerIdentity:
    """A producer id of a broker that may have just started."""
    found: list[ProducerIdentity] = []

    def is_assigned() -> bool:
        with contextlib.suppress(BrokerFailure):
            found.append(new_producer(cluster))
        return bool(found)

    wait_until(is_assigned)
    return found[0]


def test_repeated_kills_cause_no_loss_or_duplicate(flow: Flow) -> None:
    topic = flow.topic(partitions=3)
    spec = flow.spec(topic, partitions=3)
    random.seed(4)
    with Traffic(flow.source, topic, 3, per_second=3000) as traffic, flow.copying(spec) as job:
        for _ in range(3):
            before = job.status()["records"]
            wait_until(lambda: job.status()["records"] > before + 200, detail=job.status)  # noqa: B023
            time.sleep(random.random())
            kill_workers()
        traffic.finish()
        flow.wait_until_copied(job, spec)
        assert job.status()["batches"] >= 3
    for partition in range(3):
        flow.assert_equal(topic, partition)
    producers = {(header.producer_id, header.producer_epoch) for header, _ in batches(flow.target, flow.remote(topic))}
    assert len(producers) == 1, "one session all the way"


def test_the_sequences_of_a_session_wrap_also_between_a_crash_and_the_look_up(flow: Flow) -> None:
    """A session that has copied almost 2^31 records of a partition; a batch contains the last sequence and the first one."""
    topic = flow.topic()
    tp = TopicPartition(topic, 0)
    spec = flow.spec(topic, commit_interval_ms=3_600_000)
    cluster = Cluster(spec.target, name="B")
    try:
        identity = assigned_producer(cluster)
    finally:
        cluster.close()
    mark = Mark(0, 0, SEQUENCES - 150)
    long_ago = Session(identity, Mark(-mark.records, -1, 0), str(Rules(spec.read_committed)))
    first = LedgerEntry(topic, 0, flow.remote(topic), mark, session=long_ago, source_epoch=0, known_epoch=0)

    def starts(_wanted: Any) -> dict[TopicPartition, Start]:
        return {tp: flow.ledger().start(tp, None) if flow.ledger().entry(tp) else Start(0, None, first)}

    def copied(count: int) -> bool:
        return end_offset(flow.target, flow.remote(topic)) >= count

    job = flow.engine.open(spec, starts, dict)
    try:
        for count in (100, 200, 300):
            write(flow.source, topic, numbered(count - 100, 100))
            wait_until(lambda: copied(count), 60, detail=job.status)  # noqa: B023
            kill_workers()
            wait_until(lambda: job.status()["batches"] >= count // 100 + 1, 60, detail=job.status)  # noqa: B023
        write(flow.source, topic, numbered(300, 100))
        flow.wait_until_copied(job, spec)
    finally:
        assert job.stop(20)
    flow.assert_equal(topic)
    headers = [header for header, _ in batches(flow.target, flow.remote(topic))]
    assert {(header.producer_id, header.producer_epoch) for header in headers} == {identity}, "one session all the way"
    assert [header.base_sequence for header in headers][:3] == [SEQUENCES - 150, SEQUENCES - 50, 50]
    entry = flow.ledger().entry(tp)
    assert entry is not None
    assert entry.mark == Mark(400, 400, SEQUENCES + 250)


def test_a_frozen_executor_that_resumes_writes_no_duplicates(flow: Flow) -> None:
    topic = flow.topic()
    spec = flow.spec(topic)
    with Traffic(flow.source, topic, per_second=2000) as traffic, flow.copying(spec) as job:
        wait_until(lambda: job.status()["records"] > 500, detail=job.status)
        frozen = workers()
        for worker in frozen:
            worker.send_signal(signal.SIGSTOP)
        wait_until(lambda: job.status()["batches"] >= 2, detail=job.status)
        for worker in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):  # Spark may have killed it
                worker.send_signal(signal.SIGCONT)
        at = traffic.sent
        wait_until(lambda: sum(row.position for row in job.progress()) > at + 500, detail=job.status)
        traffic.finish()
        flow.wait_until_copied(job, spec)
    flow.assert_equal(topic)


def test_records_of_another_producer_on_the_remote_topic_do_not_change_the_count(flow: Flow) -> None:
    topic = flow.topic()
    spec = flow.spec(topic)
    with Traffic(flow.source, topic) as traffic, flow.copying(spec) as job:
        wait_until(lambda: job.status()["records"] > 200, detail=job.status)
        write(flow.target, flow.remote(topic), [Record(b"foreign", b"%d" % i) for i in range(7)])
        at = job.status()["records"]
        wait_until(lambda: job.status()["records"] > at + 100, detail=job.status)
        kill_workers()
        wait_until(lambda: job.status()["records"] > at + 400, detail=job.status)
        write(flow.target, flow.remote(topic), [Record(b"foreign", b"more")])
        traffic.finish()
        flow.wait_until_copied(job, spec)
        time.sleep(1.2)
    wanted = [record.content for record in read(flow.source, topic)]
    got = [record.content for record in read(flow.target, flow.remote(topic)) if record.key != b"foreign"]
    assert got == wanted
    entry = flow.ledger().entry(TopicPartition(topic, 0))
    assert entry is not None
    assert entry.foreign in {7, 8}, "all but those behind our last record are seen"


def test_compaction_between_crash_and_restart_causes_no_loss_or_duplicate(flow: Flow) -> None:
    """The records are on the target, uncommitted, and deleted from the source when the successor counts."""
    topic = flow.compacted_topic()
    tp = TopicPartition(topic, 0)
    spec = flow.spec(topic, commit_interval_ms=3_600_000)  # no commit after the session's first
    write(flow.source, topic, numbered(0, 10), numbered(0, 10), numbered(20, 5))
    with flow.copying(spec) as job:
        wait_until(lambda: tp in rows_of(job) and rows_of(job)[tp].position == 25, detail=job.status)
        time.sleep(0.3)
        write(flow.source, topic, numbered(20, 5), [Record(b"last", b"1")])

        def cleaned() -> bool:
            time.sleep(0.25)
            write(flow.source, topic, [Record(b"last", b"1")])
            return len(read(flow.source, topic)) < end_offset(flow.source, topic) - 10

        wait_until(cleaned, 40)
        wait_until(lambda: rows_of(job)[tp].position == end_offset(flow.source, topic), detail=job.status)
        on_target = len(read(flow.target, flow.remote(topic)))
        kill_workers()
        wait_until(lambda: job.status()["batches"] >= 2, detail=job.status)
        write(flow.source, topic, numbered(30, 5))
        flow.wait_until_copied(job, spec)
    got = read(flow.target, flow.remote(topic))
    assert [record.content for record in got[-5:]] == [record.content for record in read(flow.source, topic)[-5:]]
    assert len(got) == on_target + 5


def test_records_deleted_between_crash_and_restart_are_a_gap(flow: Flow) -> None:
    topic = flow.topic()
    tp = TopicPartition(topic, 0)
    spec = flow.spec(topic, commit_interval_ms=3_600_000)
    write(flow.source, topic, numbered(0, 50), numbered(50, 50))
    with flow.copying(spec) as job:
        wait_until(lambda: tp in rows_of(job) and rows_of(job)[tp].position == 100, detail=job.status)
        delete_before(flow.source, topic, 60)  # all records are copied but not committed
        kill_workers()
        wait_until(lambda: job.status()["batches"] >= 2, detail=job.status)
        write(flow.source, topic, numbered(100, 10))
        wait_until(lambda: rows_of(job)[tp].position == 110, detail=job.status)
    got = read(flow.target, flow.remote(topic))
    assert [record.content for record in got] == [r.content for r in _as_read(numbered(0, 110))]


def _as_read(records: list[Record]) -> list[_Content]:
    return [_Content(record) for record in records]


class _Content:
    def __init__(self, record: Record) -> None:
        self.content = (record.timestamp, record.key, record.value, ())


def test_without_the_ledger_delivery_is_at_least_once_and_reported(flow: Flow) -> None:
    topic = flow.topic()
    spec = flow.spec(topic)
    write(flow.source, topic, numbered(0, 10))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        for done in admin_of(flow.target).delete_topics([flow.ledger_topic]).values():
            done.result(30)
        write(flow.source, topic, numbered(10, 10))
        flow.wait_until_copied(job, spec)
        wait_until(lambda: any("at least once" in note for note in job.status()["notes"]), detail=job.status)
        wait_until(lambda: flow.committed(spec) == {TopicPartition(topic, 0): 20}, detail=job.status)
    create(flow.target, flow.ledger_topic, 1, cleanup__policy="compact")
    flow.assert_equal(topic)


def test_a_position_changed_by_a_user_is_used(flow: Flow) -> None:
    topic = flow.topic()
    tp = TopicPartition(topic, 0)
    spec = flow.spec(topic)
    write(flow.source, topic, numbered(0, 20))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert flow.committed(spec) == {tp: 20}
    with flow.copying(spec, {tp: 15}) as job:  # as Java does, which has no ledger
        flow.wait_until_copied(job, spec)
    assert len(read(flow.target, flow.remote(topic))) == 25
    entry = flow.ledger().entry(tp)
    assert entry is not None
    assert entry.session is not None
    assert entry.session.start.source == 15


@pytest.fixture(scope="module")
def own_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path_factory.mktemp("sessions"), heap="384m") as pair:
        yield pair


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_target_that_forgot_the_producer_of_old_records_gets_no_duplicates(
    engine: CopyEngine, own_pair: tuple[LocalKafka, LocalKafka], unique: str
) -> None:
    """Brokers expire producers by record timestamps: after a restart the producer of a backfill is unknown."""
    flow = Flow(engine, *own_pair, unique)
    topic = flow.topic()
    spec = flow.spec(topic, commit_interval_ms=3_600_000)
    producer = producer_of(flow.source)
    for i in range(20_000):
        producer.produce(topic, b"%d" % i, timestamp=1_600_000_000_000 + i)
    assert producer.flush(60) == 0
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        flow.target.kill9()
        kill_workers()
        flow.target.start()
        for i in range(20_000, 30_000):
            producer.produce(topic, b"%d" % i, timestamp=1_600_000_000_000 + i)
        assert producer.flush(60) == 0
        flow.wait_until_copied(job, spec, 90)
    flow.assert_equal(topic)


def test_a_recreated_remote_topic_gets_no_further_records(flow: Flow) -> None:
    topic = flow.topic(partitions=2)
    tp = TopicPartition(topic, 0)
    spec = flow.spec(topic, partitions=2)
    write(flow.source, topic, numbered(0, 20))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        for done in admin_of(flow.target).delete_topics([flow.remote(topic)]).values():
            done.result(30)
        write(flow.source, topic, numbered(20, 5))
        wait_until(lambda: rows_of(job)[tp].state == "DELETED", detail=job.status)
        create(flow.target, flow.remote(topic), 2)
        wait_until(lambda: rows_of(job)[tp].state == "RECREATED", detail=job.status)
        assert "20 records that were copied to it are lost" in rows_of(job)[tp].reason
    assert read(flow.target, flow.remote(topic)) == []
    with flow.copying(spec) as job:  # and so does a successor
        wait_until(lambda: tp in rows_of(job) and rows_of(job)[tp].state == "RECREATED", detail=job.status)
    with flow.copying(spec, {tp: None}) as job:  # its position was reset
        flow.wait_until_copied(job, spec)
    flow.assert_equal(topic)


def test_a_topic_recreated_during_a_look_up_has_not_lost_records(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    """ListOffsets names topics only, so the log end may be that of a topic that was created after the metadata was read."""
    topic = f"{flow.name}-recreated"
    create(flow.target, topic)
    producer = producer_of(flow.target, enable__idempotence=True)
    for number in range(20):
        producer.produce(topic, b"%d" % number, partition=0)
    assert producer.flush(30) == 0
    ((header, _), *_) = batches(flow.target, topic)
    cluster = Cluster(
        ClientSettings.from_props({"bootstrap.servers": flow.target.bootstrap}, client_id="look-up"), name="B"
    )
    look_up, partition = TargetLookUp(cluster), TopicPartition(topic, 0)
    described = look_up._admin.describe_producers

    def recreate(*arguments: Any, **options: Any) -> Any:
        for done in admin_of(flow.target).delete_topics([topic]).values():
            done.result(30)
        create(flow.target, topic)
        return described(*arguments, **options)

    topic_id = cluster.metadata([topic]).topics[topic].topic_id
    question = ProgressQuestion(ProducerIdentity(header.producer_id, header.producer_epoch), 20, 20, 0, -1, topic_id)
    try:
        found = look_up.progress({partition: question})[partition]
        assert isinstance(found, TargetProgress), found
        monkeypatch.setattr(look_up._admin, "describe_producers", recreate)
        answer = look_up.progress({partition: question})[partition]
        assert isinstance(answer, BrokerFailure), answer
        assert answer.retriable
    finally:
        cluster.close()


def test_a_source_topic_recreated_while_no_process_copies_is_copied_from_its_start(flow: Flow) -> None:
    topic = flow.topic()
    tp = TopicPartition(topic, 0)
    spec = flow.spec(topic)
    write(flow.source, topic, numbered(0, 20))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    for done in admin_of(flow.source).delete_topics([topic]).values():
        done.result(30)
    wait_until(lambda: topic not in admin_of(flow.source).list_topics(timeout=60).topics)
    create(flow.source, topic, 1, retention__ms="-1")
    write(flow.source, topic, numbered(100, 30))  # beyond the old end, where Java's MM2 continues without a warning
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        wait_until(lambda: flow.committed(spec) == {tp: 30}, detail=job.status)
    got = [record.value for record in read(flow.target, flow.remote(topic))]
    assert got == [record.value for record in [*numbered(0, 20), *numbered(100, 30)]]
    stopping = replace(spec, source_data_loss="stop")
    # A successor also reports records that were known to exist and not copied yet, although it never read them.
    write(flow.source, topic, numbered(0, 10, size=5_000), numbered(0, 5))
    with flow.copying(replace(spec, throttle=1)) as job:
        wait_until(lambda: rows_of(job) and rows_of(job)[tp].state == "THROTTLED", detail=job.progress)
        wait_until(lambda: known_end(flow, tp) == 45, detail=job.progress)
    behind = flow.committed(spec)[tp]
    assert behind is not None
    assert behind < 45
    for done in admin_of(flow.source).delete_topics([topic]).values():
        done.result(30)
    wait_until(lambda: topic not in admin_of(flow.source).list_topics(timeout=60).topics)
    create(flow.source, topic, 1, retention__ms="-1")
    with flow.copying(spec) as job:
        wait_until(lambda: tp in rows_of(job) and rows_of(job)[tp].lost == 1, detail=job.progress)
    entry = flow.ledger().entry(tp)
    assert entry is not None
    assert [lost[:3] for lost in entry.lost] == [(behind, 45, "recreated")]
    on_target = len(read(flow.target, flow.remote(topic)))
    write(flow.source, topic, numbered(0, 5))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    for done in admin_of(flow.source).delete_topics([topic]).values():
        done.result(30)
    wait_until(lambda: topic not in admin_of(flow.source).list_topics(timeout=60).topics)
    create(flow.source, topic, 1, retention__ms="-1")
    with flow.copying(stopping) as job:
        wait_until(lambda: tp in rows_of(job) and rows_of(job)[tp].state == "RECREATED", detail=job.status)
    assert len(read(flow.target, flow.remote(topic))) == on_target + 5


def test_a_higher_epoch_of_the_producer_fences_requests_that_arrive_late(kafka_b: LocalKafka, unique: str) -> None:
    """What rule S9 relies on. No request announces the epoch, as with the idempotent producers of Java (KIP-360)."""
    topic = f"{unique}-epochs"
    create(kafka_b, topic)
    cluster = Cluster(
        ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}, client_id="epochs"), name="epochs"
    )
    producer_id = assigned_producer(cluster).producer_id
    producer = Producer(cluster)

    def append(epoch: int, sequence: int, count: int) -> int:
        batch = encode_batch(numbered(0, count), producer=(producer_id, epoch, sequence))
        try:
            return producer._produce(TopicPartition(topic, 0), bytes(batch))[0]
        except BrokerFailure as failure:
            return -failure.code

    try:
        wait_until(lambda: append(0, 0, 3) >= 0)  # the leader of a new topic may not know it yet
        assert append(0, 3, 2) == 3
        assert append(1, 2, 1) == -ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, "an epoch begins with sequence 0"
        assert append(1, 0, 2) == 5
        assert append(0, 5, 2) == -ErrorCode.INVALID_PRODUCER_EPOCH, "it would have been the next one"
        assert append(0, 3, 2) == -ErrorCode.INVALID_PRODUCER_EPOCH, "nor is it a duplicate"
        assert append(1, 2, 1) == 7
    finally:
        cluster.close()
    assert end_offset(kafka_b, topic) == 8


def known_end(flow: Flow, tp: TopicPartition) -> int:
    """The end offset of the source from the ledger."""
    entry = flow.ledger().entry(tp)
    return -1 if entry is None else entry.end
