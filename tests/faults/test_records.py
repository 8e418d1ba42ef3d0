"""Unusual, too large and corrupt records and batches, with the copy engine alone (rows R of docs/reference/reliability.md)."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace

import pytest
from confluent_kafka.admin import ResourceType

from mm2.copy.driver.engine import CopyEngine, CopyFailed, CopyJob
from mm2.copy.spec import CopySpec, TransactionsSpec
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from tests.faults import segments
from tests.faults.environment import Environment
from tests.faults.oracle import ClusterTopic, Judgment, judge
from tests.integration.copy.test_copy_engine import FOREVER, numbered, write
from tests.integration.copy_flow import Flow, alter, create, end_offset, producer_of, read, rows_of
from tests.integration.kafka.test_records_merge import write as write_batches
from tests.support import bombs
from tests.support.waiting import wait_until

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DAY_MS = 86_400_000


@pytest.fixture
def flow(engine: CopyEngine, environment: Environment, unique: str) -> Flow:
    return Flow(engine, environment.a, environment.b, unique)


def judged(flow: Flow, topic: str, *, same_time: bool = True) -> Judgment:
    source, target = ClusterTopic(flow.source.bootstrap, topic), ClusterTopic(flow.target.bootstrap, flow.remote(topic))
    return judge(source, target, same_time=same_time)


def failure(job: CopyJob) -> str:
    """The error with which the task fails now; empty when it runs."""
    try:
        job.wait(0)
    except CopyFailed as failed:
        return str(failed)
    return ""


def with_dead_letters(flow: Flow, spec: CopySpec) -> tuple[CopySpec, str]:
    topic = f"{flow.name}-dead"
    create(flow.target, topic)
    return replace(spec, dead_letter_topic=topic), topic


@pytest.mark.slow
def test_r1_a_record_too_large_for_the_target_stops_its_partition_or_goes_to_the_dead_letters(flow: Flow) -> None:
    topic = flow.topic(partitions=2, target={"max__message__bytes": "100000"})
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(flow.source, topic, numbered(0, 3), numbered(3, 1, size=150_000), numbered(4, 3), partition=0)
    write(flow.source, topic, numbered(0, 5), partition=1)
    spec = flow.spec(topic, partitions=2)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].state == "TOO_LARGE", detail=job.status)
        assert (rows_of(job)[bad].position, rows_of(job)[bad].offset) == (3, 3)
        write(flow.source, topic, numbered(5, 5), partition=1)
        wait_until(lambda: rows_of(job)[good].position == 10, detail=job.status)
        job.wait(0)  # the task continues
    with flow.copying(replace(spec, partition_error="fail")) as job:
        wait_until(lambda: failure(job), detail=job.status)
        assert "MESSAGE_TOO_LARGE" in failure(job)
    spec, dead = with_dead_letters(flow, spec)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        wait_until(lambda: rows_of(job)[bad].state == "RUNNING", detail=job.status)
    judgment = judged(flow, topic)
    assert judgment.lost == ["partition 0, source offsets 3 to 3, 1 records"]
    (letter,) = read(flow.target, dead)
    assert (letter.key, letter.value) == (b"k3", numbered(3, 1, size=150_000)[0].value)
    headers = dict(letter.headers)
    reason = headers.pop("mm2.reason")
    assert headers == {
        "mm2.flow": b"A->B",
        "mm2.topic": topic.encode(),
        "mm2.partition": b"0",
        "mm2.first": b"3",
        "mm2.last": b"3",
        "mm2.form": b"record",
    }
    assert reason is not None
    assert reason.startswith(f"{flow.remote(topic)}-0 does not accept a record of 150".encode())
    assert job.status()["gaps"] == {"quarantined": 1}


@pytest.mark.parametrize("exactly_once", [False, True], ids=["default", "exactly-once"])
def test_r1_r3_dead_letters_that_cannot_be_written_are_reported_and_block_no_other_partition(
    flow: Flow, *, exactly_once: bool
) -> None:
    """Partition 0 has a corrupt batch, partition 1 a record that is too large; no dead-letter topic exists yet."""
    topic = flow.topic(partitions=3, target={"max__message__bytes": "100000"})
    corrupt, large, good = (TopicPartition(topic, index) for index in range(3))
    write(flow.source, topic, numbered(0, 3), numbered(3, 2), numbered(5, 3), partition=0)
    write(flow.source, topic, numbered(0, 3), numbered(3, 1, size=150_000), numbered(4, 3), partition=1)
    segments.batches(flow.source, topic)[1].change(segments.flip_a_bit, right_crc=False)
    dead = f"{flow.name}-dead"
    transactions = TransactionsSpec(f"{flow.name}-0", 30_000) if exactly_once else None
    spec = flow.spec(topic, partitions=3, dead_letter_topic=dead, transactions=transactions)
    with flow.copying(spec) as job:
        for tp in (corrupt, large):
            wait_until(lambda: tp in rows_of(job) and dead in rows_of(job)[tp].reason, detail=job.progress)  # noqa: B023
            wait_until(lambda: rows_of(job)[tp].position == 3, detail=job.progress)  # noqa: B023
            assert rows_of(job)[tp].state not in {"RUNNING", "CATCHING_UP"}
        assert any(dead in warning for warning in job.status()["troubles"])
        for number in range(2):
            write(flow.source, topic, numbered(number * 5, 5), partition=2)
            wait_until(lambda: flow.committed(spec)[good] == number * 5 + 5, detail=job.status)  # noqa: B023
        assert flow.committed(spec) == {corrupt: 3, large: 3, good: 10}, (
            "the batches were committed before they were dead letters"
        )
        create(flow.target, dead)
        flow.wait_until_copied(job, spec)
        wait_until(lambda: not job.status()["troubles"], detail=job.status)
        wait_until(lambda: flow.committed(spec) == {corrupt: 8, large: 7, good: 10}, detail=job.status)
        assert job.status()["gaps"] == {"quarantined": 3}
    assert {dict(letter.headers)["mm2.partition"] for letter in read(flow.target, dead)} == {b"0", b"1"}
    isolation = "read_committed" if exactly_once else "read_uncommitted"
    for partition, kept in ((0, (0, 1, 2, 5, 6, 7)), (1, (0, 1, 2, 4, 5, 6))):
        got = read(flow.target, flow.remote(topic), partition, isolation=isolation)
        assert [record.key for record in got] == [b"k%d" % index for index in kept]


def test_r2_a_batch_larger_than_the_target_accepts_is_split(flow: Flow) -> None:
    topic = flow.topic(target={"max__message__bytes": "50000"})
    write(flow.source, topic, numbered(0, 2), numbered(2, 100, size=2_000), numbered(102, 2), codec="none")
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    judged(flow, topic).assert_exactly_once()


def test_r3_a_batch_with_a_wrong_checksum_stops_only_its_partition_at_that_offset(flow: Flow) -> None:
    topic = flow.topic(partitions=2)
    bad = TopicPartition(topic, 0)
    write(flow.source, topic, *(numbered(i * 10, 10) for i in range(3)), partition=0)
    corrupt_batch = segments.batches(flow.source, topic)[1]
    corrupt_batch.change(segments.flip_a_bit, right_crc=False)
    spec = flow.spec(topic, partitions=2)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].state == "CORRUPT", detail=job.status)
        wait_until(lambda: rows_of(job)[bad].position == 10, detail=job.status)
        row = rows_of(job)[bad]
        assert (row.state, row.offset) == ("CORRUPT", 10)
        assert re.search(rf"{topic}-0: .*10\.\.19.* CRC", row.reason), row.reason
        write(flow.source, topic, numbered(0, 5), partition=1)
        wait_until(lambda: rows_of(job)[TopicPartition(topic, 1)].position == 5, detail=job.status)
        assert rows_of(job)[bad].state == "CORRUPT"
    spec, dead = with_dead_letters(flow, spec)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    (letter,) = read(flow.target, dead)
    assert letter.value == bytes(corrupt_batch.data), "the whole batch, unchanged"
    assert {name: dict(letter.headers)[name] for name in ("mm2.first", "mm2.last", "mm2.form")} == {
        "mm2.first": b"10",
        "mm2.last": b"19",
        "mm2.form": b"batch",
    }
    assert [record.key for record in read(flow.target, flow.remote(topic))] == [
        record.key for group in (numbered(0, 10), numbered(20, 10)) for record in group
    ]


@pytest.mark.parametrize(
    "corruption", [segments.wrong_record_length, segments.unknown_codec], ids=["r4-inner-record", "r5-unknown-codec"]
)
def test_r4_r5_a_malformed_batch_with_a_valid_checksum_stops_only_its_partition(
    flow: Flow, corruption: Callable[[bytearray], None]
) -> None:
    topic = flow.topic(partitions=2)
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(flow.source, topic, numbered(0, 10), numbered(10, 10), numbered(20, 10), partition=0)
    segments.batches(flow.source, topic)[1].change(corruption, right_crc=True)
    spec = flow.spec(topic, partitions=2)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].state == "CORRUPT", detail=job.status)
        row = rows_of(job)[bad]
        assert (row.position, row.offset) == (10, 10)
        on_read, _, on_write = row.reason.partition(", and writing to ")
        assert re.match(rf"{topic}-0: .* batch ", on_read), row.reason
        assert on_write.startswith(f"{flow.remote(topic)}-0 of cluster B: "), row.reason
        write(flow.source, topic, numbered(0, 5), partition=1)
        wait_until(lambda: rows_of(job)[good].position == 5, detail=job.status)
    assert len(read(flow.target, flow.remote(topic))) == 10


@pytest.mark.parametrize("exactly_once", [False, True], ids=["default", "exactly-once"])
@pytest.mark.parametrize(
    "corruption", [segments.wrong_record_length, segments.unknown_codec], ids=["r4-inner-record", "r5-unknown-codec"]
)
def test_r4_r5_a_malformed_batch_with_a_valid_checksum_goes_to_the_dead_letters(
    flow: Flow, corruption: Callable[[bytearray], None], *, exactly_once: bool
) -> None:
    """Batches before and after it are in flight when the target rejects it."""
    topic = flow.topic()
    write(flow.source, topic, *(numbered(i * 10, 10) for i in range(8)))
    corrupt_batch = segments.batches(flow.source, topic)[4]
    corrupt_batch.change(corruption, right_crc=True)
    transactions = TransactionsSpec(f"{flow.name}-0", 30_000) if exactly_once else None
    spec, dead = with_dead_letters(flow, flow.spec(topic, transactions=transactions))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        wait_until(lambda: flow.committed(spec)[TopicPartition(topic, 0)] == 80, detail=job.status)
        assert job.status()["gaps"] == {"quarantined": 10}
        assert rows_of(job)[TopicPartition(topic, 0)].state == "RUNNING"
    (letter,) = read(flow.target, dead)
    assert letter.value == bytes(corrupt_batch.data), "the whole batch, unchanged"
    assert [dict(letter.headers)[name] for name in ("mm2.first", "mm2.last", "mm2.form")] == [b"40", b"49", b"batch"]
    isolation = "read_committed" if exactly_once else "read_uncommitted"
    got = read(flow.target, flow.remote(topic), isolation=isolation)
    assert [record.key for record in got] == [b"k%d" % index for index in range(80) if not 40 <= index < 50]


@pytest.mark.parametrize("time_ms", [None, 1_600_000_000_000], ids=["magic-0", "magic-1"])
def test_r5_messages_of_an_old_format_in_an_old_segment_are_copied(flow: Flow, time_ms: int | None) -> None:
    topic = flow.topic()
    write(flow.source, topic, numbered(0, 4, size=100), numbered(4, 3))
    old = segments.batches(flow.source, topic)[0]
    data, values = segments.message_set(old.size, 0, 4, time_ms)
    old.overwrite(data)
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    got = read(flow.target, flow.remote(topic))
    assert [record.value for record in got[:4]] == values
    assert [record.timestamp for record in got[:4]] == [
        -1 if time_ms is None else time_ms + index for index in range(4)
    ]
    assert len(got) == 7


@pytest.mark.parametrize("codec", CODECS)
def test_r6_unusual_records_are_copied_byte_for_byte(flow: Flow, codec: str) -> None:
    topic = flow.topic(source={"max__message__bytes": "2000000"}, target={"max__message__bytes": "2000000"})
    headers = (("a", b"1"), ("b", None), ("a", b"2"), ("a", b"1"), ("", b""), ("ü書", b"\xff\x00"))
    odd = [
        Record(b"", b"value of an empty key", (), 1),
        Record(None, b"no key", (), 2),
        Record(b"tombstone", None, (), 3),
        Record(None, None, (), 4),
        Record(b"", b"", (), 5),
        Record(b"k", b"headers", headers, 6),
        Record(b"k", b"many headers", tuple((f"h{i}", b"%d" % i) for i in range(300)), 7),
        Record(b"k", os.urandom(900_000), (), 8),
        Record(b"\x00\xff" * 500, b"binary key", (), 9),
    ]
    write(flow.source, topic, odd, odd[::-1], codec=codec)
    non_utf8 = segments.batches(flow.source, topic)[-1]
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    judged(flow, topic).assert_exactly_once()
    sent, got = segments.batches(flow.source, topic), segments.batches(flow.target, flow.remote(topic))
    assert [batch.data[61:] for batch in sent] == [batch.data[61:] for batch in got], "the batches were changed"
    assert non_utf8.records == len(odd)


def test_r6_a_header_key_that_is_not_utf8_is_copied(flow: Flow) -> None:
    topic = flow.topic()
    write(flow.source, topic, [Record(b"k", b"v", (("abc", b"1"),), 1)])

    def corruption(data: bytearray) -> None:
        at = data.index(b"abc")
        data[at : at + 3] = b"\xff\xfe\xfd"

    (batch,) = segments.batches(flow.source, topic)
    batch.change(corruption, right_crc=True)
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    (got,) = segments.batches(flow.target, flow.remote(topic))
    assert b"\xff\xfe\xfd" in got.data
    assert got.data[61:] == batch.data[61:]


@pytest.mark.parametrize("side", ["source", "target", "both"])
def test_r7_log_append_time_on_either_side(flow: Flow, side: str) -> None:
    append = {"message__timestamp__type": "LogAppendTime"}
    topic = flow.topic(
        source=append if side in {"source", "both"} else None, target=append if side in {"target", "both"} else None
    )
    for codec in ("none", "lz4"):
        write(flow.source, topic, numbered(0, 10), codec=codec)
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    judged(flow, topic, same_time=side == "source").assert_exactly_once()


def test_r7_unusual_timestamps_are_kept(flow: Flow) -> None:
    limits = {"message__timestamp__after__max__ms": FOREVER}
    topic = flow.topic(source=limits, target=limits)
    now_ms = int(time.time() * 1000)
    stamps = [-1, 0, 1, now_ms, now_ms - 400 * DAY_MS, 4_102_444_800_000, now_ms, 5, -1, 253_402_300_799_000]
    records = [Record(b"k", b"%d" % index, (), stamp) for index, stamp in enumerate(stamps)]
    write(flow.source, topic, records, records[::-1], *([record] for record in records), codec="zstd")
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    judged(flow, topic).assert_exactly_once()


def test_r7_timestamps_outside_the_targets_bounds_are_reported_and_stop_only_their_partition(flow: Flow) -> None:
    source = {"message__timestamp__after__max__ms": FOREVER}
    topic = flow.topic(partitions=2, source=source, target={"message__timestamp__after__max__ms": "3600000"})
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    ahead_ms = int(time.time() * 1000) + 2 * DAY_MS
    write(flow.source, topic, numbered(0, 3), [Record(b"k", b"ahead", (), ahead_ms)], numbered(4, 3), partition=0)
    write(flow.source, topic, numbered(0, 5), partition=1)
    spec = flow.spec(topic, partitions=2)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].state == "REFUSED", detail=job.status)
        assert "TIMESTAMP" in rows_of(job)[bad].reason.upper(), rows_of(job)[bad].reason
        wait_until(lambda: rows_of(job)[good].position == 5, detail=job.status)
        alter(flow.target, ResourceType.TOPIC, flow.remote(topic), "message.timestamp.after.max.ms", FOREVER)
        flow.wait_until_copied(job, spec)
    judged(flow, topic).assert_exactly_once()


@pytest.mark.timeout(180)
def test_r8_compacted_holes_emptied_batches_and_tombstones(flow: Flow) -> None:
    """The log cleaner leaves gaps in batches, keeps an emptied batch for its producer, and removes old tombstones."""
    topic = flow.compacted_topic()
    every, even = numbered(0, 10), numbered(0, 10)[::2]
    write(flow.source, topic, every, even, [Record(b"k1", None, (), 1_700_000_000_000)], codec="zstd")
    producer = producer_of(flow.source, enable__idempotence=True)
    for index in range(5):
        producer.produce(topic, b"x", key=b"k%d" % index)
    assert producer.flush(30) == 0
    write(flow.source, topic, numbered(0, 5), codec="lz4")

    def cleaned() -> bool:
        time.sleep(0.25)
        write(flow.source, topic, [Record(b"last", b"1")])
        return len(read(flow.source, topic)) < 18

    wait_until(cleaned, 60)
    spec = flow.spec(topic)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        status = job.status()
    judgment = judged(flow, topic)
    judgment.assert_exactly_once()
    assert status["gaps"] == {"compacted": end_offset(flow.source, topic) - judgment.source_records}


def write_bomb(flow: Flow, topic: str) -> bytes:
    """A valid batch of about 4 KB with one record of 128 MB; returns its content in the log of the source."""
    producer = {"bootstrap.servers": flow.source.bootstrap}
    with closing(Cluster(ClientSettings.from_props(producer), name="A")) as cluster:
        write_batches(cluster, topic, [bombs.one_record(128 << 20, append_time=False)])
    return bytes(segments.batches(flow.source, topic)[-1].data)


def test_r9_a_batch_that_expands_over_the_limit_stops_its_partition_or_goes_to_the_dead_letters(flow: Flow) -> None:
    """The broker of the source has accepted it. LogAppendTime: it has to be re-encoded."""
    topic = flow.topic(partitions=2, source={"message__timestamp__type": "LogAppendTime"})
    bad, good = TopicPartition(topic, 0), TopicPartition(topic, 1)
    write(flow.source, topic, numbered(0, 3), partition=0)
    bomb = write_bomb(flow, topic)
    assert len(bomb) < 5_000
    write(flow.source, topic, numbered(4, 3), partition=0)
    write(flow.source, topic, numbered(0, 5), partition=1)
    spec = flow.spec(topic, partitions=2)
    with flow.copying(spec) as job:
        wait_until(lambda: bad in rows_of(job) and rows_of(job)[bad].state == "OVER_LIMIT", detail=job.status)
        assert "(decompression.max.bytes)" in rows_of(job)[bad].reason
        wait_until(lambda: rows_of(job)[bad].position == 3, detail=job.status)  # what was read before is copied
        assert rows_of(job)[bad].offset == 3
        write(flow.source, topic, numbered(5, 5), partition=1)
        wait_until(lambda: rows_of(job)[good].position == 10, detail=job.status)
        job.wait(0)  # the task continues
    with flow.copying(replace(spec, partition_error="fail")) as job:
        wait_until(lambda: failure(job), detail=job.status)
        assert "decompression.max.bytes" in failure(job)
    spec, dead = with_dead_letters(flow, spec)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        wait_until(lambda: rows_of(job)[bad].state == "RUNNING", detail=job.status)
        assert job.status()["gaps"] == {"quarantined": 1}
    (letter,) = read(flow.target, dead)
    assert letter.value == bomb, "the whole batch, unchanged"
    assert [record.key for record in read(flow.target, flow.remote(topic))] == [b"k%d" % i for i in (0, 1, 2, 4, 5, 6)]
