"""JSON with or without its schema (org.apache.kafka.connect.json.JsonConverter and JsonSchema)."""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, Final

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Width, one_of_any_case
from mm2.config.configdef import Type as ConfigType
from mm2.connect.api.converter import Converter, HeaderConverter, KafkaHeaders
from mm2.connect.converters import json_text
from mm2.connect.converters.json_text import quoted
from mm2.connect.converters.primitive import converter_config, with_type
from mm2.connect.data import logical, numbers
from mm2.connect.data.builder import SchemaBuilder, infer_schema
from mm2.connect.data.numbers import Float32, wrap
from mm2.connect.data.schema import NULL, Schema, SchemaAndValue, Type
from mm2.connect.data.struct import WIDTHS, Struct
from mm2.connect.data.values import number_text
from mm2.connect.errors import DataError

_NAMES: Final = {
    Type.BOOLEAN: "boolean",
    Type.INT8: "int8",
    Type.INT16: "int16",
    Type.INT32: "int32",
    Type.INT64: "int64",
    Type.FLOAT32: "float",
    Type.FLOAT64: "double",
    Type.STRING: "string",
    Type.BYTES: "bytes",
    Type.ARRAY: "array",
    Type.MAP: "map",
    Type.STRUCT: "struct",
}
_FLOATS: Final = frozenset({Type.FLOAT32, Type.FLOAT64})
_TYPES: Final = {name: type_ for type_, name in _NAMES.items()}


def write_schema(schema: Schema | None, write_value: Callable[[Schema, Any], str]) -> str:
    """The JSON text of a schema; ``write_value`` serializes default values."""
    if schema is None:
        return "null"
    parts = [f'"type":"{_NAMES[schema.type]}"']
    match schema.type:
        case Type.ARRAY:
            parts.append(f'"items":{write_schema(schema.value_schema, write_value)}')
        case Type.MAP:
            parts.append(f'"keys":{write_schema(schema.key_schema, write_value)}')
            parts.append(f'"values":{write_schema(schema.value_schema, write_value)}')
        case Type.STRUCT:
            fields = (
                f'{write_schema(field.schema, write_value)[:-1]},"field":{quoted(field.name)}}}'
                for field in schema.fields
            )
            parts.append(f'"fields":[{",".join(fields)}]')
    parts.append(f'"optional":{"true" if schema.optional else "false"}')
    if schema.name is not None:
        parts.append(f'"name":{quoted(schema.name)}')
    if schema.version is not None:
        parts.append(f'"version":{schema.version}')
    if schema.doc is not None:
        parts.append(f'"doc":{quoted(schema.doc)}')
    if schema.parameters:
        parameters = ",".join(f"{quoted(key)}:{quoted(value)}" for key, value in schema.parameters.items())
        parts.append(f'"parameters":{{{parameters}}}')
    if schema.default is not None:
        parts.append(f'"default":{write_value(schema, schema.default)}')
    return "{" + ",".join(parts) + "}"


def read_schema(node: Any, read_value: Callable[[Schema, Any], Any]) -> Schema | None:
    """The schema in a JSON value; None for null. Raises DataError. ``read_value`` deserializes default values."""
    if node is None:
        return None
    name = node.get("type") if isinstance(node, dict) else None
    if not isinstance(name, str):
        raise DataError("Schema must contain 'type' field")
    type_ = _TYPES.get(name)
    if type_ is None:
        raise DataError(f"Unknown schema type: {name}")
    builder = _begun(type_, node, read_value)
    if node.get("optional") is True:
        builder.optional()
    if isinstance(node.get("name"), str):
        builder.name(node["name"])
    if isinstance(version := node.get("version"), int) and not isinstance(version, bool):
        builder.version(wrap(version, 32))
    if isinstance(node.get("doc"), str):
        builder.doc(node["doc"])
    parameters = node.get("parameters")
    for key, value in parameters.items() if isinstance(parameters, dict) else ():
        if not isinstance(value, str):
            raise DataError("Schema parameters must have string values.")
        builder.parameter(key, value)
    if "default" in node:
        builder.default(read_value(builder.build(), node["default"]))
    return builder.build()


