"""Changes a schema's name or version (org.apache.kafka.connect.transforms.SetSchemaMetadata)."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, Type
from mm2.connect.api.transformation import Record
from mm2.connect.data.errors import DataError
from mm2.connect.data.struct import Struct
from mm2.connect.transforms.part import PartTransformation, RecordPart, with_replace_null

SCHEMA_NAME: Final = "schema.name"
SCHEMA_VERSION: Final = "schema.version"


class SetSchemaMetadata(PartTransformation):
    """Sets name, version or both; all other properties of the schema are kept."""

    CONFIG = with_replace_null(
        ConfigDef()
        .define(SCHEMA_NAME, Type.STRING, None, importance=Importance.HIGH, doc="The name to set.")
        .define(SCHEMA_VERSION, Type.INT, None, importance=Importance.HIGH, doc="The version to set.")
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
