"""The worker's and the connectors' keys equal those of Kafka, column by column, and so do errors of invalid values.

``connect_definitions.tsv`` and ``connect_judgements.tsv`` were written by a small program that walks the ConfigDefs of
connect-runtime 4.3.0, and those of new keys by that of 4.4.0; the second contains each of TRIES for which ``ConfigDef.validateAll`` returns an error.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mm2.config.configdef import ConfigDef
from mm2.config.definitions.values import ConfigType
from mm2.config.keys.connector_keys import (
    ISOLATION_KEY,
    SINK_CONNECTOR_CONFIG,
    SOURCE_CONNECTOR_CONFIG,
    source_connector_config,
)
from mm2.config.keys.worker_keys import DISTRIBUTED_CONFIG, STANDALONE_CONFIG
from tests.unit.config.key_columns import columns, rows

HERE = Path(__file__).parent

GROUPS = {
    "name": "n",
    "connector.class": "c",
    "topic.creation.groups": "logs",
    "topic.creation.default.partitions": "3",
    "topic.creation.default.replication.factor": "2",
    "topic.creation.logs.include": "log.*",
}
DEFINITIONS = {
    "DistributedConfig": DISTRIBUTED_CONFIG,
    "StandaloneConfig": STANDALONE_CONFIG,
    "SourceConnectorConfig": SOURCE_CONNECTOR_CONFIG,
    "SinkConnectorConfig": SINK_CONNECTOR_CONFIG,
    "TopicCreation": source_connector_config(GROUPS),
}
# Ours, and the key that Kafka's policy Allowlist declares itself.
OURS = {"connector.client.config.override.allowlist", ISOLATION_KEY}
#: The result where Java's validator fails on the null of an unparsable value.
CRASH = "crash"
TRIES = [None, "", "x", "-1", "0", "2147483648", "0.7", "a,a", "a,,b"]


KAFKA_S = rows(HERE / "connect_definitions.tsv")


@pytest.mark.parametrize("row", KAFKA_S, ids=lambda row: f"{row['definition']}-{row['key']}")
def test_every_column_equals_kafka_s(row: dict[str, str]) -> None:
    key = DEFINITIONS[row["definition"]].keys[row["key"]]
    defined = columns(key)
    assert defined == {column: row[column] for column in defined}
    assert key.documentation


@pytest.mark.parametrize("name", ["DistributedConfig", "SourceConnectorConfig", "SinkConnectorConfig"])
def test_the_keys_equal_kafka_s_in_order(name: str) -> None:
    expected = [row["key"] for row in KAFKA_S if row["definition"] == name]
    found = [key for key in DEFINITIONS[name].names if key not in OURS]
    assert sorted(found) == sorted(expected)
    if name != "DistributedConfig":
        assert found == expected


def test_the_standalone_worker_has_no_key_of_the_group() -> None:
    distributed, standalone = set(DISTRIBUTED_CONFIG.names), set(STANDALONE_CONFIG.names)
    assert standalone - distributed == {"offset.storage.file.filename"}
    assert {"group.id", "security.protocol", "config.storage.topic", "client.id"} <= distributed - standalone


JUDGED = {
    (row["definition"], row["key"], row["given"]): json.loads(row["errors"])
    for row in rows(HERE / "connect_judgements.tsv")
}
NOT_TRIED = {
    "inter.worker.key.generation.algorithm",
    "inter.worker.signature.algorithm",
    "inter.worker.verification.algorithms",
}


@pytest.mark.parametrize("name", ["DistributedConfig", "SourceConnectorConfig", "SinkConnectorConfig"])
def test_bad_values_are_rejected_with_kafka_s_texts(name: str) -> None:
    definition: ConfigDef = DEFINITIONS[name]
    base = SOURCE_CONNECTOR_CONFIG if name == "SinkConnectorConfig" else ConfigDef()
    for key in definition.keys.values():
        tls_or_sasl = key.name.startswith(("ssl.", "sasl.")) and key.name != "ssl.client.auth"
        if key.name in OURS | NOT_TRIED or tls_or_sasl or key.type is ConfigType.CLASS or key.name in base:
            continue
        for given in TRIES:
            props = {} if given is None else {key.name: given}
            found = next(value for value in definition.config_values(props) if value.name == key.name)
            expected = JUDGED.get((name, key.name, "<absent>" if given is None else given), [])
            if expected == CRASH:
                assert found.errors, (key.name, given)
            else:
                assert found.errors == expected, (key.name, given)
