"""Validators of parsed values. Error texts are those of Kafka's ``ConfigDef`` and Connect (4.3.0).

A validator's ``str`` is its description; as in Kafka, lists of distinct values have none.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from mm2.config.definitions.java_regex import PatternError, compile_java
from mm2.config.definitions.values import ConfigException, show
from mm2.config.definitions.versions import InvalidVersionRange, version_requirement

_TOPIC_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,249}")


class Validator(Protocol):
    """Checks one parsed value."""

    def ensure_valid(self, name: str, value: object) -> None:
        """Raise :class:`ConfigException` naming the key ``name`` when ``value`` is invalid."""


@dataclass(frozen=True)
class Range:
    """A number within inclusive bounds; a bound of ``None`` is open. ``nullable`` allows an absent value."""

    lower: float | None = None
    upper: float | None = None
    nullable: bool = False

    def ensure_valid(self, name: str, value: object) -> None:
        if value is None:
            if self.nullable:
                return
            raise ConfigException(name, None, "Value must be non-null")
        if not isinstance(value, int | float):
            raise ConfigException(name, value, "Value must be a number")
        if self.lower is not None and value < self.lower:
            raise ConfigException(name, value, f"Value must be at least {self.lower}")
        if self.upper is not None and value > self.upper:
            raise ConfigException(name, value, f"Value must be no more than {self.upper}")

    def __str__(self) -> str:
        bounds = [*map(str, filter(lambda bound: bound is not None, (self.lower,))), "..."]
        return "[" + ",".join(bounds + ([] if self.upper is None else [str(self.upper)])) + "]"


def at_least(lower: float, *, nullable: bool = False) -> Range:
    """A number of ``lower`` or more."""
    return Range(lower=lower, nullable=nullable)


def between(lower: float, upper: float) -> Range:
    """A number from ``lower`` to ``upper``, both inclusive."""
    return Range(lower, upper)


@dataclass(frozen=True)
class OneOf:
    """One of the given words, in any case with ``ignore_case``; Kafka then shows them in upper case."""

    allowed: tuple[str, ...]
    ignore_case: bool = False

    def ensure_valid(self, name: str, value: object) -> None:
        if isinstance(value, str) and (value.upper() if self.ignore_case else value) in self.allowed:
            return
        manner = "one of (case insensitive)" if self.ignore_case else "one of"
        raise ConfigException(name, value, f"String must be {manner}: {', '.join(self.allowed)}")

    def __str__(self) -> str:
        return ("(case insensitive) " if self.ignore_case else "") + f"[{', '.join(self.allowed)}]"


def one_of(*allowed: str) -> OneOf:
    """One of the words, exactly as given."""
    return OneOf(allowed)


def one_of_any_case(*allowed: str) -> OneOf:
    """One of the words in any case."""
    return OneOf(tuple(word.upper() for word in allowed), ignore_case=True)


@dataclass(frozen=True)
class DistinctList:
    """A list of non-empty items (Kafka's ``ValidList``); :class:`ConfigDef` removes duplicates *before* validation.

    ``allowed`` empty = any items.
    """

    allowed: tuple[str, ...] = ()
    empty_allowed: bool = True
    null_allowed: bool = False

    def ensure_valid(self, name: str, value: object) -> None:
        if value is None:
            if not self.null_allowed:
                raise ConfigException(f"Configuration '{name}' values must not be null.")
            return
        items = value if isinstance(value, list) else [value]
        if not items and not self.empty_allowed:
            valid = show(self.allowed) if self.allowed else "any non-empty value"
            raise ConfigException(f"Configuration '{name}' must not be empty. Valid values include: {valid}")
        if len(set(items)) != len(items):
            raise ConfigException(f"Configuration '{name}' values must not be duplicated.")
        for item in items:
            if not item:
                raise ConfigException(f"Configuration '{name}' values must not be empty.")
            if self.allowed:
                OneOf(self.allowed).ensure_valid(name, item)

    def __str__(self) -> str:
        return show(self.allowed) if self.allowed else ""


def distinct(*, empty_allowed: bool = True, null_allowed: bool = False) -> DistinctList:
    """Any items; duplicates are removed silently."""
    return DistinctList((), empty_allowed, null_allowed)


def subset_of(*allowed: str) -> DistinctList:
    """Items of ``allowed``; duplicates are removed silently."""
    return DistinctList(allowed, empty_allowed=False)


@dataclass(frozen=True)
class Check:
    """A validator made of a function that raises, and a description."""

    ensure: Callable[[str, object], None]
    description: str

    def ensure_valid(self, name: str, value: object) -> None:
        self.ensure(name, value)

    def __str__(self) -> str:
        return self.description


def non_empty() -> Check:
    """A text that is not empty; may be absent."""

    def ensure(name: str, value: object) -> None:
        if value == "":
            raise ConfigException(name, value, "String must be non-empty")

    return Check(ensure, "non-empty string")


def is_topic_name(text: str) -> bool:
    """Whether Kafka accepts it as the name of a topic."""
    return _TOPIC_NAME.fullmatch(text) is not None and text not in {".", ".."}


def topic_name(*, empty_allowed: bool = False) -> Check:
    """The name of a topic."""

    def ensure(name: str, value: object) -> None:
        if not is_topic_name(str(value)) and not (empty_allowed and value == ""):
            reason = "A topic's name is up to 249 letters, digits, dots, underscores and hyphens"
            raise ConfigException(name, value, reason)

    return Check(ensure, "name of a topic")


def non_empty_without_control_characters() -> Check:
    """A name: not empty, no ISO control characters; may be absent."""

    def ensure(name: str, value: object) -> None:
        if value is None:
            return
        text = str(value)
        if not text:
            raise ConfigException(name, value, "String may not be empty")
        controls = [str(ord(char)) for char in text if unicodedata.category(char) == "Cc"]
        if controls:
            found = ", ".join(controls)
            raise ConfigException(
                name, value, f"String may not contain control sequences but had the following ASCII chars: {found}"
            )

    return Check(ensure, "non-empty string without ISO control characters")


def unique_aliases(kind: str) -> Check:
    """A list of aliases (of transformations, predicates, topic creation groups). Duplicates are an error."""

    def ensure(name: str, value: object) -> None:
        if value is None:
            raise ConfigException(name, None, "entry must be non null")
        if isinstance(value, list) and len(set(value)) != len(value):
            raise ConfigException(name, value, "Duplicate alias provided.")

    return Check(ensure, f"non-null string, unique {kind}")


def regular_expression() -> Check:
    """A regular expression of Java."""

    def ensure(name: str, value: object) -> None:
        try:
            compile_java(str(value))
        except PatternError as error:
            raise ConfigException(name, value, f"Invalid regex: {error}") from error

    return Check(ensure, "valid regex")


def regular_expressions() -> Check:
    """A list of regular expressions of Java."""

    def ensure(name: str, value: object) -> None:
        try:
            for item in value if isinstance(value, list) else []:
                compile_java(item)
        except PatternError as error:
            raise ConfigException(name, value, f"Syntax error in regular expression: {error}") from error

    return Check(ensure, "valid regular expressions")


def _plugin_version() -> Check:
    def ensure(_name: str, value: object) -> None:
        try:
            version_requirement(None if value is None else str(value))
        except InvalidVersionRange as error:
            raise ConfigException(str(error)) from error

    return Check(ensure, "version, or range of versions, of a plugin")


def _isolation() -> Check:
    known = ("loader", "process")

    def ensure(name: str, value: object) -> None:
        if value is not None and value not in known:
            raise ConfigException(name, value, f"String must be one of: {', '.join(known)}")

    return Check(ensure, show(known))


ISOLATION: Final = _isolation()
"""Isolation mode of a plugin (``plugin.isolation``); may be absent."""

PLUGIN_VERSION: Final = _plugin_version()
"""Value of ``*.plugin.version`` (KIP-891); may be absent."""


def positive_or_minus_one(message: str, description: str) -> Check:
    """A count of at least 1, or -1 for the broker's default."""

    def ensure(name: str, value: object) -> None:
        if isinstance(value, int) and (value == -1 or value >= 1):
            return
        raise ConfigException(name, value, message)

    return Check(ensure, description)


_OR_BROKER_DEFAULT: Final = "or -1 to use the broker's default"
PARTITIONS: Final = positive_or_minus_one(
    f"Number of partitions must be positive, {_OR_BROKER_DEFAULT}", f"Positive number, {_OR_BROKER_DEFAULT}"
)
"""A number of partitions of a topic to create."""
REPLICATION_FACTOR: Final = positive_or_minus_one(
    f"Replication factor must be positive and not larger than the number of brokers in the Kafka cluster, {_OR_BROKER_DEFAULT}",
    f"Positive number not larger than the number of brokers in the Kafka cluster, {_OR_BROKER_DEFAULT}",
)
"""A replication factor of a topic to create."""
