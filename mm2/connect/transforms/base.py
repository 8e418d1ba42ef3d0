"""Base classes of transformations, their validators and checks, and paths of fields.

Corresponds to org.apache.kafka.connect.transforms.util and .field. A transformation of the key or of the value is one
class with two subclasses that select the part of the record.

The path to one field may be nested (KIP-821). V1: the text is a field's name. V2: names separated by dots; a name that
contains dots is enclosed in backticks, and a backslash before a backtick followed by a dot makes the backtick part of the
name.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import Enum
from functools import lru_cache
from typing import Any, ClassVar, Final, TypeVar

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance, Type, one_of_any_case
from mm2.config.configdef import Type as ConfigType
from mm2.config.definitions.validators import Check, Validator
from mm2.connect.api.transformation import Record, Transformation
from mm2.connect.data.record import ConnectRecord, SinkRecord
from mm2.connect.data.schema import Field, Schema
from mm2.connect.data.struct import Struct
from mm2.connect.errors import DataError

REPLACE_NULL_WITH_DEFAULT: Final = "replace.null.with.default"
FIELD_SYNTAX_VERSION: Final = "field.syntax.version"
_PURPOSE: Final = "nested field access"
#: Number of schemas for which a transformation caches the result, as in Java.
_REMEMBERED: Final = 16

_Made = TypeVar("_Made")


def split_pair(text: str) -> list[str]:
    """The parts between colons, without empty ones at the end, as in Java's String.split."""
    parts = text.split(":")
    while len(parts) > 1 and not parts[-1]:
        parts.pop()
    return parts


def non_empty_list() -> Check:
    """A list with at least one item; duplicates are kept."""

    def ensure(name: str, value: object) -> None:
        if not value:
            raise ConfigException(name, value, "Empty list")

    return Check(ensure, "non-empty list")


def non_null() -> Check:
    """Any value except null."""

    def ensure(name: str, value: object) -> None:
        if value is None:
            raise ConfigException(name, None, "entry must be non null")

    return Check(ensure, "non-null string")


def every(*validators: Validator) -> Check:
    """All of these validators in order (ConfigDef.CompositeValidator)."""

    def ensure(name: str, value: object) -> None:
        for validator in validators:
            validator.ensure_valid(name, value)

    return Check(ensure, ", ".join(map(str, validators)))


def require_map(value: Any, purpose: str) -> dict[str, Any]:
    """Raises DataError when it is not a map."""
    if not isinstance(value, dict):
        raise DataError(
            f"Only Map objects supported in absence of schema for [{purpose}], found: {type(value).__name__}"
        )
    return value


def require_struct(value: Any, purpose: str) -> Struct:
    """Raises DataError when it is not a struct."""
    if not isinstance(value, Struct):
        raise DataError(f"Only Struct objects supported for [{purpose}], found: {type(value).__name__}")
    return value


def require_struct_or_none(value: Any, purpose: str) -> Struct | None:
    """Raises DataError when it is neither a struct nor None."""
    return None if value is None else require_struct(value, purpose)


def require_map_or_none(value: Any, purpose: str) -> dict[str, Any] | None:
    """Raises DataError when it is neither a map nor None."""
    return None if value is None else require_map(value, purpose)


def require_sink_record(record: ConnectRecord, purpose: str) -> SinkRecord:
    """Raises DataError when it is from a source connector."""
    if not isinstance(record, SinkRecord):
        raise DataError(f"Only SinkRecord supported for [{purpose}], found: {type(record).__name__}")
    return record


class Configured:
    """A mixin that precedes `Transformation` or `Predicate` in the list of bases."""

    CONFIG: ClassVar[ConfigDef] = ConfigDef()

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return self.CONFIG

    def configure(self, props: Mapping[str, Any]) -> None:
        self._configured(AbstractConfig(self.CONFIG, props))

    def _configured(self, settings: AbstractConfig) -> None:
        """Read the settings. Raises ConfigException when they are inconsistent."""


class RecordPart(Enum):
    """The part of a record that a transformation changes."""

    KEY = "key"
    VALUE = "value"


_KEY: Final = RecordPart.KEY  # a global name: see mm2.connect.data.schema


