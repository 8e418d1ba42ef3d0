"""Headers from fields or constants, and removal of headers (HeaderFrom, InsertHeader and DropHeaders of Java)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, Type, distinct, one_of
from mm2.connect.api.transformation import Record, Transformation
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.record import Header, Headers
from mm2.connect.data.schema import Schema
from mm2.connect.data.schema import Type as SchemaType
from mm2.connect.data.struct import Struct
from mm2.connect.data.values import parse_string
from mm2.connect.errors import DataError
from mm2.connect.transforms.base import (
    Configured,
    PartTransformation,
    RecordPart,
    non_empty_list,
    non_null,
    remembering,
    require_map,
    require_struct,
    with_replace_null,
)

FIELDS: Final = "fields"
HEADERS: Final = "headers"
OPERATION: Final = "operation"
HEADER: Final = "header"
VALUE_LITERAL: Final = "value.literal"
MOVE: Final = "move"
COPY: Final = "copy"


class HeaderFrom(PartTransformation):
    """Moves or copies fields of the key or value into headers."""

    CONFIG = with_replace_null(
        ConfigDef()
        .define(FIELDS, Type.LIST, validator=non_empty_list(), importance=Importance.HIGH, doc="Fields to take.")
        .define(
            HEADERS,
            Type.LIST,
            validator=non_empty_list(),
            importance=Importance.HIGH,
            doc="Names of the headers, one for each field, in the same order.",
        )
        .define(
            OPERATION,
            Type.STRING,
            validator=one_of(MOVE, COPY),
            importance=Importance.HIGH,
            doc="Whether the fields are removed (move) or kept (copy).",
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._fields, self._names = settings.list(FIELDS), settings.list(HEADERS)
        if len(self._fields) != len(self._names):
            raise ConfigException(f"'{FIELDS}' config must have the same number of elements as '{HEADERS}' config.")
        self._operation = settings.str(OPERATION)
        self._remaining_schema: Callable[[Schema], Schema] = remembering(self._remaining)

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        purpose = f"header {self._operation}"
        headers = record.headers
        if schema is None:
            fields = require_map(value, purpose)
            left: Any = dict(fields)
            for field, name in zip(self._fields, self._names, strict=True):
                headers = headers.with_header(name, fields.get(field))
                if self._operation == MOVE:
                    left.pop(field, None)
            return self._changed(record, None, left, headers=headers)
        struct = require_struct(value, purpose)
        headers = self._with_fields(headers, struct, schema)
        if self._operation == COPY:
            return self._changed(record, schema, struct, headers=headers)
        left = Struct(self._remaining_schema(schema))
        for each in left.schema.fields:
            left.put(each.name, self._field_value(struct, each))
        return self._changed(record, left.schema, left, headers=headers)

    def _with_fields(self, headers: Headers, struct: Struct, schema: Schema) -> Headers:
        for name, header in zip(self._fields, self._names, strict=True):
            field = schema.field_named(name)
            if field is None:
                raise DataError(f"Field does not exist: {name}")
            held = struct.schema.field_named(name)
            value = None if held is None else self._field_value(struct, held)
            headers = headers.with_header(header, value, field.schema)
        return headers

    def _remaining(self, schema: Schema) -> Schema:
        builder = SchemaBuilder.like(schema, SchemaType.STRUCT)
        for field in schema.fields:
            if field.name not in self._fields:
                builder.field(field.name, field.schema)
        return builder.build()


class HeaderFromKey(HeaderFrom):
    """Takes fields of the key."""

    part = RecordPart.KEY


class HeaderFromValue(HeaderFrom):
    """Takes fields of the value."""

    part = RecordPart.VALUE


class InsertHeader(Configured, Transformation):
    """Adds the same header to every record; its value is parsed from text like in SimpleHeaderConverter."""

    CONFIG = (
        ConfigDef()
        .define(HEADER, Type.STRING, validator=non_null(), importance=Importance.HIGH, doc="The name of the header.")
        .define(VALUE_LITERAL, Type.STRING, validator=non_null(), importance=Importance.HIGH, doc="The value as text.")
    )

    def _configured(self, settings: AbstractConfig) -> None:
        schema, value = parse_string(settings.str(VALUE_LITERAL))
        self._header = Header(settings.str(HEADER), value, schema)

    def apply(self, record: Record) -> Record | None:
        return record.new_record(headers=Headers((*record.headers, self._header)))


class DropHeaders(Configured, Transformation):
    """Removes all headers with these names."""

    CONFIG = ConfigDef().define(
        HEADERS,
        Type.LIST,
        validator=distinct(empty_allowed=False),
        importance=Importance.HIGH,
        doc="Names of headers to remove.",
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._headers = settings.list(HEADERS)

    def apply(self, record: Record) -> Record | None:
        return record.new_record(headers=record.headers.without(*self._headers))
