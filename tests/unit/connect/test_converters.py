"""Golden bytes were written by Kafka 4.3.0; thousands more are compared in tests/integration/connect/test_connect_java_classes.py."""

import base64
import datetime as dt
from decimal import Decimal
from typing import Any

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect.api import Converter, DataError, Schema, SchemaBuilder, Struct, Type
from mm2.connect.converters import (
    BooleanConverter,
    ByteArrayConverter,
    DoubleConverter,
    FloatConverter,
    IntegerConverter,
    JsonConverter,
    LongConverter,
    ShortConverter,
    SimpleHeaderConverter,
    StringConverter,
)
from mm2.connect.data import logical
from mm2.connect.data.schema import INT8_SCHEMA, INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA

ORDER = (
    SchemaBuilder.struct()
    .name("shop.Order")
    .version(2)
    .field("id", SchemaBuilder.int32().doc("number").build())
    .field("note", OPTIONAL_STRING_SCHEMA)
    .field("price", logical.decimal_schema(2))
    .field("day", logical.DATE_SCHEMA)
    .field("tags", SchemaBuilder.map(STRING_SCHEMA, INT8_SCHEMA).optional().build())
    .build()
)
VALUE = Struct(ORDER, {"id": 7, "price": Decimal("12.50"), "day": dt.date(2020, 1, 2), "tags": {"a": 1}})
SCHEMA_JSON = (
    '{"type":"struct","fields":[{"type":"int32","optional":false,"doc":"number","field":"id"},'
    '{"type":"string","optional":true,"field":"note"},{"type":"bytes","optional":false,'
    '"name":"org.apache.kafka.connect.data.Decimal","version":1,"parameters":{"scale":"2"},"field":"price"},'
    '{"type":"int32","optional":false,"name":"org.apache.kafka.connect.data.Date","version":1,"field":"day"},'
    '{"type":"map","keys":{"type":"string","optional":false},"values":{"type":"int8","optional":false},'
    '"optional":true,"field":"tags"}],"optional":false,"name":"shop.Order","version":2}'
)
PAYLOAD_JSON = '{"id":7,"note":null,"price":"BOI=","day":18263,"tags":{"a":1}}'


def json_converter(**config: str) -> JsonConverter:
    converter = JsonConverter()
    converter.configure({key.replace("_", "."): value for key, value in config.items()}, is_key=False)
    return converter


def test_json_with_its_schema() -> None:
    converter = json_converter()
    data = converter.from_connect_data("t", (), ORDER, VALUE)
    assert data == f'{{"schema":{SCHEMA_JSON},"payload":{PAYLOAD_JSON}}}'.encode()
    assert converter.to_connect_data("t", (), data) == (ORDER, VALUE)


def test_json_without_schema() -> None:
    converter = json_converter(schemas_enable="false")
    assert converter.from_connect_data("t", (), ORDER, VALUE) == PAYLOAD_JSON.encode()
    read = converter.to_connect_data("t", (), b'{"a":[1,1.0,null,"x"],"b":{"c":true}}')
    assert read == (None, {"a": [1, 1.0, None, "x"], "b": {"c": True}})


def test_json_with_a_schema_of_the_configuration() -> None:
    converter = json_converter(schema_content=SCHEMA_JSON)
    assert converter.to_connect_data("t", (), PAYLOAD_JSON.encode()) == (ORDER, VALUE)
    with pytest.raises(DataError, match="Unknown schema type: x"):
        json_converter(schema_content='{"type":"x"}')


def test_json_decimals_as_numbers() -> None:
    converter = json_converter(schemas_enable="false", decimal_format="numeric")
    schema = logical.decimal_schema(2)
    assert converter.from_connect_data("t", (), schema, Decimal("12.50")) == b"12.50"
    with pytest.raises(ConfigException, match=r"decimal\.format"):
        json_converter(decimal_format="x")


def test_json_null_and_defaults() -> None:
    schema = SchemaBuilder.int32().optional().default(5).build()
    assert json_converter().from_connect_data("t", (), None, None) is None
    assert json_converter().to_connect_data("t", (), None) == (None, None)
    plain = json_converter(schemas_enable="false")
    assert plain.from_connect_data("t", (), schema, None) == b"5"
    kept = json_converter(schemas_enable="false", replace_null_with_default="false")
    assert kept.from_connect_data("t", (), schema, None) == b"null"
    with pytest.raises(DataError, match="null value for field that is required"):
        plain.from_connect_data("t", (), INT32_SCHEMA, None)


@pytest.mark.parametrize(
    ("text", "output"),
    [
        ('a"b\\/\x00\x1f\n\t', '"a\\"b\\\\/\\u0000\\u001F\\n\\t"'),
        ("ä€", '"ä€"'),
        ("😀", '"\\uD83D\\uDE00"'),
    ],
)
def test_json_strings_are_escaped_as_jackson_does(text: str, output: str) -> None:
    assert json_converter(schemas_enable="false").from_connect_data("t", (), STRING_SCHEMA, text) == output.encode()


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        (INT8_SCHEMA, 300),
        (INT8_SCHEMA, "1"),
        (INT8_SCHEMA, True),
        (None, object()),
        (None, Decimal(1)),
        (None, "\ud800"),
    ],
)
def test_json_rejects_values_it_cannot_represent(schema: Schema | None, value: Any) -> None:
    with pytest.raises(DataError):
        json_converter(schemas_enable="false").from_connect_data("t", (), schema, value)


