"""One key of a definition (``ConfigDef.ConfigKey``, ``Importance``, ``Width`` and ``Recommender`` of Kafka)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum

from mm2.config.definitions.validators import DistinctList, Validator
from mm2.config.definitions.values import NO_DEFAULT, ConfigType, missing, parse_type


class Importance(Enum):
    """Importance of a key; the member's value is the name in REST responses."""

    HIGH = "HIGH"
    MEDIUM = "MEDIUM"
    LOW = "LOW"


class Width(Enum):
    """Width of the value's input field in a user interface; the member's value is the name in REST responses."""

    NONE = "NONE"
    SHORT = "SHORT"
    MEDIUM = "MEDIUM"
    LONG = "LONG"


@dataclass(frozen=True)
class Recommender:
    """Valid values and visibility of a key for user interfaces.

    Both functions receive the key and all parsed values.
    """

    valid_values: Callable[[str, Mapping[str, object]], list[object]]
    visible: Callable[[str, Mapping[str, object]], bool] = lambda _name, _parsed: True


@dataclass(frozen=True)
class ConfigKey:
    """One row of a definition. ``default`` is :data:`NO_DEFAULT` for a required key, otherwise a typed value."""

    name: str
    type: ConfigType
    default: object
    validator: Validator | None = None
    importance: Importance = Importance.MEDIUM
    documentation: str = ""
    group: str | None = None
    order: int = -1
    width: Width = Width.NONE
    display_name: str = ""
    dependents: tuple[str, ...] = ()
    recommender: Recommender | None = None

    @property
    def required(self) -> bool:
        return self.default is NO_DEFAULT

    def parse(self, value: object, *, shown_as: str | None = None, merges_duplicates: bool = True) -> object:
        """Type and validate ``value``; errors name the key ``shown_as`` (default: its name).

        As in Kafka, reading a list of distinct items merges duplicates, and validating a connector reports them.
        """
        name = shown_as or self.name
        parsed = self.typed(value, shown_as=name) if merges_duplicates else parse_type(name, value, self.type)
        if self.validator is not None:
            self.validator.ensure_valid(name, parsed)
        return parsed

    def typed(self, value: object, *, shown_as: str | None = None) -> object:
        """Type ``value`` without validating it. Removes duplicates from a list that must not have any."""
        parsed = parse_type(shown_as or self.name, value, self.type)
        if isinstance(parsed, list) and isinstance(self.validator, DistinctList):
            return list(dict.fromkeys(parsed))
        return parsed

    def value_in(self, props: Mapping[str, object]) -> object:
        """The typed value in ``props``, or the default (lists copied)."""
        if self.name in props:
            return self.parse(props[self.name])
        if self.default is NO_DEFAULT:
            raise missing(self.name)
        return list(self.default) if isinstance(self.default, list | tuple) else self.default
