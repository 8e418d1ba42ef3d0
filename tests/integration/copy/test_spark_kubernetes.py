"""Copying with executors in pods: a real API server with TLS and RBAC, whose pods are processes of this checkout.

Go compiles the server (`tests/tools/kubernetes/build`, ten minutes the first time); without Go the test is skipped.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.copy.driver.engine import CopyEngine
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy.test_spark_standalone import assert_equal
from tests.integration.copy_flow import Flow, Traffic
from tests.support.kubernetes import LocalKubernetes
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(shutil.which("go") is None, reason="needs Go 1.24 or newer, which compiles the API server"),
]

PARTITIONS = 6


@pytest.fixture
def kubernetes(tmp_path: Path) -> Iterator[LocalKubernetes]:
    with LocalKubernetes(tmp_path / "kubernetes") as kubernetes:
        yield kubernetes


def test_every_record_arrives_once_when_a_pod_is_killed_and_a_stop_deletes_the_pods(
    kubernetes: LocalKubernetes, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    engine = CopyEngine({**kubernetes.props, "spark.executor.instances": "2", "spark.executor.cores": "2"})
    engine.start()
    try:
        wait_until(
            lambda: engine.slots.count == 4, 240, detail=lambda: (engine.down, kubernetes.pods(), kubernetes.log_tail())
        )
        first = set(kubernetes.pods())
        flow = Flow(engine, kafka_a, kafka_b, unique)
        topic = flow.topic(partitions=PARTITIONS)
        spec = flow.spec(topic, partitions=PARTITIONS, lanes=0, batch_duration_ms=3_000)
        with Traffic(flow.source, topic, PARTITIONS, per_second=500) as traffic, flow.copying(spec) as job:
            wait_until(lambda: job.status()["records"] > 500, 120, detail=job.status)
            victim = min(first)
            os.killpg(kubernetes.kubelet.process(victim).pid, signal.SIGKILL)
            # Spark deletes the pod that has failed, and creates another one.
            wait_until(lambda: victim not in kubernetes.pods(), 120, detail=kubernetes.pods)
            wait_until(lambda: len(set(kubernetes.pods()) - first) == 1, 120, detail=kubernetes.pods)
            wait_until(lambda: set(kubernetes.pods().values()) == {"Running"}, 120, detail=kubernetes.log_tail)
            wait_until(lambda: engine.slots.count == 4, 120, detail=lambda: (engine.down, kubernetes.log_tail()))
            at = traffic.sent
            wait_until(lambda: sum(row.position for row in job.progress()) > at + 500, 120, detail=job.status)
            traffic.finish()
            flow.wait_until_copied(job, spec, 120)
        assert assert_equal(flow.source, flow.target, topic, flow.remote(topic)) == traffic.sent
        assert engine.down is None
    finally:
        engine.stop(20 * PATIENCE)
    wait_until(lambda: kubernetes.pods() == {}, 60, detail=kubernetes.pods)
    left = [made["metadata"]["name"] for made in kubernetes.listed("configmaps")]
    assert not [name for name in left if name.startswith("spark-")]
    assert kubernetes.kubelet.errors == []