def _begun(type_: Type, node: dict[str, Any], read_value: Callable[[Schema, Any], Any]) -> SchemaBuilder:
    def part(key: str, what: str) -> Schema:
        schema = read_schema(node.get(key), read_value)
        if schema is None:
            raise DataError(f"{what} schema did not specify its {key}")
        return schema

    match type_:
        case Type.ARRAY:
            return SchemaBuilder.array(part("items", "Array"))
        case Type.MAP:
            return SchemaBuilder.map(part("keys", "Map"), part("values", "Map"))
        case Type.STRUCT:
            fields = node.get("fields")
            if not isinstance(fields, list):
                raise DataError('Struct schema\'s "fields" argument is not an array.')
            builder = SchemaBuilder.struct()
            for field in fields:
                name = field.get("field") if isinstance(field, dict) else None
                schema = read_schema(field, read_value)
                if not isinstance(name, str) or schema is None:
                    raise DataError("Struct schema's field name not specified properly")
                builder.field(name, schema)
            return builder
        case _:
            return SchemaBuilder(type_)


SCHEMAS_ENABLE: Final = "schemas.enable"
SCHEMA_CONTENT: Final = "schema.content"
SCHEMAS_CACHE_SIZE: Final = "schemas.cache.size"
DECIMAL_FORMAT: Final = "decimal.format"
REPLACE_NULL_WITH_DEFAULT: Final = "replace.null.with.default"

JSON_CONVERTER_CONFIG: Final = (
    converter_config()
    .define(
        SCHEMAS_ENABLE,
        ConfigType.BOOLEAN,
        True,
        importance=Importance.HIGH,
        doc="Whether every key and value contains its schema.",
        group="Schemas",
        order=0,
        width=Width.MEDIUM,
        display_name="Enable Schemas",
    )
    .define(
        SCHEMAS_CACHE_SIZE,
        ConfigType.INT,
        1000,
        importance=Importance.HIGH,
        doc="Maximum number of schemas that this converter caches.",
        group="Schemas",
        order=1,
        width=Width.MEDIUM,
        display_name="Schema Cache Size",
    )
    .define(
        SCHEMA_CONTENT,
        ConfigType.STRING,
        None,
        importance=Importance.HIGH,
        doc="The schema, as JSON, of all messages that are read. Messages then have no envelope. Used by sink "
        "connectors with schemas.enable=true.",
        group="Schemas",
        order=2,
        width=Width.MEDIUM,
        display_name="Schema Content",
    )
    .define(
        DECIMAL_FORMAT,
        ConfigType.STRING,
        "BASE64",
        one_of_any_case("BASE64", "NUMERIC"),
        importance=Importance.LOW,
        doc="Format of decimals that are written: BASE64 or NUMERIC. Both are read.",
        group="Serialization",
        order=0,
        width=Width.MEDIUM,
        display_name="Decimal Format",
    )
    .define(
        REPLACE_NULL_WITH_DEFAULT,
        ConfigType.BOOLEAN,
        True,
        importance=Importance.LOW,
        doc="Whether null values of fields with a default are replaced by the default.",
        group="Serialization",
        order=1,
        width=Width.MEDIUM,
        display_name="Replace null with default",
    )
)

_BASE64: Final = re.compile(r"(?:[\x00- ]*[^\x00- ]{4})*[\x00- ]*")
_MOMENTS: Final = {logical.DATE, logical.TIME, logical.TIMESTAMP}


class _DecimalFormat(Enum):
    BASE64 = "BASE64"
    NUMERIC = "NUMERIC"


@dataclass(frozen=True)
class _Settings:
    schemas: bool = True
    replace_null: bool = True
    decimals: _DecimalFormat = _DecimalFormat.BASE64


class _Node:
    """A JSON value as a cache key; nodes are equal when their contents are equal."""

    __slots__ = ("_repr", "value")

    def __init__(self, value: Any) -> None:
        self.value = value
        self._repr = repr(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Node) and self._repr == other._repr

    def __hash__(self) -> int:
        return hash(self._repr)


