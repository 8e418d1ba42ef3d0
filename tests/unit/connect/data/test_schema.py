import datetime as dt
from decimal import Decimal

import pytest

from mm2.connect.api import (
    DataError,
    Schema,
    SchemaBuilder,
    SchemaBuilderError,
    SchemaProjectorError,
    Struct,
    Type,
    project,
)
from mm2.connect.data import logical
from mm2.connect.data.schema import INT8_SCHEMA, INT64_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA
from mm2.connect.data.struct import validate_value

POINT = SchemaBuilder.struct().name("p").field("x", INT8_SCHEMA).field("label", OPTIONAL_STRING_SCHEMA).build()
NOW = dt.datetime(2026, 11, 20, 12, tzinfo=dt.UTC)


def test_a_struct_returns_the_values_put() -> None:
    point = Struct(POINT).put("x", 5)
    assert (point.get("x"), point["label"]) == (5, None)
    assert repr(point) == "Struct{x=5}"


def test_a_struct_refuses_unknown_fields_and_wrong_values() -> None:
    with pytest.raises(DataError, match="y is not a valid field name"):
        Struct(POINT).put("y", 1)
    with pytest.raises(DataError, match=r"type INT8: 200, beyond its range, for field: \"x\""):
        Struct(POINT, {"x": 200})
    with pytest.raises(DataError, match=r"null used for required field: \"x\""):
        Struct(POINT).validate()


def test_a_missing_field_is_its_default() -> None:
    schema = SchemaBuilder.struct().field("n", SchemaBuilder.int64().default(7).build()).build()
    struct = Struct(schema)
    struct.validate()
    assert (struct.get("n"), struct.get_without_default("n")) == (7, None)


def test_a_struct_can_be_the_key_of_a_map() -> None:
    schema = SchemaBuilder.map(POINT, STRING_SCHEMA).build()
    validate_value(schema, {Struct(POINT, {"x": 1}): "a", Struct(POINT, {"x": 2}): "b"})
    assert hash(Struct(POINT, {"x": 1})) == hash(Struct(POINT, {"x": 1}))


def test_equal_schemas_are_equal_dictionary_keys() -> None:
    again = SchemaBuilder.struct().name("p").field("x", INT8_SCHEMA).field("label", OPTIONAL_STRING_SCHEMA).build()
    assert again == POINT
    assert len({again, POINT}) == 1
    assert SchemaBuilder.int64().default(1).build() != SchemaBuilder.int64().default(0).build()
    assert POINT.as_optional() != POINT


def test_schema_attributes_cannot_be_set_twice() -> None:
    builder = SchemaBuilder.string().name("a").name("a")
    with pytest.raises(SchemaBuilderError, match="name has already been set"):
        builder.name("b")


@pytest.mark.parametrize("default", ["x", 128, 1.0, True])
def test_a_default_has_to_fit(default: object) -> None:
    with pytest.raises(SchemaBuilderError, match="Invalid default value"):
        SchemaBuilder.int8().default(default)


def test_fields_are_only_for_structs_and_have_unique_names() -> None:
    with pytest.raises(SchemaBuilderError, match="INT8"):
        SchemaBuilder.int8().field("a", INT8_SCHEMA)
    with pytest.raises(SchemaBuilderError, match="needs a name"):
        SchemaBuilder.struct().field("", INT8_SCHEMA)
    with pytest.raises(SchemaBuilderError, match="duplication a"):
        SchemaBuilder.struct().field("a", INT8_SCHEMA).field("a", INT8_SCHEMA)
    with pytest.raises(DataError, match="non-struct"):
        INT8_SCHEMA.field_named("a")


