"""The copy engine between two real brokers: copied records, dropped records with their reasons, and faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from confluent_kafka.admin import ResourceType
from structlog.testing import capture_logs

from mm2.copy.driver.engine import CopyEngine, CopyFailed
from mm2.copy.driver.lanes import lane
from mm2.copy.progress.segments import Gap
from mm2.copy.progress.translation import TranslatedOffset, Translation
from mm2.copy.progress.written_positions import offset_key, offset_value
from mm2.copy.spec import TransactionsSpec
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.copy_flow import (
    CONNECTOR,
    Flow,
    Traffic,
    alter,
    batches,
    delete_before,
    end_offset,
    producer_of,
    read,
    rows_of,
)
from tests.integration.spark_workers import workers
from tests.support.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
FOREVER = str((1 << 63) - 1)


@pytest.fixture
def flow(engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> Flow:
    return Flow(engine, kafka_a, kafka_b, unique)


def write(broker: LocalKafka, topic: str, *groups: list[Record], codec: str = "none", partition: int = 0) -> None:
    """Write each group as one batch, with any timestamp: confluent's producer chooses batches and rejects timestamp 0."""
    settings = ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}, client_id="writer")
    cluster = Cluster(settings, name="writer")
    try:
        producer = Producer(cluster, codec=codec, max_request_bytes=16 << 20)
        for group in groups:
            producer.send(topic, group, partition, timeout_s=30)
    finally:
        cluster.close()


def numbered(first: int, count: int, size: int = 10) -> list[Record]:
    return [
        Record(b"k%d" % i, (b"%d " % i).ljust(size, b"."), (), 1_700_000_000_000 + i)
        for i in range(first, first + count)
    ]


# -- records -----------------------------------------------------------------------------------------------------------


def test_every_record_of_every_codec_is_copied_unchanged(flow: Flow) -> None:
    limits = {"message__timestamp__after__max__ms": FOREVER, "max__message__bytes": "2000000"}
    topic = flow.topic(partitions=5, source=limits, target=limits)
    headers: list[tuple[str, Any]] = [("a", b"1"), ("b", None), ("a", b"2"), ("", b""), ("ü", b"\xff")]
    # The values with other timestamps are long: small batches would be merged.
    for partition, codec in enumerate(CODECS):
        producer = producer_of(flow.source, compression__type=codec)
        for i in range(300):
            producer.produce(
                topic, b"value %d " % i * 5, key=b"k%d" % i, partition=partition, headers=[("n", b"%d" % i)]
            )
        producer.produce(topic, None, key=b"tombstone", partition=partition)
        producer.produce(topic, b"", key=b"", partition=partition)
        producer.produce(topic, None, partition=partition)
        producer.produce(topic, b"value only", partition=partition, headers=headers)
        producer.produce(topic, os.urandom(500_000) * 2, key=b"a megabyte", partition=partition)
        for stamp in (1, 4102444800000, 253402300799000, 1_600_000_000_000):
            producer.produce(topic, b"%d" % stamp + os.urandom(2000), key=b"odd", partition=partition, timestamp=stamp)
        assert producer.flush(60) == 0
        odd = [Record(b"odd", b"%d" % stamp + os.urandom(2000), (("h", None),), stamp) for stamp in (0, -1, 1 << 42, 5)]
        write(flow.source, topic, odd, codec=codec, partition=partition)
    spec = flow.spec(topic, partitions=5)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    for partition, codec in enumerate(CODECS):
        records = flow.assert_equal(topic, partition)
        assert len(records) == 313
        assert {record.timestamp for record in records} >= {0, -1, 1, 5, 1 << 42, 253402300799000}
        sent, got = batches(flow.source, topic, partition), batches(flow.target, flow.remote(topic), partition)
        assert [(h.codec, h.records_count, block) for h, block in got] == [
            (h.codec, h.records_count, block) for h, block in sent
        ], "batches go as they came"
        assert {CODECS[header.codec] for header, _ in got} >= {codec}
        assert all(header.producer_id >= 0 for header, _ in got), "written idempotently"
        assert all(a.base_sequence + a.records_count == b.base_sequence for (a, _), (b, _) in pairwise(got))
    assert job.status()["gaps"] == {}


