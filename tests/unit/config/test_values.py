"""Results and texts as ConfigDef.parseType of kafka-clients 4.3.0 gives them for strings; type names in others are Python's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mm2.config.values import ConfigException, Password, Type, parse_type, show, split_list


@pytest.mark.parametrize(
    ("type_", "text", "value"),
    [
        (Type.INT, " 5 ", 5),
        (Type.INT, "+5", 5),
        (Type.INT, "-2147483648", -(2**31)),
        (Type.SHORT, "-32768", -32768),
        (Type.LONG, "9223372036854775807", 2**63 - 1),
        (Type.DOUBLE, "1e3", 1000.0),
        (Type.DOUBLE, "1.5d", 1.5),
        (Type.DOUBLE, "0x1p3", 8.0),
        (Type.DOUBLE, ".5", 0.5),
        (Type.DOUBLE, "Infinity", float("inf")),
        (Type.BOOLEAN, "TRUE", True),
        (Type.BOOLEAN, " false ", False),
        (Type.LIST, "", []),
        (Type.LIST, "  ", []),
        (Type.LIST, " a , b\t,\nc ", ["a", "b", "c"]),
        (Type.LIST, "a,,b,", ["a", "", "b", ""]),
        (Type.STRING, "  x y ", "x y"),
        (Type.STRING, "x\u00a0", "x\u00a0"),
        (Type.CLASS, " java.lang.String ", "java.lang.String"),
        (Type.PASSWORD, " s3cret ", Password("s3cret")),
        (Type.INT, None, None),
        (Type.INT, 7, 7),
        (Type.BOOLEAN, True, True),
        (Type.DOUBLE, 2, 2.0),
        (Type.LIST, ["a"], ["a"]),
    ],
)
def test_good_values(type_: Type, text: object, value: object) -> None:
    assert parse_type("k", text, type_) == value


@pytest.mark.parametrize(
    ("type_", "value", "text"),
    [
        (Type.INT, "abc", "Invalid value abc for configuration k: Not a number of type INT"),
        (Type.INT, "", "Invalid value  for configuration k: Not a number of type INT"),
        (Type.INT, "2147483648", "Invalid value 2147483648 for configuration k: Not a number of type INT"),
        (Type.INT, "1_000", "Invalid value 1_000 for configuration k: Not a number of type INT"),
        (Type.INT, "1.5", "Invalid value 1.5 for configuration k: Not a number of type INT"),
        (Type.SHORT, "40000", "Invalid value 40000 for configuration k: Not a number of type SHORT"),
        (
            Type.LONG,
            "9223372036854775808",
            "Invalid value 9223372036854775808 for configuration k: Not a number of type LONG",
        ),
        (Type.DOUBLE, "inf", "Invalid value inf for configuration k: Not a number of type DOUBLE"),
        (Type.DOUBLE, "1_0", "Invalid value 1_0 for configuration k: Not a number of type DOUBLE"),
        (Type.BOOLEAN, "yes", "Invalid value yes for configuration k: Expected value to be either true or false"),
        (Type.BOOLEAN, 1, "Invalid value 1 for configuration k: Expected value to be either true or false"),
        (Type.LIST, 5, "Invalid value 5 for configuration k: Expected a comma separated list."),
        (Type.CLASS, "", "Invalid value  for configuration k: Class  could not be found."),
        (Type.CLASS, 5, "Invalid value 5 for configuration k: Expected a Class instance or class name."),
        (
            Type.INT,
            True,
            "Invalid value true for configuration k: Expected value to be a 32-bit integer, but it was a bool",
        ),
        (
            Type.SHORT,
            2**15,
            "Invalid value 32768 for configuration k: Expected value to be a 16-bit integer (short), but it was a int",
        ),
        (Type.STRING, 5, "Invalid value 5 for configuration k: Expected value to be a string, but it was a int"),
        (Type.DOUBLE, [], "Invalid value [] for configuration k: Expected value to be a double, but it was a list"),
    ],
)
def test_bad_values_have_kafka_s_texts(type_: Type, value: object, text: str) -> None:
    with pytest.raises(ConfigException) as caught:
        parse_type("k", value, type_)
    assert str(caught.value) == text
    assert (caught.value.name, caught.value.value) == ("k", value)


@given(st.lists(st.text(st.sampled_from("abcXYZ.*-_ "), min_size=1).filter(lambda item: item == item.strip())))
def test_list_items_survive_joining_with_any_blanks(items: list[str]) -> None:
    assert split_list(" " + " ,\t".join(items) + " ") == items


@given(st.integers())
def test_integers_are_taken_exactly_within_their_width(number: int) -> None:
    for type_, bits in ((Type.SHORT, 16), (Type.INT, 32), (Type.LONG, 64)):
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


def test_exception_forms() -> None:
    assert str(ConfigException("a sentence")) == "a sentence"
    assert str(ConfigException("k", None)) == "Invalid value null for configuration k"
    assert str(ConfigException("k", ["a", True], "why")) == "Invalid value [a, true] for configuration k: why"
