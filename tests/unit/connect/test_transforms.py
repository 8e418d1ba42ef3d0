"""Corner cases one by one; thousands more are compared with Java in tests/integration/connect/test_connect_java_classes.py."""

import datetime as dt
from typing import Any

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect import transforms
from mm2.connect.api import (
    ConnectError,
    DataError,
    Headers,
    Schema,
    SchemaBuilder,
    SinkRecord,
    SourceRecord,
    Struct,
    Transformation,
    Type,
)
from mm2.connect.data import logical
from mm2.connect.data.schema import INT8_SCHEMA, INT32_SCHEMA, OPTIONAL_STRING_SCHEMA, STRING_SCHEMA
from mm2.connect.predicates import HasHeaderKey, RecordIsTombstone, TopicNameMatches
from mm2.connect.transforms.base import FieldPath

INNER = SchemaBuilder.struct().field("n", INT32_SCHEMA).build()
OUTER = (
    SchemaBuilder.struct()
    .name("o")
    .field("a.b", OPTIONAL_STRING_SCHEMA)
    .field("in", INNER)
    .field("d", SchemaBuilder.string().optional().default("dflt").build())
    .build()
)
STRUCT = Struct(OUTER, {"a.b": "x", "in": Struct(INNER, {"n": 300})})


def made(name: str, **config: str) -> Transformation:
    transformation: Transformation = getattr(transforms, name)()
    transformation.configure({key.replace("_", "."): value for key, value in config.items()})
    return transformation


def sink(value: Any, schema: Schema | None = None, **more: Any) -> SinkRecord:
    return SinkRecord("topic", 3, "key", value, 42, value_schema=schema, **more)


def value_of(transformation: Transformation, value: Any, schema: Schema | None = None, **more: Any) -> Any:
    record = transformation.apply(sink(value, schema, **more))
    assert record is not None
    return record.value


def test_all_other_parts_of_a_record_are_kept() -> None:
    record = made("HoistFieldValue", field="f").apply(sink(1, headers=Headers.of([("h", 1)]), timestamp=5))
    assert record is not None
    assert (record.topic, record.partition, record.key, record.kafka_offset, record.timestamp) == (
        "topic",
        3,
        "key",
        42,
        5,
    )
    assert record.headers == Headers.of([("h", 1)])
    assert record.original_topic == "topic"


@pytest.mark.parametrize(
    ("spec", "value", "cast"),
    [
        ("int8", 300, 44),
        ("int32", 1.9, 1),
        ("int64", "-5", -5),
        ("string", 1e7, "1.0E7"),
        ("string", b"\x01", "AQ=="),
        ("string", dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC), "2020-01-02T03:00:00.000Z"),
        ("boolean", 0.5, False),
        ("boolean", "TRUE", True),
        ("float64", "0x1p3", 8.0),
    ],
)
def test_cast(spec: str, value: Any, cast: Any) -> None:
    schema = logical.TIMESTAMP_SCHEMA if isinstance(value, dt.datetime) else None
    assert value_of(made("CastValue", spec=spec), value, schema) == cast


@pytest.mark.parametrize(
    ("spec", "value"), [("int8", "300"), ("int8", "x"), ("int8", b"1"), ("int8", [1]), ("float32", "")]
)
def test_cast_rejects_values_it_cannot_cast(spec: str, value: Any) -> None:
    with pytest.raises(DataError):
        value_of(made("CastValue", spec=spec), value)


@pytest.mark.parametrize("spec", ["", "bytes", "a:int8,int8", "a:b:c", "a:x"])
def test_cast_refuses_wrong_specs(spec: str) -> None:
    with pytest.raises(ConfigException):
        made("CastValue", spec=spec)


def test_cast_of_fields_changes_the_schema() -> None:
    record = made("CastValue", spec="a.b:string,d:string").apply(sink(STRUCT, OUTER))
    assert record is not None
    assert record.value_schema is not None
    assert record.value_schema.field_named("d").schema == Schema(Type.STRING, True, "dflt")  # type: ignore[union-attr]
    assert record.value.get("d") == "dflt"


def test_field_paths_are_resolved() -> None:
    assert value_of(made("ExtractFieldValue", field="in.n", field_syntax_version="V2"), STRUCT, OUTER) == 300
    assert value_of(made("ExtractFieldValue", field="`a.b`", field_syntax_version="v2"), STRUCT, OUTER) == "x"
    assert value_of(made("ExtractFieldValue", field="a.b"), STRUCT, OUTER) == "x"
    assert value_of(made("ExtractFieldValue", field="x.y", field_syntax_version="V2"), {"x": {"y": 1}}) == 1
    with pytest.raises(DataError, match=r"Unknown field: in\.m"):
        value_of(made("ExtractFieldValue", field="in.m", field_syntax_version="V2"), STRUCT, OUTER)
    with pytest.raises(ConfigException, match="Incomplete backtick pair"):
        FieldPath("`a", "V2")
    with pytest.raises(ConfigException):
        FieldPath("", "V2")