def test_a_target_with_its_own_compression_gets_the_same_records(flow: Flow) -> None:
    topic = flow.topic(target={"compression__type": "zstd"})
    for codec in ("none", "lz4"):
        write(flow.source, topic, numbered(0, 50, size=200), codec=codec)
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    flow.assert_equal(topic)
    assert {header.codec for header, _ in batches(flow.target, flow.remote(topic))} == {4}


def test_offset_syncs_and_positions_have_mm2s_format(flow: Flow) -> None:
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 10), numbered(10, 5))
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert flow.committed(spec) == {TopicPartition(topic, 0): 15}
    name = topic.encode()
    key = len(name).to_bytes(2, "big") + name + bytes(4)
    syncs = [(record.key, record.value) for record in read(flow.source, flow.syncs_topic)]
    assert {k for k, _ in syncs} == {key}
    assert syncs[-1][1] == (14).to_bytes(8, "big") * 2


def test_log_append_time_of_the_source_becomes_the_records_time(flow: Flow) -> None:
    topic = flow.topic(source={"message__timestamp__type": "LogAppendTime"})
    write(flow.source, topic, numbered(0, 5), codec="lz4")
    time.sleep(0.01)
    write(flow.source, topic, numbered(5, 5), codec="lz4")
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    records = flow.assert_equal(topic)
    assert len({record.timestamp for record in records}) == 2
    assert all(record.timestamp > 1_700_000_001_000 for record in records)
    assert [(h.codec, h.is_log_append_time) for h, _ in batches(flow.target, flow.remote(topic))] == [(3, False)] * 2


def test_compacted_holes_are_removed_and_counted(flow: Flow) -> None:
    topic = flow.compacted_topic()
    every, even = numbered(0, 10), numbered(0, 10)[::2]
    write(flow.source, topic, every, even, numbered(20, 3), codec="zstd")
    time.sleep(0.3)
    write(flow.source, topic, [Record(b"last", b"1")])  # rolls the segment: the active one is never cleaned

    def cleaned() -> bool:
        if all(header.is_dense for header, _ in batches(flow.source, topic)):
            time.sleep(0.2)
            write(flow.source, topic, [Record(b"last", b"1")])
        return any(not header.is_dense for header, _ in batches(flow.source, topic))

    wait_until(cleaned, 40)
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        status = job.status()
    records = flow.assert_equal(topic)
    assert status["gaps"] == {"compacted": end_offset(flow.source, topic) - len(records)}
    assert status["gaps"]["compacted"] >= 5
    assert status["records"] == len(records)
    first = batches(flow.target, flow.remote(topic))[0][0]
    assert (first.codec, first.is_dense, first.records_count) == (4, True, 5)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_transactions_are_copied_as_configured(flow: Flow, isolation: str) -> None:
    topic = flow.topic()
    producer = producer_of(flow.source, transactional__id=flow.name, transaction__timeout__ms=60_000)
    producer.init_transactions(30)
    for number, commit in enumerate([True, False, True, False, False, True]):
        producer.begin_transaction()
        for i in range(5):
            producer.produce(topic, b"%d-%d" % (number, i), key=b"k")
        producer.flush(30)
        write(flow.source, topic, [Record(b"plain", b"between", timestamp=1)])
        if commit:
            producer.commit_transaction(30)
        else:
            producer.abort_transaction(30)
    spec = flow.spec(topic, read_committed=isolation == "read_committed")
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        gaps = job.status()["gaps"]
    records = flow.assert_equal(topic, isolation=isolation)
    assert len(records) == (36 if isolation == "read_uncommitted" else 21)
    assert gaps == ({"control": 6} if isolation == "read_uncommitted" else {"control": 6, "aborted": 15})
    assert not any(
        header.is_transactional or header.is_control for header, _ in batches(flow.target, flow.remote(topic))
    )


# -- limits and losses -------------------------------------------------------------------------------------------------


def test_batches_larger_than_the_fetch_limit_are_copied(flow: Flow) -> None:
    topic = flow.topic(partitions=3)
    for partition in range(3):
        write(flow.source, topic, *(numbered(i * 5, 5, size=20_000) for i in range(10)), partition=partition)
    spec = flow.spec(topic, partitions=3, fetch_partition_bytes=1_000, fetch_max_bytes=5_000)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec, 20)
    for partition in range(3):
        flow.assert_equal(topic, partition)


