"""What `mm2 plan` prints is what the connectors do, on real brokers.

The jobs of the connectors run here in their order, without a worker, so that all of them have run when the two are compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from kafka.protocol.consumer import JoinGroupRequest

from mm2.config.files.properties import load_properties
from mm2.config.keys.mirror_keys import CONNECTOR_NAMES
from mm2.config.keys.worker_keys import storage_topics
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import (
    NewTopic,
    OffsetAndMetadata,
    ResourceType,
    TopicPartition,
)
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.common.plugins import connect_plugins, plugin_props
from mm2.mirror.heartbeat import MirrorHeartbeatConnector
from mm2.mirror.plan.preview import Preview, preview
from mm2.mirror.process.plans import FlowPlan, plan_flows
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.integration.mirror_flow import RecordingContext
from tests.integration.mirror_process import write_config
from tests.support.waiting import PATIENCE, wait_until

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
CLASSES: dict[str, type[MirrorConnector]] = {
    one.__name__: one for one in (MirrorSourceConnector, MirrorCheckpointConnector, MirrorHeartbeatConnector)
}


@dataclass(frozen=True)
class Side:
    """A broker, with a client that may do everything."""

    broker: LocalKafka
    admin: Admin

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        answers = self.admin.create_topics([NewTopic(topic, partitions, configs=dict(configs or {}))])
        assert answers == {topic: None}

    def commit(self, group: str, topic: str) -> None:
        tp = TopicPartition(topic, 0)
        wait_until(lambda: self.admin.alter_group_offsets(group, {tp: OffsetAndMetadata(0)}) == {tp: None}, 60)

    def join(self, group: str, protocol_type: str) -> None:
        """Leave a member of another kind than consumers in a group."""
        offer = JoinGroupRequest.JoinGroupRequestProtocol(name="any", metadata=b"")
        member = ""
        for _ in range(2):  # the first answer only has the member's id (KIP-394)
            request = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=300_000,
                rebalance_timeout_ms=300_000,
                member_id=member,
                group_instance_id=None,
                protocol_type=protocol_type,
                protocols=[offer],
            )
            cluster = self.admin.cluster
            member = cluster.send(cluster.coordinator(group), request, timeout_s=60).member_id


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    folder = tmp_path_factory.mktemp("plan")
    overrides = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} required user_mirror="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:mirror",
    }
    listeners = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT"}
    brokers = (
        LocalKafka("A", folder / "a", listeners=listeners, overrides=overrides, heap="384m"),
        LocalKafka("B", folder / "b", listeners=listeners, overrides=overrides, heap="384m"),
    )
    start_all(brokers, 60.0 * PATIENCE)
    clusters = [
        Cluster(ClientSettings.from_props({"bootstrap.servers": one.bootstrap}), name="test") for one in brokers
    ]
    try:
        a, b = (Side(broker, Admin(cluster)) for broker, cluster in zip(brokers, clusters, strict=True))
        yield a, b
    finally:
        for cluster in clusters:
            cluster.close()
        stop_all(brokers)


@dataclass(frozen=True)
class Flow:
    """A flow from A, under an alias of its own, to B."""

    a: Side
    b: Side
    alias: str
    file: Path

    @classmethod
    def of(cls, sides: tuple[Side, Side], folder: Path, settings: Mapping[str, str]) -> Flow:
        alias = f"P{secrets.token_hex(3)}"
        a, b = sides
        props = {
            "clusters": f"{alias}, B",
            f"{alias}.bootstrap.servers": a.broker.address("LOGIN"),
            "B.bootstrap.servers": b.broker.address("LOGIN"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} required username="mirror" password="secret";',
            f"{alias}->B.enabled": "true",
            f"{alias}->B.topics": f"{alias}-.*",
            f"{alias}->B.groups": f"({alias}-.*)?",
            "heartbeats.replication.enabled": "false",
            **settings,
        }
        return cls(a, b, alias, write_config(folder / f"{alias}.properties", props))

    def topic(self, name: object) -> str:
        return f"{self.alias}-{name}"

    def planned(self) -> tuple[FlowPlan, Preview]:
        config = MirrorMakerConfig(load_properties(self.file))
        pair = SourceAndTarget(self.alias, "B")
        plan = plan_flows(config, ["B"], connect_plugins(plugin_props(config, None)))[pair]
        return plan, preview(pair, plan)


@contextmanager
def applied(plan: FlowPlan) -> Iterator[dict[str, MirrorConnector]]:
    """Run each job of the connectors until it has succeeded."""
    connectors = {}
    try:
        for name in CONNECTOR_NAMES:
            connector = connectors[name] = CLASSES[name]()
            props = dict(plan.resolved[name])
            connector.initialize(RecordingContext(f"{props['source.cluster.alias']}-mm2", storage_topics(plan.worker)))
            scheduler = connector._prepared(props)
            for entry in sorted(scheduler._entries) if scheduler is not None else ():
                _until_done(entry.job)
        yield connectors
    finally:
        for connector in connectors.values():
            connector.stop()
            connector._close_clusters()
            connector._close_filters()


def _until_done(job: Callable[[], bool | None], attempts: int = 3) -> None:
    """What the target rejects stays undone, so not all jobs succeed."""
    for _ in range(attempts):
        if job() is not False:
            return


def test_groups_that_are_not_followed_need_no_rights(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """Of another kind than consumers, without an id, or without offsets of replicated topics."""
    flow = Flow.of(
        sides, tmp_path, {f"{key}.replication.factor": "1" for key in ("checkpoints.topic", "heartbeats.topic")}
    )
    flow.a.create(flow.topic("t"))
    other = f"other-{flow.alias}"
    flow.a.create(other)
    for group in ("shop", "workers"):
        flow.a.commit(flow.topic(group), flow.topic("t"))
    flow.a.commit("", flow.topic("t"))
    flow.a.commit(flow.topic("elsewhere"), other)
    flow.a.join(flow.topic("workers"), "connect")
    plan, found = flow.planned()
    names = {name for one in found.rights if one.need.kind is ResourceType.GROUP for name in one.need.names}
    with applied(plan) as connectors:
        followed = {
            group
            for config in connectors["MirrorCheckpointConnector"].task_configs(1)
            for group in config["task.assigned.groups"].split(",")
        }
    assert followed == {flow.topic("shop")}
    assert names - {f"{flow.alias}-mm2"} == followed
