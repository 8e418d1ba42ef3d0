"""Removes and renames fields (org.apache.kafka.connect.transforms.ReplaceField)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, distinct
from mm2.config.configdef import Type as ConfigType
from mm2.config.validators import Check
from mm2.connect.api.transformation import Record
from mm2.connect.data.builder import SchemaBuilder
from mm2.connect.data.schema import Schema, Type
from mm2.connect.data.struct import Struct
from mm2.connect.transforms.pairs import split_pair
from mm2.connect.transforms.part import PartTransformation, RecordPart, remembering, with_replace_null
from mm2.connect.transforms.requirements import require_map, require_struct

EXCLUDE: Final = "exclude"
INCLUDE: Final = "include"
RENAMES: Final = "renames"
_PURPOSE: Final = "field replacement"


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
            doc="Fields to leave out, even if they are included.",
        )
        .define(
            INCLUDE,
            ConfigType.LIST,
            [],
            distinct(),
            importance=Importance.MEDIUM,
            doc="Fields that stay; all of them when none is named.",
        )
        .define(
            RENAMES,
            ConfigType.LIST,
            [],
            Check(_check_renames, "list of colon-delimited pairs, e.g. <code>foo:bar,abc:xyz</code>"),
            importance=Importance.MEDIUM,
            doc="Pairs old:new of names.",
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
            fields = require_map(value, _PURPOSE)
            left = {self._renames.get(name, name): item for name, item in fields.items() if self._stays(name)}
            return self._changed(record, None, left)
        struct = require_struct(value, _PURPOSE)
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