def with_replace_null(definition: ConfigDef) -> ConfigDef:
    """The definition with the last key of most transformations, replace.null.with.default."""
    return definition.define(
        REPLACE_NULL_WITH_DEFAULT,
        ConfigType.BOOLEAN,
        True,
        importance=Importance.MEDIUM,
        doc="Whether null values of fields with a default are replaced by the default.",
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
        return record.key_schema if self.part is _KEY else record.value_schema

    def _value_of(self, record: ConnectRecord) -> Any:
        return record.key if self.part is _KEY else record.value

    def _changed(self, record: Record, schema: Schema | None, value: Any, **more: Any) -> Record:
        """The record with a new key or value."""
        if self.part is _KEY:
            return record.new_record(key_schema=schema, key=value, **more)
        return record.new_record(value_schema=schema, value=value, **more)

    def _field_value(self, struct: Struct, field: Field) -> Any:
        """A field's value; its default if the field is null and the configuration asks for it."""
        return struct.get(field.name) if self._replace_null else struct.get_without_default(field.name)


def with_field_syntax(definition: ConfigDef) -> ConfigDef:
    """The definition with the key for the path syntax."""
    return definition.define(
        FIELD_SYNTAX_VERSION,
        Type.STRING,
        "V1",
        one_of_any_case("V1", "V2"),
        importance=Importance.HIGH,
        doc="Syntax of field names. V1: names of top-level fields. V2: dots separate the names of nested fields; a name "
        "that contains dots is enclosed in backticks, as in `foo.bar`.baz.",
    )


class FieldPath:
    """One path. Raises ConfigException when a backtick is not closed."""

    def __init__(self, text: str, version: str) -> None:
        self._steps = [text] if version.upper() == "V1" else _steps(text)
        if not self._steps:
            raise ConfigException("field", text, "Empty path")

    def field_of(self, schema: Schema) -> Field | None:
        """The field at the path. Raises DataError when a step on the path is not a struct."""
        for step in self._steps[:-1]:
            field = schema.field_named(step)
            if field is None:
                return None
            schema = field.schema
        return schema.field_named(self._steps[-1])

    def value_in_struct(self, struct: Struct | None, *, with_default: bool) -> Any:
        """The value at the path; None when the field is missing. Raises DataError when a step is not a struct."""
        for step in self._steps[:-1]:
            if struct is None or struct.schema.field_named(step) is None:
                return None
            struct = require_struct_or_none(struct.get(step), _PURPOSE)
        last = self._steps[-1]
        if struct is None or struct.schema.field_named(last) is None:
            return None
        return struct.get(last) if with_default else struct.get_without_default(last)

    def value_in_map(self, value: dict[str, Any] | None) -> Any:
        """The value at the path; None when it is missing. Raises DataError when a step is not a map."""
        for step in self._steps[:-1]:
            if value is None:
                return None
            value = require_map_or_none(value.get(step), _PURPOSE)
        return None if value is None else value.get(self._steps[-1])


def _steps(path: str) -> list[str]:
    steps: list[str] = []
    at = 0
    while at < len(path):
        if path[at] != "`":
            end = path.find(".", at)
            end = len(path) if end < 0 else end
            steps.append(path[at:end])
            at = end + 1
        else:
            step, at = _quoted_step(path, at)
            steps.append(step)
    if path.endswith("."):
        steps.append("")
    return steps


def _quoted_step(path: str, opening: int) -> tuple[str, int]:
    """The name between backticks, and the position after it."""
    name = ""
    start = at = opening + 1
    while True:
        at = path.find("`", at)
        if at < 0:
            raise _incomplete(path, opening)
        escaped = path[at - 1] == "\\"
        is_last = at == len(path) - 1
        if is_last and escaped:
            raise _incomplete(path, opening)
        if is_last:
            return name + path[start:at], at + 1
        if path[at + 1] != ".":
            at += 1
        elif escaped:
            name += path[start : at - 1] + "`"
            start = at = at + 1
        else:
            return name + path[start:at], at + 2


def _incomplete(path: str, opening: int) -> ConfigException:
    return ConfigException(
        f"Incomplete backtick pair in path: [{path}], consider adding a backslash before backtick at position "
        f"{opening} to escape it"
    )
