"""Our tables equal those of Kafka 4.3.0, with the keys that 4.4.0 has added.

``kafka_keys.tsv`` was written by a small program that walks the ConfigDefs of kafka-clients, connect-runtime and
connect-mirror 4.3.0, and of the first two of 4.4.0; TLS and SASL keys stand only under DistributedConfig, where all of them are.
"""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from mm2.config.configdef import ConfigDef, ConfigException, Type, show
from mm2.config.keys.client_keys import ADMIN_CONFIG, CLIENT_KEYS, CONSUMER_CONFIG, PRODUCER_CONFIG
from mm2.config.keys.connector_keys import (
    CONNECTOR_CONFIG,
    SINK_CONNECTOR_CONFIG,
    SOURCE_CONNECTOR_CONFIG,
    check_sink_topics,
    source_connector_config,
)
from mm2.config.keys.mirror_keys import (
    CONNECTOR_KEYS,
    MIRROR_CHECKPOINT_CONFIG,
    MIRROR_CHECKPOINT_TASK_CONFIG,
    MIRROR_HEARTBEAT_CONFIG,
    MIRROR_SOURCE_CONFIG,
    MIRROR_SOURCE_TASK_CONFIG,
    OWN_CONFIG,
    topic_throttles,
)
from mm2.config.keys.rest_keys import CARDINALITY_KEY, OIDC_CONFIG, PROMETHEUS_CONFIG, REST_LIMITS_CONFIG, STRANGERS_KEY
from mm2.config.keys.worker_keys import DISTRIBUTED_CONFIG, WorkerConfig, parse_response_headers
from mm2.config.mirrormaker import TOP_CONFIG

DEFINITIONS = {
    "ConsumerConfig": CONSUMER_CONFIG,
    "ProducerConfig": PRODUCER_CONFIG,
    "AdminClientConfig": ADMIN_CONFIG,
    "DistributedConfig": DISTRIBUTED_CONFIG,
    "SourceConnectorConfig": SOURCE_CONNECTOR_CONFIG,
    "SinkConnectorConfig": SINK_CONNECTOR_CONFIG,
    "MirrorMakerConfig": TOP_CONFIG,
    "MirrorSourceConfig": MIRROR_SOURCE_CONFIG,
    "MirrorCheckpointConfig": MIRROR_CHECKPOINT_CONFIG,
    "MirrorHeartbeatConfig": MIRROR_HEARTBEAT_CONFIG,
}
# MirrorMaker gives clients their serializers itself.
OWN_DEFAULT = {"key.serializer", "value.serializer", "key.deserializer", "value.deserializer", "share.acquire.mode"}
# Kafka's policy Allowlist declares its key itself.
OURS = {
    "decompression.max.bytes",
    "connector.client.config.override.allowlist",
    "plugin.allowed.classes",
    "plugin.isolation",
    "tombstone.dead.groups.enabled",
    *REST_LIMITS_CONFIG.names,
    *OIDC_CONFIG.names,
}
# Java's own MirrorMaker has these in workers' files only; its whole REST interface is ours.
OF_WORKERS = {
    "admin.listeners",
    "rest.extension.classes",
    CARDINALITY_KEY,
    STRANGERS_KEY,
    *PROMETHEUS_CONFIG.names,
}


def kafka_rows() -> dict[str, dict[str, tuple[str, str, str]]]:
    rows: dict[str, dict[str, tuple[str, str, str]]] = {name: {} for name in DEFINITIONS}
    with Path(__file__).with_name("kafka_keys.tsv").open(encoding="utf-8", newline="") as file:
        for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            rows[row["definition"]][row["key"]] = (row["type"], row["default"], row["importance"])
    return rows


