"""Replaces a record part by one of its fields (org.apache.kafka.connect.transforms.ExtractField)."""

from __future__ import annotations

from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type
from mm2.connect.api.transformation import Record
from mm2.connect.data.errors import DataError
from mm2.connect.transforms.field_path import FIELD_SYNTAX_VERSION, FieldPath, with_field_syntax
from mm2.connect.transforms.part import PartTransformation, RecordPart, with_replace_null
from mm2.connect.transforms.requirements import require_map_or_none, require_struct_or_none

FIELD: Final = "field"
_PURPOSE: Final = "field extraction"


class ExtractField(PartTransformation):
    """Replaces the key or value by one of its fields; null stays null."""

    CONFIG = with_field_syntax(
        with_replace_null(
            ConfigDef().define(FIELD, Type.STRING, importance=Importance.MEDIUM, doc="The field to take.")
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._text = settings.str(FIELD)
        self._path = FieldPath(self._text, settings.str(FIELD_SYNTAX_VERSION))

    def apply(self, record: Record) -> Record | None:
        value, schema = self._value_of(record), self._schema_of(record)
        if schema is None:
            return self._changed(record, None, self._path.value_in_map(require_map_or_none(value, _PURPOSE)))
        struct = require_struct_or_none(value, _PURPOSE)
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
