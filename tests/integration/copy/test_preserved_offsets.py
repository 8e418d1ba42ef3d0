"""Offset preservation on real brokers: every record has the same offset on both clusters."""

from __future__ import annotations

import contextlib
import random
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest
from kafka import KafkaConsumer
from kafka import TopicPartition as PythonTopicPartition

from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.sessions import preserved_starts
from mm2.copy.executor.sessions.preserved_starts import Comparing, PreservedStart, PreservedStarts, Wanted, not_written
from mm2.copy.progress.target_progress import TargetLookUp
from mm2.copy.progress.written_positions import offset_key
from mm2.copy.spec import CopySpec
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.producer.partitioner import partition_for
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.notes.preparation import preparations
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import (
    CONNECTOR,
    Flow,
    Traffic,
    admin_of,
    create,
    delete_before,
    end_offset,
    producer_of,
    read,
    rows_of,
)
from tests.integration.spark_workers import workers
from tests.support.waiting import wait_until


@pytest.fixture
def flow(engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> Flow:
    return Flow(engine, kafka_a, kafka_b, unique)


def preserving(flow: Flow, topic: str, partitions: int = 1, **changes: Any) -> CopySpec:
    return flow.spec(topic, partitions=partitions, preserved=(topic,), **changes)


def assert_same(
    flow: Flow, topic: str, partition: int = 0, *, isolation: str = "read_uncommitted", by_python: bool = True
) -> None:
    """Both clusters have the same records at the same offsets, for two clients, and the same log end offset.

    ``by_python``: also for kafka-python, which has no library for snappy here.
    """
    remote = flow.remote(topic)
    assert end_offset(flow.target, remote, partition) == end_offset(flow.source, topic, partition)
    wanted = read(flow.source, topic, partition, isolation=isolation)
    got = read(flow.target, remote, partition)
    assert got == wanted
    if by_python:
        assert read_by_python(flow.target, remote, partition, len(wanted)) == [
            (record.offset, record.timestamp, record.key, record.value) for record in wanted
        ]


def read_by_python(broker: LocalKafka, topic: str, partition: int, count: int) -> list[tuple[Any, ...]]:
    """What kafka-python's consumer reads from the beginning."""
    consumer = KafkaConsumer(bootstrap_servers=broker.bootstrap, auto_offset_reset="earliest", enable_auto_commit=False)
    try:
        tp = PythonTopicPartition(topic, partition)
        consumer.assign([tp])
        consumer.seek_to_beginning(tp)
        rows: list[tuple[Any, ...]] = []
        while len(rows) < count:
            for records in consumer.poll(30_000).values():
                rows += [(record.offset, record.timestamp, record.key, record.value) for record in records]
        return rows
    finally:
        consumer.close()


def state(job: CopyJob, topic: str) -> str:
    row = rows_of(job).get(TopicPartition(topic, 0))
    return "" if row is None else row.state


def transactions(broker: LocalKafka, topic: str, count: int, *, aborted_every: int = 3) -> None:
    """Transactions of five records, of which every third is aborted."""
    producer = producer_of(broker, transactional__id=f"{topic}-producer")
    producer.init_transactions(30)
    for number in range(count):
        producer.begin_transaction()
        for index in range(5):
            producer.produce(topic, b"%d-%d" % (number, index), b"k%d" % index)
        producer.flush(30)
        if number % aborted_every == 1:
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def recreate(flow: Flow, topic: str, broker: LocalKafka | None = None) -> None:
    """On the target, or this broker."""
    broker = broker or flow.target
    for done in admin_of(broker).delete_topics([topic]).values():
        done.result(30)
    wait_until(lambda: topic not in admin_of(broker).list_topics(timeout=30).topics)
    create(broker, topic, retention__ms="-1")


def test_records_of_every_codec_have_the_same_offsets(flow: Flow) -> None:
    topic = flow.topic()
    for index, codec in enumerate(("none", "gzip", "snappy", "lz4", "zstd")):
        write(flow.source, topic, numbered(100 * index, 100), codec=codec)
    headers: list[Any] = [("a", b"1"), ("b", None), ("a", b"2")]
    write(flow.source, topic, [Record(None, None, tuple(headers), 1_700_000_000_000)])
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert_same(flow, topic, by_python=False)


@pytest.mark.parametrize("isolation", ["read_uncommitted", "read_committed"])
def test_transactions_leave_the_offsets_of_their_markers(flow: Flow, isolation: str) -> None:
    topic = flow.topic()
    transactions(flow.source, topic, 12)
    spec = preserving(flow, topic, read_committed=isolation == "read_committed")
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        assert rows_of(job)[TopicPartition(topic, 0)].gaps["control"] == 12
        transactions(flow.source, topic, 3)
        flow.wait_until_copied(job, spec)
    assert_same(flow, topic, isolation=isolation)


def test_records_with_the_time_of_their_append_have_the_same_offsets(flow: Flow) -> None:
    topic = flow.topic(source={"message__timestamp__type": "LogAppendTime"})
    write(flow.source, topic, numbered(0, 200), numbered(200, 1))
    transactions(flow.source, topic, 3)
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert_same(flow, topic)


def test_a_compacted_topic_has_the_same_offsets(flow: Flow) -> None:
    topic = flow.compacted_topic()
    every = [Record(b"k%d" % (number % 25), b"%d" % number, (), 1_700_000_000_000) for number in range(500)]
    write(flow.source, topic, *(every[at : at + 100] for at in range(0, 500, 100)), codec="gzip")
    time.sleep(0.3)

    def cleaned() -> bool:
        write(flow.source, topic, [Record(b"last", b"1")])  # rolls the segment: the active one is never cleaned
        time.sleep(0.3)
        return len(read(flow.source, topic)) < 50

    wait_until(cleaned, 60)
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert_same(flow, topic)


def test_a_trimmed_log_begins_at_the_same_offset(flow: Flow) -> None:
    topic = flow.topic(partitions=2)
    for partition in range(2):
        write(flow.source, topic, numbered(0, 3000), partition=partition)
    delete_before(flow.source, topic, 2500)
    spec = preserving(flow, topic, 2)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    for partition in range(2):
        assert_same(flow, topic, partition)
    assert read(flow.target, flow.remote(topic))[0].offset == 2500


def test_records_deleted_before_they_were_copied_leave_their_offsets(flow: Flow) -> None:
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 50))
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    write(flow.source, topic, numbered(50, 100))
    delete_before(flow.source, topic, 120)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        assert rows_of(job)[TopicPartition(topic, 0)].gaps["retention"] == 70
    assert [record.offset for record in read(flow.target, flow.remote(topic))] == [*range(50), *range(120, 150)]


