"""Test cases for Kafka's own classes and for ours: converters, transformations, predicates, texts (see connect_values)."""

import base64
import itertools
import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import mm2.connect.converters
import mm2.connect.predicates
import mm2.connect.transforms
from mm2.config.configdef import ConfigDef, ConfigException, show
from mm2.connect.api import ConnectError, Converter, HeaderConverter, Predicate, SinkRecord, Transformation
from mm2.connect.data.record import ConnectRecord
from mm2.connect.data.schema import Schema, SchemaAndValue, Type
from mm2.connect.data.struct import project
from mm2.connect.data.values import convert_to_string, parse_string
from tests.integration.connect_samples import FORMATS, ODD_JSON, PIECES, REGEXES, REPLACEMENTS, TEXTS
from tests.integration.connect_values import NAMES, Values, record_json, schema_json, settled, value_json

_CONNECT = "org.apache.kafka.connect"
NUMBERS = ("Short", "Integer", "Long", "Float", "Double", "Boolean")
CONVERTERS = {
    **{f"{name}Converter": f"{_CONNECT}.converters.{name}Converter" for name in (*NUMBERS, "ByteArray")},
    "StringConverter": f"{_CONNECT}.storage.StringConverter",
    "JsonConverter": f"{_CONNECT}.json.JsonConverter",
    "SimpleHeaderConverter": f"{_CONNECT}.storage.SimpleHeaderConverter",
}
PREDICATES = {
    name: f"{_CONNECT}.transforms.predicates.{name}"
    for name in ("HasHeaderKey", "RecordIsTombstone", "TopicNameMatches")
}
NESTED_KEYS = "nested keys"
"""The group of cases that only Kafka since 4.4 answers like ours."""
PLAIN_TRANSFORMS = ("DropHeaders", "Filter", "InsertHeader", "RegexRouter", "TimestampRouter", "ValueToKey")
PART_TRANSFORMS = (
    *("Cast", "ExtractField", "Flatten", "HeaderFrom", "HoistField", "InsertField", "MaskField", "ReplaceField"),
    *("SetSchemaMetadata", "TimestampConverter"),
)
TRANSFORMS = {name: f"{_CONNECT}.transforms.{name}" for name in PLAIN_TRANSFORMS} | {
    f"{name}{part}": f"{_CONNECT}.transforms.{name}${part}" for name in PART_TRANSFORMS for part in ("Key", "Value")
}
TYPES = ("int8", "int16", "int32", "int64", "float32", "float64", "boolean", "string")


@dataclass(frozen=True)
class Case:
    """A test case as it is sent to Java, and our result."""

    group: str
    asked: dict[str, Any]
    ours: Any


def plugin_class(name: str) -> type[Any]:
    for package in (mm2.connect.converters, mm2.connect.transforms, mm2.connect.predicates):
        if hasattr(package, name):
            found: type[Any] = getattr(package, name)
            return found
    raise KeyError(name)


def java_name(name: str) -> str:
    return {**CONVERTERS, **TRANSFORMS, **PREDICATES}[name]


def ours(asked: dict[str, Any], **given: Any) -> Any:
    try:
        return settled(_answered(asked, **given))
    except (ConnectError, ConfigException) as error:
        return {"error": str(error)}


def _answered(
    asked: dict[str, Any],
    *,
    name: str = "",
    schema: Schema | None = None,
    value: Any = None,
    data: bytes | None = None,
    to: Schema | None = None,
    record: ConnectRecord | None = None,
) -> Any:
    config = asked.get("config", {})
    match asked["op"]:
        case "write" | "read":
            converter: Converter = plugin_class(name)()
            converter.configure(config, is_key=False)
            if asked["op"] == "read":
                return _told(converter.to_connect_data("t", (), data))
            return _bytes(converter.from_connect_data("t", (), schema, value))
        case "write_header" | "read_header":
            headers: HeaderConverter = plugin_class(name)()
            headers.configure({**config, "converter.type": "header"})
            if asked["op"] == "read_header":
                return _told(headers.to_connect_header("t", "h", data))
            return _bytes(headers.from_connect_header("t", "h", schema, value))
        case "parse":
            return _told(parse_string(asked["text"]))
        case "text":
            return convert_to_string(schema, value)
        case "project":
            assert schema is not None
            assert to is not None
            return value_json(to, project(schema, value, to))
        case "transform":
            transform: Transformation = plugin_class(name)()
            transform.configure(config)
            assert record is not None
            changed = transform.apply(record)
            return None if changed is None else record_json(changed)
        case "predicate":
            predicate: Predicate = plugin_class(name)()
            predicate.configure(config)
            assert record is not None
            return predicate.test(record)
        case _:
            return keys(plugin_class(name)().config())


