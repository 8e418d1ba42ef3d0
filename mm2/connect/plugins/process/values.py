"""Encoding of plugin API values for another process: CBOR, with one private tag for values that are not plain.

A schema is encoded once and referenced by its number afterwards, since millions of records share one. Both sides number
schemas alike: messages are read in the order in which they were written.
"""

from __future__ import annotations

import datetime as dt
import traceback
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields as dataclass_fields
from decimal import Decimal
from typing import Any, Final

import cbor2

from mm2.config.configdef import (
    NO_DEFAULT,
    ConfigDef,
    ConfigException,
    ConfigKey,
    ConfigValue,
    Importance,
    Password,
    Width,
)
from mm2.config.configdef import Type as ConfigType
from mm2.connect.api import (
    ConnectError,
    DataError,
    Field,
    Header,
    Headers,
    IllegalWorkerStateError,
    OffsetAndMetadata,
    RetriableError,
    Schema,
    SchemaBuilderError,
    SchemaProjectorError,
    SinkRecord,
    SourceRecord,
    TimestampType,
    TopicPartition,
    Type,
    WorkerView,
)
from mm2.connect.data.struct import Struct
from mm2.kafka.producer.producer import RecordMetadata

# An unassigned tag in the IANA registry of CBOR tags.
_TAG: Final = 55_217
_KNOWN_SCHEMAS: Final = 4096
_PLAIN: Final = (str, bytes, int, float, bool, type(None))
_DATA_CLASSES: Final[Mapping[str, type[Any]]] = {
    found.__name__: found
    for found in (SourceRecord, SinkRecord, OffsetAndMetadata, RecordMetadata, WorkerView, ConfigValue)
}
_ERRORS: Final[Mapping[str, type[ConnectError]]] = {
    found.__name__: found
    for found in (
        ConnectError,
        RetriableError,
        IllegalWorkerStateError,
        DataError,
        SchemaBuilderError,
        SchemaProjectorError,
    )
}


class RemoteError(ConnectError):
    """An error of a plugin in its own process that is not an error of Connect; the text begins with its class."""


class Encoding:
    """Encodes values; for one thread at a time."""

    def __init__(self) -> None:
        # Keep references to the schemas, otherwise another object could reuse the address (id) of a deleted one.
        self._schemas: dict[int, tuple[int, Schema]] = {}

    def encode(self, value: Any) -> bytes:
        """Raises TypeError for a value that cannot be encoded; the schema numbers then stay unchanged."""
        known = dict(self._schemas)
        try:
            encoded = self._encoded(value)
            try:
                return cbor2.dumps(encoded)
            except UnicodeEncodeError:
                return cbor2.dumps(_with_texts_as_bytes(encoded))
        except Exception as error:
            self._schemas = known
            raise TypeError(f"It cannot be sent to another process: {error}") from error

    def _encoded(self, value: Any) -> Any:
        if type(value) in _PLAIN:
            return value
        if type(value) is list:
            return [self._encoded(item) for item in value]
        if isinstance(value, Mapping):
            if all(type(key) is str for key in value):
                return {key: self._encoded(item) for key, item in value.items()}
            return _tag("map", [[self._encoded(key), self._encoded(item)] for key, item in value.items()])
        if isinstance(value, Schema):
            return self._schema(value)
        if isinstance(value, Struct):
            return _tag("struct", self._encoded(value.schema), [self._encoded(item) for _, item in value.items()])
        if isinstance(value, Headers):
            return _tag(
                "headers", [[each.key, self._encoded(each.value), self._encoded(each.schema)] for each in value]
            )
        if isinstance(value, TopicPartition):
            return _tag("partition", *value)
        if type(value).__name__ in _DATA_CLASSES and type(value) is _DATA_CLASSES[type(value).__name__]:
            return self._data(type(value), value)
        if isinstance(value, SinkRecord):  # the runtime's own subclass
            return self._data(SinkRecord, value)
        if isinstance(value, ConfigDef):
            return _tag("definition", [self._encoded(_row(key)) for key in value.keys.values()])
        if isinstance(value, BaseException):
            return _tag("error", *self._encoded(_error_parts(value)))
        if isinstance(value, tuple):
            return _tag("tuple", *(self._encoded(item) for item in value))
        if isinstance(value, AbstractSet):
            return _tag("set", *(self._encoded(item) for item in value))
        if isinstance(value, bytearray | memoryview):
            return bytes(value)
        return _encoded_scalar(value)

    def _data(self, kind: type[Any], value: Any) -> Any:
        return _tag(kind.__name__, *(self._encoded(getattr(value, field.name)) for field in dataclass_fields(kind)))

    def _schema(self, schema: Schema) -> Any:
        known = self._schemas.get(id(schema))
        if known is not None:
            return _tag("known", known[0])
        if len(self._schemas) >= _KNOWN_SCHEMAS:
            self._schemas.clear()
        number = len(self._schemas)
        self._schemas[id(schema)] = (number, schema)
        return _tag(
            "schema",
            number,
            schema.type.value,
            schema.optional,
            self._encoded(schema.default),
            schema.name,
            schema.version,
            schema.doc,
            dict(schema.parameters),
            [[field.name, field.index, self._encoded(field.schema)] for field in schema.fields],
            self._encoded(schema.key_schema),
            self._encoded(schema.value_schema),
        )