class JsonConverter(Converter, HeaderConverter):
    """With ``schemas.enable`` an envelope of schema and payload, otherwise the payload only."""

    def __init__(self) -> None:
        self._use({})

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return JSON_CONVERTER_CONFIG

    def configure(self, props: Mapping[str, Any], *, is_key: bool = False) -> None:
        """Raises ConfigException for an invalid key, DataError if ``schema.content`` is not a schema."""
        self._use(with_type(props, is_key=is_key))

    def _use(self, props: Mapping[str, Any]) -> None:
        config = AbstractConfig(JSON_CONVERTER_CONFIG, {"converter.type": "value", **props})
        self._settings = _Settings(
            config.bool(SCHEMAS_ENABLE),
            config.bool(REPLACE_NULL_WITH_DEFAULT),
            _DecimalFormat(config.str(DECIMAL_FORMAT).upper()),
        )
        remember = lru_cache(maxsize=config.int(SCHEMAS_CACHE_SIZE))
        writer, reader = _Writer(self._settings), _SchemaReader(self._settings)
        self._write, self._read = writer.text, reader.value
        self._write_schema: Callable[[Schema | None], str] = remember(lambda schema: write_schema(schema, writer.text))
        self._read_schema: Callable[[_Node], Schema | None] = remember(
            lambda node: read_schema(node.value, reader.value)
        )
        content = config.get(SCHEMA_CONTENT)
        self._schema = read_schema(json_text.read(content.encode()), reader.value) if content else None

    def from_connect_data(self, topic: str, headers: KafkaHeaders, schema: Schema | None, value: Any) -> bytes | None:
        if schema is None and value is None:
            return None
        try:
            text = self._write(schema, value)
            if self._settings.schemas:
                text = f'{{"schema":{self._write_schema(schema)},"payload":{text}}}'
        except RecursionError as error:
            raise DataError(f"A value for topic {topic} is nested too deeply for JSON") from error
        return json_text.encoded(text)

    def to_connect_data(self, topic: str, headers: KafkaHeaders, data: bytes | None) -> SchemaAndValue:
        if data is None:
            return NULL
        node = json_text.read(data)
        try:
            if not self._settings.schemas:
                return SchemaAndValue(None, self._read(None, node))
            if self._schema is not None:
                return SchemaAndValue(self._schema, self._read(self._schema, node))
            if not isinstance(node, dict) or node.keys() != {"schema", "payload"}:
                raise DataError(
                    'JsonConverter with schemas.enable requires "schema" and "payload" fields and may not contain '
                    "additional fields. If you are trying to deserialize plain JSON data, set schemas.enable=false in "
                    "your converter configuration."
                )
            schema = self._read_schema(_Node(node["schema"]))
            return SchemaAndValue(schema, self._read(schema, node["payload"]))
        except RecursionError as error:
            raise DataError(f"JSON from topic {topic} is nested too deeply") from error

    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        return self.from_connect_data(topic, (), schema, value)

    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        return self.to_connect_data(topic, (), data)


