"""Transformations that add, remove, rename or move fields, or change the name of a schema.

ExtractField, HoistField, InsertField, ReplaceField, Flatten, ValueToKey and SetSchemaMetadata of Java.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, distinct
from mm2.config.configdef import Type as ConfigType
from mm2.config.definitions.validators import Check
from mm2.connect.api.transformation import Record
from mm2.connect.data import logical
from mm2.connect.data.builder import SchemaBuilder, infer_schema
from mm2.connect.data.record import ConnectRecord
from mm2.connect.data.schema import INT32_SCHEMA, INT64_SCHEMA, STRING_SCHEMA, Schema, Type
from mm2.connect.data.struct import Struct
from mm2.connect.errors import DataError
from mm2.connect.transforms.base import (
    FIELD_SYNTAX_VERSION,
    FieldPath,
    PartTransformation,
    RecordPart,
    remembering,
    require_map,
    require_map_or_none,
    require_sink_record,
    require_struct,
    require_struct_or_none,
    split_pair,
    with_field_syntax,
    with_replace_null,
)

FIELD: Final = "field"
_EXTRACTION: Final = "field extraction"


class ExtractField(PartTransformation):
    """Replaces the key or value by one of its fields; null stays null."""

    CONFIG = with_field_syntax(
        with_replace_null(
            ConfigDef().define(FIELD, ConfigType.STRING, importance=Importance.MEDIUM, doc="The field to extract.")
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._text = settings.str(FIELD)
        self._path = FieldPath(self._text, settings.str(FIELD_SYNTAX_VERSION))

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if schema is None:
            return self._changed(record, None, self._path.value_in_map(require_map_or_none(value, _EXTRACTION)))
        struct = require_struct_or_none(value, _EXTRACTION)
        field = self._path.field_of(schema)
        if field is None:
            raise DataError(f"Unknown field: {self._text}")
        return self._changed(record, field.schema, self._path.value_in_struct(struct, with_default=self._replace_null))


class ExtractFieldKey(ExtractField):
    """Extracts from the key."""

    part = RecordPart.KEY


class ExtractFieldValue(ExtractField):
    """Extracts from the value."""

    part = RecordPart.VALUE


class HoistField(PartTransformation):
    """The key or value becomes the only field of a struct, or the only entry of a map."""

    CONFIG = ConfigDef().define(
        FIELD,
        ConfigType.STRING,
        importance=Importance.MEDIUM,
        doc="The name of the field that contains the key or value.",
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._field = settings.str(FIELD)
        self._outer: Callable[[Schema], Schema] = remembering(
            lambda schema: SchemaBuilder.struct().field(self._field, schema).build()
        )

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if schema is None:
            return self._changed(record, None, {self._field: value})
        struct = Struct(self._outer(schema)).put(self._field, value)
        return self._changed(record, struct.schema, struct)


class HoistFieldKey(HoistField):
    """Wraps the key."""

    part = RecordPart.KEY


class HoistFieldValue(HoistField):
    """Wraps the value."""

    part = RecordPart.VALUE


TOPIC_FIELD: Final = "topic.field"
PARTITION_FIELD: Final = "partition.field"
OFFSET_FIELD: Final = "offset.field"
TIMESTAMP_FIELD: Final = "timestamp.field"
STATIC_FIELD: Final = "static.field"
STATIC_VALUE: Final = "static.value"
_INSERTION: Final = "field insertion"
_SUFFIXES: Final = "A suffix ! makes it a required field, ? an optional one, which it is by default."
_SCHEMAS: Final = {
    TOPIC_FIELD: STRING_SCHEMA,
    PARTITION_FIELD: INT32_SCHEMA,
    OFFSET_FIELD: INT64_SCHEMA,
    TIMESTAMP_FIELD: logical.TIMESTAMP_SCHEMA,
    STATIC_FIELD: STRING_SCHEMA,
}


@dataclass(frozen=True)
class Insertion:
    """One field to insert; the configuration key determines its content."""

    key: str
    name: str
    optional: bool

    @classmethod
    def parse(cls, key: str, spec: str) -> Insertion:
        return cls(key, spec[:-1] if spec.endswith(("?", "!")) else spec, not spec.endswith("!"))

    @property
    def schema(self) -> Schema:
        return _SCHEMAS[self.key].as_optional() if self.optional else _SCHEMAS[self.key]


class InsertField(PartTransformation):
    """Adds fields with topic, partition, offset, timestamp or a fixed text."""

    CONFIG = with_replace_null(
        ConfigDef()
        .define(
            TOPIC_FIELD, ConfigType.STRING, None, importance=Importance.MEDIUM, doc=f"Field for the topic. {_SUFFIXES}"
        )
        .define(
            PARTITION_FIELD,
            ConfigType.STRING,
            None,
            importance=Importance.MEDIUM,
            doc=f"Field for the partition. {_SUFFIXES}",
        )
        .define(
            OFFSET_FIELD,
            ConfigType.STRING,
            None,
            importance=Importance.MEDIUM,
            doc=f"Field for the offset, with sink connectors only. {_SUFFIXES}",
        )
        .define(
            TIMESTAMP_FIELD,
            ConfigType.STRING,
            None,
            importance=Importance.MEDIUM,
            doc=f"Field for the timestamp. {_SUFFIXES}",
        )
        .define(
            STATIC_FIELD,
            ConfigType.STRING,
            None,
            importance=Importance.MEDIUM,
            doc=f"Field for a fixed text. {_SUFFIXES}",
        )
        .define(STATIC_VALUE, ConfigType.STRING, None, importance=Importance.MEDIUM, doc="The fixed text.")
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._insertions = [Insertion.parse(key, spec) for key in _SCHEMAS if (spec := settings.get(key)) is not None]
        self._static: str | None = settings.get(STATIC_VALUE)
        if not self._insertions:
            raise ConfigException("No field insertion configured")
        static = next((each.name for each in self._insertions if each.key == STATIC_FIELD), None)
        if static is not None and self._static is None:
            raise ConfigException(STATIC_VALUE, None, f"No value specified for static field: {static}")
        self._updated_schema: Callable[[Schema], Schema] = remembering(self._updated)

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if value is None:
            return record
        if schema is None:
            fields = dict(require_map(value, _INSERTION))
            for insertion in self._insertions:
                inserted = self._inserted(insertion, record)
                if inserted is not None:
                    fields[insertion.name] = inserted
            return self._changed(record, None, fields)
        return self._with_schema(record, require_struct(value, _INSERTION))

    def _with_schema(self, record: Record, struct: Struct) -> Record:
        result = Struct(self._updated_schema(struct.schema))
        for field in struct.schema.fields:
            result.put(field.name, self._field_value(struct, field))
        for insertion in self._insertions:
            inserted = self._inserted(insertion, record)
            if inserted is None:
                continue
            is_timestamp = insertion.key == TIMESTAMP_FIELD
            result.put(insertion.name, logical.timestamp_from_ms(inserted) if is_timestamp else inserted)
        return self._changed(record, result.schema, result)

    def _inserted(self, insertion: Insertion, record: ConnectRecord) -> Any:
        match insertion.key:
            case "topic.field":
                return record.topic
            case "partition.field":
                return record.partition
            case "offset.field":
                return require_sink_record(record, _INSERTION).kafka_offset
            case "timestamp.field":
                return record.timestamp
            case _:
                return self._static

    def _updated(self, schema: Schema) -> Schema:
        builder = SchemaBuilder.like(schema, Type.STRUCT)
        for field in schema.fields:
            builder.field(field.name, field.schema)
        for insertion in self._insertions:
            builder.field(insertion.name, insertion.schema)
        return builder.build()


class InsertFieldKey(InsertField):
    """Inserts into the key."""

    part = RecordPart.KEY


class InsertFieldValue(InsertField):
    """Inserts into the value."""

    part = RecordPart.VALUE


EXCLUDE: Final = "exclude"
INCLUDE: Final = "include"
RENAMES: Final = "renames"
_REPLACEMENT: Final = "field replacement"


def parse_renames(mappings: list[str]) -> dict[str, str]:
    """New names by old names. Raises ConfigException."""
    renames: dict[str, str] = {}
    for mapping in mappings:
        parts = split_pair(mapping)
        if len(parts) != 2:
            raise ConfigException(RENAMES, mappings, f"Invalid rename mapping: {mapping}")
        renames[parts[0]] = parts[1]
    return renames


def _check_renames(name: str, value: object) -> None:
    if isinstance(value, list):
        parse_renames(value)


class ReplaceField(PartTransformation):
    """Removes fields and renames the remaining ones."""

    CONFIG = with_replace_null(
        ConfigDef()
        .define(
            EXCLUDE,
            ConfigType.LIST,
            [],
            distinct(),
            importance=Importance.MEDIUM,
            doc="Fields to exclude, even if they are included.",
        )
        .define(
            INCLUDE,
            ConfigType.LIST,
            [],
            distinct(),
            importance=Importance.MEDIUM,
            doc="Fields to include; by default all.",
        )
        .define(
            RENAMES,
            ConfigType.LIST,
            [],
            Check(_check_renames, "list of colon-delimited pairs, e.g. <code>foo:bar,abc:xyz</code>"),
            importance=Importance.MEDIUM,
            doc="Pairs old:new of field names.",
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._exclude, self._include = frozenset(settings.list(EXCLUDE)), frozenset(settings.list(INCLUDE))
        self._renames = parse_renames(settings.list(RENAMES))
        self._original_names = {new: old for old, new in self._renames.items()}
        self._updated_schema: Callable[[Schema], Schema] = remembering(self._updated)

    def _stays(self, name: str) -> bool:
        return name not in self._exclude and (not self._include or name in self._include)

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if value is None:
            return record
        if schema is None:
            fields = require_map(value, _REPLACEMENT)
            left = {self._renames.get(name, name): item for name, item in fields.items() if self._stays(name)}
            return self._changed(record, None, left)
        struct = require_struct(value, _REPLACEMENT)
        result = Struct(self._updated_schema(struct.schema))
        for field in result.schema.fields:
            name = self._original_names.get(field.name, field.name)
            result.put(field.name, struct.get(name) if self._replace_null else struct.get_without_default(name))
        return self._changed(record, result.schema, result)

    def _updated(self, schema: Schema) -> Schema:
        builder = SchemaBuilder.like(schema, Type.STRUCT)
        for field in schema.fields:
            if self._stays(field.name):
                builder.field(self._renames.get(field.name, field.name), field.schema)
        return builder.build()


class ReplaceFieldKey(ReplaceField):
    """Changes fields of the key."""

    part = RecordPart.KEY


class ReplaceFieldValue(ReplaceField):
    """Changes fields of the value."""

    part = RecordPart.VALUE


DELIMITER: Final = "delimiter"
_FLATTENING: Final = "flattening"


class Flatten(PartTransformation):
    """Moves nested fields to the top level with the names of their path, joined; arrays are not changed."""

    CONFIG = ConfigDef().define(
        DELIMITER, ConfigType.STRING, ".", importance=Importance.MEDIUM, doc="Separator between the joined names."
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
            self._flatten_map(require_map(value, _FLATTENING), "", flat)
            return self._changed(record, None, flat)
        struct = require_struct(value, _FLATTENING)
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


FIELDS: Final = "fields"
_COPYING: Final = "copying fields from value to key"


class ValueToKey(PartTransformation):
    """Replaces the key by a struct or map of some fields of the value."""

    part = RecordPart.VALUE
    CONFIG = with_field_syntax(
        with_replace_null(
            ConfigDef().define(
                FIELDS,
                ConfigType.LIST,
                validator=distinct(empty_allowed=False),
                importance=Importance.HIGH,
                doc="Fields of the value that form the key, named as they are given here.",
            )
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        version = settings.str(FIELD_SYNTAX_VERSION)
        self._paths = {name: FieldPath(name, version) for name in settings.list(FIELDS)}
        self._key_schema: Callable[[Schema], Schema] = remembering(self._of_fields)

    def apply(self, record: Record) -> Record | None:
        if record.value_schema is None:
            fields = require_map(record.value, _COPYING)
            key = {name: path.value_in_map(fields) for name, path in self._paths.items()}
            return record.new_record(key_schema=None, key=key)
        value = require_struct(record.value, _COPYING)
        struct = Struct(self._key_schema(value.schema))
        for name, path in self._paths.items():
            struct.put(name, path.value_in_struct(value, with_default=self._replace_null))
        return record.new_record(key_schema=struct.schema, key=struct, value_schema=value.schema)

    def _of_fields(self, schema: Schema) -> Schema:
        builder = SchemaBuilder.struct()
        for name, path in self._paths.items():
            field = path.field_of(schema)
            if field is None:
                raise DataError(f"Field does not exist: {name}")
            builder.field(name, field.schema)
        return builder.build()


SCHEMA_NAME: Final = "schema.name"
SCHEMA_VERSION: Final = "schema.version"


class SetSchemaMetadata(PartTransformation):
    """Sets name, version or both; all other properties of the schema are kept."""

    CONFIG = with_replace_null(
        ConfigDef()
        .define(SCHEMA_NAME, ConfigType.STRING, None, importance=Importance.HIGH, doc="The name to set.")
        .define(SCHEMA_VERSION, ConfigType.INT, None, importance=Importance.HIGH, doc="The version to set.")
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._name: str | None = settings.get(SCHEMA_NAME)
        self._version: int | None = settings.get(SCHEMA_VERSION)
        if self._name is None and self._version is None:
            raise ConfigException("Neither schema name nor version configured")

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if schema is None:
            if value is None:
                return record
            raise DataError("Schema required for [updating schema metadata]")
        updated = replace(
            schema,
            name=schema.name if self._name is None else self._name,
            version=schema.version if self._version is None else self._version,
        )
        if not isinstance(value, Struct):
            return self._changed(record, updated, value)
        result = Struct(updated)
        for field in updated.fields:
            result.put(field.name, self._field_value(value, field))
        return self._changed(record, updated, result)


class SetSchemaMetadataKey(SetSchemaMetadata):
    """Changes the key's schema."""

    part = RecordPart.KEY


class SetSchemaMetadataValue(SetSchemaMetadata):
    """Changes the value's schema."""

    part = RecordPart.VALUE
