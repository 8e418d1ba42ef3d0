"""Base of transformations that work on the key or on the value of a record.

One class implements the transformation, and two subclasses select the part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeVar

from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type
from mm2.connect.api.transformation import Record, Transformation
from mm2.connect.data.record import ConnectRecord
from mm2.connect.data.schema import Field, Schema
from mm2.connect.data.struct import Struct
from mm2.connect.transforms.configured import Configured

REPLACE_NULL_WITH_DEFAULT: Final = "replace.null.with.default"
#: Number of schemas for which a transformation caches the result, as in Java.
_REMEMBERED: Final = 16

_Made = TypeVar("_Made")


class RecordPart(Enum):
    """The part of a record that a transformation changes."""

    KEY = "key"
    VALUE = "value"


def with_replace_null(definition: ConfigDef) -> ConfigDef:
    """The definition with the last key of most transformations, replace.null.with.default."""
    return definition.define(
        REPLACE_NULL_WITH_DEFAULT,
        Type.BOOLEAN,
        True,
        importance=Importance.MEDIUM,
        doc="Whether the default of a field takes the place of null.",
    )


def remembering(make: Callable[[Schema], _Made]) -> Callable[[Schema], _Made]:
    """The same function with a cache for the last schemas."""
    return lru_cache(maxsize=_REMEMBERED)(make)


class PartTransformation(Configured, Transformation):
    """A transformation of a part of the record."""

    part: ClassVar[RecordPart]
    _replace_null = True

    def configure(self, props: Mapping[str, Any]) -> None:
        settings = AbstractConfig(self.CONFIG, props)
        if REPLACE_NULL_WITH_DEFAULT in self.CONFIG:
            self._replace_null = settings.bool(REPLACE_NULL_WITH_DEFAULT)
        self._configured(settings)

    def _schema_of(self, record: ConnectRecord) -> Schema | None:
        return record.key_schema if self.part is RecordPart.KEY else record.value_schema

    def _value_of(self, record: ConnectRecord) -> Any:
        return record.key if self.part is RecordPart.KEY else record.value

    def _changed(self, record: Record, schema: Schema | None, value: Any, **more: Any) -> Record:
        """The record with a new key or value."""
        if self.part is RecordPart.KEY:
            return record.new_record(key_schema=schema, key=value, **more)
        return record.new_record(value_schema=schema, value=value, **more)

    def _field_value(self, struct: Struct, field: Field) -> Any:
        """A field's value; its default if the field is null and the configuration asks for it."""
        return struct.get(field.name) if self._replace_null else struct.get_without_default(field.name)
