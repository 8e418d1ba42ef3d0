"""Every class name that ships with Kafka 4.3.0 has a class here; names and counts are from the jars' service files."""

from __future__ import annotations

from collections import Counter

import pytest

from mm2.config.configdef import ConfigDef
from mm2.connect.api import HeaderConverter, Predicate, Transformation
from mm2.connect.plugins import Plugin, Plugins, PluginType
from mm2.connect.plugins.builtin import built_in


@pytest.mark.parametrize("plugin", built_in(), ids=lambda plugin: plugin.name)
def test_a_name_resolves_to_a_class_of_its_plugin_type(plugin: Plugin) -> None:
    for type_ in plugin.types:
        assert issubclass(plugin.python_class, type_.base)


def test_every_plugin_that_kafka_lists_exists() -> None:
    counts = Counter(type_ for plugin in built_in() for type_ in plugin.types)
    assert counts == {
        PluginType.SINK: 3,
        PluginType.SOURCE: 7,
        PluginType.TASK: 10,
        PluginType.CONVERTER: 9,
        PluginType.HEADER_CONVERTER: 10,
        PluginType.TRANSFORMATION: 26,
        PluginType.PREDICATE: 3,
        PluginType.CONFIGPROVIDER: 3,
        PluginType.CONNECTOR_CLIENT_CONFIG_OVERRIDE_POLICY: 4,
        PluginType.REST_EXTENSION: 1,
    }


def test_the_list_has_the_order_of_rest_and_versions() -> None:
    listing = Plugins().listing(connectors_only=False)
    kinds = list(dict.fromkeys(entry["type"] for entry in listing))
    assert kinds == ["sink", "source", "transformation", "predicate", "converter", "header_converter"]
    assert len(listing) == 3 + 7 + 26 + 3 + 9 + 10
    assert all(entry.get("version") for entry in listing)
    assert listing[0]["class"] == "org.apache.kafka.connect.file.FileStreamSinkConnector"
    assert {entry["type"] for entry in Plugins().listing()} == {"sink", "source"}


@pytest.mark.parametrize(
    ("alias", "kind", "name"),
    [
        ("HasHeaderKey", Predicate, "org.apache.kafka.connect.transforms.predicates.HasHeaderKey"),
        ("RegexRouter", Transformation, "org.apache.kafka.connect.transforms.RegexRouter"),
        ("Simple", HeaderConverter, "org.apache.kafka.connect.storage.SimpleHeaderConverter"),
        ("String", HeaderConverter, "org.apache.kafka.connect.storage.StringConverter"),
    ],
)
def test_aliases_equal_java_s(alias: str, kind: type, name: str) -> None:
    plugins = Plugins()
    assert plugins.name_of(plugins.find(alias, kind, key="k"), kind) == name


def test_transformations_and_predicates_define_their_keys() -> None:
    for plugin in Plugins().list(PluginType.TRANSFORMATION, PluginType.PREDICATE):
        assert isinstance(plugin.python_class().config(), ConfigDef), plugin.name
