"""The effect of single settings of mirror connectors on real clusters, compared with that of their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import pytest
from kafka.protocol.admin import CreateTopicsRequest

from mm2.config.configdef import ConfigException
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.api import RetriableError
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.filters import DefaultConfigPropertyFilter, DefaultGroupFilter
from mm2.mirror.heartbeat import MirrorHeartbeatConnector
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import commit, config_of, create, flow_props, partitions_of, running
from tests.support.sent_requests import SentRequests, recorded
from tests.support.waiting import wait_until


class EverythingButRetention(DefaultConfigPropertyFilter):
    """A user's filter."""

    def should_replicate_config_property(self, name: str) -> bool:
        return not name.startswith("retention.")


class EvenGroups(DefaultGroupFilter):
    """A user's filter."""

    def should_replicate_group(self, group: str) -> bool:
        return super().should_replicate_group(group) and group.endswith(("0", "2", "4"))


def assigned(connector: MirrorConnector, key: str) -> list[str] | None:
    """What is assigned to one task; None while it is unknown."""
    try:
        return [item for config in connector.task_configs(1) for item in config[key].split(",")]
    except RetriableError:
        return None


def first_factor(sent: SentRequests, topic: str) -> int | None:
    """The replication factor with which a topic was requested first."""
    wanted = [one for request in sent.of(CreateTopicsRequest) for one in request.topics if one.name == topic]
    return int(wanted[0].replication_factor) if wanted else None


@pytest.mark.parametrize(
    ("connector", "key", "topic", "default"),
    [
        (MirrorSourceConnector, "replication.factor", "S{0}.{0}", 2),
        (MirrorSourceConnector, "offset-syncs.topic.replication.factor", "mm2-offset-syncs.T{0}.internal", 3),
        (MirrorCheckpointConnector, "checkpoints.topic.replication.factor", "S{0}.checkpoints.internal", 3),
        (MirrorHeartbeatConnector, "heartbeats.topic.replication.factor", "heartbeats", 3),
    ],
)
def test_topics_are_requested_with_their_replication_factor(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    unique: str,
    connector: type[MirrorConnector],
    key: str,
    topic: str,
    default: int,
) -> None:
    """-1 is the default of the brokers, which is used as well if there are too few for a default of MirrorMaker."""
    factors = []
    for name, settings in ((f"{unique}-1", {}), (f"{unique}-2", {key: "-1"})):
        create(kafka_a, name)
        aliases = {"source.cluster.alias": f"S{name}", "target.cluster.alias": f"T{name}"}
        props = flow_props(connector.__name__, kafka_a, kafka_b, topics=name) | aliases
        del props[key]
        with recorded() as sent, running(connector(), {**props, **settings}):
            wait_until(partial(first_factor, sent, topic.format(name)))
        factors.append(first_factor(sent, topic.format(name)))
    assert factors == [default, -1]


def test_heartbeats_topics_are_replicated_unless_disabled(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    """Whatever the topic filter says."""
    create(kafka_a, unique)
    create(kafka_a, f"C{unique}.heartbeats")
    for settings, is_replicated in (({}, True), ({"heartbeats.replication.enabled": "false"}, False)):
        props = flow_props("MirrorSourceConnector", kafka_a, kafka_b, topics=unique) | settings
        with running(MirrorSourceConnector(), props) as (connector, _):
            wait_until(lambda c=connector: f"{unique}-0" in (assigned(c, "task.assigned.partitions") or []))  # type: ignore[misc]
            found = assigned(connector, "task.assigned.partitions") or []
        assert (f"C{unique}.heartbeats-0" in found) is is_replicated


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({}, ["1", "2", "3"]),
        ({"group.filter.class": f"{__name__}.EvenGroups"}, ["2"]),
        ({"groups.exclude": ".*[12]"}, ["3"]),
    ],
    ids=["default", "group.filter.class", "groups.exclude"],
)
def test_groups_are_filtered(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, settings: dict[str, str], expected: list[str]
) -> None:
    create(kafka_a, unique)
    for number in ("1", "2", "3"):
        commit(kafka_a, f"{unique}-{number}", {(unique, 0): 0})
    props = flow_props("MirrorCheckpointConnector", kafka_a, kafka_b, topics=unique, groups=f"{unique}-.*")
    props |= {"source.cluster.alias": unique, **settings}
    with running(MirrorCheckpointConnector(), props) as (connector, _):
        wait_until(lambda: assigned(connector, "task.assigned.groups"))
        assert assigned(connector, "task.assigned.groups") == [f"{unique}-{number}" for number in expected]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [({}, ["1", "2"]), ({"topics.exclude": ".*-2"}, ["1"])],
    ids=["default", "topics.exclude"],
)
def test_topics_are_filtered(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, settings: dict[str, str], expected: list[str]
) -> None:
    for number in ("1", "2"):
        create(kafka_a, f"{unique}-{number}")
    props = flow_props("MirrorSourceConnector", kafka_a, kafka_b, topics=f"{unique}-.*")
    props |= {"heartbeats.replication.enabled": "false", **settings}
    with running(MirrorSourceConnector(), props) as (connector, _):
        wait_until(lambda: assigned(connector, "task.assigned.partitions"))
        assert assigned(connector, "task.assigned.partitions") == [f"{unique}-{number}-0" for number in expected]


@pytest.mark.parametrize(
    ("settings", "retention_bytes"),
    [({}, "1000"), ({"config.property.filter.class": f"{__name__}.EverythingButRetention"}, "-1")],
    ids=["default", "config.property.filter.class"],
)
def test_a_user_s_filter_decides_which_settings_of_a_topic_are_replicated(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, settings: dict[str, str], retention_bytes: str
) -> None:
    create(kafka_a, unique, config={"retention.bytes": "1000", "cleanup.policy": "compact"})
    props = flow_props("MirrorSourceConnector", kafka_a, kafka_b, topics=unique) | settings
    with running(MirrorSourceConnector(), props):
        wait_until(lambda: partitions_of(kafka_b, f"A.{unique}") == 1)
        assert config_of(kafka_b, f"A.{unique}", "cleanup.policy") == "compact"
        assert config_of(kafka_b, f"A.{unique}", "retention.bytes") == retention_bytes


ENVIRONMENT = {
    "config.providers": "env",
    "config.providers.env.class": "org.apache.kafka.common.config.provider.EnvVarConfigProvider",
}


@pytest.mark.parametrize("providers", [{}, ENVIRONMENT], ids=["none", "env"])
def test_references_in_the_file_of_mirror_maker_are_resolved_by_its_providers(
    kafka_b: LocalKafka, monkeypatch: pytest.MonkeyPatch, providers: Mapping[str, str]
) -> None:
    monkeypatch.setenv("SERVERS_OF_B", kafka_b.bootstrap)
    file = {"clusters": "A,B", "A.bootstrap.servers": "a:1", "A->B.enabled": "true", **providers}
    config = MirrorMakerConfig({**file, "B.bootstrap.servers": "${env:SERVERS_OF_B}"})
    props = config.worker_config(SourceAndTarget("A", "B"))
    if not providers:
        with pytest.raises(ConfigException, match="SERVERS_OF_B"):
            ClientSettings.from_props(props)
        return
    cluster = Cluster(ClientSettings.from_props(props), name="B")
    assert cluster.metadata(()).cluster_id == kafka_b.cluster_id
    cluster.close()
