"""Structs, and validation of values against schemas and their projection to other ones.

Corresponds to Struct, ConnectSchema.validateValue and SchemaProjector of Java.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Mapping
from decimal import Decimal
from typing import Any, Final, Self

from mm2.connect.data import logical, numbers
from mm2.connect.data.numbers import Float32, fits
from mm2.connect.data.schema import Field, Schema, Type
from mm2.connect.errors import DataError, SchemaProjectorError

WIDTHS: Final = {Type.INT8: 8, Type.INT16: 16, Type.INT32: 32, Type.INT64: 64}
"""Bits of the types of integers."""

_STRUCT: Final = Type.STRUCT  # a global name: see mm2.connect.data.schema
_CONTAINERS: Final = frozenset({Type.STRUCT, Type.ARRAY, Type.MAP})
_CLASSES: Final[Mapping[Type, tuple[type, ...]]] = {
    Type.FLOAT32: (float,),
    Type.FLOAT64: (float,),
    Type.BOOLEAN: (bool,),
    Type.STRING: (str,),
    Type.BYTES: (bytes, bytearray, memoryview),
    Type.ARRAY: (list, tuple),
    Type.MAP: (Mapping,),
}
_LOGICAL: Final[Mapping[str | None, type]] = {
    logical.DECIMAL: Decimal,
    logical.DATE: dt.date,
    logical.TIME: dt.time,
    logical.TIMESTAMP: dt.datetime,
}

#: A number may be promoted to a type that comes later in this list.
_PROMOTABLE: Final = (*WIDTHS, Type.FLOAT32, Type.FLOAT64)


class Struct:
    """A value of a struct schema. ``put`` checks a single field; :meth:`validate` checks all of them."""

    __slots__ = ("_values", "schema")

    def __init__(self, schema: Schema, values: Mapping[str, Any] | None = None) -> None:
        """Create a struct, empty or with fields.

        Raises DataError for a schema of another type, unknown fields and invalid values.
        """
        if schema.type is not _STRUCT:
            raise DataError(f"Not a struct schema: {schema}")
        self.schema = schema
        self._values: list[Any] = [None] * len(schema.fields)
        for name, value in (values or {}).items():
            self.put(name, value)

    def _field(self, name: str) -> Field:
        found = self.schema.field_named(name)
        if found is None:
            raise DataError(f"{name} is not a valid field name")
        return found

    def get(self, name: str) -> Any:
        """The field's value, or its default when it is missing. Raises DataError for an unknown field."""
        field = self._field(name)
        value = self._values[field.index]
        return field.schema.default if value is None else value

    __getitem__ = get

    def get_without_default(self, name: str) -> Any:
        """The field's value; None when it is missing. Raises DataError for an unknown field."""
        return self._values[self._field(name).index]

    def put(self, name: str, value: Any) -> Self:
        """Set a field. Raises DataError for an unknown field or a value that does not fit it."""
        field = self._field(name)
        validate_value(field.schema, value, name)
        self._values[field.index] = value
        return self

    __setitem__ = put

    def validate(self) -> None:
        """Raises DataError when a required field without default is missing, or a value does not fit."""
        for field, value in zip(self.schema.fields, self._values, strict=True):
            if value is None and (field.schema.optional or field.schema.default is not None):
                continue
            validate_value(field.schema, value, field.name)

    def items(self) -> Iterator[tuple[Field, Any]]:
        """Fields and their values as they are, without defaults."""
        return iter(zip(self.schema.fields, self._values, strict=True))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Struct):
            return NotImplemented
        return self.schema == other.schema and self._values == other._values

    def __hash__(self) -> int:
        # As in Java a struct may be the key of a map; it must not be changed then.
        return hash((self.schema, repr(self._values)))

    def __repr__(self) -> str:
        shown = ",".join(f"{field.name}={value}" for field, value in self.items() if value is not None)
        return f"Struct{{{shown}}}"


def validate_value(schema: Schema, value: Any, field: str | None = None) -> None:
    """Raises DataError naming the location (``field``) when ``value`` does not fit ``schema``, at any depth."""
    _validate(schema, value, "value" if field is None else f'field: "{field}"')


def project(source: Schema, value: Any, target: Schema) -> Any:
    """Project a value of ``source`` to ``target``; fields are matched by name.

    Fields that ``target`` does not have are dropped; fields that ``source`` does not have get their default.
    Raises SchemaProjectorError when the schemas are not compatible.
    """
    _check_projectable(source, target)
    if source.optional and not target.optional:
        if target.default is None:
            raise SchemaProjectorError(
                "Writer schema is optional, however, target schema does not provide a default value."
            )
        return target.default if value is None else _projected(source, value, target)
    return None if value is None else _projected(source, value, target)


def _validate(schema: Schema, value: Any, location: str) -> None:
    if value is None:
        if not schema.optional:
            raise DataError(f"Invalid value: null used for required {location}, schema type: {schema.type.value}")
        return
    if not _is_instance(schema, value):
        named = f' "{schema.name}"' if schema.name is not None else ""
        found = f"{value}, beyond its range," if _is_integer(value) and schema.type in WIDTHS else type(value).__name__
        raise DataError(f"Invalid object for schema{named} with type {schema.type.value}: {found} for {location}")
    if schema.type in _CONTAINERS:
        _validate_contents(schema, value, location)


def _validate_contents(schema: Schema, value: Any, location: str) -> None:
    match schema.type:
        case Type.STRUCT:
            if value.schema != schema:
                raise DataError("Struct schemas do not match.")
            value.validate()
        case Type.ARRAY:
            _validate_items(schema.value_schema, value, f"element of array {location}")
        case Type.MAP:
            _validate_items(schema.key_schema, value, f"key of map {location}")
            _validate_items(schema.value_schema, value.values(), f"value of map {location}")


def _validate_items(schema: Schema | None, values: Any, location: str) -> None:
    for value in values:
        if schema is None:
            raise DataError(f"No schema defined for {location}")
        _validate(schema, value, location)


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_instance(schema: Schema, value: Any) -> bool:
    wanted = _LOGICAL.get(schema.name)
    if wanted is not None:
        return isinstance(value, wanted) and (wanted is not dt.date or not isinstance(value, dt.datetime))
    if schema.type in WIDTHS:
        return _is_integer(value) and fits(value, WIDTHS[schema.type])
    if schema.type is _STRUCT:
        return isinstance(value, Struct)
    return isinstance(value, _CLASSES[schema.type])


def _check_projectable(source: Schema, target: Schema) -> None:
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
            return _projected_struct(source, value, target)
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


def _projected_struct(source: Schema, value: Struct, target: Schema) -> Struct:
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
