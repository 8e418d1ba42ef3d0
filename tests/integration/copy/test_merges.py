"""Several source topics that are copied to one remote topic: by the copy engine, and by whole processes."""

from __future__ import annotations

import random
import time
from dataclasses import replace

import pytest
from confluent_kafka.admin import ResourceType

from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.copy.spec import CopySpec, PartitionSpec, TransactionsSpec
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy.test_copy_engine import numbered, write
from tests.integration.copy_flow import Flow, Traffic, alter, batches, create, read, rows_of
from tests.integration.spark_workers import workers
from tests.support.waiting import wait_until

PARTITIONS = 2
MODES = ("default", "exactly-once")


@pytest.fixture
def flow(engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> Flow:
    return Flow(engine, kafka_a, kafka_b, unique)


@pytest.fixture
def sources(flow: Flow) -> tuple[str, ...]:
    """Three source topics, and the topic that all of them are copied to (`merged`)."""
    topics = tuple(flow.topic(suffix, PARTITIONS) for suffix in ("one", "two", "three"))
    create(flow.target, f"{flow.name}-all", PARTITIONS, retention__ms="-1")
    return topics


def merged(flow: Flow, topics: tuple[str, ...], mode: str) -> CopySpec:
    spec = flow.spec(*topics)
    parts = tuple(PartitionSpec(topic, index, f"{flow.name}-all") for topic in topics for index in range(PARTITIONS))
    spec = replace(spec, partitions=parts)
    if mode == "default":
        return spec
    return replace(spec, read_committed=True, transactions=TransactionsSpec(f"{flow.name}-0", 30_000))


class TopicTraffic(Traffic):
    """Names the topic in each record: two of them may send equal numbers in the same millisecond."""

    def _headers(self, number: int) -> list[tuple[str, str | bytes | None]]:
        return [("topic", self._topic)]


def assert_merged(flow: Flow, topics: tuple[str, ...], mode: str) -> int:
    """Each record of the sources is there once, and those of a source partition are in their order; returns their number."""
    isolation = "read_committed" if mode == "exactly-once" else "read_uncommitted"
    total = 0
    for partition in range(PARTITIONS):
        wanted = {topic: [one.content for one in read(flow.source, topic, partition)] for topic in topics}
        origin = {content: topic for topic, contents in wanted.items() for content in contents}
        got: dict[str, list[object]] = {topic: [] for topic in topics}
        for one in read(flow.target, f"{flow.name}-all", partition, isolation=isolation):
            got[origin[one.content]].append(one.content)
        for topic in topics:
            assert len(got[topic]) == len(wanted[topic]), f"{topic}-{partition}"
            assert got[topic] == wanted[topic], f"{topic}-{partition}: not in order"
            total += len(wanted[topic])
    return total


def records_of(topic: str, first: int, count: int) -> list[Record]:
    return [record._replace(key=topic.encode()) for record in numbered(first, count)]


def state_of(job: CopyJob, topic: str) -> str:
    row = rows_of(job).get(TopicPartition(topic, 0))
    return "" if row is None else str(row.state)


@pytest.mark.parametrize("mode", MODES)
def test_backlogs_of_several_topics_are_merged(flow: Flow, sources: tuple[str, ...], mode: str) -> None:
    spec = merged(flow, sources, mode)
    for topic in sources:
        for partition in range(PARTITIONS):
            groups = [records_of(topic, first, 500) for first in range(0, 20_000, 500)]
            write(flow.source, topic, *groups, partition=partition)
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        assert {row.foreign for row in job.progress()} == {0}
        for topic in sources[:2]:
            write(flow.source, topic, records_of(topic, 20_000, 10))
        flow.wait_until_copied(job, spec)
    assert assert_merged(flow, sources, mode) == 3 * PARTITIONS * 20_000 + 20
    headers = [header for header, _ in batches(flow.target, f"{flow.name}-all") if not header.is_control]
    if mode == "default":
        assert len({header.producer_id for header in headers}) == len(sources), "a session for each source partition"


@pytest.mark.parametrize("mode", MODES)
def test_kills_cause_no_loss_and_no_duplicates_in_a_merge(flow: Flow, sources: tuple[str, ...], mode: str) -> None:
    spec = merged(flow, sources, mode)
    random.seed(6)
    with (
        TopicTraffic(flow.source, sources[0], PARTITIONS, per_second=2000) as one,
        TopicTraffic(flow.source, sources[1], PARTITIONS, per_second=1000) as two,
        flow.copying(spec) as job,
    ):
        for _ in range(3):
            before = job.status()
            wait_until(lambda: job.status()["records"] > before["records"] + 500, detail=job.status)  # noqa: B023
            time.sleep(random.random())
            for worker in workers():
                worker.kill()
            wait_until(lambda: job.status()["batches"] > before["batches"], detail=job.status)  # noqa: B023
        one.finish()
        two.finish()
        flow.wait_until_copied(job, spec, 60)
        assert {(row.state, row.foreign) for row in job.progress()} == {("RUNNING", 0)}
    assert_merged(flow, sources, mode)


@pytest.mark.parametrize("mode", MODES)
def test_a_record_that_the_target_rejects_does_not_block_the_other_source(
    flow: Flow, sources: tuple[str, ...], mode: str
) -> None:
    """Given a record that is too large for the target; validates that the other topics are copied, also to its partition."""
    spec = merged(flow, sources, mode)
    alter(flow.target, ResourceType.TOPIC, f"{flow.name}-all", "max.message.bytes", "2000")
    write(flow.source, sources[0], [Record(b"large", bytes(5_000))])
    with flow.copying(spec) as job:
        wait_until(lambda: state_of(job, sources[0]) == "TOO_LARGE", detail=job.progress)
        for first in range(0, 100, 10):
            write(flow.source, sources[1], records_of(sources[1], first, 10))
        wait_until(lambda: rows_of(job)[TopicPartition(sources[1], 0)].position == 100, detail=job.progress)
        assert state_of(job, sources[0]) == "TOO_LARGE"
        alter(flow.target, ResourceType.TOPIC, f"{flow.name}-all", "max.message.bytes", "20000")
        flow.wait_until_copied(job, spec)
    assert_merged(flow, sources, mode)


def test_the_next_micro_batch_does_not_read_what_other_copies_wrote(flow: Flow, sources: tuple[str, ...]) -> None:
    """Given a source topic that is idle while another one is copied; validates that its mark is behind the records of the other."""
    spec = merged(flow, sources, "default")
    write(flow.source, sources[0], records_of(sources[0], 0, 10))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
        for first in range(0, 5_000, 500):
            write(flow.source, sources[1], records_of(sources[1], first, 500))
        flow.wait_until_copied(job, spec)
    entry = flow.ledger().entry(TopicPartition(sources[0], 0))
    assert entry is not None
    assert (entry.mark.source, entry.mark.records, entry.mark.target) == (10, 10, 5_010)
    assert flow.ledger().chunks(TopicPartition(sources[0], 0))[-1].segments[-1].records == 10
    write(flow.source, sources[0], records_of(sources[0], 10, 10))
    with flow.copying(spec) as job:
        flow.wait_until_copied(job, spec)
    assert_merged(flow, sources, "default")


# -- whole processes ---------------------------------------------------------------------------------------------------------
