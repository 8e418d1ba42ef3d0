"""Schemas as JSON, the "schema" of JsonConverter's envelope (org.apache.kafka.connect.json.JsonSchema)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mm2.connect.converters.json_text import quoted
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.errors import DataError
from mm2.connect.data.numbers import wrap
from mm2.connect.data.schema import Schema, Type

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
        told = ",".join(f"{quoted(key)}:{quoted(value)}" for key, value in schema.parameters.items())
        parts.append(f'"parameters":{{{told}}}')
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
