"""Every class name that ships with Kafka 4.3.0 has a class here; names and counts are from the jars' service files."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest

from mm2.config.configdef import ConfigDef
from mm2.connect.api import ConnectError, HeaderConverter, Predicate, Task, Transformation
from mm2.connect.plugins import Plugin, Plugins, PluginType
from mm2.connect.plugins.builtin import built_in, file_plugins
from mm2.connect.plugins.registry import PluginLimits


@pytest.mark.parametrize("plugin", [*built_in(), *file_plugins()], ids=lambda plugin: plugin.name)
def test_a_name_resolves_to_a_class_of_its_plugin_type(plugin: Plugin) -> None:
    for type_ in plugin.types:
        assert issubclass(plugin.python_class, type_.base)


def test_every_plugin_that_kafka_lists_exists() -> None:
    counts = Counter(type_ for plugin in [*built_in(), *file_plugins()] for type_ in plugin.types)
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
        PluginType.REPLICATION_POLICY: 2,
        PluginType.TOPIC_FILTER: 1,
        PluginType.GROUP_FILTER: 1,
        PluginType.CONFIG_PROPERTY_FILTER: 1,
        PluginType.FORWARDING_ADMIN: 1,
    }


def test_the_list_has_the_order_of_rest_and_versions() -> None:
    listing = Plugins({"plugin.path": "libs/connect-file-4.3.0.jar"}).listing(connectors_only=False)
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


FILE_NAMES = (
    "FileStreamSource",
    "FileStreamSourceConnector",
    "org.apache.kafka.connect.file.FileStreamSourceConnector",
)


@pytest.mark.parametrize("name", [*FILE_NAMES, "mm2.connect.files.FileStreamSourceConnector"])
@pytest.mark.parametrize("props", [None, {}, {"plugin.path": "libs/connect-files.jar,/nowhere"}])
def test_the_file_connectors_are_not_loaded_by_default(name: str, props: dict[str, str] | None) -> None:
    plugins = Plugins(props)
    with pytest.raises(ConnectError, match=r"KAFKA-13748\): add connect-file-4\.3\.0\.jar to plugin\.path"):
        plugins.new_connector({"connector.class": name})
    with pytest.raises(ConnectError, match="KAFKA-13748"):
        plugins.find("mm2.connect.files.FileStreamSourceTask", Task, key="task.class")
    assert not [entry for entry in plugins.listing() if "FileStream" in entry["class"]]


@pytest.mark.parametrize("name", FILE_NAMES)
def test_the_line_of_kafka_s_quickstart_adds_the_file_connectors(name: str, tmp_path: Path) -> None:
    (tmp_path / "connect-file-3.9.1.jar").touch()
    for entry in ("libs/connect-file-4.3.0.jar", "/opt/kafka/libs/connect-file-3.9.0.jar", str(tmp_path)):
        plugins = Plugins({"plugin.path": entry})
        assert type(plugins.new_connector({"connector.class": name})).__name__ == "FileStreamSourceConnector"
        assert len([one for one in plugins.listing() if "FileStream" in one["class"]]) == 2


LIMITS = PluginLimits(
    frozenset(
        {"org.apache.kafka.connect.mirror.MirrorSourceConnector", "org.apache.kafka.connect.mirror.MirrorSourceTask"}
    ),
    frozenset({"FileStreamSink", "os.PathLike"}),
    "plugin.allowed.classes",
)


def test_a_limited_registry_loads_mirror_connectors_what_ships_with_kafka_and_what_is_allowed() -> None:
    plugins = Plugins({"plugin.path": "libs/connect-file-4.3.0.jar"})
    plugins.limit(LIMITS)
    mirror = {"connector.class": "MirrorSource"}
    assert plugins.new_connector(mirror)
    assert plugins.new_task("org.apache.kafka.connect.mirror.MirrorSourceTask", mirror)
    assert plugins.new_connector({"connector.class": "org.apache.kafka.connect.file.FileStreamSinkConnector"})
    assert plugins.new_task("org.apache.kafka.connect.file.FileStreamSinkTask", {"connector.class": "FileStreamSink"})
    assert plugins.new("RegexRouter", Transformation, key="transforms.t.type")
    sentence = (
        r"of configuration connector\.class is not allowed in a MirrorMaker process: add it to plugin\.allowed\.classes"
    )
    for name in ("FileStreamSource", "VerifiableSource", "MirrorHeartbeat", "antigravity.Connector"):
        with pytest.raises(ConnectError, match=sentence):
            plugins.new_connector({"connector.class": name})
    # A task of a mirror connector cannot be one that reads files.
    with pytest.raises(ConnectError, match=r"FileStreamSourceTask of configuration task\.class is not allowed"):
        plugins.new_task("org.apache.kafka.connect.file.FileStreamSourceTask", mirror)
    assert "antigravity" not in sys.modules
    assert {entry["class"].rpartition(".")[2] for entry in plugins.listing()} == {
        "MirrorSourceConnector",
        "FileStreamSinkConnector",
    }
