import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from mm2.connect.api import DataError, Schema, Type
from mm2.connect.data import logical
from mm2.connect.data.builder import infer_schema
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import FLOAT32_SCHEMA
from mm2.connect.data.values import convert_to, convert_to_string, parse_string


@pytest.mark.parametrize(
    ("text", "type_", "value"),
    [
        ("127", Type.INT8, 127),
        ("128", Type.INT16, 128),
        ("-32769", Type.INT32, -32769),
        ("2147483648", Type.INT64, 2147483648),
        ("1.5", Type.FLOAT32, 1.5),
        ("1e39", Type.FLOAT64, 1e39),
        ("true", Type.BOOLEAN, True),
        ("TRUE", Type.STRING, "TRUE"),
        ("2020-01-02", Type.INT32, dt.date(2020, 1, 2)),
        ("10:11:12.345Z", Type.INT32, dt.time(10, 11, 12, 345000)),
        ("2020-01-02T10:11:12.345Z", Type.INT64, dt.datetime(2020, 1, 2, 10, 11, 12, 345000, dt.UTC)),
        ('"quotes stay"', Type.STRING, '"quotes stay"'),
        ("[1,2.5]", Type.ARRAY, [1.0, 2.5]),
        ("[1,null]", Type.STRING, "[1,null]"),
        ('{"a":1,"b":300}', Type.MAP, {"a": 1, "b": 300}),
        ("[1,2", Type.STRING, "[1,2"),
        ("9223372036854775808", Type.BYTES, Decimal(9223372036854775808)),
    ],
)
def test_types_are_inferred_from_text(text: str, type_: Type, value: Any) -> None:
    schema, parsed = parse_string(text)
    assert schema is not None
    assert (schema.type, parsed) == (type_, value)


def test_null_has_no_schema() -> None:
    assert parse_string("null") == parse_string(None) == (None, None)


def test_elements_have_a_schema_only_if_it_is_one() -> None:
    assert parse_string("[1, 300]").schema == Schema(Type.ARRAY, value_schema=Schema(Type.INT16))
    assert parse_string('[1, "a"]').schema == Schema(Type.ARRAY)


def test_a_date_outside_python_s_range_stays_text() -> None:
    assert parse_string("0000-12-31") == (Schema(Type.STRING), "0000-12-31")
    assert parse_string("25:00:00.000Z").value == "25:00:00.000Z"


def test_a_number_with_a_huge_exponent_is_not_expanded() -> None:
    schema, value = parse_string("1e2000000000")
    assert (schema, value) == (logical.decimal_schema(-2000000000), Decimal("1e2000000000"))


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        (b"\x00\xff", "AP8="),
        ([1, 'a"b', None, b"\x01"], '[1,"a\\"b",null,"AQ=="]'),
        ({"k": 1.0, "l": {"m": True}}, '{"k":1.0,"l":{"m":true}}'),
        (dt.date(2020, 1, 2), "2020-01-02"),
        (dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC), "2020-01-02T03:00:00.000Z"),
        (dt.date(1969, 12, 31), "00:00:00.000Z"),  # as Java has it: what is before 1970 is a time of day
    ],
)
def test_values_are_printed_like_java(value: Any, text: str | None) -> None:
    assert convert_to_string(None, value) == text


def test_a_float_of_single_precision_has_its_own_digits() -> None:
    assert convert_to_string(FLOAT32_SCHEMA, 0.10000000149011612) == "0.1"
    assert convert_to_string(None, [Float32(0.1), 0.1]) == "[0.1,0.1]"
    assert convert_to_string(None, 0.10000000149011612) == "0.10000000149011612"


def test_an_invalid_value_is_an_error() -> None:
    with pytest.raises(DataError, match="object"):
        convert_to_string(None, object())
    with pytest.raises(DataError, match="requires a value"):
        convert_to(FLOAT32_SCHEMA, None)


def test_schemas_of_values_without_one() -> None:
    assert infer_schema([1, None]) == Schema(Type.ARRAY, value_schema=Schema(Type.INT64, optional=True))
    assert infer_schema([1, "a"]) is None
    assert infer_schema(Decimal(1)) is None