def keys(definition: ConfigDef) -> list[dict[str, Any]]:
    return [
        {
            "name": key.name,
            "type": key.type.value,
            "required": key.required,
            "default": None if key.required or key.default is None else _shown(key.default),
            "importance": key.importance.value,
            "group": key.group,
            "order": key.order,
            "width": key.width.value,
            "display_name": key.display_name,
        }
        for key in definition.keys.values()
    ]


def _shown(default: object) -> str:
    return ",".join(map(str, default)) if isinstance(default, list | tuple) else show(default)


def _told(answer: SchemaAndValue) -> Any:
    return [schema_json(answer.schema), value_json(answer.schema, answer.value)]


def _bytes(data: bytes | None) -> str | None:
    return None if data is None else base64.b64encode(data).decode()


def _holds_bytes(value: Any) -> bool:
    """Java prints byte arrays by their identity."""
    encoded = json.dumps(value_json(None, value))
    return '"y"' in encoded


# -- the cases


def all_cases(seed: int) -> list[Case]:
    values = Values(seed)
    return [
        *definitions(),
        *json_writes(values, 700),
        *json_reads(values, 900),
        *json_odd_reads(),
        *plain_converters(values, 150),
        *projections(values, 400),
        *header_texts(values, 500),
        *parsed_texts(values, 1200),
        *transforms(values, 150),
        *routers(values, 150),
        *predicates(values, 100),
        *nested_keys(values, 300),
    ]


def definitions() -> Iterator[Case]:
    for name in (*CONVERTERS, *TRANSFORMS, *PREDICATES):
        asked = {"op": "keys", "class": java_name(name)}
        yield Case(NESTED_KEYS if name == "ValueToKey" else "definitions", asked, ours(asked, name=name))


def json_config(values: Values) -> dict[str, str]:
    return {
        "schemas.enable": values.one_of("true", "false"),
        "decimal.format": values.one_of("BASE64", "numeric"),
        "replace.null.with.default": values.one_of("true", "true", "false"),
    }


def json_writes(values: Values, count: int) -> Iterator[Case]:
    for _ in range(count):
        schema = values.schema(3) if values.chance(0.8) else None
        value = values.schemaless(3) if schema is None else values.value(schema)
        if schema is not None and values.chance(0.05):
            # No integers of other widths: Java cannot distinguish them here.
            value = other if not isinstance(other := values.schemaless(), int) else value
        yield conversion("json writes", "JsonConverter", "write", json_config(values), schema, value)


def conversion(group: str, name: str, op: str, config: dict[str, str], schema: Schema | None, value: Any) -> Case:
    asked = {
        "op": op,
        "class": java_name(name),
        "config": config,
        "schema": schema_json(schema),
        "value": value_json(schema, value),
    }
    return Case(group, asked, ours(asked, name=name, schema=schema, value=value))


def reading(group: str, name: str, op: str, config: dict[str, str], data: bytes | None) -> Case:
    asked = {"op": op, "class": java_name(name), "config": config, "data": _bytes(data)}
    return Case(group, asked, ours(asked, name=name, data=data))


def json_reads(values: Values, count: int) -> Iterator[Case]:
    for _ in range(count):
        config = json_config(values)
        converter = mm2.connect.converters.JsonConverter()
        converter.configure({**config, "replace.null.with.default": "false"}, is_key=False)
        schema = values.schema(3) if values.chance(0.8) else None
        value = values.schemaless(3) if schema is None else values.value(schema)
        try:
            data = converter.from_connect_data("t", (), schema, value)
        except ConnectError:
            continue
        if data is not None and values.chance(0.4):
            data = json.dumps(mutated(values, json.loads(data))).encode()
        envelope = json.loads(data) if data is not None else None
        if isinstance(envelope, dict) and "schema" in envelope and values.chance(0.1):
            config |= {"schemas.enable": "true", "schema.content": json.dumps(envelope["schema"])}
            data = json.dumps(envelope.get("payload")).encode()
        yield reading("json reads", "JsonConverter", "read", config, data)


