from decimal import Decimal

import pytest

from mm2.connect.data import numbers
from mm2.connect.data.numbers import Float32


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.001, "0.001"),
        (0.0009, "9.0E-4"),
        (9999999.0, "9999999.0"),
        (1e7, "1.0E7"),
        (1.234e22, "1.234E22"),
        (123456.789, "123456.789"),
        (5e-324, "4.9E-324"),  # two digits at least, as Java 19 has it
        (1.7976931348623157e308, "1.7976931348623157E308"),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
    ],
)
def test_doubles_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert numbers.double_text(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.1, "0.1"), (16777216.0, "1.6777216E7"), (3.4028235e38, "3.4028235E38"), (1.4e-45, "1.4E-45")]
)
def test_floats_are_written_as_java_writes_them(value: float, text: str) -> None:
    assert numbers.single_text(Float32(value)) == text


def test_a_number_is_rounded_to_single_precision_once() -> None:
    # Half way between two floats when it is a double, above that as it is written.
    assert numbers.single(Decimal("1.00000017881393432617187500000001")) == 1.00000023841857910156250
    assert numbers.single(Decimal("1.000000178813934326171875")) == 1.00000023841857910156250
    assert numbers.single(Decimal("1.00000017881393432617187499999999")) == 1.00000011920928955078125
    assert numbers.single(2**24 + 1) == 2.0**24
    assert numbers.single(Decimal("1e40")) == float("inf")


@pytest.mark.parametrize(
    ("value", "bits", "whole"),
    [
        (300.7, 8, 44),
        (-1.9, 32, -1),
        (1e20, 64, 2**63 - 1),
        (1e20, 32, 2**31 - 1),
        (1e20, 8, -1),
        (float("nan"), 64, 0),
    ],
)
def test_floats_are_truncated_like_casts_in_java(value: float, bits: int, whole: int) -> None:
    assert numbers.to_integer(value, bits) == whole


def test_the_integer_part_of_a_huge_decimal_is_not_expanded() -> None:
    assert numbers.whole(Decimal("1e999999999")) == 0
    assert numbers.whole(Decimal("1e-999999999")) == 0
    assert numbers.whole(Decimal("-18446744073709551617.9")) == -1
