"""The origin of each setting of a file, and which values are shown."""

from __future__ import annotations

import pytest

from mm2.config.files.properties import parse_properties, property_lines
from mm2.config.keys.mirror_keys import CONNECTOR_CLASSES
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.config.origins import (
    PROCESS,
    WORKER,
    Level,
    Setting,
    SettingsSection,
    flow_settings,
    matching,
    process_settings,
    unread,
)

A_TO_B = SourceAndTarget("A", "B")
FILE = """\
# A comment, and an empty line

clusters = A, B
A.bootstrap.servers = a:1
B.bootstrap.servers = b:1
topics = x
B.sasl.jaas.config = secret one
A.consumer.sasl.jaas.config = ${file:/nowhere:key}
A.admin.sasl.jaas.config = user and ${file:/nowhere:key}
A->B.topics = a,\\
  b
A->B.enabled = true
A->B.of.a.plugin = secret two
config.providers = file
config.providers.file.class = FileConfigProvider
config.providers.file.param.allowed.paths = /
spark.master = local
spark.hadoop.fs.password = secret three
offset.storage.replication.factor = 1
B.offset.storage.replication.factor = 2
B.group.id = x
tasks.mx = 1
topics = last
"""


def read(text: str = FILE) -> dict[str, dict[str, Setting]]:
    config, lines = MirrorMakerConfig(parse_properties(text)), property_lines(text)
    parts = [process_settings(config, lines), *flow_settings(config, A_TO_B, lines)]
    return {part.name: {one.key: one for one in part.settings} for part in parts}


def test_parts_are_the_process_the_worker_and_the_connectors() -> None:
    assert list(read()) == [PROCESS, WORKER, *(name.rpartition(".")[2] for name in CONNECTOR_CLASSES)]


@pytest.mark.parametrize(
    ("part", "key", "expected"),
    [
        ("MirrorSourceConnector", "topics", ("a,b", Level.FLOW, "A->B.topics", 10, ("topics",))),
        (
            "MirrorSourceConnector",
            "source.cluster.bootstrap.servers",
            ("a:1", Level.CLUSTER, "A.bootstrap.servers", 4, ()),
        ),
        ("MirrorSourceConnector", "name", ("MirrorSourceConnector", Level.DERIVED, "", None, ())),
        ("MirrorSourceConnector", "offset.lag.max", ("100", Level.DEFAULT, "", None, ())),
        (
            "MirrorCheckpointConnector",
            "groups.exclude",
            (r"console-consumer-.*,connect-.*,__.*", Level.DEFAULT, "", None, ()),
        ),
        (WORKER, "group.id", ("x", Level.CLUSTER, "B.group.id", 21, ())),
        (WORKER, "scheduled.rebalance.max.delay.ms", ("0", Level.DERIVED, "", None, ())),
        (WORKER, "status.storage.topic", ("mm2-status.A.internal", Level.DERIVED, "", None, ())),
        (
            WORKER,
            "offset.storage.replication.factor",
            ("1", Level.TOP, "offset.storage.replication.factor", 19, ("B.offset.storage.replication.factor",)),
        ),
        (PROCESS, "clusters", ("A, B", Level.TOP, "clusters", 3, ())),
        (PROCESS, "spark.master", ("local", Level.TOP, "spark.master", 17, ())),
        (PROCESS, "dedicated.mode.enable.internal.rest", ("false", Level.DEFAULT, "", None, ())),
    ],
)
def test_a_setting_has_its_key_its_line_and_what_it_overrides(
    part: str, key: str, expected: tuple[str, Level, str, int | None, tuple[str, ...]]
) -> None:
    found = read()[part][key]
    assert (found.value, found.level, found.origin, found.line, found.overrides) == expected


def test_the_last_of_equal_keys_counts_with_its_line() -> None:
    text = FILE.replace("A->B.topics", "ignored")
    assert (read(text)["MirrorSourceConnector"]["topics"].value, property_lines(text)["topics"]) == ("last", 23)


def test_the_file_overrides_the_dedicated_worker_s_default() -> None:
    found = read(FILE + "B.scheduled.rebalance.max.delay.ms = 7\n")[WORKER]["scheduled.rebalance.max.delay.ms"]
    assert (found.value, found.origin) == ("7", "B.scheduled.rebalance.max.delay.ms")


def test_secrets_and_possible_secrets_are_hidden_but_references_are_shown() -> None:
    parts = read()
    shown = [one.value for part in parts.values() for one in part.values()]
    assert not [value for value in shown if "secret" in value or "user and" in value]
    source = parts["MirrorSourceConnector"]
    assert source["of.a.plugin"].value == "[hidden]"
    assert source["target.cluster.sasl.jaas.config"].value == "[hidden]"
    assert source["source.consumer.sasl.jaas.config"].value == "${file:/nowhere:key}", "the provider was called"
    assert source["source.admin.sasl.jaas.config"].value == "[hidden]", "what stands beside a reference may be secret"
    assert parts[PROCESS]["spark.hadoop.fs.password"].value == "[hidden]"
    assert parts[PROCESS]["config.providers.file.class"].value == "FileConfigProvider"
    url = "A.sasl.oauthbearer.token.endpoint.url = https://ada:secret@tokens.example/\n"
    found = read(FILE + url)["MirrorSourceConnector"]["source.cluster.sasl.oauthbearer.token.endpoint.url"]
    assert found.value == "https://[hidden]@tokens.example/"


def test_every_key_of_the_derived_maps_is_listed_with_its_effective_value() -> None:
    config = MirrorMakerConfig(parse_properties(FILE))
    for java_class in CONNECTOR_CLASSES:
        defined = read()[java_class.rpartition(".")[2]]
        for key, value in config.connector_config(A_TO_B, java_class).items():
            assert defined[key].value in {value, "[hidden]"}
            assert defined[key].level is not Level.DEFAULT


def test_unknown_keys_are_reported_with_line_and_closest_known_key() -> None:
    config, lines = MirrorMakerConfig(parse_properties(FILE)), property_lines(FILE)
    assert [(one.key, one.line) for one in unread(config, lines)] == [("tasks.mx", 22)]
    assert unread(config, lines)[0].nearest == "tasks.max"


def test_matching_leaves_out_parts_without_such_a_key() -> None:
    one, other = Setting("a.b", "1", Level.TOP), Setting("c", "2", Level.TOP)
    assert matching([SettingsSection("x", (one, other)), SettingsSection("y", (other,))], "b") == [
        SettingsSection("x", (one,))
    ]