def test_nested_names_are_flattened() -> None:
    assert value_of(made("FlattenValue", delimiter="_"), {"a": {"b": {"c": 1}}, "l": [{"x": 1}]}) == {
        "a_b_c": 1,
        "l": [{"x": 1}],
    }
    flat = value_of(made("FlattenValue"), STRUCT, OUTER)
    assert [field.name for field in flat.schema.fields] == ["a.b", "in.n", "d"]
    assert flat.get("in.n") == 300


def test_headers_from_fields() -> None:
    record = made("HeaderFromValue", fields="a,b", headers="x,y", operation="move").apply(sink({"a": 1, "c": 2}))
    assert record is not None
    assert record.headers == Headers.of([("x", 1), ("y", None)])
    assert record.value == {"c": 2}
    with pytest.raises(ConfigException, match="same number"):
        made("HeaderFromValue", fields="a,b", headers="x", operation="move")


def test_headers_are_inserted_and_dropped() -> None:
    record = made("InsertHeader", header="h", value_literal="[1,2]").apply(
        sink(1, headers=Headers.of([("a", 1), ("h", 0)]))
    )
    assert record is not None
    assert [header.value for header in record.headers.all_with_name("h")] == [0, [1, 2]]
    dropped = made("DropHeaders", headers="h").apply(record)
    assert dropped is not None
    assert [header.key for header in dropped.headers] == ["a"]


def test_record_metadata_become_fields() -> None:
    inserted = made("InsertFieldValue", topic_field="t!", partition_field="p", offset_field="o", timestamp_field="ts")
    assert value_of(inserted, {"a": 1}, timestamp=5) == {"a": 1, "t": "topic", "p": 3, "o": 42, "ts": 5}
    with_schema = value_of(inserted, STRUCT, OUTER, timestamp=5)
    assert with_schema.get("ts") == dt.datetime(1970, 1, 1, microsecond=5000, tzinfo=dt.UTC)
    assert with_schema.schema.field_named("t").schema == STRING_SCHEMA
    with pytest.raises(DataError, match="Only SinkRecord"):
        inserted.apply(SourceRecord({}, {}, "t", None, None, {"a": 1}))
    with pytest.raises(ConfigException, match="No field insertion"):
        made("InsertFieldValue")
    with pytest.raises(ConfigException, match=r"static\.value"):
        made("InsertFieldValue", static_field="s")


def test_masks() -> None:
    masked = value_of(made("MaskFieldValue", fields="a,b,c"), {"a": 5, "b": [1], "d": 1})
    assert masked == {"a": 0, "b": [], "c": None, "d": 1}
    assert value_of(made("MaskFieldValue", fields="a", replacement="300"), {"a": "secret"}) == {"a": "300"}
    schema = SchemaBuilder.struct().field("n", INT8_SCHEMA).build()
    assert (
        value_of(made("MaskFieldValue", fields="n", replacement="300"), Struct(schema, {"n": 1}), schema).get("n") == 44
    )
    with pytest.raises(DataError, match="custom replacement"):
        value_of(made("MaskFieldValue", fields="a", replacement="x"), {"a": True})


@pytest.mark.parametrize(
    ("regex", "replacement", "topic"),
    [
        ("(t)(.*)", "$2-$1", "opic-t"),
        ("t.*", "$0$0", "topictopic"),
        ("(t|topic)", "x", "xopic"),
        ("nope", "x", "topic"),
    ],
)
def test_topics_by_pattern(regex: str, replacement: str, topic: str) -> None:
    record = made("RegexRouter", regex=regex, replacement=replacement).apply(sink(1))
    assert record is not None
    assert record.topic == topic


def test_a_missing_regex_group_is_an_error() -> None:
    with pytest.raises(DataError, match="No group 3"):
        made("RegexRouter", regex="(t).*", replacement="$3").apply(sink(1))
    with pytest.raises(ConfigException, match="Invalid regex"):
        made("RegexRouter", regex="(", replacement="")


def test_topics_by_time() -> None:
    router = made("TimestampRouter", topic_format="${topic}/${timestamp}", timestamp_format="yyyy-MM")
    record = router.apply(sink(1, timestamp=1_600_000_000_000))
    assert record is not None
    assert record.topic == "topic/2020-09"
    with pytest.raises(DataError, match="Timestamp missing"):
        router.apply(sink(1))
    with pytest.raises(ConfigException, match="Illegal pattern character"):
        made("TimestampRouter", timestamp_format="bad")


def test_fields_are_dropped_and_renamed() -> None:
    replaced = made("ReplaceFieldValue", exclude="b", renames="a:x")
    assert value_of(replaced, {"a": 1, "b": 2, "c": 3}) == {"x": 1, "c": 3}
    kept = value_of(made("ReplaceFieldValue", include="d", replace_null_with_default="false"), STRUCT, OUTER)
    assert [field.name for field in kept.schema.fields] == ["d"]
    assert kept.get_without_default("d") is None
    with pytest.raises(ConfigException, match="Invalid rename mapping: a"):
        made("ReplaceFieldValue", renames="a")