class _Writer:
    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def text(self, schema: Schema | None, value: Any) -> str:
        """JSON of a value. Raises DataError when the value does not fit the schema or has no Connect type."""
        if value is None:
            return self._null(schema)
        if schema is None:
            return self._schemaless(value)
        if schema.name is not None:
            if schema.name == logical.DECIMAL:
                return self._decimal(schema, value)
            if schema.name in _MOMENTS:
                return str(logical.to_number(schema, value))
        return self._typed(schema, value)

    def _null(self, schema: Schema | None) -> str:
        if schema is None:
            return "null"
        if schema.default is not None and self._settings.replace_null:
            return self.text(schema, schema.default)
        if schema.optional:
            return "null"
        raise DataError("Conversion error: null value for field that is required and has no default value")

    def _decimal(self, schema: Schema, value: Any) -> str:
        if not isinstance(value, Decimal):
            raise DataError(f"Invalid type for Decimal: {type(value).__name__}")
        if self._settings.decimals is _DecimalFormat.NUMERIC:
            if not value.is_finite():
                raise DataError(f"{value} is not a valid Decimal: only finite numbers are supported")
            return str(value)
        return _base64(logical.decimal_to_bytes(schema, value))

    def _schemaless(self, value: Any) -> str:
        match value:
            case str():
                return quoted(value)
            case bool():
                return "true" if value else "false"
            case list() | tuple():
                return "[" + ",".join(self.text(None, item) for item in value) + "]"
            case Mapping():
                return self._map(None, None, value, as_object=all(isinstance(key, str) for key in value))
            case Struct():
                raise DataError("A struct needs a schema")
        inferred = infer_schema(value)
        if inferred is None:
            raise DataError(f"A value of {type(value).__name__} does not have corresponding schema type.")
        return self._typed(inferred, value)

    def _typed(self, schema: Schema, value: Any) -> str:
        # The value's class is tested first, which takes less time than to read a type from its class.
        kind = schema.type
        match value:
            case str() if kind is Type.STRING:
                return quoted(value)
            case bytes() | bytearray() | memoryview() if kind is Type.BYTES:
                return _base64(value)
            case bool():
                if kind is Type.BOOLEAN:
                    return "true" if value else "false"
            case int() if kind in WIDTHS and numbers.fits(value, WIDTHS[kind]):
                return str(value)
            case float() if kind in _FLOATS:
                text = number_text(schema, value)
                return text if math.isfinite(value) else f'"{text}"'
            case Struct() if kind is Type.STRUCT:
                if value.schema != schema:
                    raise DataError("Mismatching schema.")
                fields = [f"{quoted(field.name)}:{self.text(field.schema, item)}" for field, item in value.items()]
                return "{" + ",".join(fields) + "}"
            case list() | tuple() if kind is Type.ARRAY:
                return "[" + ",".join(self.text(schema.value_schema, item) for item in value) + "]"
            case Mapping() if kind is Type.MAP:
                keys, values = schema.key_schema, schema.value_schema
                as_object = keys is not None and keys.type is Type.STRING
                return self._map(keys, values, value, as_object=as_object)
        raise DataError(f"Invalid type for {kind.value}: {type(value).__name__}")

    def _map(self, keys: Schema | None, values: Schema | None, value: Mapping[Any, Any], *, as_object: bool) -> str:
        entries = ((self.text(keys, k), self.text(values, v)) for k, v in value.items())
        if as_object:
            return "{" + ",".join(f"{_name(k)}:{v}" for k, v in entries) + "}"
        return "[" + ",".join(f"[{k},{v}]" for k, v in entries) + "]"


def _name(key: str) -> str:
    """The name of an object's member; the text of a key that is not a string (null) is quoted."""
    return key if key.startswith('"') else quoted(key)


def _base64(data: bytes | bytearray | memoryview) -> str:
    return f'"{binascii.b2a_base64(data, newline=False).decode("ascii")}"'


