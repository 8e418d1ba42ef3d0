"""Builder of schemas, and the schema of a value without one (SchemaBuilder and Values.inferSchema of Java)."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Self

from mm2.connect.data.numbers import Float32
from mm2.connect.data.schema import (
    BOOLEAN_SCHEMA,
    BYTES_SCHEMA,
    FLOAT32_SCHEMA,
    FLOAT64_SCHEMA,
    INT64_SCHEMA,
    STRING_SCHEMA,
    Field,
    Schema,
    Type,
)
from mm2.connect.data.struct import Struct, validate_value
from mm2.connect.errors import DataError, SchemaBuilderError


class SchemaBuilder:
    """Builds a schema: ``SchemaBuilder.struct().name("x").field("id", INT64_SCHEMA).build()``.

    A property that is already set cannot be set to another value: SchemaBuilderError, a DataError.
    """

    def __init__(self, type_: Type, *, key_schema: Schema | None = None, value_schema: Schema | None = None) -> None:
        self._type = type_
        self._key_schema = key_schema
        self._value_schema = value_schema
        self._properties: dict[str, Any] = {}
        self._parameters: dict[str, str] = {}
        self._fields: dict[str, Field] = {}

    @classmethod
    def int8(cls) -> Self:
        return cls(Type.INT8)

    @classmethod
    def int16(cls) -> Self:
        return cls(Type.INT16)

    @classmethod
    def int32(cls) -> Self:
        return cls(Type.INT32)

    @classmethod
    def int64(cls) -> Self:
        return cls(Type.INT64)

    @classmethod
    def float32(cls) -> Self:
        return cls(Type.FLOAT32)

    @classmethod
    def float64(cls) -> Self:
        return cls(Type.FLOAT64)

    @classmethod
    def boolean(cls) -> Self:
        return cls(Type.BOOLEAN)

    @classmethod
    def string(cls) -> Self:
        return cls(Type.STRING)

    @classmethod
    def bytes(cls) -> Self:
        return cls(Type.BYTES)

    @classmethod
    def struct(cls) -> Self:
        return cls(Type.STRUCT)

    @classmethod
    def array(cls, value_schema: Schema) -> Self:
        """An array of items of this schema."""
        return cls(Type.ARRAY, value_schema=value_schema)

    @classmethod
    def map(cls, key_schema: Schema, value_schema: Schema) -> Self:
        """A map with keys and values of these schemas."""
        return cls(Type.MAP, key_schema=key_schema, value_schema=value_schema)

    @classmethod
    def like(cls, source: Schema, type_: Type | None = None) -> Self:
        """Copies name, version, doc and parameters of another schema, and its type unless ``type_`` is given.

        Does not copy fields, the default value or whether the schema is optional (SchemaUtil.copySchemaBasics).
        """
        builder = cls(type_ or source.type)
        if builder._type is source.type:
            builder._key_schema, builder._value_schema = source.key_schema, source.value_schema
        return builder.name(source.name).version(source.version).doc(source.doc).parameters(source.parameters)

    @property
    def type(self) -> Type:
        return self._type

    def _set(self, what: str, value: Any) -> Self:
        if what in self._properties and self._properties[what] != value:
            raise SchemaBuilderError(f"Invalid SchemaBuilder call: {what} has already been set.")
        if value is not None:
            self._properties[what] = value
        return self

    def optional(self) -> Self:
        """Values may be None."""
        return self._set("optional", True)

    def required(self) -> Self:
        """Values may not be None; this is the default."""
        return self._set("optional", False)

    def default(self, value: Any) -> Self:
        """The default value. Raises SchemaBuilderError when it does not fit the schema built so far."""
        try:
            validate_value(self.build(), value)
        except DataError as error:
            raise SchemaBuilderError(f"Invalid default value: {error}") from error
        return self._set("default", value)

    def name(self, name: str | None) -> Self:
        """The name of the type, e.g. of a logical type."""
        return self._set("name", name)

    def version(self, version: int | None) -> Self:
        """The version of the named type."""
        return self._set("version", version)

    def doc(self, doc: str | None) -> Self:
        """Documentation."""
        return self._set("doc", doc)

    def parameter(self, name: str, value: str) -> Self:
        """Add a parameter."""
        self._parameters[name] = value
        return self

    def parameters(self, parameters: Mapping[str, str]) -> Self:
        """Add parameters."""
        self._parameters.update(parameters)
        return self

    def field(self, name: str, schema: Schema) -> Self:
        """Add a field to a struct."""
        if self._type is not Type.STRUCT:
            raise SchemaBuilderError(f"Cannot create fields on type {self._type.value}")
        if not name:
            raise SchemaBuilderError("A field needs a name")
        if name in self._fields:
            raise SchemaBuilderError(f"Cannot create field because of field name duplication {name}")
        self._fields[name] = Field(name, len(self._fields), schema)
        return self

    def has_field(self, name: str) -> bool:
        """Whether a field of this name exists."""
        return name in self._fields

    def build(self) -> Schema:
        """The schema."""
        return Schema(
            self._type,
            self._properties.get("optional", False),
            self._properties.get("default"),
            self._properties.get("name"),
            self._properties.get("version"),
            self._properties.get("doc"),
            MappingProxyType(dict(self._parameters)),
            tuple(self._fields.values()),
            self._key_schema,
            self._value_schema,
        )


def infer_schema(value: Any) -> Schema | None:
    """Infer a value's schema; None when that is not possible. Integers are int64: Python's have no width."""
    match value:
        case str():
            return STRING_SCHEMA
        case bool():
            return BOOLEAN_SCHEMA
        case int():
            return INT64_SCHEMA
        case float():
            return FLOAT32_SCHEMA if isinstance(value, Float32) else FLOAT64_SCHEMA
        case bytes() | bytearray() | memoryview():
            return BYTES_SCHEMA
        case Struct():
            return value.schema
        case list() | tuple():
            items = _common_schema(value)
            return None if items is None else SchemaBuilder.array(items).build()
        case Mapping():
            keys, values = _common_schema(value), _common_schema(value.values())
            return None if keys is None or values is None else SchemaBuilder.map(keys, values).build()
        case _:
            return None


def _common_schema(values: Any) -> Schema | None:
    """The common schema of all values, optional when some are None; None when they differ or there are none."""
    found: Schema | None = None
    optional = False
    for value in values:
        if value is None:
            optional = True
            continue
        schema = infer_schema(value)
        if schema is None or (found is not None and found.type is not schema.type):
            return None
        found = schema
    return found.as_optional() if found is not None and optional else found
