from __future__ import annotations

import pytest

from mm2.connect.api import ConnectError, Connector, Converter
from mm2.connect.converters import ByteArrayConverter
from mm2.connect.plugins import Plugins


class Broken(ByteArrayConverter):
    def __init__(self) -> None:
        raise ValueError("no luck")


class Other(ByteArrayConverter):
    pass


@pytest.mark.parametrize(
    "name",
    [
        "org.apache.kafka.connect.converters.ByteArrayConverter",
        "ByteArrayConverter",
        "ByteArray",
        "mm2.connect.converters.ByteArrayConverter",
        " ByteArray ",
    ],
)
def test_every_form_of_a_name_is_resolved(name: str) -> None:
    assert isinstance(Plugins().new(name, Converter, key="key.converter"), ByteArrayConverter)


@pytest.mark.parametrize("name", ["Missing", "org.x.Missing", "mm2.connect.converters.Missing", ""])
def test_unknown_classes_are_reported_with_their_key(name: str) -> None:
    with pytest.raises(ConnectError) as raised:
        Plugins().find(name, Converter, key="key.converter")
    assert name in str(raised.value)
    assert "key.converter" in str(raised.value)


def test_the_wrong_kind_is_refused() -> None:
    with pytest.raises(ConnectError, match="not a Connector"):
        Plugins().find("mm2.connect.converters.ByteArrayConverter", Connector, key="connector.class")


def test_ambiguous_aliases_are_refused_with_their_meanings() -> None:
    plugins = Plugins()
    plugins.register("com.example.ByteArrayConverter", Other, kind=Converter)
    with pytest.raises(ConnectError, match=r"com\.example\.ByteArrayConverter.*org\.apache"):
        plugins.find("ByteArray", Converter, key="value.converter")
    assert plugins.find("com.example.ByteArrayConverter", Converter, key="value.converter") is Other


def test_a_constructor_that_fails_is_reported_with_its_reason() -> None:
    plugins = Plugins()
    plugins.register("com.example.Broken", Broken, kind=Converter)
    with pytest.raises(ConnectError, match="no luck"):
        plugins.new("Broken", Converter, key="header.converter")
