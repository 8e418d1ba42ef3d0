"""Configs of new internal topics, from the settings of the worker and of connectors."""

from __future__ import annotations

from mm2.config.keys.worker_keys import WorkerConfig
from mm2.connect.stores.internal_topic import InternalTopic

PROPS = {
    "bootstrap.servers": "b:1",
    "group.id": "g",
    "key.converter": "org.apache.kafka.connect.storage.StringConverter",
    "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    "config.storage.topic": "configs",
    "offset.storage.topic": "offsets",
    "status.storage.topic": "statuses",
    "offset.storage.partitions": "7",
    "offset.storage.replication.factor": "2",
    "offset.storage.min.insync.replicas": "2",
    "offset.storage.cleanup.policy": "delete",
}


def test_settings_of_a_topic_come_from_its_prefix() -> None:
    config = WorkerConfig(PROPS)
    offsets = InternalTopic.from_config(config, "offset.storage.")
    assert (offsets.name, offsets.partitions, offsets.replication_factor) == ("offsets", 7, 2)
    assert offsets.configs == {"min.insync.replicas": "2"}  # users cannot change the cleanup policy
    assert offsets.key == "offset.storage.topic"
    assert InternalTopic.from_config(config, "config.storage.").partitions == 1
    assert InternalTopic.from_config(config, "status.storage.").partitions == 5


def test_a_connector_s_own_topic_is_created_like_the_worker_s() -> None:
    own = InternalTopic.of_connector(WorkerConfig(PROPS), "its-offsets")
    assert (own.name, own.partitions, own.replication_factor) == ("its-offsets", 7, 2)
    assert own.configs == {"min.insync.replicas": "2"}
    assert own.key == "offsets.storage.topic"