class Decoding:
    """Decodes the messages of an `Encoding`, in order; for one thread at a time."""

    def __init__(self) -> None:
        self._schemas: dict[int, Schema] = {}

    def decode(self, data: bytes) -> Any:
        """Raises ValueError for bytes that were not written by an `Encoding`."""
        try:
            return self._heard(cbor2.loads(data))
        except Exception as error:
            raise ValueError(f"{type(error).__name__}: {error}") from error

    def _heard(self, value: Any) -> Any:
        if isinstance(value, list | tuple):
            return [self._heard(item) for item in value]
        if isinstance(value, Mapping):
            return {key: self._heard(item) for key, item in value.items()}
        if isinstance(value, cbor2.CBORTag):
            kind, *parts = value.value
            return self._of(kind, self._heard(parts))
        return value

    def _of(self, kind: str, parts: list[Any]) -> Any:
        if kind in _DATA_CLASSES:
            return _DATA_CLASSES[kind](*parts)
        match kind:
            case "schema":
                return self._schema_of(*parts)
            case "known":
                return self._schemas[parts[0]]
            case "map":
                return {key: item for key, item in parts[0]}  # noqa: C416 - pairs are lists here
            case "struct":
                return _struct(*parts)
            case "headers":
                return Headers.of(Header(*each) for each in parts[0])
            case "partition":
                return TopicPartition(*parts)
            case "definition":
                return _definition(parts[0])
            case "error":
                return _error_of(*parts)
            case "tuple":
                return tuple(parts)
            case "set":
                return set(parts)
            case "text":
                return str(parts[0], "utf-8", "surrogatepass")
            case "decimal":
                return Decimal(parts[0])
            case "datetime":
                return dt.datetime.fromisoformat(parts[0])
            case "date":
                return dt.date.fromisoformat(parts[0])
            case "time":
                return dt.time.fromisoformat(parts[0])
            case "timestamp type":
                return TimestampType(parts[0])
            case "password":
                return Password(parts[0])
            case "no default":
                return NO_DEFAULT
        raise ValueError(f"unknown kind of value {kind!r}")

    def _schema_of(self, number: int, type_: str, *parts: Any) -> Schema:
        optional, default, name, version, doc, parameters, rows, key_schema, value_schema = parts
        fields = tuple(Field(*row) for row in rows)
        schema = Schema(
            Type(type_), optional, default, name, version, doc, parameters, fields, key_schema, value_schema
        )
        self._schemas[number] = schema
        return schema


def _struct(schema: Schema, values: list[Any]) -> Struct:
    named = zip(schema.fields, values, strict=True)
    return Struct(schema, {field.name: value for field, value in named if value is not None})


def _tag(kind: str, *parts: Any) -> cbor2.CBORTag:
    return cbor2.CBORTag(_TAG, [kind, *parts])


def _with_texts_as_bytes(encoded: Any) -> Any:
    """What `Encoding._encoded` returns, with texts as bytes where they contain half a surrogate pair, which CBOR cannot."""
    if isinstance(encoded, str):
        return encoded if encoded.isascii() else _tag("text", encoded.encode("utf-8", "surrogatepass"))
    if isinstance(encoded, list):
        return [_with_texts_as_bytes(item) for item in encoded]
    if isinstance(encoded, dict):
        return _tag("map", [[_with_texts_as_bytes(part) for part in pair] for pair in encoded.items()])
    if isinstance(encoded, cbor2.CBORTag):
        return cbor2.CBORTag(_TAG, _with_texts_as_bytes(encoded.value))
    return encoded


def _encoded_scalar(value: Any) -> Any:
    if isinstance(value, Decimal):
        return _tag("decimal", str(value))
    if isinstance(value, dt.datetime):
        return _tag("datetime", value.isoformat())
    if isinstance(value, dt.date):
        return _tag("date", value.isoformat())
    if isinstance(value, dt.time):
        return _tag("time", value.isoformat())
    if isinstance(value, TimestampType):
        return _tag("timestamp type", value.value)
    if isinstance(value, Password):
        return _tag("password", value.value)
    if value is NO_DEFAULT:
        return _tag("no default")
    # Subclasses, such as members of a StrEnum, are encoded as their base type.
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes):
        return bytes(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value)
    raise TypeError(f"a {type(value).__qualname__} is not a value of the plugin API")


def _row(key: ConfigKey) -> list[Any]:
    """All attributes of a key except its validator and its recommender, which are code."""
    return [
        key.name,
        key.type.value,
        key.default,
        key.importance.value,
        key.documentation,
        key.group,
        key.order,
        key.width.value,
        key.display_name,
        list(key.dependents),
    ]


def _definition(rows: list[list[Any]]) -> ConfigDef:
    definition = ConfigDef()
    for name, type_, default, importance, doc, group, order, width, display_name, dependents in rows:
        definition.define(
            name,
            ConfigType(type_),
            default,
            None,
            Importance(importance),
            doc,
            group=group,
            order=order,
            width=Width(width),
            display_name=display_name,
            dependents=dependents,
        )
    return definition


def _error_parts(error: BaseException) -> list[Any]:
    trace = "".join(traceback.format_exception(error))
    if isinstance(error, ConfigException):
        return [
            "ConfigException",
            str(error),
            trace,
            error.name,
            None if error.value is None else str(error.value),
            error.reason,
        ]
    for found in type(error).__mro__:
        if _ERRORS.get(found.__name__) is found:
            return [found.__name__, str(error), trace]
    return ["RemoteError", f"{type(error).__qualname__}: {error}", trace]


def _error_of(kind: str, text: str, trace: str, *rest: Any) -> BaseException:
    error: Exception
    if kind == "ConfigException":
        error = ConfigException(text)
        error.name, error.value, error.reason = rest
    else:
        error = _ERRORS.get(kind, RemoteError)(text)
    error.add_note(f"In the plugin's own process:\n{trace}")
    return error