class _SchemaReader:
    """Converts JSON values to those of a schema; as in Jackson, a value of another kind becomes 0, false or null."""

    def __init__(self, settings: _Settings) -> None:
        self._settings = settings

    def value(self, schema: Schema | None, node: Any) -> Any:
        """Raises DataError."""
        if node is json_text.MISSING:
            node = None
        if schema is None:
            return self._schemaless(node)
        if node is None:
            if schema.default is not None and self._settings.replace_null:
                return schema.default
            if schema.optional:
                return None
            raise DataError(f"Invalid null value for required {schema.type.value} field")
        if schema.name == logical.DECIMAL:
            return _decimal(schema, node)
        if schema.name in _MOMENTS:
            return _moment(schema, node)
        return self._typed(schema, node)

    def _schemaless(self, node: Any) -> Any:
        match node:
            case bool() | str() | None:
                return node
            case int():
                return numbers.wrap(node, 64)
            case Decimal():
                return float(node)
            case list():
                return [self._schemaless(item) for item in node]
            case _:
                return {key: self._schemaless(item) for key, item in node.items()}

    def _typed(self, schema: Schema, node: Any) -> Any:
        match schema.type:
            case Type.STRUCT:
                if not isinstance(node, dict):
                    raise DataError(f"Structs should be encoded as JSON objects, but found {_kind(node)}")
                struct = Struct(schema)
                for field in schema.fields:
                    struct.put(field.name, self.value(field.schema, node.get(field.name)))
                return struct
            case Type.STRING:
                return node if isinstance(node, str) else None
            case Type.BOOLEAN:
                return node is True
            case Type.INT8 | Type.INT16 | Type.INT32 | Type.INT64:
                return numbers.wrap(_whole(node), WIDTHS[schema.type])
            case Type.FLOAT32:
                return Float32(_number(node))
            case Type.FLOAT64:
                return numbers.nearest_double(_number(node))
            case Type.BYTES:
                return _bytes(node)
            case Type.ARRAY:
                items = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
                return [self.value(schema.element_schema(), item) for item in items]
            case Type.MAP:
                return self._map(schema, node)

    def _map(self, schema: Schema, node: Any) -> dict[Any, Any]:
        keys, values = schema.key_schema, schema.element_schema()
        if keys is not None and keys.type is Type.STRING:
            if not isinstance(node, dict):
                raise DataError(f"Maps with string fields should be encoded as JSON objects, but found {_kind(node)}")
            return {key: self.value(values, item) for key, item in node.items()}
        if not isinstance(node, list):
            raise DataError(
                f"Maps with non-string fields should be encoded as JSON array of tuples, but found {_kind(node)}"
            )
        result: dict[Any, Any] = {}
        for entry in node:
            if not isinstance(entry, list):
                raise DataError(f"Found invalid map entry instead of array tuple: {_kind(entry)}")
            if len(entry) != 2:
                raise DataError(f"Found invalid map entry, expected length 2 but found :{len(entry)}")
            key = self.value(keys, entry[0])
            if isinstance(key, list | dict):
                raise DataError("A map key must not be an array or a map")
            result[key] = self.value(values, entry[1])
        return result


def _kind(node: Any) -> str:
    """Jackson's name for a node's type."""
    match node:
        case None:
            return "NULL"
        case bool():
            return "BOOLEAN"
        case int() | Decimal():
            return "NUMBER"
        case str():
            return "STRING"
        case list():
            return "ARRAY"
        case _:
            return "OBJECT"


def _number(node: Any) -> int | Decimal:
    return node if isinstance(node, int | Decimal) and not isinstance(node, bool) else 0


def _whole(node: Any) -> int:
    number = _number(node)
    return numbers.whole(number) if isinstance(number, Decimal) else number


def _bytes(node: Any) -> bytes | None:
    if not isinstance(node, str):
        return None
    try:
        if not _BASE64.fullmatch(node):
            raise ValueError("blanks are allowed only between groups of four characters")
        return base64.b64decode("".join(char for char in node if char > " "), validate=True)
    except (binascii.Error, ValueError) as error:
        raise DataError(f"Invalid bytes field: {error}") from error


def _decimal(schema: Schema, node: Any) -> Decimal:
    match node:
        case bool():
            pass
        case int():
            return numbers.from_unscaled(node, 0)
        case Decimal():
            return node
        case str():
            try:
                return logical.decimal_from_bytes(schema, _bytes(node) or b"")
            except DataError as error:
                raise DataError(f"Invalid bytes for Decimal field: {error}") from error
    kind = _kind(node)
    raise DataError(f"Invalid type for Decimal, underlying representation should be numeric or bytes but was {kind}")


def _moment(schema: Schema, node: Any) -> logical.Moment:
    bits = 32 if schema.name != logical.TIMESTAMP else 64
    if not isinstance(node, int) or isinstance(node, bool) or (bits == 32 and not numbers.fits(node, 32)):
        name = (schema.name or "").rpartition(".")[2]
        raise DataError(f"Invalid type for {name}, underlying representation should be integer but was {_kind(node)}")
    return logical.from_number(schema, numbers.wrap(node, bits))
