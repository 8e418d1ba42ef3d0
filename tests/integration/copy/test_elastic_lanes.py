"""Lanes follow the executors of a real Spark standalone cluster, whose workers join and leave while records are copied."""

from __future__ import annotations

import contextlib
import os
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from structlog.testing import capture_logs

from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Flow, Traffic, read_all
from tests.support.spark import LocalSpark
from tests.support.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 8


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalSpark]:
    """One worker with two slots at first."""
    settings = {"spark.decommission.enabled": "true"}
    with LocalSpark(tmp_path / "spark", workers=1, cores=2, settings=settings) as cluster:
        yield cluster


@pytest.fixture
def engine(cluster: LocalSpark) -> Iterator[CopyEngine]:
    engine = CopyEngine({**cluster.props, "spark.authenticate": "false"})  # the master is on loopback
    engine.start()
    wait_until(lambda: engine.slots.count == 2, 120)
    yield engine
    engine.stop()


def sizes(job: CopyJob) -> list[int]:
    """The partitions of each lane that copies; -1 for one that does not."""
    return sorted(lane.partitions if lane.since_ms is not None else -1 for lane in job.lanes())


def wait_for_progress(job: CopyJob, traffic: Traffic) -> None:
    """Wait until every partition has copied what is written from now on."""
    at = traffic.sent
    wait_until(
        lambda: (
            traffic.sent > at + 100
            and len(rows := job.progress()) == PARTITIONS
            and all(row.position > at // PARTITIONS for row in rows)
        ),
        120,
        detail=lambda: (job.status(), job.lanes()),
    )


def assert_copied_once(flow: Flow, topic: str, sent: int) -> None:
    """Every partition has all of its records, once and in order."""
    found = read_all(flow.target, flow.remote(topic), range(PARTITIONS))
    for partition, records in found.items():
        numbers = [int(record.value or b"") for record in records]
        wanted = list(range(partition, sent, PARTITIONS))
        lost, doubled = set(wanted) - set(numbers), [n for n, count in Counter(numbers).items() if count > 1]
        assert (lost, doubled) == (set(), [])
        assert numbers == wanted, "in this order"


def kill(pid: int) -> None:
    """As ``kill -9`` of the whole machine: worker, executor and Python workers."""
    worker = psutil.Process(pid)
    for process in [*worker.children(recursive=True), worker]:
        with contextlib.suppress(psutil.Error):
            process.kill()


def decommission(pid: int) -> None:
    os.kill(pid, signal.SIGPWR)


@pytest.mark.parametrize("leave", [kill, decommission])
def test_lanes_grow_with_a_worker_that_joins_and_shrink_when_it_leaves(
    cluster: LocalSpark,
    engine: CopyEngine,
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    leave: Callable[[int], None],
) -> None:
    flow = Flow(engine, kafka_a, kafka_b, unique)
    topic = flow.topic(partitions=PARTITIONS)
    spec = flow.spec(topic, partitions=PARTITIONS, lanes=0, throttle=40_000_000.0)
    with (
        capture_logs() as logs,
        Traffic(flow.source, topic, PARTITIONS, per_second=500) as traffic,
        flow.copying(spec) as job,
    ):
        detail = lambda: (engine.slots.count, job.lanes(), job.status())  # noqa: E731
        wait_until(lambda: sizes(job) == [8], 60, detail=detail)
        wait_for_progress(job, traffic)
        worker = cluster.add_worker()
        wait_until(lambda: sizes(job) == [2, 3, 3], 120, detail=detail)
        wait_for_progress(job, traffic)
        moves = engine.flow_status("A->B").moves
        leave(worker)
        wait_until(lambda: sizes(job) == [8] and engine.slots.count == 2, 120, detail=detail)
        wait_for_progress(job, traffic)
        traffic.finish()
        flow.wait_until_copied(job, spec, 120)
        status = engine.flow_status("A->B")
        # What a killed executor has copied since its last report is not counted.
        assert status.records == traffic.sent if leave is decommission else status.records <= traffic.sent
        assert sum(status.micro_batches.values()) == job.status()["batches"]
        assert (moves, status.moves) == (5, 10)
        assert len(job.lanes()) == 1
    assert_copied_once(flow, topic, traffic.sent)
    changes = [line for line in logs if line["event"] == "partitions move to other lanes"]
    assert [(line["cause"], line["lanes_before"], line["lanes"]) for line in changes] == [
        ("slots", 1, 3),
        ("slots", 3, 1),
    ]
    assert all(line["slots"] in {2, 4} for line in changes)


def test_jobs_that_open_one_after_another_share_the_slots(
    cluster: LocalSpark, engine: CopyEngine, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    cluster.add_worker()
    wait_until(lambda: engine.slots.count == 4, 60)
    flow = Flow(engine, kafka_a, kafka_b, unique)
    topic = flow.topic(partitions=PARTITIONS)
    whole = flow.spec(topic, partitions=PARTITIONS, lanes=0)
    specs = [replace(whole, task_id=task, partitions=whole.partitions[task::2]) for task in range(2)]
    with contextlib.ExitStack() as stack:
        traffic = stack.enter_context(Traffic(flow.source, topic, PARTITIONS, per_second=500))
        first = stack.enter_context(flow.copying(specs[0]))
        wait_until(lambda: sizes(first) == [2, 2], 60, detail=first.lanes)
        with flow.copying(specs[1]) as second:
            wait_until(lambda: (sizes(first), sizes(second)) == ([2, 2], [4]), 60, detail=second.lanes)
        wait_until(lambda: sizes(first) == [2, 2], 60, detail=first.lanes)
        second = stack.enter_context(flow.copying(specs[1]))
        traffic.finish()
        for job, spec in zip((first, second), specs, strict=True):
            flow.wait_until_copied(job, spec, 120)
    assert_copied_once(flow, topic, traffic.sent)
