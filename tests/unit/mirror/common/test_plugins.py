"""Policies and filters are plugins like any other: found in ``plugin.path``, validated before they are used."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from mm2.config.keys.mirror_keys import MIRROR_CHECKPOINT_CONFIG, MIRROR_SOURCE_CONFIG, is_job_on
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.connect.api import ConnectError
from mm2.connect.plugins import Plugins
from mm2.connect.plugins.registry import ClassNotAllowed
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.common import plugins
from mm2.mirror.heartbeat import MirrorHeartbeatConnector
from mm2.mirror.process.plans import plan_flows
from mm2.mirror.source_connector import MirrorSourceConnector, topic_selection
from tests.unit.connect.plugin_folders import write_files

NAMES = """
import dep
from mm2.mirror.filters import TopicFilter
from mm2.mirror.policy import DefaultReplicationPolicy

class Arrow(DefaultReplicationPolicy):
    def format_remote_topic(self, source_alias, topic):
        return f"{source_alias}-{dep.ARROW}-{topic}"

class Short(TopicFilter):
    def should_replicate_topic(self, topic):
        return len(topic) < 4
"""
CONNECTOR = {
    "name": "c",
    "connector.class": "x",
    "source.cluster.alias": "A",
    "source.cluster.bootstrap.servers": "127.0.0.1:1",
}


@pytest.fixture(autouse=True)
def _own_plugins_afterwards() -> Iterator[None]:
    yield
    plugins.use(Plugins())


def file(folder: Path, **more: str) -> MirrorMakerConfig:
    write_files(folder, {"acme/naming.py": NAMES, "acme/dep.py": "ARROW = '>'\n"})
    props = {
        "clusters": "A,B",
        "A.bootstrap.servers": "127.0.0.1:1",
        "B.bootstrap.servers": "127.0.0.1:2",
        "A->B.enabled": "true",
        "B.plugin.path": str(folder),
        "topics": ".*",
    }
    return MirrorMakerConfig({**props, **more})


def test_a_policy_and_a_filter_of_the_plugin_path_name_and_select_topics(tmp_path: Path) -> None:
    """Both are isolated: `dep` is not on the path of this process."""
    config = file(tmp_path, **{"replication.policy.class": "naming.Arrow", "A->B.topic.filter.class": "naming.Short"})
    found = plugins.connect_plugins(plugins.plugin_props(config, None))
    found.limit(plugins.plugin_limits(config))
    plan = plan_flows(config, None, found)[SourceAndTarget("A", "B")]
    selection = topic_selection(plan.resolved["MirrorSourceConnector"])
    assert selection.remote("abc") == "A->-abc"
    assert [selection.should_replicate(topic) for topic in ("abc", "abcd")] == [True, False]


def test_a_class_that_the_file_does_not_name_is_not_loaded_in_a_mirrormaker_process(tmp_path: Path) -> None:
    config = file(tmp_path)
    found = plugins.connect_plugins(plugins.plugin_props(config, None))
    found.limit(plugins.plugin_limits(config))
    with pytest.raises(
        ClassNotAllowed, match=r"naming\.Arrow of configuration replication\.policy\.class is not allowed"
    ):
        plugins.replication_policy({**CONNECTOR, "replication.policy.class": "naming.Arrow"})
    assert plugins.replication_policy({**CONNECTOR, "replication.policy.class": "IdentityReplicationPolicy"})


@pytest.mark.parametrize("connector", [MirrorSourceConnector, MirrorCheckpointConnector, MirrorHeartbeatConnector])
def test_every_class_key_of_a_mirror_connector_names_a_class_that_is_not_found(connector: type) -> None:
    """As in Java: one error per key, with Java's text."""
    made = connector()
    keys = [
        key.name for key in made.config().keys.values() if key.type.value == "CLASS" and key.name not in _OF_CONNECT
    ]
    assert {"replication.policy.class", "sasl.login.class", "ssl.engine.factory.class"} <= set(keys)
    for key in keys:
        errors = made.validate({**CONNECTOR, key: "org.acme.Nope"})
        (value,) = (
            one.value for one in made.config().config_values({**CONNECTOR, key: "org.acme.Nope"}) if one.name == key
        )
        assert value is None
        assert errors == [
            (key, f"Invalid value org.acme.Nope for configuration {key}: Class org.acme.Nope could not be found.")
        ]


_OF_CONNECT = {"key.converter", "value.converter", "header.converter", "connector.class"}


def test_kafka_s_own_classes_are_known() -> None:
    definition = {**MIRROR_SOURCE_CONFIG.keys, **MIRROR_CHECKPOINT_CONFIG.keys}
    defaults = {key: str(row.default) for key, row in definition.items() if key in plugins.CLASS_KEYS}
    assert len(defaults) == 5
    security = {
        "sasl.login.class": "org.apache.kafka.common.security.authenticator.DefaultLogin",
        "ssl.engine.factory.class": "org.apache.kafka.common.security.ssl.DefaultSslEngineFactory",
        "sasl.oauthbearer.jwt.retriever.class": "org.apache.kafka.common.security.oauthbearer.FileJwtRetriever",
    }
    for connector in (MirrorSourceConnector(), MirrorCheckpointConnector()):
        assert connector.validate({**CONNECTOR, **defaults, **security}) == []


def test_a_class_of_another_kind_is_an_error_that_names_the_key() -> None:
    name = "org.apache.kafka.connect.mirror.DefaultGroupFilter"
    (error,) = MirrorSourceConnector().validate({**CONNECTOR, "topic.filter.class": name})
    assert error == ("topic.filter.class", f"Class class {name} does not implement the TopicFilter interface")
    with pytest.raises(ConnectError, match=r"topic\.filter\.class"):
        plugins.topic_filter({"topic.filter.class": name})


@pytest.mark.parametrize(
    "job", ["refresh.topics", "sync.topic.acls", "emit.checkpoints", "sync.group.offsets", "emit.heartbeats"]
)
def test_a_job_with_a_negative_interval_is_off(job: str) -> None:
    assert is_job_on({f"{job}.enabled": "true"}, job)
    assert is_job_on({f"{job}.enabled": " TRUE ", f"{job}.interval.seconds": "1"}, job)
    assert not is_job_on({f"{job}.enabled": "true", f"{job}.interval.seconds": " -1"}, job)
    assert not is_job_on({f"{job}.enabled": "false"}, job)


def test_group_offsets_are_not_synced_by_default() -> None:
    assert not is_job_on({}, "sync.group.offsets")


def test_without_checkpoints_there_are_no_tasks_to_read_the_groups() -> None:
    """A negative interval was the shortest one: the task read all groups ten times a second."""
    connector = MirrorCheckpointConnector()
    connector.dry_run({**CONNECTOR, "emit.checkpoints.interval.seconds": "-1"})
    assert connector.task_configs(3) == []