def test_schemas_are_renamed() -> None:
    named = made("SetSchemaMetadataValue", schema_name="new", schema_version="9")
    struct = value_of(named, STRUCT, OUTER)
    assert (struct.schema.name, struct.schema.version) == ("new", 9)
    # Java fails here: it reads the fields of every schema.
    record = named.apply(sink("x", STRING_SCHEMA))
    assert record is not None
    assert record.value_schema == Schema(Type.STRING, name="new", version=9)
    with pytest.raises(DataError, match="Schema required"):
        named.apply(sink("x"))
    assert named.apply(sink(None)) == sink(None)


@pytest.mark.parametrize(
    ("config", "value", "converted"),
    [
        ({"target_type": "unix", "format": "yyyy-MM-dd"}, "2020-01-02", 1577923200000),
        (
            {"target_type": "unix", "unix_precision": "seconds"},
            dt.datetime(1969, 12, 31, 23, 59, 58, 500000, dt.UTC),
            -1,
        ),
        ({"target_type": "string", "format": "HH:mm"}, 60_000, "00:01"),
        (
            {"target_type": "Timestamp", "unix_precision": "nanoseconds"},
            1_999_999,
            dt.datetime(1970, 1, 1, 0, 0, 0, 1000, dt.UTC),
        ),
        ({"target_type": "Date"}, dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC), dt.date(2020, 1, 2)),
        ({"target_type": "Time"}, dt.datetime(2020, 1, 2, 3, tzinfo=dt.UTC), dt.time(3)),
    ],
)
def test_times(config: dict[str, str], value: Any, converted: Any) -> None:
    assert value_of(made("TimestampConverterValue", **config), value) == converted
    assert value_of(made("TimestampConverterValue", field="f", **config), {"f": value}) == {"f": converted}


def test_times_that_cannot_be_read() -> None:
    with pytest.raises(DataError, match="does not match pattern"):
        value_of(made("TimestampConverterValue", target_type="unix", format="yyyy"), "x")
    with pytest.raises(DataError, match="format is configured"):
        value_of(made("TimestampConverterValue", target_type="unix"), "2020")
    with pytest.raises(ConnectError, match="known timestamp type"):
        value_of(made("TimestampConverterValue", target_type="unix"), 5, INT8_SCHEMA)
    with pytest.raises(ConfigException, match="requires format"):
        made("TimestampConverterValue", target_type="string")
    with pytest.raises(ConfigException, match="week fields"):
        made("TimestampConverterValue", target_type="unix", format="YYYY-ww")


def test_a_key_is_built_from_the_value() -> None:
    record = made("ValueToKey", fields="a,z").apply(sink({"a": 1, "b": 2}))
    assert record is not None
    assert record.key == {"a": 1, "z": None}
    with pytest.raises(DataError, match="Field does not exist: z"):
        made("ValueToKey", fields="z").apply(sink(STRUCT, OUTER))


def test_a_key_is_built_from_nested_fields() -> None:
    """Since Kafka 4.4; its fields have the names of the paths."""
    nested = made("ValueToKey", fields="a.b,`c.d`,a.b.none", field_syntax_version="V2")
    record = nested.apply(sink({"a": {"b": None}, "c.d": 2}))
    assert record is not None
    assert record.key == {"a.b": None, "`c.d`": 2, "a.b.none": None}
    inner = SchemaBuilder.struct().field("n", SchemaBuilder.int32().optional().default(7).build()).build()
    outer = SchemaBuilder.struct().field("in", inner).build()
    value = Struct(outer).put("in", Struct(inner))
    for replaced, expected in (("true", 7), ("false", None)):
        nested = made("ValueToKey", fields="in.n", field_syntax_version="V2", replace_null_with_default=replaced)
        record = nested.apply(sink(value, outer))
        assert record is not None
        assert record.key_schema is not None
        assert record.key.get_without_default("in.n") == expected
        assert [field.name for field in record.key_schema.fields] == ["in.n"]
    with pytest.raises(DataError, match=r"Field does not exist: in\.m"):
        made("ValueToKey", fields="in.m", field_syntax_version="V2").apply(sink(value, outer))


def test_filter_drops_everything() -> None:
    assert made("Filter").apply(sink(1)) is None


def test_missing_values_are_passed_through() -> None:
    for name, config in (("CastValue", {"spec": "a:int8"}), ("FlattenValue", {}), ("ReplaceFieldValue", {})):
        assert made(name, **config).apply(sink(None)) == sink(None)


def test_predicates() -> None:
    has_header = HasHeaderKey()
    has_header.configure({"name": "h"})
    assert has_header.test(sink(1, headers=Headers.of([("h", None)])))
    assert not has_header.test(sink(1))
    matches = TopicNameMatches()
    matches.configure({"pattern": "to.*"})
    assert matches.test(sink(1))
    assert not matches.test(sink(1).new_record(topic="a-topic"))
    assert RecordIsTombstone().test(sink(None))
    with pytest.raises(ConfigException, match="pattern"):
        matches.configure({"pattern": ""})
