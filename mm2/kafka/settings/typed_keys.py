"""Typed reads of Java-style keys; errors name the key."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import field, fields
from typing import Any, Final

from mm2.config.configdef import ConfigException

_READ: Final = "read"


class TypedKeys:
    """Typed reads from a property map; a blank or missing value is the default, as null and "" usually are in Java."""

    def __init__(self, props: Mapping[str, str]) -> None:
        self._props = props

    def text(self, key: str, default: str) -> str:
        value = self._props.get(key)
        return default if value is None else str(value).strip()

    def optional(self, key: str) -> str | None:
        return self.text(key, "") or None

    def secret(self, key: str) -> str | None:
        """A password as written, including blanks; a `Password` object of the config package is unwrapped."""
        value: Any = self._props.get(key)
        if value is None:
            return None
        return str(getattr(value, "value", value)) or None

    def choice(self, key: str, default: str, allowed: tuple[str, ...], *, upper: bool = False) -> str:
        value = self.text(key, default)
        known = value.upper() if upper else value
        if known not in allowed:
            raise ConfigException(key, value, f"must be one of {', '.join(allowed)}")
        return known

    def integer(self, key: str, default: int, *, low: int, high: int | None = None) -> int:
        value = self.text(key, "")
        if not value:
            return default
        if not re.fullmatch(r"[+-]?\d+", value):  # as Java: int() accepts underscores, too
            raise ConfigException(key, value, "Not a number of type INT or LONG")
        number = int(value)
        if number < low:
            raise ConfigException(key, value, f"Value must be at least {low}")
        if high is not None and number > high:
            raise ConfigException(key, value, f"Value must be no more than {high}")
        return number

    def optional_integer(self, key: str) -> int | None:
        return self.integer(key, 0, low=0) if self.text(key, "") else None

    def decimal(self, key: str, default: float, *, low: float, high: float) -> float:
        value = self.text(key, "")
        if not value:
            return default
        try:
            number = float(value)
        except ValueError:
            raise ConfigException(key, value, "Not a number of type DOUBLE") from None
        if not low <= number <= high:
            raise ConfigException(key, value, f"Value must be between {low} and {high}")
        return number

    def boolean(self, key: str, default: bool) -> bool:
        value = self.text(key, "").lower()
        if not value:
            return default
        if value not in {"true", "false"}:
            raise ConfigException(key, value, "Expected value to be either true or false")
        return value == "true"

    def names(self, key: str, default: tuple[str, ...]) -> tuple[str, ...]:
        value = self._props.get(key)
        if value is None:
            return default
        return tuple(part for part in (part.strip() for part in str(value).split(",")) if part)

    def values_of(self, settings: type) -> dict[str, Any]:
        """Values of the fields of a dataclass that are declared by `setting`."""
        return {one.name: one.metadata[_READ](self) for one in fields(settings) if _READ in one.metadata}


def setting(read: Callable[..., Any], key: str, *default: Any, **limits: Any) -> Any:
    """A field with the value of a key, and its default; ``read`` is a method of `TypedKeys`. Secrets are not in a `repr`."""
    return field(
        default=default[0] if default else None,
        repr=read is not TypedKeys.secret,
        metadata={_READ: lambda keys: read(keys, key, *default, **limits)},
    )
