"""Partitions move between lanes while they are copied: executors of local mode, and real brokers."""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterable

import psutil
import pytest

from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.copy.driver.lanes.job_lanes import DivisionCause
from mm2.copy.progress.ledger import Pause
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Flow, Traffic, rows_of
from tests.integration.spark_workers import workers
from tests.support.waiting import wait_until

PARTITIONS = 6


def divide(job: CopyJob, count: int) -> None:
    """Divide the partitions among so many lanes."""
    job.division.divide(count, DivisionCause.JOBS, None)


def follow(job: CopyJob) -> bool:
    """One step towards the division; whether it is reached, and all lanes copy."""
    job.division.follow(0)
    return not job.division.is_moving and all(lane.since_ms is not None for lane in job.lanes())


def wait_until_moved(job: CopyJob) -> None:
    wait_until(lambda: follow(job), 60, detail=lambda: (job.lanes(), job.status()))


def wait_for_progress(job: CopyJob, traffic: Traffic, partitions: Iterable[TopicPartition]) -> None:
    at, wanted = traffic.sent // PARTITIONS, list(partitions)
    wait_until(
        lambda: traffic.sent // PARTITIONS > at + 20 and all(rows_of(job)[tp].position > at for tp in wanted),
        60,
        detail=lambda: (job.lanes(), job.status()),
    )


@pytest.mark.parametrize("is_killed", [False, True])
def test_partitions_move_between_lanes_without_loss_and_without_duplicates(
    engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, is_killed: bool
) -> None:
    """Also when executors are killed while partitions move. A paused partition stays paused."""
    flow = Flow(engine, kafka_a, kafka_b, unique)
    topic = flow.topic(partitions=PARTITIONS)
    spec = flow.spec(topic, partitions=PARTITIONS)
    paused, *others = [part.source for part in spec.partitions]
    pauses: dict[tuple[str, int | None], Pause] = {}
    chance = random.Random(7)
    with (
        Traffic(flow.source, topic, PARTITIONS, per_second=2000) as traffic,
        flow.copying(spec, pauses=lambda: dict(pauses)) as job,
    ):
        wait_until(lambda: len(rows_of(job)) == PARTITIONS, 60, detail=job.status)
        wait_for_progress(job, traffic, [paused, *others])
        pauses[topic, 0] = Pause("ann@ops1", 1_000)
        job.follow_pauses()
        wait_until(lambda: rows_of(job)[paused].state == "PAUSED", detail=job.progress)
        at = rows_of(job)[paused].position
        for count in (3, 5, 2, 1):
            divide(job, count)
            if is_killed:
                for _ in range(chance.randrange(40)):
                    follow(job)
                    time.sleep(0.05)
                for worker in workers():
                    with contextlib.suppress(psutil.Error):
                        worker.kill()
            wait_until_moved(job)
            assert sum(lane.partitions for lane in job.lanes()) == PARTITIONS
            assert len(job.lanes()) == count
            wait_for_progress(job, traffic, others)
            assert (rows_of(job)[paused].state, rows_of(job)[paused].position) == ("PAUSED", at)
        pauses.clear()
        job.follow_pauses()
        traffic.finish()
        flow.wait_until_copied(job, spec, 60)
        assert {row.foreign for row in job.progress()} == {0}
        if not is_killed:
            assert job.status()["records"] == traffic.sent, "counts move with the partitions"
            assert job.micro_batches()[1] == 0
    for partition in range(PARTITIONS):
        flow.assert_equal(topic, partition)