def test_batches_larger_than_the_target_accepts_are_split(flow: Flow) -> None:
    topic = flow.topic(target={"max__message__bytes": "100000"})
    write(flow.source, topic, numbered(0, 3), numbered(3, 40, size=20_000), numbered(43, 3))
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        status = job.status()
    flow.assert_equal(topic)
    written = batches(flow.target, flow.remote(topic))
    assert len(written) > 8
    assert [a.base_sequence + a.records_count for (a, _), _ in pairwise(written)] == [
        b.base_sequence for _, (b, _) in pairwise(written)
    ]
    assert (status["records"], status["gaps"]) == (46, {})


def test_a_record_too_large_for_the_target_stops_its_partition_only(flow: Flow) -> None:
    topic = flow.topic(partitions=2, target={"max__message__bytes": "100000"})
    write(flow.source, topic, numbered(0, 3), numbered(3, 1, size=150_000), numbered(4, 3), partition=0)
    write(flow.source, topic, numbered(0, 5), partition=1)
    spec = flow.spec(topic, partitions=2)
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].state == "TOO_LARGE", detail=job.status)
        row = rows_of(job)[bad]
        assert row.position == 3
        assert "MESSAGE_TOO_LARGE" in row.reason
        assert flow.remote(topic) in row.reason
        write(flow.source, topic, numbered(5, 5), partition=1)
        wait_until(lambda: rows_of(job)[good].position == 10, detail=job.status)
        assert len(job.status()["troubles"]) == 1
        job.wait(0.1)  # the task does not fail: one partition can continue
    assert flow.committed(spec) == {bad: 3, good: 10}
    flow.assert_equal(topic, 1)


@pytest.mark.slow
def test_a_rejected_partition_resumes_when_the_limit_is_raised(flow: Flow) -> None:
    topic = flow.topic(target={"max__message__bytes": "100000"})
    write(flow.source, topic, numbered(0, 3), numbered(3, 1, size=150_000), numbered(4, 3))
    spec = flow.spec(topic)
    tp = TopicPartition(topic, 0)
    with flow.copying(spec) as job:
        wait_until(lambda: tp in rows_of(job) and rows_of(job)[tp].state == "TOO_LARGE", detail=job.status)
        alter(flow.target, ResourceType.TOPIC, flow.remote(topic), "max.message.bytes", "1000000")
        flow.wait_until_copied(job, spec)
        wait_until(lambda: rows_of(job)[tp].state == "RUNNING", detail=job.status)
        assert job.status()["troubles"] == []
    flow.assert_equal(topic)


def test_records_deleted_before_they_were_copied_are_counted_as_lost(flow: Flow) -> None:
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 50), numbered(50, 50))
    delete_before(flow.source, topic, 60)
    spec = flow.spec(topic)
    with flow.copying(spec, {TopicPartition(topic, 0): 20}) as job:
        flow.wait_until_copied(job, spec)
        assert job.status()["gaps"] == {"retention": 40}
        wait_until(lambda: not job.status()["troubles"], detail=job.status)
    assert len(flow.assert_equal(topic)) == 40
    assert flow.committed(spec) == {TopicPartition(topic, 0): 100}


def set_position(flow: Flow, tp: TopicPartition, position: int) -> None:
    """As Connect's offsets endpoint does."""
    key = offset_key(CONNECTOR, "A", tp)
    write(flow.target, flow.offsets_topic, [Record(key, offset_value(position))], partition=partition_for(key, 5))


