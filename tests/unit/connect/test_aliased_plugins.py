"""The keys that transformations and predicates add to a connector equal Kafka's.

``enriched_keys.tsv`` was written by a small program that calls connect-runtime 4.3.0 (``ConnectorConfig.enrich``; ValueToKey: 4.4.0) for all
that ship with it, each under an alias made of its name.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.config.keys.connector_keys import SOURCE_CONNECTOR_CONFIG
from mm2.connect.herder.validation import with_aliased_plugins
from mm2.connect.plugins import Plugins, PluginType
from tests.unit.config.key_columns import columns, rows

PLUGINS = Plugins()
FILTER = "org.apache.kafka.connect.transforms.Filter"


def all_of_them() -> dict[str, str]:
    props = {}
    for key, type_ in (("transforms", PluginType.TRANSFORMATION), ("predicates", PluginType.PREDICATE)):
        aliases = {plugin.name.rpartition(".")[2].replace("$", ""): plugin.name for plugin in PLUGINS.list(type_)}
        props[key] = ",".join(aliases)
        props |= {f"{key}.{alias}.type": name for alias, name in aliases.items()}
    return props


def test_the_keys_of_all_included_plugins_equal_kafka_s_column_by_column() -> None:
    definition = with_aliased_plugins(SOURCE_CONNECTOR_CONFIG, all_of_them(), PLUGINS, None)
    found = [columns(key) for key in definition.keys.values() if key.name not in SOURCE_CONNECTOR_CONFIG]
    expected = rows(Path(__file__).with_name("enriched_keys.tsv"))
    for row in (*found, *expected):
        if row["key"].endswith(".plugin.version"):
            row["default"] = "the plugin's own"
    assert found == expected


def errors(**props: str) -> dict[str, list[str]]:
    given = {"name": "n", "connector.class": "c", **{key.replace("__", "."): value for key, value in props.items()}}
    definition = with_aliased_plugins(SOURCE_CONNECTOR_CONFIG, given, PLUGINS, None)
    return {value.name: value.errors for value in definition.config_values(given) if value.errors}


def test_an_alias_needs_a_class() -> None:
    assert errors(transforms="a") == {
        "transforms.a.type": ['Missing required configuration "transforms.a.type" which has no default value.']
    }


def test_a_missing_predicate_cannot_be_negated() -> None:
    text = "Config 'transforms.a.negate' was provided but there is no config 'transforms.a.predicate' defining a predicate to be negated."
    assert errors(transforms="a", transforms__a__type=FILTER, transforms__a__negate="true")["transforms.a.type"] == [
        text
    ]


@pytest.mark.parametrize("name", ["Nope", "org.apache.kafka.connect.storage.StringConverter"])
def test_an_invalid_class_is_an_error_of_its_type_key(name: str) -> None:
    found = errors(transforms="a", transforms__a__type=name)
    assert list(found) == ["transforms.a.type"]
    assert name in found["transforms.a.type"][0]


def test_a_plugin_validator_reports_its_own_key_like_kafka() -> None:
    found = errors(
        transforms="a", transforms__a__type="RegexRouter", transforms__a__regex="(", transforms__a__replacement=""
    )
    assert [
        text.startswith("Invalid value ( for configuration regex: Invalid regex")
        for text in found["transforms.a.regex"]
    ] == [True]