def mutated(values: Values, node: Any) -> Any:
    """The same JSON with one value replaced."""
    if isinstance(node, dict) and node and values.chance(0.85):
        key = values.one_of(*node)
        if values.chance(0.1):
            return {each: item for each, item in node.items() if each != key}
        return {**node, key: mutated(values, node[key])}
    if isinstance(node, list) and node and values.chance(0.85):
        at = values.random.randrange(len(node))
        return [*node[:at], mutated(values, node[at]), *node[at + 1 :]]
    return values.one_of(
        None, True, 0, 300, -5, 2**31, 2**40, 1.5, -0.25, "text", "AQI=", "int32", [], {}, [1], {"a": 1}
    )


def json_odd_reads() -> Iterator[Case]:
    for text, enable in itertools.product(ODD_JSON, ("true", "false")):
        yield reading("odd json", "JsonConverter", "read", {"schemas.enable": enable}, text.encode())
    for data in (b"\xff", b"\xef\xbb\xbf1", "[1]".encode("utf-16-be"), b'"\xc3"'):
        yield reading("odd json", "JsonConverter", "read", {"schemas.enable": "false"}, data)


def plain_converters(values: Values, count: int) -> Iterator[Case]:
    for name in (*(f"{number}Converter" for number in NUMBERS), "ByteArrayConverter", "StringConverter"):
        for _ in range(count):
            op = values.one_of("write", "write_header")
            schema, value = any_value(values, name)
            if name != "StringConverter" or not _holds_bytes(value):
                yield conversion(f"{name} writes", name, op, {}, schema, value)
            data = None if values.chance(0.1) else values.random.randbytes(values.one_of(0, 1, 1, 2, 2, 4, 4, 8, 8, 9))
            if data is not None and name == "StringConverter":
                data = data.replace(
                    b"\xed", b"e"
                )  # half a surrogate pair is one invalid character for Java, two for Python
            if values.chance(0.3) and data is not None:
                data = bytes(len(data) - 1) + b"\x01" if data else data
            yield reading(f"{name} reads", name, values.one_of("read", "read_header"), {}, data)
    for encoding, text in itertools.product(
        ("UTF-8", "ISO-8859-1", "US-ASCII", "UTF-16", "UTF-16LE"), ("aä€", "", "😀")
    ):
        config = {"converter.encoding": encoding}
        yield conversion("encodings", "StringConverter", "write", config, None, text)
        yield reading("encodings", "StringConverter", "read", config, text.encode("utf-16-be"))
        yield reading("encodings", "StringConverter", "read", config, text.encode() + b"\xff")


def projections(values: Values, count: int) -> Iterator[Case]:
    for _ in range(count):
        schema = values.schema(3)
        to, value = values.related(schema), values.value(schema)
        asked = {
            "op": "project",
            "schema": schema_json(schema),
            "value": value_json(schema, value),
            "to": schema_json(to),
        }
        yield Case("projections", asked, ours(asked, schema=schema, value=value, to=to))


def any_value(values: Values, name: str) -> tuple[Schema | None, Any]:
    wanted = {
        "ShortConverter": Type.INT16,
        "IntegerConverter": Type.INT32,
        "LongConverter": Type.INT64,
        "FloatConverter": Type.FLOAT32,
        "DoubleConverter": Type.FLOAT64,
        "BooleanConverter": Type.BOOLEAN,
        "ByteArrayConverter": Type.BYTES,
    }.get(name)
    if wanted is not None and values.chance(0.7):
        schema = Schema(wanted, optional=values.chance(0.3))
        return schema, values.value(schema)
    # An integer without schema has no width here and 64 bits in Java: only LongConverter accepts both.
    schema = values.schema(2)
    return schema, values.value(schema)


def header_texts(values: Values, count: int) -> Iterator[Case]:
    for _ in range(count):
        schema = values.schema(2)
        yield conversion("header texts", "SimpleHeaderConverter", "write_header", {}, schema, values.value(schema))