@pytest.mark.parametrize("exactly_once", [False, True], ids=["sessions", "transactions"])
def test_offsets_before_a_later_position_have_a_reason(flow: Flow, *, exactly_once: bool) -> None:
    """Given 20 copied records and 15 more, of which the source has deleted 3; when a user sets the position behind 9 of them;
    then each of the 9 is reported as lost, and a group among them continues at the first record that was copied after them.
    """
    topic = flow.topic()
    transactions = TransactionsSpec(f"{flow.name}-0", 30_000) if exactly_once else None
    spec, tp = flow.spec(topic, transactions=transactions), TopicPartition(topic, 0)
    write(flow.source, topic, numbered(0, 20))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    write(flow.source, topic, numbered(20, 15))
    delete_before(flow.source, topic, 23)
    set_position(flow, tp, 29)
    entry = None
    for _ in range(2):
        with flow.copying(spec) as job:
            flow.wait_until_copied(job, spec)
        entry = flow.ledger().entry(tp)
        assert entry is not None
        assert entry.gaps == {"retention": 3, "reset": 6}, "also the second time"
        assert [lost[:3] for lost in entry.lost] == [(20, 23, "retention"), (23, 29, "reset")]
    chunks = flow.ledger().chunks(tp)
    assert [gap for chunk in chunks for gap in chunk.gaps] == [Gap(20, 23, "retention"), Gap(23, 29, "reset")]
    copied = read(flow.target, flow.remote(topic))
    assert [record.value for record in copied[20:]] == [record.value for record in read(flow.source, topic)[6:]]
    assert entry is not None
    translation = Translation(chunks, entry.mark, entry.end)
    # In transactions a marker is before it, which consumers pass over.
    assert {translation.to_target(offset) for offset in range(20, 29)} == {
        TranslatedOffset(20, is_exact=True, at_most=copied[20].offset)
    }


def test_a_position_behind_the_end_of_the_source_loses_and_invents_nothing(flow: Flow) -> None:
    """Given 20 copied records and 5 more; when a user sets the position to 500; then copying continues where it had ended."""
    topic = flow.topic()
    spec, tp = flow.spec(topic), TopicPartition(topic, 0)
    write(flow.source, topic, numbered(0, 20))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    write(flow.source, topic, numbered(20, 5))
    set_position(flow, tp, 500)
    with flow.copying(spec) as job:
        wait_until(lambda: tp in rows_of(job) and rows_of(job)[tp].position == 25, detail=job.progress)
        assert rows_of(job)[tp].reason.startswith("the position was set to offset 500, and the log of A ends at 25")
    flow.assert_equal(topic)
    entry = flow.ledger().entry(tp)
    assert entry is not None
    assert (entry.gaps, entry.lost, flow.committed(spec)) == ({}, (), {tp: 25})


def test_lost_records_fail_the_partition_when_configured(flow: Flow) -> None:
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 20))
    delete_before(flow.source, topic, 10)
    spec = flow.spec(topic, source_data_loss="stop")
    with flow.copying(spec, {TopicPartition(topic, 0): 4}) as job:

        def failed() -> str:
            try:
                job.wait(0.1)
            except CopyFailed as failure:
                return str(failure)
            return ""

        wait_until(failed, detail=job.status)
        assert failed() == (
            f"offsets 4..9 of {topic}-0 were deleted on A before they were copied; source.data.loss is stop"
        )
    assert read(flow.target, flow.remote(topic)) == []


def test_a_failed_partition_is_not_copied_again_by_later_batches(flow: Flow) -> None:
    topic = flow.topic(partitions=2)
    write(flow.source, topic, numbered(0, 50), partition=0)
    spec = flow.spec(topic, partitions=2, batch_duration_ms=400, source_data_loss="stop")
    bad = TopicPartition(topic, 0)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].position == 50, detail=job.status)
        write(flow.source, topic, numbered(50, 5), partition=0)
        wait_until(lambda: rows_of(job)[bad].position == 55, detail=job.status)
    # Records are deleted while no process copies: the next job fails immediately, and again at the same offset.
    write(flow.source, topic, numbered(55, 10), partition=0)
    delete_before(flow.source, topic, 60)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].state == "LOST_RANGE", detail=job.status)
        batch = job.status()["batches"]
        wait_until(lambda: job.status()["batches"] >= batch + 3, detail=job.status)
        assert rows_of(job)[bad].position == 55
    assert len(read(flow.target, flow.remote(topic))) == 55


# -- limits ------------------------------------------------------------------------------------------------------------