def test_another_writer_stops_the_partition_with_the_first_divergent_offset(flow: Flow) -> None:
    topic = flow.topic()
    remote = flow.remote(topic)
    write(flow.source, topic, numbered(0, 20))
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        write(flow.target, remote, [Record(b"foreign", b"x")])
        write(flow.source, topic, numbered(20, 5))

        wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
        row = rows_of(job)[TopicPartition(topic, 0)]
        assert f"{remote}-0 of B has a record at offset 20" in row.reason
        assert "from source offset 20 on, are at offset 21 and after" in row.reason
        end = end_offset(flow.target, remote)
        write(flow.source, topic, numbered(25, 5))
        time.sleep(1.5)
    with flow.copying(spec) as job:
        wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
    assert end_offset(flow.target, remote) == end


def test_after_a_reset_a_recreated_remote_topic_is_copied_with_the_same_offsets(flow: Flow) -> None:
    topic = flow.topic()
    remote = flow.remote(topic)
    write(flow.source, topic, numbered(0, 20))
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        write(flow.target, remote, [Record(b"foreign", b"x")])
        transactions(flow.source, topic, 1)
        wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
    recreate(flow, remote)
    key = offset_key(CONNECTOR, "A", TopicPartition(topic, 0))
    reset = producer_of(flow.target)
    reset.produce(flow.offsets_topic, None, key, partition_for(key, 5))
    assert reset.flush(30) == 0
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert_same(flow, topic)


def test_a_remote_topic_with_other_records_is_not_written_to(flow: Flow) -> None:
    topic = flow.topic()
    remote = flow.remote(topic)
    write(flow.source, topic, numbered(0, 20))
    write(flow.target, remote, numbered(5, 10))
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
        assert "has another record at offset 0" in rows_of(job)[TopicPartition(topic, 0)].reason
    assert end_offset(flow.target, remote) == 10


