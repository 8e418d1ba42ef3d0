"""Results and texts as ConfigDef.parseType of kafka-clients 4.3.0 gives them for strings; type names in others are Python's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.config.definitions.values import ConfigException, ConfigType, Password, parse_type, show, split_list


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (ConfigType.INT, " 5 ", 5),
        (ConfigType.INT, "+5", 5),
        (ConfigType.INT, "-2147483648", -(2**31)),
        (ConfigType.SHORT, "-32768", -32768),
        (ConfigType.LONG, "9223372036854775807", 2**63 - 1),
        (ConfigType.DOUBLE, "1e3", 1000.0),
        (ConfigType.DOUBLE, "1.5d", 1.5),
        (ConfigType.DOUBLE, "0x1p3", 8.0),
        (ConfigType.DOUBLE, ".5", 0.5),
        (ConfigType.DOUBLE, "Infinity", float("inf")),
        (ConfigType.BOOLEAN, "TRUE", True),
        (ConfigType.BOOLEAN, " false ", False),
        (ConfigType.LIST, "", []),
        (ConfigType.LIST, "  ", []),
        (ConfigType.LIST, " a , b\t,\nc ", ["a", "b", "c"]),
        (ConfigType.LIST, "a,,b,", ["a", "", "b", ""]),
        (ConfigType.STRING, "  x y ", "x y"),
        (ConfigType.STRING, "x\u00a0", "x\u00a0"),
        (ConfigType.CLASS, " java.lang.String ", "java.lang.String"),
        (ConfigType.PASSWORD, " s3cret ", Password("s3cret")),
        (ConfigType.INT, None, None),
        (ConfigType.INT, 7, 7),
        (ConfigType.BOOLEAN, True, True),
        (ConfigType.DOUBLE, 2, 2.0),
        (ConfigType.LIST, ["a"], ["a"]),
    ],
)
def test_good_values_are_parsed(type_: ConfigType, text: object, value: object) -> None:
    assert parse_type("k", text, type_) == value


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (ConfigType.INT, "abc", "Invalid value abc for configuration k: Not a number of type INT"),
        (ConfigType.INT, "", "Invalid value  for configuration k: Not a number of type INT"),
        (ConfigType.INT, "2147483648", "Invalid value 2147483648 for configuration k: Not a number of type INT"),
        (ConfigType.INT, "1_000", "Invalid value 1_000 for configuration k: Not a number of type INT"),
        (ConfigType.INT, "1.5", "Invalid value 1.5 for configuration k: Not a number of type INT"),
        (ConfigType.SHORT, "40000", "Invalid value 40000 for configuration k: Not a number of type SHORT"),
        (
            ConfigType.LONG,
            "9223372036854775808",
            "Invalid value 9223372036854775808 for configuration k: Not a number of type LONG",
        ),
        (ConfigType.DOUBLE, "inf", "Invalid value inf for configuration k: Not a number of type DOUBLE"),
        (ConfigType.DOUBLE, "1_0", "Invalid value 1_0 for configuration k: Not a number of type DOUBLE"),
        (ConfigType.BOOLEAN, "yes", "Invalid value yes for configuration k: Expected value to be either true or false"),
        (ConfigType.BOOLEAN, 1, "Invalid value 1 for configuration k: Expected value to be either true or false"),
        (ConfigType.LIST, 5, "Invalid value 5 for configuration k: Expected a comma separated list."),
        (ConfigType.CLASS, "", "Invalid value  for configuration k: Class  could not be found."),
        (ConfigType.CLASS, 5, "Invalid value 5 for configuration k: Expected a Class instance or class name."),
        (
            ConfigType.INT,
            True,
            "Invalid value true for configuration k: Expected value to be a 32-bit integer, but it was a bool",
        ),
        (
            ConfigType.SHORT,
            2**15,
            "Invalid value 32768 for configuration k: Expected value to be a 16-bit integer (short), but it was a int",
        ),
        (ConfigType.STRING, 5, "Invalid value 5 for configuration k: Expected value to be a string, but it was a int"),
        (
            ConfigType.DOUBLE,
            [],
            "Invalid value [] for configuration k: Expected value to be a double, but it was a list",
        ),
    ],
)
def test_bad_values_have_kafka_s_texts(type_: ConfigType, value: object, text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        parse_type("k", value, type_)
    assert str(caught.value) == text
    assert (caught.value.name, caught.value.value) == ("k", value)


@given(st.lists(st.text(st.sampled_from("abcXYZ.*-_ "), min_size=1).filter(lambda item: item == item.strip())))
def test_list_items_survive_joining_with_any_blanks(items: list[str]) -> None:
    assert split_list(" " + " ,\t".join(items) + " ") == items


@given(st.integers())
def test_integers_are_taken_exactly_within_their_width(number: int) -> None:
    for type_, bits in ((ConfigType.SHORT, 16), (ConfigType.INT, 32), (ConfigType.LONG, 64)):
        if -(2 ** (bits - 1)) <= number < 2 ** (bits - 1):
            assert parse_type("k", str(number), type_) == number
        else:
            with pytest.raises(ConfigException):
                parse_type("k", str(number), type_)


def test_password_shows_nothing() -> None:
    password = Password("s3cret")
    assert f"{password} {password!r} {[password]}" == "[hidden] [hidden] [[hidden]]"
    assert show([password]) == "[[hidden]]"
    assert password == Password("s3cret")
    assert len({password, Password("s3cret"), Password("other")}) == 2


def test_config_exceptions_have_kafka_s_forms() -> None:
    assert str(ConfigException("a sentence")) == "a sentence"
    assert str(ConfigException("k", None)) == "Invalid value null for configuration k"
    assert str(ConfigException("k", ["a", True], "why")) == "Invalid value [a, true] for configuration k: why"