# Java accepts arrays and maps as keys of a map; Python's dictionaries do not, so the value stays text.
_CONTAINER_AS_KEY = re.compile(r"[\]}]\s*:")


def parsed_texts(values: Values, count: int) -> Iterator[Case]:
    random_texts = ("".join(values.random.choices(PIECES, k=values.random.randint(1, 7))) for _ in range(count))
    written = (text for _ in range(count // 2) if (text := written_text(values)) is not None)
    for text in (*TEXTS, *random_texts, *written):
        if _CONTAINER_AS_KEY.search(text):
            continue
        asked = {"op": "parse", "text": text}
        yield Case("parsed texts", asked, ours(asked))


def written_text(values: Values) -> str | None:
    schema = values.schema(2)
    return convert_to_string(schema, values.value(schema))


def transformed(group: str, name: str, config: dict[str, str], record: ConnectRecord) -> Case:
    offset = record.kafka_offset if isinstance(record, SinkRecord) else None
    op = "predicate" if name in PREDICATES else "transform"
    asked = {
        "op": op,
        "class": java_name(name),
        "config": config,
        "record": {**record_json(record), "offset": offset},
    }
    return Case(group, asked, ours(asked, name=name, record=record))


#: A number of seconds, or of a shorter unit: dates before 1582 are in the Julian calendar in Java only.
_BEFORE_1653 = re.compile(r"'i': '-\d{11,}'")


def transforms(values: Values, count: int) -> Iterator[Case]:
    for name, part in itertools.product(PART_TRANSFORMS, ("Key", "Value")):
        for _ in range(count):
            # Java's SetSchemaMetadata fails on values that are not structs, ours does not.
            record = values.record(whole=0.0 if name == "SetSchemaMetadata" else 0.3)
            config = CONFIGS[name](values)
            if "replace" not in name.lower() and name not in {"Flatten", "HoistField"} and values.chance(0.3):
                config["replace.null.with.default"] = values.one_of("true", "false")
            record = time_record(values, record) if name.startswith("Time") else record
            case = transformed(name, f"{name}{part}", config, record)
            if not (name.startswith("Time") and _BEFORE_1653.search(str(case.asked["record"]))):
                yield case
    for name in ("DropHeaders", "Filter", "InsertHeader", "ValueToKey"):
        for _ in range(count):
            yield transformed(name, name, CONFIGS[name](values), values.record())


def time_record(values: Values, record: ConnectRecord) -> ConnectRecord:
    """Mostly values that are a time, or have one in a field."""
    if values.chance(0.2):
        return record
    schemas = [Schema(Type.STRING), Schema(Type.INT64), *(values.schema(0) for _ in range(3))]
    schema = values.one_of(*schemas)
    value = values.value(schema)
    if schema.type is Type.STRING and schema.name is None:
        value = values.one_of("2020-02-03 04:05:06", "1999-12-31", "20200203", "x", "3 Feb 2020 11 PM", "")
    if values.chance(0.4):
        return record.new_record(key_schema=None, key={"a": value}, value_schema=None, value={"a": value, "b": 1})
    return record.new_record(key_schema=schema, key=value, value_schema=schema, value=value)


def names(values: Values) -> list[str]:
    return values.random.sample(NAMES, values.random.randint(1, 3))


def cast_config(values: Values) -> dict[str, str]:
    if values.chance(0.3):
        return {"spec": values.one_of(*TYPES, "bytes", "x", " int8 ", "INT32")}
    return {"spec": ",".join(f"{name}:{values.one_of(*TYPES)}" for name in names(values))}


PATHS = (*NAMES, "a.b", "`d.e`", "`d.e`.a", "d.e.a", "a.b.c", "`a", "a.", "a.`b`", "`a\\`.b`")


def nested_keys(values: Values, count: int) -> Iterator[Case]:
    for _ in range(count):
        fields = ",".join(values.random.sample(PATHS, values.random.randint(1, 3)))
        config = {
            "fields": fields,
            "field.syntax.version": "V2",
            "replace.null.with.default": values.one_of("true", "false"),
        }
        yield transformed(NESTED_KEYS, "ValueToKey", config, values.record(whole=0.1))


def extract_config(values: Values) -> dict[str, str]:
    field = values.one_of(*PATHS)
    return {"field": field, "field.syntax.version": values.one_of("V1", "V2", "v2")}


def header_from_config(values: Values) -> dict[str, str]:
    fields = names(values)
    return {
        "fields": ",".join(fields),
        "headers": ",".join(f"h-{field}" for field in fields),
        "operation": values.one_of("move", "copy"),
    }


def insert_config(values: Values) -> dict[str, str]:
    keys_ = values.random.sample(
        ["topic.field", "partition.field", "offset.field", "timestamp.field", "static.field"], 2
    )
    config = {key: values.one_of("t", "u", "v", "a") + values.one_of("", "!", "?") for key in keys_}
    return config if values.chance(0.1) else {**config, "static.value": "s"}


def mask_config(values: Values) -> dict[str, str]:
    config = {"fields": ",".join(names(values))}
    return {**config, "replacement": values.one_of("12", "1.5", "x", "300")} if values.chance(0.4) else config


def replace_config(values: Values) -> dict[str, str]:
    config = {"replace.null.with.default": values.one_of("true", "false")}
    if values.chance(0.5):
        config["exclude"] = ",".join(names(values))
    if values.chance(0.5):
        config["include"] = ",".join(names(values))
    if values.chance(0.5):
        config["renames"] = values.one_of("a:x", "a:x,b:y", "a:q", "c:y,d.e:z", "a", "a:b:c", "a:")
    return config


def metadata_config(values: Values) -> dict[str, str]:
    config = {"schema.name": "new.Name", "schema.version": "12"}
    return {key: config[key] for key in values.random.sample(sorted(config), values.random.randint(0, 2))}


def timestamp_config(values: Values) -> dict[str, str]:
    config = {
        "target.type": values.one_of("string", "unix", "Date", "Time", "Timestamp"),
        "unix.precision": values.one_of("seconds", "milliseconds", "microseconds", "nanoseconds"),
        "field": values.one_of("", "", "a", "b"),
    }
    formats = ("yyyy-MM-dd HH:mm:ss", "yyyy-MM-dd", "yyyyMMdd", "d MMM yyyy h a", "yy/M/d", "'at' EEEE HH:mm:ss.SSSXXX")
    return {**config, "format": values.one_of(*formats)} if values.chance(0.8) else config


CONFIGS: dict[str, Callable[[Values], dict[str, str]]] = {
    "Cast": cast_config,
    "ExtractField": extract_config,
    "Flatten": lambda values: {"delimiter": values.one_of(".", "_", "")} if values.chance(0.5) else {},
    "HeaderFrom": header_from_config,
    "HoistField": lambda values: {"field": values.one_of("f", "x.y")},
    "InsertField": insert_config,
    "MaskField": mask_config,
    "ReplaceField": replace_config,
    "SetSchemaMetadata": metadata_config,
    "TimestampConverter": timestamp_config,
    "DropHeaders": lambda values: {"headers": ",".join(names(values))},
    "Filter": lambda _values: {},
    "InsertHeader": lambda values: {"header": "h", "value.literal": values.one_of(*TEXTS[:60]) or "x"},
    "ValueToKey": lambda values: {"fields": ",".join(names(values))},
}


def routers(values: Values, count: int) -> Iterator[Case]:
    for _ in range(count):
        config = {"regex": values.one_of(*REGEXES), "replacement": values.one_of(*REPLACEMENTS)}
        yield transformed("RegexRouter", "RegexRouter", config, values.record())
    for pattern in FORMATS:
        for _ in range(count // 15):
            record = values.record()
            config = {
                "timestamp.format": pattern,
                "topic.format": values.one_of("${timestamp}", "${topic}.${timestamp}/${topic}"),
            }
            if values.chance(0.1):
                record = record.new_record(timestamp=values.random.randint(-(10**13), 10**14))
            yield transformed("TimestampRouter", "TimestampRouter", config, record)


def predicates(values: Values, count: int) -> Iterator[Case]:
    for _ in range(count):
        record = values.record()
        if values.chance(0.3):
            record = record.new_record(value=None)
        yield transformed("predicates", "HasHeaderKey", {"name": values.one_of(*NAMES, "")}, record)
        yield transformed("predicates", "RecordIsTombstone", {}, record)
        yield transformed("predicates", "TopicNameMatches", {"pattern": values.one_of(*REGEXES)}, record)