def test_a_limit_is_enforced_leaves_room_for_new_records_and_can_be_removed(flow: Flow) -> None:
    limit, size, count = 500_000, 1_000, 20_000
    backlog, tail = flow.topic("backlog"), flow.topic("tail")
    producer = producer_of(flow.source)
    for index in range(count):
        producer.produce(backlog, os.urandom(size), key=b"k%d" % index)
        producer.poll(0)
    assert producer.flush(60) == 0
    far, near = TopicPartition(backlog, 0), TopicPartition(tail, 0)
    spec = flow.spec(backlog, tail, throttle=limit)
    with flow.copying(spec) as job:

        def position(tp: TopicPartition) -> int:
            return rows_of(job)[tp].position if tp in rows_of(job) else -1

        wait_until(lambda: far in rows_of(job) and rows_of(job)[far].state == "THROTTLED", detail=job.progress)
        began, before = time.monotonic(), rows_of(job)[far].bytes
        for number in range(5):  # each exists although the backlog takes 40 s
            write(flow.source, tail, numbered(number, 1))
            wait_until(lambda: position(near) == number + 1, detail=job.progress)  # noqa: B023
            time.sleep(0.2)
            assert rows_of(job)[near].state == "RUNNING"
        assert position(far) < count
        passed, copied = time.monotonic() - began, rows_of(job)[far].bytes - before
        assert 0 < copied <= limit * (passed + 2), "a report is a second old at most, and so much may be saved up"
        job.throttle(0, {backlog: limit / 10})

        def copied_in(seconds: float) -> int:
            before = rows_of(job)[far].bytes
            time.sleep(seconds)
            return rows_of(job)[far].bytes - before

        # On a busy machine reports are late, and four seconds take longer. Without the limit ten times as much would be copied.
        wait_until(lambda: copied_in(4) <= limit / 10 * (4 + 4), detail=job.progress)
        job.throttle(0, {})
        wait_until(lambda: position(far) == count, detail=job.progress)
        wait_until(lambda: rows_of(job)[far].state == "RUNNING", detail=job.progress)
    for topic in (backlog, tail):
        flow.assert_equal(topic)


# -- restarts ----------------------------------------------------------------------------------------------------------


def test_a_stopped_job_resumes_at_its_positions(flow: Flow) -> None:
    topic = flow.topic(partitions=2)
    spec = flow.spec(topic, partitions=2)
    with Traffic(flow.source, topic, 2) as traffic:
        for _ in range(3):
            with flow.copying(spec) as job:
                before = traffic.sent
                wait_until(lambda: sum(row.position for row in job.progress()) > before + 100, detail=job.status)  # noqa: B023
        traffic.finish()
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert flow.committed(spec) == {part.source: end_offset(flow.source, *part.source) for part in spec.partitions}
    for partition in range(2):
        flow.assert_equal(topic, partition)


@pytest.mark.slow
def test_hand_offs_cause_no_loss_or_duplicate(flow: Flow) -> None:
    topic = flow.topic(partitions=3)
    spec = flow.spec(topic, partitions=3, batch_duration_ms=300, commit_interval_ms=100)
    with Traffic(flow.source, topic, 3, per_second=1000) as traffic, flow.copying(spec) as job:
        wait_until(lambda: job.status()["batches"] >= 12, detail=job.status)
        traffic.finish()
        flow.wait_until_copied(job, spec)
        assert job.status()["records"] == traffic.sent
    for partition in range(3):
        flow.assert_equal(topic, partition)
    assert sum(end for end in flow.committed(spec).values() if end) == traffic.sent


def test_the_job_is_visible_in_sparks_status_api(flow: Flow) -> None:
    from pyspark import SparkContext  # noqa: PLC0415  (half a second)

    topic = flow.topic()
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        write(flow.source, topic, numbered(0, 1))
        flow.wait_until_copied(job, spec)
        context: Any = SparkContext._active_spark_context
        tracker = context.statusTracker()
        jobs = context._jsc.sc().statusStore().jobsList(None)
        shown = {jobs.apply(i).jobId(): jobs.apply(i) for i in range(jobs.size())}
        # Beside the lane's, a job that checks whether tasks start may be running.
        (active,) = (one for one in tracker.getActiveJobsIds() if "lane" in shown[one].description().get())
        assert shown[active].description().get() == "A->B MirrorSourceConnector-0 lane 0 batch 1, partitions: 1"
        assert list(tracker.getJobIdsForGroup(shown[active].jobGroup().get())) == [active]
        info = tracker.getJobInfo(active)
        assert info is not None
        assert info.status == "RUNNING"


# -- faults ------------------------------------------------------------------------------------------------------------


