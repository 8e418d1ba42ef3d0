"""Every key that Kafka's own ConfigDefs define has an entry in the table of effects, and the table has no other keys."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

from mm2.config.keys.key_effects import Place, effect_of, key_effects
from mm2.sandbox.jars import KAFKA_VERSION
from tests.integration.java_source import run_source
from tests.support.java import CONNECT_VERSION

ORACLE: Final = Path(__file__).parents[1] / "java" / "ConfigKeys.java"
_KAFKA: Final = "org.apache.kafka."
_CONSUMERS: Final = (Place.CONSUMER, Place.MIRROR_CONSUMER)
_PRODUCERS: Final = (Place.PRODUCER, Place.MIRROR_PRODUCER, Place.MIRROR_SYNCS)
PLACES: Final[Mapping[str, tuple[Place, ...]]] = {
    "clients.admin.AdminClientConfig": (Place.ADMIN,),
    "clients.consumer.ConsumerConfig": _CONSUMERS,
    "clients.producer.ProducerConfig": _PRODUCERS,
    "connect.connector.policy.AllowlistConnectorClientConfigOverridePolicy": (Place.WORKER,),
    "connect.mirror.MirrorCheckpointConfig": (Place.MIRROR,),
    "connect.mirror.MirrorConnectorConfig": (Place.MIRROR,),
    "connect.mirror.MirrorHeartbeatConfig": (Place.MIRROR,),
    "connect.mirror.MirrorMakerConfig": (Place.PROCESS,),
    "connect.mirror.MirrorSourceConfig": (Place.MIRROR,),
    "connect.runtime.ConnectorConfig": (Place.CONNECTOR, Place.MIRROR),
    "connect.runtime.SinkConnectorConfig": (Place.CONNECTOR,),
    "connect.runtime.SourceConnectorConfig": (Place.CONNECTOR, Place.MIRROR),
    "connect.runtime.WorkerConfig": (Place.WORKER,),
    "connect.runtime.distributed.DistributedConfig": (Place.WORKER,),
    "connect.runtime.rest.RestServerConfig$InternalConfig": (Place.PROCESS,),
    "connect.runtime.rest.RestServerConfig$PublicConfig": (Place.WORKER,),
    "connect.runtime.standalone.StandaloneConfig": (Place.WORKER,),
}
"""The places where the keys of a class of Kafka may stand."""
TABLES: Final[Mapping[str, str]] = {
    "connect.file.FileStreamSinkConnector": "FileStreamSink",
    "connect.file.FileStreamSourceConnector": "FileStreamSource",
    "connect.json.JsonConverterConfig": "JsonConverter",
    "connect.storage.StringConverterConfig": "StringConverter",
    "connect.converters.BooleanConverterConfig": "BooleanConverter",
    "connect.converters.NumberConverterConfig": "NumberConverter",
    "connect.converters.ByteArrayConverter": "ByteArrayConverter",
    "connect.mirror.DefaultConfigPropertyFilter$ConfigPropertyFilterConfig": "DefaultConfigPropertyFilter",
    "connect.mirror.DefaultGroupFilter$GroupFilterConfig": "DefaultGroupFilter",
    "connect.mirror.DefaultTopicFilter$TopicFilterConfig": "DefaultTopicFilter",
    "connect.runtime.TopicCreationConfig": "topic creation",
}
"""The tables of plugins, and of groups of keys with a prefix; those of transformations are named like their class."""
_TRANSFORMS: Final = "connect.transforms."
NOT_IN_FILES: Final = {
    "clients.CommonClientConfigs",
    "common.config.internals.BrokerSecurityConfigs",
    "connect.mirror.MirrorCheckpointTaskConfig",
    "connect.mirror.MirrorSourceTaskConfig",
    "connect.runtime.TaskConfig",
    "connect.storage.ConverterConfig",
}
"""Keys of brokers, and keys that Connect itself sets for tasks and converters."""


@pytest.fixture(scope="module")
def kafka_keys() -> dict[str, list[str]]:
    """The keys of each class, of the reference version or of the newest one."""
    found: dict[str, list[str]] = {}
    for line in {
        line
        for version in (KAFKA_VERSION, CONNECT_VERSION)
        for line in run_source(ORACLE, version=version).splitlines()
    }:
        name, _, key = line.partition("\t")
        found.setdefault(name.removeprefix(_KAFKA), []).append(key)
    return found


def table_of(name: str) -> str | None:
    return name.rpartition(".")[2] if name.startswith(_TRANSFORMS) else TABLES.get(name)


def test_every_class_with_keys_is_known(kafka_keys: Mapping[str, list[str]]) -> None:
    client_only = {"connect.mirror.MirrorClientConfig"}  # MirrorClient has no file
    known = PLACES.keys() | NOT_IN_FILES | client_only
    assert not [name for name in kafka_keys if name not in known and table_of(name) is None]
    assert not PLACES.keys() - kafka_keys.keys()


def test_every_key_of_kafka_has_an_effect(kafka_keys: Mapping[str, list[str]]) -> None:
    rows = {(row.place, row.key) for row in key_effects()}
    missing: list[tuple[str, str]] = [
        (place, key)
        for name, places in PLACES.items()
        for key in kafka_keys[name]
        for place in places
        if effect_of(place, key) is None
    ]
    missing += [
        (table, key)
        for name, keys in kafka_keys.items()
        if (table := table_of(name)) is not None
        for key in keys
        if (table, key) not in rows
    ]
    assert not missing


def test_the_table_has_no_key_that_kafka_does_not_have(kafka_keys: Mapping[str, list[str]]) -> None:
    known = {key for keys in kafka_keys.values() for key in keys}
    ours = {row.key for row in key_effects() if not row.key.endswith("*")}
    assert not ours - known
