"""Copying on a real YARN: a ResourceManager, a NodeManager, and Spark in client mode, whose executors are killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from mm2.copy.driver.engine import CopyEngine, CopyJob
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy.test_spark_standalone import assert_equal, python_workers
from tests.integration.copy_flow import Flow, Traffic
from tests.support.waiting import PATIENCE, wait_until
from tests.support.yarn import LocalYarn

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

PARTITIONS = 6


@pytest.fixture
def yarn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LocalYarn]:
    with LocalYarn(tmp_path / "yarn") as yarn:
        monkeypatch.setenv("HADOOP_CONF_DIR", str(yarn.conf))
        yield yarn


def await_progress(job: CopyJob, traffic: Traffic) -> None:
    at = traffic.sent
    wait_until(lambda: sum(row.position for row in job.progress()) > at + 500, 180, detail=job.status)


def await_other_executors(yarn: LocalYarn, before: list[psutil.Process]) -> None:
    wait_until(lambda: set(yarn.executors()) - set(before), 180, detail=yarn.log_tail)


def test_every_record_arrives_once_when_executors_are_killed(
    yarn: LocalYarn, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    engine = CopyEngine({**yarn.props, "spark.executor.instances": "2", "spark.executor.cores": "2"})
    engine.start()
    try:
        wait_until(lambda: engine.slots.count == 4, 240, detail=lambda: (engine.down, yarn.log_tail()))
        conf = dict(engine.spark.context(60).getConf().getAll())
        assert (conf["spark.authenticate"], conf["spark.network.crypto.enabled"]) == ("true", "true")
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic(partitions=PARTITIONS)
        spec = flow.spec(topic, partitions=PARTITIONS, lanes=0, batch_duration_ms=3_000)
        with Traffic(flow.source, topic, PARTITIONS, per_second=500) as traffic, flow.copying(spec) as job:
            for count in (1, 2):
                wait_until(lambda: engine.slots.count == 4, 120, detail=lambda: (engine.down, yarn.log_tail()))
                wait_until(lambda: sum(map(len, map(python_workers, yarn.executors()))) > 0, 60)
                for executor in yarn.executors()[:count]:
                    executor.kill()
                await_progress(job, traffic)
            wait_until(lambda: engine.slots.count == 4, 120, detail=lambda: (engine.down, yarn.log_tail()))
            traffic.finish()
            flow.wait_until_copied(job, spec, 120)
            wait_until(lambda: job.status()["troubles"] == [], 60, detail=job.status)
        assert assert_equal(flow.source, flow.target, topic, flow.remote(topic)) == traffic.sent
        application = engine.spark.application_id
        assert yarn.applications() == {application: "RUNNING"}
    finally:
        engine.stop(20 * PATIENCE)
    wait_until(lambda: yarn.applications() == {application: "FINISHED"}, 60, detail=yarn.applications)
    wait_until(lambda: not yarn.containers(), 60, detail=yarn.containers)
    assert not list((yarn.folder / "staging").rglob(application))


def test_copying_continues_after_yarn_has_ended_the_master_and_then_the_application(
    yarn: LocalYarn, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    """The first application master is replaced by YARN, an application that was killed by this project."""
    engine = CopyEngine({**yarn.props, "spark.executor.instances": "1", "spark.executor.cores": "2"})
    engine.start()
    try:
        wait_until(lambda: engine.slots.count == 2, 240, detail=lambda: (engine.down, yarn.log_tail()))
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic(partitions=PARTITIONS)
        spec = flow.spec(topic, partitions=PARTITIONS, lanes=0, batch_duration_ms=3_000)
        first = engine.spark.application_id
        with Traffic(flow.source, topic, PARTITIONS, per_second=500) as traffic, flow.copying(spec) as job:
            for victim in ("master", "application"):
                before = yarn.executors()
                if victim == "master":
                    (master,) = [one for one in yarn.containers() if one not in before]
                    master.kill()
                else:
                    yarn.kill(first)
                await_other_executors(yarn, before)
                await_progress(job, traffic)
                assert (engine.spark.application_id == first) == (victim == "master")
            traffic.finish()
            flow.wait_until_copied(job, spec, 120)
        assert assert_equal(flow.source, flow.target, topic, flow.remote(topic)) == traffic.sent
        assert yarn.applications() == {first: "KILLED", engine.spark.application_id: "RUNNING"}
    finally:
        engine.stop(20 * PATIENCE)
