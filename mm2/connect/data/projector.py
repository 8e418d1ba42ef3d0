"""Projection of values to another schema, e.g. an older one (org.apache.kafka.connect.data.SchemaProjector)."""

from __future__ import annotations

from decimal import Decimal
from typing import Any, Final

from mm2.connect.data import numbers
from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import Schema, Type
from mm2.connect.data.struct import WIDTHS, Struct
from mm2.connect.errors import SchemaProjectorError

#: A number may be promoted to a type that comes later in this list.
_PROMOTABLE: Final = (*WIDTHS, Type.FLOAT32, Type.FLOAT64)


def project(source: Schema, value: Any, target: Schema) -> Any:
    """Project a value of ``source`` to ``target``; fields are matched by name.

    Fields that ``target`` does not have are dropped; fields that ``source`` does not have get their default.
    Raises SchemaProjectorError when the schemas are not compatible.
    """
    _check(source, target)
    if source.optional and not target.optional:
        if target.default is None:
            raise SchemaProjectorError(
                "Writer schema is optional, however, target schema does not provide a default value."
            )
        return target.default if value is None else _projected(source, value, target)
    return None if value is None else _projected(source, value, target)


def _check(source: Schema, target: Schema) -> None:
    for what, ours, theirs in (
        ("name", source.name, target.name),
        ("parameters", dict(source.parameters), dict(target.parameters)),
    ):
        if ours != theirs:
            raise SchemaProjectorError(f"Schema {what} mismatch. source {what}: {ours} and target {what}: {theirs}")
    if source.type is not target.type and not _promotable(source.type, target.type):
        raise SchemaProjectorError(
            f"Schema type mismatch. source type: {source.type.value} and target type: {target.type.value}"
        )


def _promotable(source: Type, target: Type) -> bool:
    if source not in _PROMOTABLE or target not in _PROMOTABLE:
        return False
    return _PROMOTABLE.index(source) <= _PROMOTABLE.index(target)


def _projected(source: Schema, value: Any, target: Schema) -> Any:
    match target.type:
        case Type.STRUCT:
            return _struct(source, value, target)
        case Type.ARRAY:
            items, wanted = source.element_schema(), target.element_schema()
            return [project(items, item, wanted) for item in value]
        case Type.MAP:
            if source.key_schema is None or target.key_schema is None:
                raise SchemaProjectorError("Maps without a schema of their keys cannot be projected")
            return {
                project(source.key_schema, key, target.key_schema): project(
                    source.element_schema(), item, target.element_schema()
                )
                for key, item in value.items()
            }
        case Type.FLOAT32 | Type.FLOAT64 if isinstance(value, int | float | Decimal) and not isinstance(value, bool):
            return Float32(value) if target.type is Type.FLOAT32 else numbers.nearest_double(value)
        case _:
            return value


def _struct(source: Schema, value: Struct, target: Schema) -> Struct:
    result = Struct(target)
    for field in target.fields:
        given = source.field_named(field.name)
        if given is not None:
            try:
                result.put(field.name, project(given.schema, value.get(field.name), field.schema))
            except SchemaProjectorError as error:
                raise SchemaProjectorError(f"Error projecting {field.name}: {error}") from error
        elif not field.schema.optional:
            if field.schema.default is None:
                raise SchemaProjectorError(f"Required field `{field.name}` is missing from source schema: {source}")
            result.put(field.name, field.schema.default)
    return result