def our_rows(definition: ConfigDef) -> dict[str, tuple[str, str, str]]:
    defaults = {
        key.name: "<NODEF>" if key.required else "<null>" if key.default is None else show(key.default)
        for key in definition.keys.values()
    }
    return {key.name: (key.type.value, defaults[key.name], key.importance.value) for key in definition.keys.values()}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_names_types_defaults_and_importance_equal_kafka_s(name: str) -> None:
    expected, ours = kafka_rows()[name], our_rows(DEFINITIONS[name])
    ours = {key: row for key, row in ours.items() if key not in OURS and key not in OWN_CONFIG}
    if name == "MirrorMakerConfig":
        ours = {key: row for key, row in ours.items() if key not in OF_WORKERS}
    if name != "DistributedConfig":
        ours = {k: row for k, row in ours.items() if not k.startswith(("ssl.", "sasl.")) or k == "ssl.client.auth"}
    assert ours.keys() == expected.keys()
    for key in ours.keys() - OWN_DEFAULT:
        assert ours[key][:2] == expected[key][:2], key
        # The consumer alone rates its client.id lower than the other clients do.
        assert key == "client.id" or ours[key][2] == expected[key][2], key


def test_every_key_has_a_description() -> None:
    for definition in DEFINITIONS.values():
        assert [key.name for key in definition.keys.values() if not key.documentation] == []


def test_client_keys_are_bootstrap_protocol_tls_and_sasl() -> None:
    assert len(CLIENT_KEYS) == 68
    assert {
        "bootstrap.servers",
        "security.protocol",
        "sasl.oauthbearer.token.endpoint.url",
        "ssl.keystore.key",
    } < CLIENT_KEYS
    assert not {"client.id", "request.timeout.ms", "forwarding.admin.class", "ssl.client.auth"} & CLIENT_KEYS


def test_our_own_keys_are_connector_keys() -> None:
    assert {name: MIRROR_SOURCE_CONFIG.keys[name].default for name in OWN_CONFIG.names} == {
        "remote.partitions.max": 200000,
        "remote.topic.partitions.max": 10000,
        "copy.batch.duration.ms": 60000,
        "copy.lanes": 0,
        "copy.commit.interval.ms": 1000,
        "copy.throttle.bytes.per.sec": 0,
        "start.from": "",
        "source.data.loss": "continue",
        "partition.error": "isolate",
        "preserve.offsets": False,
        "preserve.offsets.topics": [".*"],
        "preserve.offsets.deny.writes": False,
        "sync.group.acls.enabled": False,
        "dead.letter.topic": "",
        "dead.letter.topic.replication.factor": 3,
        "ledger.topic.replication.factor": 3,
    }
    assert set(OWN_CONFIG.names) < CONNECTOR_KEYS


