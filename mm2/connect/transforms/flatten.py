"""Flattens nested fields (org.apache.kafka.connect.transforms.Flatten)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from mm2.config.configdef import AbstractConfig, ConfigDef, Importance
from mm2.config.configdef import Type as ConfigType
from mm2.connect.api.transformation import Record
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.errors import DataError
from mm2.connect.data.schema import Schema, Type
from mm2.connect.data.struct import Struct
from mm2.connect.data.values import infer_schema
from mm2.connect.transforms.part import PartTransformation, RecordPart, remembering
from mm2.connect.transforms.requirements import require_map, require_struct

DELIMITER: Final = "delimiter"
_PURPOSE: Final = "flattening"


class Flatten(PartTransformation):
    """Moves nested fields to the top level with the names of their path, joined; arrays are not changed."""

    CONFIG = ConfigDef().define(
        DELIMITER, ConfigType.STRING, ".", importance=Importance.MEDIUM, doc="What stands between the joined names."
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._delimiter = settings.str(DELIMITER)
        self._flat_schema: Callable[[Schema], Schema] = remembering(self._flattened)

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if value is None:
            return record
        if schema is None:
            flat: dict[str, Any] = {}
            self._flatten_map(require_map(value, _PURPOSE), "", flat)
            return self._changed(record, None, flat)
        struct = require_struct(value, _PURPOSE)
        result = Struct(self._flat_schema(schema))
        self._flatten_struct(struct, "", result)
        return self._changed(record, result.schema, result)

    def _name(self, prefix: str, name: str) -> str:
        return f"{prefix}{self._delimiter}{name}" if prefix else name

    def _flatten_map(self, value: dict[str, Any], prefix: str, flat: dict[str, Any]) -> None:
        for key, item in value.items():
            if not isinstance(key, str):
                raise DataError(f"Flatten transformation needs names that are strings, not {key!r}")
            name = self._name(prefix, key)
            if isinstance(item, dict):
                self._flatten_map(item, name, flat)
            elif item is None or isinstance(item, list | tuple) or _is_primitive(item):
                flat[name] = item
            else:
                raise DataError(
                    f"Flatten transformation does not support {type(item).__name__} for record without schemas "
                    f"(for field {name})."
                )

    def _flatten_struct(self, struct: Struct | None, prefix: str, flat: Struct) -> None:
        if struct is None:
            return
        for field in struct.schema.fields:
            name = self._name(prefix, field.name)
            if field.schema.type is Type.STRUCT:
                self._flatten_struct(struct.get_without_default(field.name), name, flat)
            else:
                flat.put(name, struct.get(field.name))

    def _flattened(self, schema: Schema) -> Schema:
        builder = SchemaBuilder.like(schema, Type.STRUCT)
        self._add_fields(builder, schema, "", optional=schema.optional, parent=schema.default)
        return builder.build()

    def _add_fields(
        self, builder: SchemaBuilder, schema: Schema, prefix: str, *, optional: bool, parent: Struct | None
    ) -> None:
        for field in schema.fields:
            name = self._name(prefix, field.name)
            is_optional = optional or field.schema.optional
            default = field.schema.default
            if default is None and parent is not None:
                default = parent.get(field.name)
            if field.schema.type is Type.STRUCT:
                self._add_fields(builder, field.schema, name, optional=is_optional, parent=default)
            elif field.schema.type is Type.MAP:
                raise DataError(
                    f"Flatten transformation does not support MAP for record with schemas (for field {name})."
                )
            else:
                builder.field(name, _field_schema(field.schema, optional=is_optional, default=default))


def _field_schema(schema: Schema, *, optional: bool, default: Any) -> Schema:
    builder = SchemaBuilder.like(schema)
    if optional:
        builder.optional()
    if default is not None:
        builder.default(default)
    return builder.build()


def _is_primitive(value: Any) -> bool:
    inferred = infer_schema(value)
    return inferred is not None and inferred.type.is_primitive


class FlattenKey(Flatten):
    """Flattens the key."""

    part = RecordPart.KEY


class FlattenValue(Flatten):
    """Flattens the value."""

    part = RecordPart.VALUE
