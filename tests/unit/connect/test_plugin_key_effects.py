"""The effect of each key of the transformations, predicates and converters that ship with Kafka, and of their defaults."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Mapping
from decimal import Decimal
from typing import Any

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect import predicates, transforms
from mm2.connect.api import DataError, Headers, Schema, SchemaBuilder, SinkRecord, Struct, Type
from mm2.connect.converters import JsonConverter, StringConverter
from mm2.connect.data import logical
from mm2.connect.data.schema import INT32_SCHEMA, OPTIONAL_STRING_SCHEMA
from tests.unit.config.key_tests import keys_of

INNER = SchemaBuilder.struct().field("n", INT32_SCHEMA).build()
SCHEMA = (
    SchemaBuilder.struct()
    .field("a", OPTIONAL_STRING_SCHEMA)
    .field("in", INNER)
    .field("d", SchemaBuilder.string().optional().default("filled").build())
    .build()
)
STRUCT = Struct(SCHEMA, {"a": "x", "in": Struct(INNER, {"n": 300})})
#: A moment without schema, 2020-01-02.
MOMENT = dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC)
Select = Callable[[SinkRecord], object]


def record(value: Any, *, with_schema: bool = False) -> SinkRecord:
    headers = Headers.of([("h", 1), ("k", 2)])
    schema = SCHEMA if with_schema else None
    return SinkRecord("topic", 3, "key", value, 42, value_schema=schema, headers=headers, timestamp=1_600_000_000_000)


def value(changed: SinkRecord) -> object:
    return changed.value


def header_names(changed: SinkRecord) -> object:
    return [header.key for header in changed.headers]


def stored(name: str) -> Select:
    """What the field of the struct contains, without its default."""
    return lambda changed: changed.value.get_without_default(name)


def extracted(changed: SinkRecord) -> object:
    return changed.value


def header(changed: SinkRecord) -> object:
    return [one.value for one in changed.headers if one.key == "new"]


def as_key(changed: SinkRecord) -> object:
    return changed.key.get_without_default("d") if isinstance(changed.key, Struct) else changed.key


def topic(changed: SinkRecord) -> object:
    return changed.topic


def schema_of_value(changed: SinkRecord) -> object:
    return (changed.value_schema.name, changed.value_schema.version) if changed.value_schema else None


KEEP_NULL = {"replace.null.with.default": "false"}
FLAT, NESTED = {"a": 1, "b": 2}, {"a": {"b": 1}}
TO_TEXT = {"target.type": "string", "format": "yyyy"}
CASES: list[tuple[str, dict[str, str], dict[str, str], Any, Select, object]] = [
    ("CastValue", {"spec": "int8"}, {}, 300, value, 44),
    ("CastValue", KEEP_NULL, {"spec": "a:string"}, STRUCT, stored("d"), None),
    ("DropHeaders", {"headers": "k"}, {}, 1, header_names, ["h"]),
    ("ExtractFieldValue", {"field": "b"}, {}, FLAT, value, 2),
    ("ExtractFieldValue", {"field.syntax.version": "V2"}, {"field": "in.n"}, STRUCT, extracted, 300),
    ("ExtractFieldValue", KEEP_NULL, {"field": "d"}, STRUCT, extracted, None),
    ("FlattenValue", {"delimiter": "_"}, {}, NESTED, value, {"a_b": 1}),
    ("HeaderFromValue", {"fields": "b"}, {"headers": "new", "operation": "copy"}, FLAT, header, [2]),
    ("HeaderFromValue", {"headers": "new"}, {"fields": "b", "operation": "copy"}, FLAT, header, [2]),
    ("HeaderFromValue", {"operation": "move"}, {"fields": "b", "headers": "new"}, FLAT, value, {"a": 1}),
    ("HeaderFromValue", KEEP_NULL, {"fields": "d", "headers": "new", "operation": "copy"}, STRUCT, header, [None]),
    ("HoistFieldValue", {"field": "f"}, {}, 1, value, {"f": 1}),
    ("InsertFieldValue", {"offset.field": "o"}, {"topic.field": "t"}, {}, value, {"t": "topic", "o": 42}),
    ("InsertFieldValue", {"partition.field": "p"}, {"topic.field": "t"}, {}, value, {"t": "topic", "p": 3}),
    ("InsertFieldValue", {"topic.field": "t"}, {"partition.field": "p"}, {}, value, {"t": "topic", "p": 3}),
    ("InsertFieldValue", {"static.field": "s"}, {"static.value": "v"}, {}, value, {"s": "v"}),
    ("InsertFieldValue", {"static.value": "v"}, {"static.field": "s"}, {}, value, {"s": "v"}),
    (
        "InsertFieldValue",
        {"timestamp.field": "ts"},
        {"partition.field": "p"},
        {},
        value,
        {"p": 3, "ts": 1_600_000_000_000},
    ),
    ("InsertFieldValue", KEEP_NULL, {"topic.field": "t"}, STRUCT, stored("d"), None),
    ("InsertHeader", {"header": "new"}, {"value.literal": "7"}, 1, header, [7]),
    ("InsertHeader", {"value.literal": "7"}, {"header": "new"}, 1, header, [7]),
    ("MaskFieldValue", {"fields": "a"}, {}, FLAT, value, {"a": 0, "b": 2}),
    ("MaskFieldValue", {"replacement": "9"}, {"fields": "a"}, FLAT, value, {"a": 9, "b": 2}),
    ("MaskFieldValue", KEEP_NULL, {"fields": "a"}, STRUCT, stored("d"), None),
    ("RegexRouter", {"regex": "t(.*)"}, {"replacement": "$1"}, 1, topic, "opic"),
    ("RegexRouter", {"replacement": "other"}, {"regex": ".*"}, 1, topic, "other"),
    ("ReplaceFieldValue", {"exclude": "a"}, {}, FLAT, value, {"b": 2}),
    ("ReplaceFieldValue", {"include": "a"}, {}, FLAT, value, {"a": 1}),
    ("ReplaceFieldValue", {"renames": "a:c"}, {}, FLAT, value, {"c": 1, "b": 2}),
    ("ReplaceFieldValue", KEEP_NULL, {"exclude": "a"}, STRUCT, stored("d"), None),
    ("SetSchemaMetadataValue", {"schema.name": "n"}, {"schema.version": "1"}, STRUCT, schema_of_value, ("n", 1)),
    ("SetSchemaMetadataValue", {"schema.version": "2"}, {"schema.name": "n"}, STRUCT, schema_of_value, ("n", 2)),
    ("SetSchemaMetadataValue", KEEP_NULL, {"schema.name": "n"}, STRUCT, stored("d"), None),
    ("TimestampConverterValue", {"field": "a"}, TO_TEXT, {"a": MOMENT}, value, {"a": "2020"}),
    ("TimestampConverterValue", {"format": "yyyy"}, {"target.type": "string"}, MOMENT, value, "2020"),
    ("TimestampConverterValue", {"target.type": "Date"}, {}, MOMENT, value, dt.date(2020, 1, 2)),
    (
        "TimestampConverterValue",
        {"unix.precision": "seconds"},
        {"target.type": "unix"},
        MOMENT,
        value,
        1_577_934_000,
    ),
    ("TimestampRouter", {"timestamp.format": "yyyy"}, {}, 1, topic, "topic-2020"),
    ("TimestampRouter", {"topic.format": "x-${topic}"}, {}, 1, topic, "x-topic"),
    ("ValueToKey", {"fields": "a"}, {}, FLAT, as_key, {"a": 1}),
    ("ValueToKey", {"field.syntax.version": "V2"}, {"fields": "a.b"}, NESTED, as_key, {"a.b": 1}),
    ("ValueToKey", KEEP_NULL, {"fields": "d"}, STRUCT, as_key, None),
]


def outcome(name: str, config: Mapping[str, str], given: Any, select: Select) -> object:
    """What the transformation makes of the value, or the class of the error."""
    made = getattr(transforms, name)()
    try:
        made.configure(dict(config))
        changed = made.apply(record(given, with_schema=given is STRUCT))
    except (ConfigException, DataError) as error:
        return type(error)
    return select(changed)


@pytest.mark.parametrize(
    ("name", "key", "others", "given", "select", "expected"),
    CASES,
    ids=[f"{name}-{next(iter(key))}" for name, key, *_ in CASES],
)
def test_a_key_of_a_transformation_changes_its_result(
    name: str, key: dict[str, str], others: dict[str, str], given: Any, select: Select, expected: object
) -> None:
    assert outcome(name, {**others, **key}, given, select) == expected
    assert outcome(name, others, given, select) != expected


def test_each_of_these_keys_has_a_case() -> None:
    tested = {(name.removesuffix("Value"), key) for name, keys, *_ in CASES for key in keys}
    assert tested == keys_of("test_a_key_of_a_transformation_changes_its_result")


def test_null_is_replaced_in_the_field_that_a_timestamp_converter_changes() -> None:
    """The only transformation whose key concerns one field."""
    epoch = dt.datetime(1970, 1, 1, tzinfo=dt.UTC)
    moment = Schema(Type.INT64, True, epoch, name=logical.TIMESTAMP, version=1)
    schema = SchemaBuilder.struct().field("t", moment).build()
    for more, expected in (({}, "1970"), (KEEP_NULL, None)):
        made = transforms.TimestampConverterValue()
        made.configure({"field": "t", **TO_TEXT, **more})
        changed = made.apply(SinkRecord("topic", 0, None, Struct(schema), 0, value_schema=schema))
        assert changed is not None
        assert changed.value.get_without_default("t") == expected


@pytest.mark.parametrize(
    ("name", "key", "one", "other"),
    [("HasHeaderKey", "name", "h", "other"), ("TopicNameMatches", "pattern", "to.*", "no.*")],
)
def test_a_key_of_a_predicate_changes_its_result(name: str, key: str, one: str, other: str) -> None:
    results = []
    for given in (one, other):
        predicate = getattr(predicates, name)()
        predicate.configure({key: given})
        results.append(predicate.test(record(1)))
    assert results == [True, False]


def json_converter(config: Mapping[str, str]) -> JsonConverter:
    converter = JsonConverter()
    converter.configure(dict(config), is_key=False)
    return converter


PLAIN = {"schemas.enable": "false"}
WITH_DEFAULT = SchemaBuilder.int32().optional().default(5).build()


@pytest.mark.parametrize(
    ("key", "others", "written", "expected"),
    [
        ({"schemas.enable": "false"}, {}, (INT32_SCHEMA, 7), b"7"),
        ({"decimal.format": "NUMERIC"}, PLAIN, (logical.decimal_schema(2), Decimal("12.50")), b"12.50"),
        ({"replace.null.with.default": "false"}, PLAIN, (WITH_DEFAULT, None), b"null"),
    ],
    ids=["schemas.enable", "decimal.format", "replace.null.with.default"],
)
def test_a_key_of_the_json_converter_changes_what_it_writes(
    key: dict[str, str], others: dict[str, str], written: tuple[Any, Any], expected: bytes
) -> None:
    assert json_converter({**others, **key}).from_connect_data("t", (), *written) == expected
    assert json_converter(others).from_connect_data("t", (), *written) != expected


def test_a_key_of_the_json_converter_is_the_schema_of_what_it_reads() -> None:
    assert json_converter({"schema.content": '{"type":"int32"}'}).to_connect_data("t", (), b"7") == (INT32_SCHEMA, 7)
    with pytest.raises(DataError, match="requires"):
        json_converter({}).to_connect_data("t", (), b"7")


@pytest.mark.parametrize(("config", "cached"), [({}, True), ({"schemas.cache.size": "0"}, False)])
def test_the_json_converter_caches_schemas_unless_its_cache_has_no_room(config: dict[str, str], cached: bool) -> None:
    converter, data = json_converter(config), b'{"schema":{"type":"struct","fields":[]},"payload":{}}'
    first, second = (converter.to_connect_data("t", (), data).schema for _ in range(2))
    assert first == second
    assert (first is second) is cached


def test_a_key_of_the_string_converter_is_its_character_set() -> None:
    for config, expected in (({}, "ä".encode()), ({"converter.encoding": "ISO-8859-1"}, b"\xe4")):
        converter = StringConverter()
        converter.configure(config)
        assert converter.from_connect_data("t", (), None, "ä") == expected