@pytest.mark.parametrize(
    ("schema", "good", "bad"),
    [
        (INT64_SCHEMA, 2**63 - 1, 2**63),
        (INT64_SCHEMA, 0, False),
        (Schema(Type.FLOAT32), 1.0, 1),
        (Schema(Type.BOOLEAN), True, 1),
        (Schema(Type.BYTES), b"", ""),
        (Schema(Type.ARRAY, value_schema=INT8_SCHEMA), [1], [None]),
        (Schema(Type.MAP, key_schema=STRING_SCHEMA, value_schema=INT8_SCHEMA), {"a": 1}, {1: 1}),
        (logical.DATE_SCHEMA, NOW.date(), NOW),
        (logical.TIMESTAMP_SCHEMA, NOW, NOW.date()),
        (logical.TIME_SCHEMA, NOW.time(), 5),
        (logical.decimal_schema(1), Decimal("1.5"), 1.5),
    ],
)
def test_values_must_match_their_schema(schema: Schema, good: object, bad: object) -> None:
    validate_value(schema, good)
    with pytest.raises(DataError):
        validate_value(schema, bad)


def test_an_array_without_an_item_schema_has_no_valid_items() -> None:
    validate_value(Schema(Type.ARRAY), [])
    with pytest.raises(DataError, match="No schema defined for element"):
        validate_value(Schema(Type.ARRAY), [1])


@pytest.mark.parametrize(
    ("text", "scale", "stored"),
    [
        ("1.50", 2, "0096"),
        ("-0.01", 2, "ff"),
        ("0", 0, "00"),
        ("128", 0, "0080"),
        ("-128", 0, "80"),
        ("1E+3", -3, "01"),
    ],
)
def test_decimals_are_stored_as_java_stores_them(text: str, scale: int, stored: str) -> None:
    schema = logical.decimal_schema(scale)
    assert logical.decimal_to_bytes(schema, Decimal(text)).hex() == stored
    assert str(logical.decimal_from_bytes(schema, bytes.fromhex(stored))) == text


def test_decimals_of_many_digits_are_exact() -> None:
    schema = logical.decimal_schema(5)
    number = Decimal("-" + "123456789" * 1000 + ".12345")
    assert logical.decimal_from_bytes(schema, logical.decimal_to_bytes(schema, number)) == number


def test_a_decimal_of_another_scale_is_refused() -> None:
    with pytest.raises(DataError, match="Schema has scale 2, value has scale 1"):
        logical.decimal_to_bytes(logical.decimal_schema(2), Decimal("1.5"))
    with pytest.raises(DataError, match="NaN"):
        logical.decimal_to_bytes(logical.decimal_schema(2), Decimal("NaN"))


def test_times_are_stored_as_numbers() -> None:
    assert logical.to_number(logical.DATE_SCHEMA, dt.date(1969, 12, 31)) == -1
    assert logical.to_number(logical.TIME_SCHEMA, dt.time(0, 0, 1, 2999)) == 1002
    assert logical.to_number(logical.TIMESTAMP_SCHEMA, NOW) == 1_795_176_000_000
    assert logical.from_number(logical.TIMESTAMP_SCHEMA, 1_795_176_000_000) == NOW


@pytest.mark.parametrize(
    ("schema", "number"),
    [(logical.DATE_SCHEMA, 2**31 - 1), (logical.TIME_SCHEMA, 86_400_000), (logical.TIMESTAMP_SCHEMA, -(2**63))],
)
def test_times_outside_python_s_range_are_errors(schema: Schema, number: int) -> None:
    with pytest.raises(DataError):
        logical.from_number(schema, number)


def test_a_datetime_needs_a_timezone() -> None:
    with pytest.raises(DataError, match="no timezone"):
        logical.to_number(logical.TIMESTAMP_SCHEMA, NOW.replace(tzinfo=None))


def test_a_value_is_projected_to_an_older_schema() -> None:
    older = SchemaBuilder.struct().name("p").field("x", INT64_SCHEMA).build()
    assert project(POINT, Struct(POINT, {"x": 5, "label": "a"}), older) == Struct(older, {"x": 5})
    newer = SchemaBuilder.struct().name("p").field("y", INT8_SCHEMA).build()
    with pytest.raises(SchemaProjectorError, match="Required field `y` is missing"):
        project(POINT, Struct(POINT, {"x": 5}), newer)
    with pytest.raises(SchemaProjectorError, match="source type: INT64 and target type: INT8"):
        project(INT64_SCHEMA, 5, INT8_SCHEMA)