def assert_complete(flow: Flow, topic: str, *, most_doubled: int = 0) -> int:
    """Assert no data loss, first copies in order and at most `most_doubled` duplicates; returns the number of duplicates."""
    wanted = [record.content for record in read(flow.source, topic)]
    got = [record.content for record in read(flow.target, flow.remote(topic))]
    firsts = list(dict.fromkeys(got))
    assert firsts == wanted
    doubled = len(got) - len(firsts)
    assert doubled <= most_doubled
    return doubled


def test_a_killed_worker_is_replaced_without_duplicates(flow: Flow) -> None:
    topic = flow.topic()
    spec = flow.spec(topic)
    with Traffic(flow.source, topic) as traffic, flow.copying(spec) as job, capture_logs() as logs:
        wait_until(lambda: job.status()["records"] > 300, detail=job.status)
        killed = workers()
        assert killed
        for worker in killed:
            worker.send_signal(signal.SIGKILL)
        at = traffic.sent
        wait_until(lambda: sum(row.position for row in job.progress()) > at + 300, detail=job.status)
        traffic.finish()
        flow.wait_until_copied(job, spec)
        assert job.status()["batches"] >= 2
    assert [line["event"] for line in logs if line["log_level"] == "warning"] == [
        "micro-batch lost, its partitions continue at the target's progress"
    ]
    assert_complete(flow, topic)


def test_a_lane_whose_workers_are_killed_again_and_again_is_failing(
    engine: CopyEngine, flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by the kernel, when each of them takes too much memory. `/health` answers 503 then."""
    topic = flow.topic()
    spec = flow.spec(topic)
    write(flow.source, topic, numbered(0, 10))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)

        def is_failing() -> bool:
            for worker in workers():
                worker.send_signal(signal.SIGKILL)
            return bool(engine.failing_lanes(spec.flow))

        wait_until(is_failing, 120, detail=job.status)
        (failing,) = engine.failing_lanes(spec.flow)
        assert failing in job.status()["troubles"]
        assert job.lanes()[0].failing.startswith("the last ")
        monkeypatch.setattr(lane, "_RECOVERED_S", 1.0)
        wait_until(lambda: not engine.failing_lanes(spec.flow), 120, detail=job.status)
        write(flow.source, topic, numbered(10, 10))
        flow.wait_until_copied(job, spec)
    assert_complete(flow, topic)


@pytest.fixture(scope="module")
def own_pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path_factory.mktemp("faults"), heap="384m") as pair:
        yield pair


@pytest.mark.slow
@pytest.mark.timeout(240)
@pytest.mark.parametrize("side", ["target", "source"])
@pytest.mark.parametrize("fault", ["restarted", "paused"])
def test_copying_continues_after_a_broker_restart(
    engine: CopyEngine, own_pair: tuple[LocalKafka, LocalKafka], unique: str, fault: str, side: str
) -> None:
    flow = Flow(engine, *own_pair, unique)
    topic = flow.topic()
    spec = flow.spec(topic)
    broker = getattr(flow, side)
    with Traffic(flow.source, topic) as traffic, flow.copying(spec) as job:
        wait_until(lambda: job.status()["records"] > 300, detail=job.status)
        if fault == "restarted":
            broker.kill9()
            time.sleep(1)
            broker.start()
        else:
            broker.pause()
            time.sleep(8)
            broker.resume()
        at = traffic.sent
        wait_until(lambda: sum(row.position for row in job.progress()) > at + 200, 90, detail=job.status)
        traffic.finish()
        flow.wait_until_copied(job, spec, 90)
        wait_until(lambda: not job.status()["troubles"], detail=job.status)
        assert job.status()["batches"] == 1, "no new micro-batch was needed"
    assert_complete(flow, topic)


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_hand_offs_work_while_the_target_restarts(
    engine: CopyEngine, own_pair: tuple[LocalKafka, LocalKafka], unique: str
) -> None:
    flow = Flow(engine, *own_pair, unique)
    topic = flow.topic()
    spec = replace(flow.spec(topic), batch_duration_ms=2_000)
    with Traffic(flow.source, topic) as traffic, flow.copying(spec) as job:
        wait_until(lambda: job.status()["records"] > 300, detail=job.status)
        flow.target.kill9()
        flow.target.start()
        at = traffic.sent
        wait_until(lambda: sum(row.position for row in job.progress()) > at + 500, 90, detail=job.status)
        traffic.finish()
        flow.wait_until_copied(job, spec, 90)
    assert_complete(flow, topic)
