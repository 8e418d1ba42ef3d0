"""Schemas of keys, values and headers (org.apache.kafka.connect.data.Schema).

Python types of values, by schema type:

  int8 int16 int32 int64   int within the type's range (never a bool)
  float32 float64          float
  boolean                  bool
  string                   str
  bytes                    bytes
  array                    list
  map                      dict
  struct                   mm2.connect.data.struct.Struct

Logical types are one of these with a name: Decimal is decimal.Decimal, Date datetime.date, Time datetime.time,
Timestamp an aware datetime.datetime (`mm2.connect.data.logical`). A value without schema (``None``) may have any of
these types.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from mm2.connect.errors import DataError

_NO_PARAMETERS: Final[Mapping[str, str]] = MappingProxyType({})


class Type(Enum):
    """Types of values; the member's value is the name used in Kafka's error messages."""

    INT8 = "INT8"
    INT16 = "INT16"
    INT32 = "INT32"
    INT64 = "INT64"
    FLOAT32 = "FLOAT32"
    FLOAT64 = "FLOAT64"
    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    BYTES = "BYTES"
    ARRAY = "ARRAY"
    MAP = "MAP"
    STRUCT = "STRUCT"

    @property
    def is_primitive(self) -> bool:
        """Whether values of this type do not contain other values."""
        return self not in {Type.ARRAY, Type.MAP, Type.STRUCT}

    __hash__ = object.__hash__  # Members are equal only to themselves. Enum's own function is written in Python.


#: In Python 3.11 reading a member from its class takes five times as long as reading a global name.
_STRUCT: Final = Type.STRUCT


@dataclass(frozen=True, slots=True)
class Field:
    """One field of a struct; ``index`` is its position."""

    name: str
    index: int
    schema: Schema


@dataclass(frozen=True, eq=False)
class Schema:
    """The type of a value and its properties. Immutable, compared by value. Built by SchemaBuilder."""

    type: Type
    optional: bool = False
    #: The value that replaces a missing one; None: there is no default.
    default: Any = None
    name: str | None = None
    version: int | None = None
    doc: str | None = None
    #: Further properties, e.g. the scale of a Decimal.
    parameters: Mapping[str, str] = field(default_factory=lambda: _NO_PARAMETERS)
    #: Fields of a struct.
    fields: tuple[Field, ...] = ()
    #: Schema of a map's keys.
    key_schema: Schema | None = None
    #: Schema of a map's values or of an array's items.
    value_schema: Schema | None = None
    _by_name: Mapping[str, Field] = field(init=False, repr=False)
    _hash: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_by_name", {each.name: each for each in self.fields})
        parts = (self.type, self.optional, self.name, self.version, tuple(self._by_name), self.value_schema)
        object.__setattr__(self, "_hash", hash(parts))

    def _facts(self) -> tuple[Any, ...]:
        return (
            self.type,
            self.optional,
            self.name,
            self.version,
            self.doc,
            self.default,
            type(self.default),  # in Python 1, 1.0 and True are equal
            dict(self.parameters),
            self.fields,
            self.key_schema,
            self.value_schema,
        )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, Schema):
            return NotImplemented
        return self._hash == other._hash and self._facts() == other._facts()

    def __hash__(self) -> int:
        return self._hash

    def field_named(self, name: str) -> Field | None:
        """The field of a struct with this name. Raises DataError when this is not a struct."""
        if self.type is not _STRUCT:
            raise DataError("Cannot look up fields on non-struct type")
        return self._by_name.get(name)

    def element_schema(self) -> Schema:
        """The schema of an array's items or of a map's values. Raises DataError for other types."""
        if self.value_schema is None:
            raise DataError(
                f"Cannot look up value schema on type {self.type.value}, which is neither an array nor a map"
            )
        return self.value_schema

    def as_optional(self) -> Schema:
        """The same schema, but optional."""
        return self if self.optional else replace(self, optional=True)

    def __str__(self) -> str:
        return f"Schema{{{self.name}:{self.type.value}}}" if self.name else f"Schema{{{self.type.value}}}"


class SchemaAndValue(NamedTuple):
    """A value and its schema; the schema is None if the value has none."""

    schema: Schema | None
    value: Any


NULL: Final = SchemaAndValue(None, None)
"""No schema and no value."""

INT8_SCHEMA: Final = Schema(Type.INT8)
INT16_SCHEMA: Final = Schema(Type.INT16)
INT32_SCHEMA: Final = Schema(Type.INT32)
INT64_SCHEMA: Final = Schema(Type.INT64)
FLOAT32_SCHEMA: Final = Schema(Type.FLOAT32)
FLOAT64_SCHEMA: Final = Schema(Type.FLOAT64)
BOOLEAN_SCHEMA: Final = Schema(Type.BOOLEAN)
STRING_SCHEMA: Final = Schema(Type.STRING)
BYTES_SCHEMA: Final = Schema(Type.BYTES)
OPTIONAL_INT8_SCHEMA: Final = INT8_SCHEMA.as_optional()
OPTIONAL_INT16_SCHEMA: Final = INT16_SCHEMA.as_optional()
OPTIONAL_INT32_SCHEMA: Final = INT32_SCHEMA.as_optional()
OPTIONAL_INT64_SCHEMA: Final = INT64_SCHEMA.as_optional()
OPTIONAL_FLOAT32_SCHEMA: Final = FLOAT32_SCHEMA.as_optional()
OPTIONAL_FLOAT64_SCHEMA: Final = FLOAT64_SCHEMA.as_optional()
OPTIONAL_BOOLEAN_SCHEMA: Final = BOOLEAN_SCHEMA.as_optional()
OPTIONAL_STRING_SCHEMA: Final = STRING_SCHEMA.as_optional()
OPTIONAL_BYTES_SCHEMA: Final = BYTES_SCHEMA.as_optional()
