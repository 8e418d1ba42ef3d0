"""The three Mirror connectors on connect-distributed, created by REST under the names of the Java classes.

The tests depend on their order. Most use one worker on the target cluster, the last uses one on the source cluster.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest
from confluent_kafka import Producer

from bench.proctree import session_members
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import checkpoints, contents, ends, has_all, heartbeats, syncs, topics_of
from tests.support.waiting import PATIENCE, wait_until
from tests.systems.workers import DistributedWorker, Rest, distributed_props

pytestmark = [pytest.mark.timeout(int(240 * PATIENCE)), pytest.mark.slow]

BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
KINDS = ("Source", "Checkpoint", "Heartbeat")
PARTITIONS, RECORDS, GROUP_OFFSET = 4, 100, 40
_PATIENCE_S = 180


@dataclass
class Flow:
    """A->B by connectors on plain Connect, with its own topic, group and aliases."""

    worker: DistributedWorker
    a: LocalKafka
    b: LocalKafka
    name: str

    @property
    def rest(self) -> Rest:
        return self.worker.rest

    @property
    def source(self) -> str:
        return f"{self.name}-a"

    @property
    def target(self) -> str:
        return f"{self.name}-b"

    @property
    def topic(self) -> str:
        return f"{self.name}-orders"

    @property
    def remote(self) -> str:
        return f"{self.source}.{self.topic}"

    @property
    def group(self) -> str:
        return f"{self.name}-billing"

    def connector(self, kind: str) -> str:
        """The name of a connector with its flow, since a worker may have several flows."""
        return f"{self.name}-{kind.lower()}"

    def config(self, kind: str, more: Mapping[str, str] | None = None) -> dict[str, str]:
        factors = ("replication", "offset-syncs.topic.replication", "checkpoints.topic.replication")
        return {
            "name": self.connector(kind),
            "connector.class": f"org.apache.kafka.connect.mirror.Mirror{kind}Connector",
            "tasks.max": "2",
            "key.converter": BYTES,
            "value.converter": BYTES,
            "header.converter": BYTES,
            "source.cluster.alias": self.source,
            "target.cluster.alias": self.target,
            "source.cluster.bootstrap.servers": self.a.bootstrap,
            "target.cluster.bootstrap.servers": self.b.bootstrap,
            "topics": self.topic,
            "heartbeats.replication.enabled": "false",  # other tests write heartbeats to the source
            "groups": self.group,
            **{f"{factor}.factor": "1" for factor in (*factors, "heartbeats.topic.replication")},
            "refresh.topics.interval.seconds": "2",
            "refresh.groups.interval.seconds": "1",
            "emit.checkpoints.interval.seconds": "1",
            "emit.heartbeats.interval.seconds": "1",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "sync.topic.acls.enabled": "false",
            **(more or {}),
        }

    def post(self, more: Mapping[str, str] | None = None) -> None:
        """Write records, commit offsets of a group, and create all three connectors."""
        create(self.a, self.topic, PARTITIONS)
        self.write("first")
        commit(self.a, self.group, {(self.topic, 0): GROUP_OFFSET})
        for kind in KINDS:
            self.rest.create(self.connector(kind), self.config(kind, more))

    def write(self, what: str) -> None:
        producer = Producer({"bootstrap.servers": self.a.bootstrap, "log_level": 0})
        for i in range(PARTITIONS * RECORDS):
            producer.produce(self.topic, f"{what} {i}".encode(), b"%d" % i, i % PARTITIONS, headers=[("n", b"%d" % i)])
        assert producer.flush(30) == 0

    def await_copied(self, timeout_s: float = 150) -> None:
        """Assert that all records were copied once and unchanged."""
        wait_until(lambda: has_all(self.a, self.topic, self.b, self.remote), timeout_s, detail=self.worker.tail)
        assert contents(self.b, self.remote) == contents(self.a, self.topic)

    def await_the_rest(self) -> None:
        """Wait for heartbeats, checkpoints, offset syncs and the group's offsets on the target."""
        spot = (self.group, self.remote, 0)
        internal = f"{self.source}.checkpoints.internal"
        wait_until(lambda: (self.source, self.target) in heartbeats(self.b, "heartbeats"), 60, detail=self.worker.tail)
        wait_until(
            lambda: checkpoints(self.b, internal).get(spot) == (GROUP_OFFSET, GROUP_OFFSET, ""),
            60,
            detail=self.worker.tail,
        )
        wait_until(lambda: committed(self.b, self.group, self.remote) == GROUP_OFFSET, 60, detail=self.worker.tail)
        wait_until(
            lambda: (
                {partition for _, partition in syncs(self.a, f"mm2-offset-syncs.{self.target}.internal")}
                == set(range(PARTITIONS))
            ),
            60,
            detail=self.worker.tail,
        )

    def offsets(self) -> dict[int, int]:
        """The last copied offset of each partition, from REST."""
        found = {}
        for entry in self.rest.offsets(self.connector("Source")):
            partition: dict[str, Any] = entry["partition"]
            assert (partition["cluster"], partition["topic"]) == (self.source, self.topic)
            found[int(partition["partition"])] = int(entry["offset"]["offset"])
        return found


@contextmanager
def ready(worker: DistributedWorker) -> Iterator[DistributedWorker]:
    """Start a worker and wait until it is healthy, with a timeout for busy machines."""
    try:
        yield worker.start(_PATIENCE_S)
    finally:
        worker.__exit__()


