"""Keys that the registry adds to a connector; texts and lists were observed on connect-runtime 4.3.0 (``enrichedConfigDef``)."""

from __future__ import annotations

import pytest

from mm2.config.configdef import ConfigValue
from mm2.config.keys.connector_keys import SOURCE_CONNECTOR_CONFIG
from mm2.connect.herder.plugin_infos import with_plugins
from mm2.connect.plugins import Plugins

STRING, JSON = "org.apache.kafka.connect.storage.StringConverter", "org.apache.kafka.connect.json.JsonConverter"
WORKER = {"key.converter": "String", "value.converter": JSON, "header.converter": "Simple"}
PLUGINS = Plugins()


def values(**props: str) -> dict[str, ConfigValue]:
    given = {"name": "n", "connector.class": "VerifiableSource"} | {k.replace("__", "."): v for k, v in props.items()}
    definition = with_plugins(SOURCE_CONNECTOR_CONFIG, PLUGINS, given, WORKER)
    return {value.name: value for value in definition.config_values(given)}


def test_the_default_converters_are_the_worker_s_in_their_newest_version() -> None:
    found = values()
    assert [found[f"{part}.converter"].value for part in ("key", "value", "header")] == [
        STRING,
        JSON,
        "org.apache.kafka.connect.storage.SimpleHeaderConverter",
    ]
    assert found["key.converter.plugin.version"].value == PLUGINS.versions(STRING, object)[-1]
    assert not any(value.errors for value in found.values())


def test_classes_and_versions_are_recommended() -> None:
    found = values()
    converters = found["key.converter"].recommended_values
    assert converters == found["value.converter"].recommended_values
    assert (len(converters), converters[7:]) == (9, [JSON, STRING])
    assert len(found["header.converter"].recommended_values) == 10
    for key in ("connector", "key.converter", "value.converter", "header.converter"):
        assert len(found[f"{key}.plugin.version"].recommended_values) == 1


@pytest.mark.parametrize(
    ("key", "name", "text"),
    [
        ("key.converter", "Nope", "Invalid value Nope for configuration key.converter: Class Nope could not be found."),
        (
            "value.converter",
            "org.apache.kafka.connect.transforms.Filter",
            "Class class org.apache.kafka.connect.transforms.Filter does not implement the Converter interface",
        ),
        (
            "header.converter",
            "no.such.Class",
            "Invalid value no.such.Class for configuration header.converter: Class no.such.Class could not be found.",
        ),
    ],
)
def test_an_unsuitable_class_is_rejected_with_kafka_s_text(key: str, name: str, text: str) -> None:
    assert values(**{key: name})[key].errors == [text]