def test_a_remote_topic_with_a_record_in_the_place_of_a_marker_is_not_written_to(flow: Flow) -> None:
    topic = flow.topic()
    remote = flow.remote(topic)
    transactions(flow.source, topic, 1)
    wait_until(lambda: end_offset(flow.source, topic) == 6)  # the marker is written after the answer
    rows = [Record(one.key, one.value, (), one.timestamp) for one in read(flow.source, topic)]
    write(flow.target, remote, [*rows, Record(b"foreign", b"x")])
    with flow.copying(preserving(flow, topic)) as job:
        wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
        assert "has another record at offset 5" in rows_of(job)[TopicPartition(topic, 0)].reason
    assert end_offset(flow.target, remote) == 6


def test_a_remote_topic_with_another_beginning_is_not_written_to(flow: Flow) -> None:
    """All its records are compared, since the ledger does not show that the flow wrote them."""
    topic, equal = flow.topic("other"), flow.topic("equal")
    rows = [numbered(at, 500) for at in range(0, 3000, 500)]
    for name in (topic, equal):
        write(flow.source, name, *rows)
        write(flow.target, flow.remote(name), *(rows[:5]))
    recreate(flow, flow.remote(topic))
    write(flow.target, flow.remote(topic), numbered(7000, 500), numbered(7500, 500), *rows[2:5])
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
        assert "has another record at offset 0" in rows_of(job)[TopicPartition(topic, 0)].reason
    assert end_offset(flow.target, flow.remote(topic)) == 2500
    spec = preserving(flow, equal)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        assert rows_of(job)[TopicPartition(equal, 0)].records == 500
    assert_same(flow, equal)