@pytest.mark.parametrize("data", [b"", b"{", b"NaN", b"nul", b'"\xff"', b"[" * 5000])
def test_json_rejects_invalid_json(data: bytes) -> None:
    with pytest.raises(DataError):
        json_converter().to_connect_data("t", (), data)


def test_json_with_schemas_requires_the_envelope() -> None:
    with pytest.raises(DataError, match=r"set schemas\.enable=false"):
        json_converter().to_connect_data("t", (), b'{"a":1}')


def test_json_numbers_are_converted_to_the_schema_type() -> None:
    def read(type_: str, payload: str) -> Any:
        data = f'{{"schema":{{"type":"{type_}"}},"payload":{payload}}}'.encode()
        return json_converter().to_connect_data("t", (), data).value

    assert read("int8", "300") == 44  # as Java casts it
    assert read("int32", "1.9") == 1
    assert read("int32", '"text"') == 0
    assert read("float", "0.1") == 0.10000000149011612
    assert read("boolean", "1") is False


def test_the_schema_cache_can_be_disabled() -> None:
    converter = json_converter(schemas_cache_size="0")
    data = converter.from_connect_data("t", (), ORDER, VALUE)
    assert converter.to_connect_data("t", (), data) == (ORDER, VALUE)


@pytest.mark.parametrize(
    ("converter", "value", "stored"),
    [
        (ShortConverter(), -2, "fffe"),
        (IntegerConverter(), 258, "00000102"),
        (LongConverter(), -1, "ff" * 8),
        (FloatConverter(), 0.5, "3f000000"),
        (DoubleConverter(), -0.5, "bfe0000000000000"),
        (BooleanConverter(), True, "01"),
        (ByteArrayConverter(), b"\x00\xff", "00ff"),
        (StringConverter(), "ä", "c3a4"),
    ],
)
def test_fixed_forms(converter: Converter, value: Any, stored: str) -> None:
    converter.configure({}, is_key=True)
    data = bytes.fromhex(stored)
    assert converter.from_connect_data("t", (), None, value) == data
    assert converter.to_connect_data("t", (), data).value == value
    assert converter.from_connect_data("t", (), None, None) is None
    assert converter.to_connect_data("t", (), None).value is None


@pytest.mark.parametrize(
    "converter", [ShortConverter(), IntegerConverter(), LongConverter(), FloatConverter(), BooleanConverter()]
)
def test_another_length_or_type_is_refused(converter: Converter) -> None:
    with pytest.raises(DataError, match="3"):
        converter.to_connect_data("t", (), b"\x00\x01\x02")
    with pytest.raises(DataError, match=r"topic t"):
        converter.from_connect_data("t", (), None, "x")
    with pytest.raises(DataError, match="STRING"):
        converter.from_connect_data("t", (), STRING_SCHEMA, "x")


def test_a_boolean_is_0_or_1() -> None:
    with pytest.raises(DataError, match="not 2"):
        BooleanConverter().to_connect_data("t", (), b"\x02")


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (VALUE, "Struct{id=7,price=12.50,day=Thu Jan 02 00:00:00 UTC 2020,tags={a=1}}"),
        ([1.0, None, True], "[1.0, null, true]"),
        (1e7, "1.0E7"),
    ],
)
def test_text_is_java_s_string_of_a_value(value: Any, text: str) -> None:
    assert StringConverter().from_connect_data("t", (), None, value) == text.encode()


def test_text_is_not_defined_for_bytes() -> None:
    with pytest.raises(DataError, match="ByteArrayConverter"):
        StringConverter().from_connect_data("t", (), None, b"\x00")


def test_text_in_other_character_sets() -> None:
    converter = StringConverter()
    converter.configure({"converter.encoding": "ISO-8859-1"}, is_key=False)
    assert converter.from_connect_data("t", (), None, "ä€") == b"\xe4?"
    with pytest.raises(ConfigException, match=r"converter\.encoding"):
        converter.configure({"converter.encoding": "no-such"}, is_key=False)


def test_header_types_are_inferred_from_text() -> None:
    converter = SimpleHeaderConverter()
    converter.configure({})
    assert converter.from_connect_header("t", "h", None, {"a": [1, b"\x01"]}) == b'{"a":[1,"AQ=="]}'
    assert converter.to_connect_header("t", "h", b"12") == (Schema(Type.INT8), 12)
    assert converter.to_connect_header("t", "h", b"null") == (None, None)
    assert converter.to_connect_header("t", "h", None) == (None, None)


def test_all_converters_except_the_simple_one_convert_headers_like_values() -> None:
    converter = JsonConverter()
    converter.configure({"converter.type": "header", "schemas.enable": "false"})
    assert converter.from_connect_header("t", "h", None, base64.b64decode("AQ==")) == b'"AQ=="'
    assert converter.to_connect_header("t", "h", b"[]").value == []