@pytest.fixture(scope="module")
def flow(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Flow]:
    a, b = kafka_pair
    name = f"plain{secrets.token_hex(3)}"
    props = distributed_props(b.bootstrap, name)
    with ready(DistributedWorker(tmp_path_factory.mktemp("worker"), props)) as worker:
        made = Flow(worker, a, b, name)
        made.post()
        yield made
        assert worker.stop(90) == 0


def test_two_tasks_of_a_worker_share_one_spark_and_copy_everything_once(flow: Flow) -> None:
    flow.await_copied()
    flow.rest.await_running(flow.connector("Source"), 2)
    assigned = [
        task["config"]["task.assigned.partitions"]
        for task in flow.rest.get(f"/connectors/{flow.connector('Source')}/tasks")
    ]
    assert sorted(",".join(assigned).split(",")) == [f"{flow.topic}-{partition}" for partition in range(PARTITIONS)]
    machines = [process for process in session_members(flow.worker.pid) if process.name() == "java"]
    assert len(machines) == 1, "two contexts in one process cannot be"


def test_heartbeats_checkpoints_syncs_and_group_offsets_are_written(flow: Flow) -> None:
    flow.await_the_rest()
    for kind in KINDS[1:]:
        flow.rest.await_running(flow.connector(kind), 1)


@pytest.mark.parametrize("kind", KINDS)
def test_posted_configs_are_validated_and_missing_keys_are_named(flow: Flow, kind: str) -> None:
    path = f"/connector-plugins/Mirror{kind}Connector/config/validate"
    good = flow.config(kind)
    assert flow.rest.ask("PUT", path, json=good)["error_count"] == 0
    bad = {key: value for key, value in good.items() if key != "source.cluster.alias"} | {"tasks.max": "0"}
    answer = flow.rest.ask("PUT", path, json=bad)
    wrong = {row["value"]["name"] for row in answer["configs"] if row["value"]["errors"]}
    assert wrong == {"source.cluster.alias", "tasks.max"}
    posted = {"name": f"{kind}-bad", "config": {**bad, "name": f"{kind}-bad"}}
    refusal = flow.rest.ask("POST", "/connectors", json=posted, expect=400)
    assert "source.cluster.alias" in refusal["message"]


def test_a_paused_connector_copies_nothing_and_resumes_at_its_position(flow: Flow) -> None:
    flow.await_copied()
    name = flow.connector("Source")
    flow.rest.pause(name)
    wait_until(lambda: flow.rest.states(name) == ["PAUSED"] * 3, 30, detail=flow.worker.tail)
    before = ends(flow.b, flow.remote)
    flow.write("while paused")
    time.sleep(3)
    assert ends(flow.b, flow.remote) == before
    flow.rest.resume(name)
    flow.await_copied()


def test_restarted_tasks_resume_at_their_position(flow: Flow) -> None:
    flow.await_copied()
    name = flow.connector("Source")
    asked = flow.rest.ask("POST", f"/connectors/{name}/restart", params={"includeTasks": "true"}, expect=202)
    assert asked["name"] == name
    flow.write("after a restart")
    flow.await_copied()
    flow.rest.await_running(name, 2)


def test_altered_offsets_are_used(flow: Flow) -> None:
    """The last test that compares contents: it requests duplicates of some records."""
    flow.await_copied()
    name, before = flow.connector("Source"), ends(flow.a, flow.topic)
    flow.rest.stop(name)
    assert flow.offsets() == {partition: end - 1 for partition, end in enumerate(before)}
    partition = {"cluster": flow.source, "partition": 1, "topic": flow.topic}
    altered = {"offsets": [{"partition": partition, "offset": {"offset": 9}}]}
    flow.rest.ask("PATCH", f"/connectors/{name}/offsets", json=altered)
    flow.rest.resume(name)
    wanted = [end + (end - 10 if partition == 1 else 0) for partition, end in enumerate(before)]
    wait_until(lambda: ends(flow.b, flow.remote) == wanted, 90, detail=flow.worker.tail)
    again = contents(flow.b, flow.remote)[1][before[1] :]
    assert again == contents(flow.a, flow.topic)[1][10:]


def test_deleted_connectors_stop_copying(flow: Flow) -> None:
    for kind in KINDS:
        flow.rest.delete(flow.connector(kind))
    wait_until(lambda: flow.rest.get("/connectors") == [], 30)
    before = ends(flow.b, flow.remote)
    flow.write("without a copier")
    time.sleep(3)
    assert ends(flow.b, flow.remote) == before
    assert flow.worker.is_running


def test_a_worker_on_the_source_stores_its_offsets_there_and_copies_once(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path_factory: pytest.TempPathFactory
) -> None:
    name = f"near{secrets.token_hex(3)}"
    props = distributed_props(kafka_a.bootstrap, name)
    with ready(DistributedWorker(tmp_path_factory.mktemp("near"), props)) as worker:
        flow = Flow(worker, kafka_a, kafka_b, name)
        flow.post({"producer.override.bootstrap.servers": kafka_b.bootstrap})
        flow.await_copied()
        flow.await_the_rest()
        assert props["offset.storage.topic"] in topics_of(kafka_a)
        assert props["offset.storage.topic"] not in topics_of(kafka_b)
        wait_until(lambda: flow.offsets() == dict.fromkeys(range(PARTITIONS), RECORDS - 1), 30, detail=worker.tail)
        worker.kill9()
        flow.write("while no worker copied")
        worker.start(_PATIENCE_S)
        flow.await_copied()
