from __future__ import annotations

import pytest

from mm2.config.configdef import ConfigException
from mm2.config.keys.legacy_keys import without_legacy_keys

JSON = "org.apache.kafka.connect.json.JsonConverter"


def test_internal_converters_are_ignored_with_a_warning() -> None:
    old = {"internal.key.converter": JSON, "internal.value.converter.schemas.enable": "false", "key.converter": JSON}
    props, warnings = without_legacy_keys(old)
    assert props == {"key.converter": JSON}
    assert [sentence.split(" has no effect")[0] for sentence in warnings] == [
        "Configuration internal.key.converter",
        "Configuration internal.value.converter.schemas.enable",
    ]


@pytest.mark.parametrize(
    ("old", "listeners"),
    [
        ({"rest.port": "8084"}, "http://:8084"),
        ({"rest.host.name": "localhost"}, "http://localhost:8083"),
        ({"rest.host.name": "localhost", "rest.port": " 0 "}, "http://localhost:0"),
        ({"rest.host.name": "::1", "rest.port": "1"}, "http://[::1]:1"),
    ],
)
def test_host_and_port_are_converted_to_a_listener(old: dict[str, str], listeners: str) -> None:
    props, warnings = without_legacy_keys(old)
    assert props == {"listeners": listeners}
    assert len(warnings) == 1
    assert all(key in warnings[0] for key in old)
    assert f"listeners={listeners}" in warnings[0]


def test_listeners_take_precedence() -> None:
    props, warnings = without_legacy_keys({"rest.port": "8084", "listeners": "http://:1"})
    assert props == {"listeners": "http://:1"}
    assert warnings == ["Configuration rest.port has no effect: listeners is given (it was removed in Kafka 3.0)."]


def test_a_new_file_is_unchanged() -> None:
    assert without_legacy_keys({"listeners": "", "a": "b"}) == ({"listeners": "", "a": "b"}, [])


@pytest.mark.parametrize("port", ["many", "70000", "-1"])
def test_a_bad_port_is_refused(port: str) -> None:
    with pytest.raises(ConfigException, match=f"Invalid value {port} for configuration rest.port"):
        without_legacy_keys({"rest.port": port})
