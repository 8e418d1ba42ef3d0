"""The path to one field, possibly nested (KIP-821; org.apache.kafka.connect.transforms.field.SingleFieldPath).

V1: the text is a field's name. V2: names separated by dots; a name that contains dots is enclosed in backticks, and a
backslash before a backtick followed by a dot makes the backtick part of the name.
"""

from __future__ import annotations

from typing import Any, Final

from mm2.config.configdef import ConfigDef, ConfigException, Importance, Type, one_of_any_case
from mm2.connect.data.schema import Field, Schema
from mm2.connect.data.struct import Struct
from mm2.connect.transforms.base import require_map_or_none, require_struct_or_none

FIELD_SYNTAX_VERSION: Final = "field.syntax.version"
_PURPOSE: Final = "nested field access"


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
