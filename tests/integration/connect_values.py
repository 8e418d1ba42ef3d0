"""Random schemas, values and records, and their JSON form for ConnectOracle.java and its results.

A value is an object with one entry, its type: b boolean, i integer (with the width of its schema), f32 and f64 bits
of a double, s string, y bytes, d [unscaled, scale], ms moment, l list, m list of pairs, t fields of a struct.
"""

import base64
import datetime as dt
import random
import struct
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from mm2.connect.data import logical, numbers
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.numbers import Float32
from mm2.connect.data.record import ConnectRecord, Headers, SinkRecord, SourceRecord
from mm2.connect.data.schema import Schema, Type
from mm2.connect.data.struct import WIDTHS, Struct

NAMES = ("a", "b", "c", "d.e", "f", "g")
WORDS = (
    "",
    "a",
    "true",
    "12",
    "-7",
    "300",
    "1.5",
    "x y",
    'q"u\\o',
    "ä€😀",
    "\x01\x1f\n",
    "null",
    "2020-02-29",
    "[1,2]",
)
WIDER = (*WIDTHS, Type.FLOAT32, Type.FLOAT64)
PRIMITIVES = (*WIDTHS, Type.FLOAT32, Type.FLOAT64, Type.BOOLEAN, Type.STRING, Type.BYTES)
FIRST, LAST = dt.datetime(1900, 1, 1, tzinfo=dt.UTC), dt.datetime(2200, 1, 1, tzinfo=dt.UTC)