def test_limits_of_single_topics_have_keys_with_their_names() -> None:
    props = {
        "copy.throttle.bytes.per.sec": "9",
        "copy.throttle.bytes.per.sec.orders.eu": " 1000000 ",
        "copy.throttle.bytes.per.sec.logs": "0",
    }
    assert topic_throttles(props) == {"orders.eu": 1_000_000, "logs": 0}
    assert topic_throttles({}) == {}
    with pytest.raises(ConfigException) as caught:
        topic_throttles({"copy.throttle.bytes.per.sec.orders": "1 MB"})
    sentence = "Invalid value 1 MB for configuration copy.throttle.bytes.per.sec.orders: Not a number of type LONG"
    assert str(caught.value) == sentence


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        (
            "session.timeout.ms",
            "abc",
            "Invalid value abc for configuration session.timeout.ms: Not a number of type INT",
        ),
        (
            "offset.storage.replication.factor",
            "two",
            "Invalid value two for configuration offset.storage.replication.factor: Not a number of type SHORT",
        ),
        (
            "connect.protocol",
            "x",
            "Invalid value x for configuration connect.protocol: Invalid Connect protocol compatibility",
        ),
        (
            "exactly.once.source.support",
            "x",
            (
                "Invalid value x for configuration exactly.once.source.support: String must be one of (case insensitive): "
                "DISABLED, ENABLED, PREPARING"
            ),
        ),
        (
            "scheduled.rebalance.max.delay.ms",
            "-1",
            "Invalid value -1 for configuration scheduled.rebalance.max.delay.ms: Value must be at least 0",
        ),
        (
            "inter.worker.verification.algorithms",
            "",
            (
                "Invalid value [] for configuration inter.worker.verification.algorithms: At least one signature verification "
                "algorithm must be provided"
            ),
        ),
        (
            "inter.worker.signature.algorithm",
            "HmacSHA1",
            (
                "Invalid value HmacSHA1 for configuration inter.worker.signature.algorithm: Signature algorithm must be present "
                "in inter.worker.verification.algorithms list"
            ),
        ),
        (
            "listeners",
            "",
            "Invalid value for listeners, at least one URL is expected, ex: http://localhost:8080,https://localhost:8443.",
        ),
        ("listeners", "http://:8083,", "Empty URL found when parsing listeners list."),
        (
            "bootstrap.servers",
            "",
            "Configuration 'bootstrap.servers' must not be empty. Valid values include: any non-empty value",
        ),
        (
            "response.http.headers.config",
            "foo x:y",
            "Invalid header config action: 'foo'. Expected one of [set, add, setDate, addDate]",
        ),
        (
            "response.http.headers.config",
            "set x",
            "Invalid format of header name and header value pair 'x'. Expected: '[header name]:[header value]'",
        ),
        (
            "response.http.headers.config",
            "set :y",
            "Invalid header name ''. The '[header name]' cannot contain whitespace",
        ),
    ],
)
def test_worker_rejects_with_kafka_s_texts(key: str, value: str, text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        WorkerConfig({**WORKER, key: value})
    assert str(caught.value) == text


WORKER = {
    "bootstrap.servers": "h:1",
    "key.converter": "K",
    "value.converter": "V",
    "group.id": "g",
    "offset.storage.topic": "o",
    "config.storage.topic": "c",
    "status.storage.topic": "s",
}


def test_worker_passes_the_rest_of_a_storage_prefix_to_the_topic() -> None:
    worker = WorkerConfig({**WORKER, "offset.storage.partitions": "5", "offset.storage.segment.bytes": "1000000"})
    assert worker.storage_topic_settings("offset.storage.") == {"segment.bytes": "1000000"}
    assert worker.int("offset.storage.partitions") == 5


def test_response_header_rules_are_validated() -> None:
    text = 'set X-Frame-Options: DENY, "add Cache-Control: no-cache, no-store", setDate Last-Modified: 0'
    assert parse_response_headers(text) == [
        ("set", "X-Frame-Options", "DENY"),
        ("add", "Cache-Control", "no-cache, no-store"),
        ("setDate", "Last-Modified", "0"),
    ]
    assert parse_response_headers("") == []


CONNECTOR = {"name": "n", "connector.class": "c"}


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("tasks.max", "0", "Invalid value 0 for configuration tasks.max: Value must be at least 1"),
        ("transforms", "a,a", "Invalid value [a, a] for configuration transforms: Duplicate alias provided."),
        (
            "errors.tolerance",
            "x",
            "Invalid value x for configuration errors.tolerance: String must be one of: none, all",
        ),
        ("name", "", "Invalid value  for configuration name: String may not be empty"),
        (
            "transaction.boundary.interval.ms",
            "-1",
            "Invalid value -1 for configuration transaction.boundary.interval.ms: Value must be at least 0",
        ),
        (
            "offsets.storage.topic",
            " ",
            "Invalid value  for configuration offsets.storage.topic: String must be non-empty",
        ),
    ],
)
def test_source_connector_rejects_with_kafka_s_texts(key: str, value: str, text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        SOURCE_CONNECTOR_CONFIG.parse({**CONNECTOR, key: value})
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("metric.names.formats", "", "must not be empty. Valid values include: [legacy, new]"),
        ("offset-syncs.topic.location", "Source", "String must be one of: source, target"),
        ("topics", "a,,b", "Configuration 'topics' values must not be empty."),
        ("offset.lag.max", "abc", "Not a number of type LONG"),
        ("offset-syncs.topic.replication.factor", "99999", "Not a number of type SHORT"),
        ("source.data.loss", "ignore", "String must be one of: continue, stop"),
        ("partition.error", "stop", "String must be one of: isolate, fail"),
        ("copy.throttle.bytes.per.sec", "-1", "Value must be at least 0"),
        ("copy.throttle.bytes.per.sec", "10MB", "Not a number of type LONG"),
        ("dead.letter.topic", "dead letters", "A topic's name is up to 249 letters, digits, dots, underscores and"),
        ("dead.letter.topic", "..", "A topic's name is up to 249 letters, digits, dots, underscores and hyphens"),
        ("ledger.topic.replication.factor", "0", "Replication factor must be positive"),
        ("dead.letter.topic.replication.factor", "-2", "Replication factor must be positive"),
    ],
)
def test_mirror_source_rejects_invalid_values(key: str, value: str, text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        MIRROR_SOURCE_CONFIG.parse({**CONNECTOR, "source.cluster.alias": "A", key: value})
    assert text in str(caught.value)


def test_duplicates_in_topics_are_removed_silently() -> None:
    parsed = MIRROR_SOURCE_CONFIG.parse({**CONNECTOR, "source.cluster.alias": "A", "topics": "a,a, b"})
    assert parsed["topics"] == ["a", "b"]


def test_tasks_need_their_assignment() -> None:
    for definition, key in (
        (MIRROR_SOURCE_TASK_CONFIG, "task.assigned.partitions"),
        (MIRROR_CHECKPOINT_TASK_CONFIG, "task.assigned.groups"),
    ):
        props = {**CONNECTOR, "source.cluster.alias": "A"}
        with pytest.raises(ConfigException, match=f'"{key}" which has no default'):
            definition.parse(props)
        with pytest.raises(ConfigException, match="must not be empty"):
            definition.parse({**props, key: ""})


def test_topic_creation_groups_have_keys_of_their_own() -> None:
    assert source_connector_config(CONNECTOR).names == SOURCE_CONNECTOR_CONFIG.names
    props = {
        **CONNECTOR,
        "topic.creation.groups": "logs",
        "topic.creation.default.partitions": "3",
        "topic.creation.default.replication.factor": "-1",
        "topic.creation.logs.include": "log.*",
        "topic.creation.logs.replication.factor": "2",
    }
    parsed = source_connector_config(props).parse(props)
    assert parsed["topic.creation.default.include"] == [".*"]
    assert (parsed["topic.creation.logs.partitions"], parsed["topic.creation.logs.replication.factor"]) == (3, 2)
    with pytest.raises(ConfigException, match=r'"topic\.creation\.default\.replication\.factor" which has no default'):
        source_connector_config(props).parse({**CONNECTOR, "topic.creation.default.partitions": "3"})


def test_a_sink_reads_named_topics_or_a_pattern() -> None:
    check_sink_topics({"topics": "a"})
    check_sink_topics({"topics.regex": "a.*"})
    with pytest.raises(
        ConfigException, match=r"value   for configuration topics: Must configure one of topics or topics\.regex"
    ):
        check_sink_topics({"topics": " "})
    with pytest.raises(ConfigException, match="mutually exclusive"):
        check_sink_topics({"topics": "a", "topics.regex": "b"})


def test_common_connector_keys_are_typed() -> None:
    assert CONNECTOR_CONFIG.keys["errors.retry.timeout"].type is Type.LONG


@pytest.mark.parametrize("value", ["latest", "none", "by_duration:PT1H", "by_duration:P1D", "by_duration:P1DT2H3M4.5S"])
def test_offset_reset_accepts_valid_values(value: str) -> None:
    assert CONSUMER_CONFIG.keys["auto.offset.reset"].parse(value) == value


@pytest.mark.parametrize(
    "value", ["foo", "LATEST", "by_duration:x", "by_duration:-PT1H", "by_duration:P", "by_duration:P1DT"]
)
def test_offset_reset_rejects_invalid_values(value: str) -> None:
    with pytest.raises(
        ConfigException, match=r"The value must be either 'earliest', 'latest', 'none' or of the format"
    ):
        CONSUMER_CONFIG.keys["auto.offset.reset"].parse(value)