def test_records_are_compared_in_steps_and_the_partition_is_prepared_meanwhile(
    flow: Flow, starts: PreservedStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that others continue. What is equal is compared once."""
    monkeypatch.setattr(preserved_starts, "_COMPARING_S", 0.0)
    monkeypatch.setattr(preserved_starts, "_COMPARED", 5)
    topic = flow.topic()
    remote = flow.remote(topic)
    for broker, name in ((flow.source, topic), (flow.target, remote)):
        write(broker, name, numbered(0, 20))
    assert found(starts, topic, remote) == Comparing(0, 20)
    monkeypatch.setattr(preserved_starts, "_COMPARING_S", 60.0)
    assert found(starts, topic, remote) == PreservedStart(20, 20)
    monkeypatch.setattr(preserved_starts, "_COMPARING_S", 0.0)
    assert found(starts, topic, remote) == PreservedStart(20, 20)


def test_a_source_topic_that_was_recreated_while_the_flow_was_down_is_no_divergence(flow: Flow) -> None:
    """Also where its session does not continue: other rules."""
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 20))
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    recreate(flow, topic, flow.source)
    write(flow.source, topic, numbered(0, 5))
    with flow.copying(replace(spec, read_committed=True)) as job:
        wait_until(lambda: state(job, topic) in {"DIVERGED", "RECREATED"}, detail=job.progress)
        row = rows_of(job)[TopicPartition(topic, 0)]
        assert row.state == "RECREATED"
        assert "was deleted and recreated" in row.reason


def noted_state(flow: Flow, topic: str) -> str:
    """The state in the ledger, which all observers read."""
    ledger, tp = flow.ledger(), TopicPartition(topic, 0)
    if (stopped := preparations(ledger).get(tp)) is not None:
        return stopped.state
    entry = ledger.entry(tp)
    return "" if entry is None or entry.condition is None else entry.condition.state


def test_a_partition_that_stops_at_its_first_start_is_in_the_ledger(flow: Flow) -> None:
    """The ledger shows it after a crash, too. Where nothing was copied, no reset is needed."""
    topic = flow.topic()
    remote = flow.remote(topic)
    write(flow.source, topic, numbered(0, 20))
    write(flow.target, remote, numbered(5, 10))
    spec = preserving(flow, topic)
    for _ in range(2):
        with flow.copying(spec) as job:
            wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
            wait_until(lambda: noted_state(flow, topic) == "DIVERGED", detail=job.progress)
    assert flow.committed(spec) == {TopicPartition(topic, 0): None}
    recreate(flow, remote)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        wait_until(lambda: noted_state(flow, topic) == "", detail=job.progress)
    assert_same(flow, topic)


def test_a_partition_that_stops_when_the_mode_is_entered_is_in_the_ledger_until_it_is_left(flow: Flow) -> None:
    topic = flow.topic()
    transactions(flow.source, topic, 4)
    spec = preserving(flow, topic)
    default = replace(spec, preserved=())
    with flow.copying(default) as job:
        flow.wait_until_copied(job, spec)
    position = flow.committed(spec)
    with flow.copying(spec) as job:
        wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
        wait_until(lambda: noted_state(flow, topic) == "DIVERGED", detail=job.progress)
    assert flow.committed(spec) == position
    write(flow.source, topic, numbered(0, 30))
    with flow.copying(default) as job:
        flow.wait_until_copied(job, spec)
        wait_until(lambda: noted_state(flow, topic) == "", detail=job.progress)
    flow.assert_equal(topic)


def test_a_foreign_record_written_while_the_flow_was_down_is_in_the_ledger(flow: Flow) -> None:
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 20))
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    write(flow.target, flow.remote(topic), [Record(b"foreign", b"x")])
    write(flow.source, topic, numbered(20, 5))
    for _ in range(2):
        with flow.copying(spec) as job:
            wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
            wait_until(lambda: noted_state(flow, topic) == "DIVERGED", detail=job.progress)
        assert noted_state(flow, topic) == "DIVERGED"


@pytest.fixture
def starts(flow: Flow) -> Iterator[PreservedStarts]:
    with contextlib.closing(Endpoints(preserving(flow, flow.name))) as endpoints:
        yield PreservedStarts(endpoints, "A", "B", is_changed=False)


def test_what_a_predecessor_copies_during_a_look_up_is_no_difference(
    flow: Flow, starts: PreservedStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The predecessor writes what the source has got meanwhile, so the target's end may be after an older one of the source."""
    topic = flow.topic()
    remote = flow.remote(topic)
    write(flow.source, topic, numbered(0, 20))
    write(flow.target, remote, numbered(0, 20))

    def ends(look_up: TargetLookUp, epochs: Any) -> Any:
        write(flow.source, topic, numbered(20, 5))
        write(flow.target, remote, numbered(20, 5))
        return stable_ends(look_up, epochs)

    stable_ends = TargetLookUp.stable_ends
    monkeypatch.setattr(TargetLookUp, "stable_ends", ends)
    assert found(starts, topic, remote) == PreservedStart(25, 25)


def test_a_target_that_ends_after_the_source_is_refused_once_this_lasts(
    flow: Flow, starts: PreservedStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = flow.topic()
    remote = flow.remote(topic)
    write(flow.source, topic, numbered(0, 20))
    write(flow.target, remote, numbered(0, 21))
    refusal = f"{remote}-0 of B ends at offset 21, after {topic}-0 of A, which ends at 20"
    for _ in range(2):
        failure = found(starts, topic, remote)
        assert isinstance(failure, BrokerFailure)
        assert failure.retriable
        assert refusal in str(failure)
    monkeypatch.setattr(preserved_starts, "_AHEAD_S", 0.0)
    assert found(starts, topic, remote) == PreservedStart(refusal=not_written(refusal))
    write(flow.source, topic, numbered(20, 1))  # the end was that of a deposed leader
    assert found(starts, topic, remote) == PreservedStart(21, 21)


def test_what_a_predecessor_has_copied_is_compared_with_the_source(
    flow: Flow, starts: PreservedStarts, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In several steps, which limit the memory."""
    monkeypatch.setattr(preserved_starts, "_AT_ONCE", 7)
    topic = flow.topic()
    remote = flow.remote(topic)
    rows = numbered(0, 20)
    write(flow.source, topic, rows)
    write(flow.target, remote, [*rows[:16], Record(b"other", b"x", (), rows[16].timestamp), *rows[17:]])
    outbox = SimpleNamespace(partition=TopicPartition(remote, 0), leader_epoch=-1)
    cursor = cast(Cursor, SimpleNamespace(partition=TopicPartition(topic, 0), outbox=outbox, topic_id=""))
    why = not_written(f"{remote}-0 of B has another record at offset 16 than {topic}-0 of A")
    assert [starts.refusal(cursor, *at).refusal for at in ((0, 16), (5, 20), (17, 20))] == ["", why, ""]
    assert [*starts.copied(cursor, 14, 20).values] == [*range(14, 20)]


def found(starts: PreservedStarts, topic: str, remote: str) -> PreservedStart | Comparing | KafkaFailure:
    tp = TopicPartition(topic, 0)
    outbox = SimpleNamespace(partition=TopicPartition(remote, 0), leader_epoch=-1)
    cursor = cast(Cursor, SimpleNamespace(partition=tp, outbox=outbox, topic_id=""))
    return starts.find({tp: cursor}, {tp: Wanted()})[tp]


def test_without_ledger_and_positions_copying_continues_at_the_end_of_the_target(flow: Flow) -> None:
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 30))
    spec = preserving(flow, topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    write(flow.source, topic, numbered(30, 30))
    with flow.copying(spec, start={}) as job:
        flow.wait_until_copied(job, spec)
        assert rows_of(job)[TopicPartition(topic, 0)].records == 30
    assert_same(flow, topic)


def test_records_of_others_before_the_start_of_the_source_are_not_continued(flow: Flow) -> None:
    """Given a trimmed source, and a remote topic whose records end before it begins: nothing shows that the flow has written them."""
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 120))
    delete_before(flow.source, topic, 100)
    write(flow.target, flow.remote(topic), numbered(0, 30))
    spec = preserving(flow, topic)
    with flow.copying(spec, start={}) as job:
        wait_until(lambda: state(job, topic) == "DIVERGED", detail=job.progress)
    assert len(read(flow.target, flow.remote(topic))) == 30
    # With a position in Connect's offsets topic they are the flow's, although the ledger is lost.
    with flow.copying(spec, start={TopicPartition(topic, 0): 30}) as job:
        flow.wait_until_copied(job, spec)
    assert [one.offset for one in read(flow.target, flow.remote(topic))] == [*range(30), *range(100, 120)]


def test_repeated_kills_shift_no_offset(flow: Flow) -> None:
    topic = flow.topic(partitions=2)
    spec = preserving(flow, topic, 2)
    random.seed(7)
    with flow.copying(spec) as job:
        for _ in range(4):
            before = job.status()["records"]
            with Traffic(flow.source, topic, 2, per_second=2000):
                transactions(flow.source, topic, 10)
                wait_until(lambda: job.status()["records"] > before + 200, detail=job.status)  # noqa: B023
                time.sleep(random.random())
                for worker in workers():
                    worker.send_signal(signal.SIGKILL)
                transactions(flow.source, topic, 10)
        flow.wait_until_copied(job, spec)
        assert job.status()["batches"] >= 4
    for partition in range(2):
        assert_same(flow, topic, partition)


def test_a_frozen_executor_that_resumes_shifts_no_offset(flow: Flow) -> None:
    topic = flow.topic()
    spec = preserving(flow, topic)
    with Traffic(flow.source, topic, per_second=2000) as traffic, flow.copying(spec) as job:
        transactions(flow.source, topic, 20)
        wait_until(lambda: job.status()["records"] > 500, detail=job.status)
        frozen = workers()
        for worker in frozen:
            worker.send_signal(signal.SIGSTOP)
        transactions(flow.source, topic, 20)
        wait_until(lambda: job.status()["batches"] >= 2, detail=job.status)
        for worker in frozen:
            with contextlib.suppress(psutil.NoSuchProcess):  # Spark may have killed it
                worker.send_signal(signal.SIGCONT)
        transactions(flow.source, topic, 20)
        traffic.finish()
        flow.wait_until_copied(job, spec)
    assert_same(flow, topic)


def test_the_mode_can_be_left_and_entered_again_while_offsets_are_equal(flow: Flow) -> None:
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 30))
    spec = preserving(flow, topic)
    for preserved in (spec, replace(spec, preserved=()), spec):
        write(flow.source, topic, numbered(0, 30))
        with flow.copying(preserved) as job:
            flow.wait_until_copied(job, spec)
    transactions(flow.source, topic, 2)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert_same(flow, topic)