class Values:
    """Random values from one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def one_of(self, *choices: Any) -> Any:
        return self.random.choice(choices)

    def chance(self, share: float) -> bool:
        return self.random.random() < share

    def schema(self, depth: int = 2, *, key: bool = False) -> Schema:
        kind = self.random.random()
        if depth > 0 and not key and kind < 0.35:
            return self.finished(self.nested(depth))
        if kind < 0.55 and not key:
            schema: Schema = self.one_of(
                logical.decimal_schema(self.random.randint(-2, 6)),
                logical.DATE_SCHEMA,
                logical.TIME_SCHEMA,
                logical.TIMESTAMP_SCHEMA,
            )
            return schema.as_optional() if self.chance(0.4) else schema
        return self.finished(SchemaBuilder(self.one_of(*PRIMITIVES)), plain=key)

    def nested(self, depth: int) -> SchemaBuilder:
        match self.one_of("array", "map", "struct", "struct"):
            case "array":
                return SchemaBuilder.array(self.schema(depth - 1))
            case "map":
                keys = Schema(Type.STRING) if self.chance(0.7) else Schema(self.one_of(*WIDTHS, Type.BYTES))
                return SchemaBuilder.map(keys, self.schema(depth - 1))
            case _:
                return self.struct_builder(depth - 1)

    def struct_builder(self, depth: int) -> SchemaBuilder:
        builder = SchemaBuilder.struct()
        for name in self.random.sample(NAMES, self.random.randint(1, 5)):
            builder.field(name, self.schema(depth))
        return builder

    def struct_schema(self, depth: int = 1) -> Schema:
        return self.finished(self.struct_builder(depth), plain=self.chance(0.7))

    def finished(self, builder: SchemaBuilder, *, plain: bool = False) -> Schema:
        if plain:
            return builder.build()
        if self.chance(0.4):
            builder.optional()
        if self.chance(0.15):
            builder.name(self.one_of("n", "some.Name")).version(self.one_of(1, 7))
        if self.chance(0.1):
            builder.doc('what "it" is').parameter("p", "1").parameter("q", "ü")
        schema = builder.build()
        if self.chance(0.2) and schema.type is not Type.STRUCT:
            value = self.value(schema)
            return builder.default(value).build() if value is not None else schema
        return schema

    def related(self, schema: Schema) -> Schema:
        """A schema to which some values of this one can be projected."""
        type_ = schema.type
        if type_ in WIDER and schema.name is None and self.chance(0.4):
            type_ = self.one_of(*WIDER[WIDER.index(type_) :])
        builder = SchemaBuilder(
            type_,
            key_schema=schema.key_schema and self.related(schema.key_schema),
            value_schema=schema.value_schema and self.related(schema.value_schema),
        )
        builder.name(schema.name if self.chance(0.97) else "other").version(schema.version).parameters(
            schema.parameters
        )
        for field in schema.fields:
            if self.chance(0.85):
                builder.field(field.name, self.related(field.schema))
        if type_ is Type.STRUCT and self.chance(0.3):
            builder.field("new", self.schema(0))
        if schema.optional or self.chance(0.3):
            builder.optional()
        return builder.build()

    def value(self, schema: Schema) -> Any:
        if schema.optional and self.chance(0.25):
            return None
        if schema.name == logical.DECIMAL:
            return numbers.from_unscaled(self.random.randint(-(10**12), 10**12), logical.decimal_scale(schema))
        if schema.name in {logical.DATE, logical.TIME, logical.TIMESTAMP}:
            return self.moment(schema)
        match schema.type:
            case Type.STRUCT:
                return Struct(schema, {field.name: self.value(field.schema) for field in schema.fields})
            case Type.ARRAY:
                return [self.value(schema.element_schema()) for _ in range(self.random.randint(0, 3))]
            case Type.MAP:
                assert schema.key_schema is not None
                return {
                    self.value(schema.key_schema): self.value(schema.element_schema())
                    for _ in range(self.random.randint(0, 3))
                }
            case type_:
                return self.primitive(type_)

    def moment(self, schema: Schema) -> Any:
        moment = logical.timestamp_from_ms(self.random.randint(logical.ms_of(FIRST), logical.ms_of(LAST)))
        if self.chance(0.1):
            moment = logical.timestamp_from_ms(self.one_of(0, 1, 86_400_000, -1, 86_399_999))
        match schema.name:
            case logical.DATE:
                return moment.date()
            case logical.TIME:
                return moment.time()
            case _:
                return moment

    def primitive(self, type_: Type) -> Any:
        if type_ in WIDTHS:
            half = 1 << (WIDTHS[type_] - 1)
            return self.one_of(
                0, 1, -1, half - 1, -half, self.random.randint(-half, half - 1), self.random.randint(-99, 99) % half
            )
        match type_:
            case Type.FLOAT32:
                # Java before 19 writes others with more digits than needed.
                return Float32(self.random.randint(-(10**5), 10**5) / 8)
            case Type.FLOAT64:
                return self.number(6)
            case Type.BOOLEAN:
                return self.chance(0.5)
            case Type.STRING:
                return self.word()
            case _:
                return self.random.randbytes(self.random.randint(0, 6))

    def number(self, digits: int) -> float:
        if self.chance(0.05):
            return float(self.one_of("nan", "inf", "-inf", "0.0", "-0.0"))
        whole = self.random.randint(-(10**digits), 10**digits)
        return float(f"{whole}e{self.random.randint(-9, 9)}")

    def word(self) -> str:
        return str(self.one_of(*WORDS)) if self.chance(0.7) else str(self.random.randint(-(10**6), 10**6))

    def schemaless(self, depth: int = 2) -> Any:
        if depth > 0 and self.chance(0.4):
            items = [self.schemaless(depth - 1) for _ in range(self.random.randint(0, 3))]
            if self.chance(0.4):
                return items
            return dict(zip(self.random.sample(NAMES, len(items)), items, strict=True))
        return self.one_of(
            None,
            self.primitive(Type.INT64),
            self.primitive(Type.FLOAT64),
            self.chance(0.5),
            self.word(),
            self.word(),
            self.primitive(Type.BYTES),
        )

    def schemaless_map(self) -> dict[str, Any]:
        names = self.random.sample(NAMES, self.random.randint(1, len(NAMES)))
        return {name: self.schemaless(1) for name in names}

    def record(self, *, struct: float = 0.5, whole: float = 0.3) -> ConnectRecord:
        """A record whose key and value have the same form: a struct, without schema, or anything (``whole``)."""
        sides: list[tuple[Schema | None, Any]] = []
        for _ in range(2):
            if self.chance(whole):
                schema = self.schema(1)
                sides.append((schema, self.value(schema)) if self.chance(0.7) else (None, self.schemaless()))
            elif self.chance(struct):
                schema = self.struct_schema()
                sides.append((schema, self.value(schema)))
            else:
                sides.append((None, self.schemaless_map()))
        (key_schema, key), (value_schema, value) = sides
        headers = Headers()
        for _ in range(self.random.randint(0, 3)):
            schema = self.schema(1)
            headers = headers.with_header(self.one_of(*NAMES), self.value(schema), schema)
        topic, partition = self.one_of("topic", "foo-1", "a.b.c"), self.random.randint(0, 5)
        timestamp = None if self.chance(0.2) else logical.ms_of(self.moment(logical.TIMESTAMP_SCHEMA))
        if self.chance(0.3):
            return SourceRecord(
                {},
                {},
                topic,
                None if self.chance(0.3) else partition,
                key,
                value,
                headers,
                timestamp,
                key_schema,
                value_schema,
            )
        return SinkRecord(
            topic, partition, key, value, 42, headers, timestamp, key_schema=key_schema, value_schema=value_schema
        )


def schema_json(schema: Schema | None) -> Any:
    if schema is None:
        return None
    encoded: dict[str, Any] = {
        "type": schema.type.value,
        "optional": schema.optional,
        "name": schema.name,
        "version": schema.version,
        "doc": schema.doc,
        "parameters": dict(schema.parameters),
        "default": value_json(schema, schema.default),
    }
    if schema.type is Type.STRUCT:
        encoded["fields"] = [[field.name, schema_json(field.schema)] for field in schema.fields]
    if schema.type is Type.MAP:
        encoded["keys"] = schema_json(schema.key_schema)
    if schema.type in {Type.MAP, Type.ARRAY}:
        encoded["values"] = schema_json(schema.value_schema)
    return encoded


def value_json(schema: Schema | None, value: Any) -> Any:
    match value:
        case None:
            return None
        case bool():
            return {"b": value}
        case int():
            return {"i": str(value)}
        case float():
            single = isinstance(value, Float32) or (schema is not None and schema.type is Type.FLOAT32)
            bits = struct.unpack(">q", struct.pack(">d", float("nan") if value != value else value))[0]  # noqa: PLR0124
            return {"f32" if single else "f64": str(bits)}
        case Decimal():
            return {"d": [str(numbers.unscaled(value)), numbers.scale(value)]}
        case str():
            return {"s": value}
        case bytes():
            return {"y": base64.b64encode(value).decode()}
        case dt.date() | dt.time():
            return {"ms": str(logical.ms_of(value))}
        case list() | tuple():
            items = schema.value_schema if schema is not None else None
            return {"l": [value_json(items, item) for item in value]}
        case Mapping():
            keys = schema.key_schema if schema is not None else None
            values = schema.value_schema if schema is not None else None
            return {"m": [[value_json(keys, k), value_json(values, v)] for k, v in value.items()]}
        case Struct():
            return {"t": [value_json(field.schema, item) for field, item in value.items()]}
        case _:
            raise TypeError(type(value).__name__)


def record_json(record: ConnectRecord) -> dict[str, Any]:
    return {
        "topic": record.topic,
        "partition": record.partition,
        "timestamp": record.timestamp,
        "key_schema": schema_json(record.key_schema),
        "key": value_json(record.key_schema, record.key),
        "value_schema": schema_json(record.value_schema),
        "value": value_json(record.value_schema, record.value),
        "headers": [[h.key, schema_json(h.schema), value_json(h.schema, h.value)] for h in record.headers],
    }


def settled(encoded: Any) -> Any:
    """The same value with sorted map entries: Java's hash maps have another order."""
    if isinstance(encoded, dict):
        if encoded.keys() == {"m"}:
            return {"m": sorted((settled(entry) for entry in encoded["m"]), key=str)}
        return {key: settled(item) for key, item in encoded.items()}
    return [settled(item) for item in encoded] if isinstance(encoded, list) else encoded
