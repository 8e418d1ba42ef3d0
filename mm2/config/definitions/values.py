"""Conversion of configuration strings to typed values: booleans, numbers, lists, secrets.

Rules and error texts are those of ``org.apache.kafka.common.config.ConfigDef.parseType`` in Kafka 4.3.0, because users
search for these texts.
"""

from __future__ import annotations

import math
import re
from decimal import Decimal
from enum import Enum
from typing import Final

# Java's String.trim() removes all characters up to and including the blank, and no others (a no-break space stays).
_JAVA_BLANKS: Final = "".join(map(chr, range(0x21)))
_LIST_SEPARATOR: Final = re.compile(r"\s*,\s*", re.ASCII)
_INTEGER: Final = re.compile(r"[+-]?\d+")
_DECIMAL: Final = re.compile(r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?)[fFdD]?")
_HEXADECIMAL: Final = re.compile(r"([+-]?0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?")
_NOT_FINITE: Final = re.compile(r"[+-]?(?:NaN|Infinity)")


class _Absent(Enum):
    """The type of :data:`NO_DEFAULT`; an enum, so that type checkers can distinguish it from every value."""

    ABSENT = "no default"


NO_DEFAULT: Final = _Absent.ABSENT
"""Marks a required key, as opposed to one whose default is ``None``."""


class ConfigType(Enum):
    """The types of Kafka's configuration values; the member's value is the name in REST responses."""

    BOOLEAN = "BOOLEAN"
    STRING = "STRING"
    INT = "INT"
    SHORT = "SHORT"
    LONG = "LONG"
    DOUBLE = "DOUBLE"
    LIST = "LIST"
    CLASS = "CLASS"
    PASSWORD = "PASSWORD"  # noqa: S105 - the name of a type


_WIDTH_BITS: Final = {ConfigType.SHORT: 16, ConfigType.INT: 32, ConfigType.LONG: 64}
_WIDTH_NAME: Final = {
    ConfigType.SHORT: "a 16-bit integer (short)",
    ConfigType.INT: "a 32-bit integer",
    ConfigType.LONG: "a 64-bit integer (long)",
}


class Password:
    """A secret: only :attr:`value` returns its text; ``str`` and ``repr`` return ``[hidden]``."""

    __slots__ = ("value",)
    HIDDEN: Final = "[hidden]"

    def __init__(self, value: str) -> None:
        self.value = value

    def __str__(self) -> str:
        return self.HIDDEN

    def __repr__(self) -> str:
        return self.HIDDEN

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Password) and self.value == other.value

    def __hash__(self) -> int:
        return hash(self.value)


_LOGIN_IN_URL: Final = re.compile(r"(?<=://)[^/?#\s,@]*@")
#: Some services take a key as a parameter of their URL.
_QUERY_OF_URL: Final = re.compile(r"(://[^?#\s,]*\?)[^#\s,]+")


def without_login(text: str) -> str:
    """The text with ``[hidden]`` in place of user and password, and of the query, in all URLs."""
    return _QUERY_OF_URL.sub(rf"\1{Password.HIDDEN}", _LOGIN_IN_URL.sub(f"{Password.HIDDEN}@", text))


def is_hidden(text: str) -> bool:
    """Whether the text has something that `without_login` hides, or is hidden as a whole."""
    return text == Password.HIDDEN or f"://{Password.HIDDEN}@" in text or f"?{Password.HIDDEN}" in text


class ConfigException(Exception):
    """An invalid configuration. As in Kafka, the arguments are a sentence; or key and value; or key, value and reason.

    ``name``, ``value`` and ``reason`` are ``None`` if not given. The text contains no user and password of a URL.
    """

    def __init__(self, name_or_sentence: str, value: object = NO_DEFAULT, reason: str | None = None) -> None:
        self.name: str | None = None
        self.value: object = None
        self.reason = reason
        text = name_or_sentence
        if value is not NO_DEFAULT:
            self.name, self.value = name_or_sentence, value
            text = f"Invalid value {without_login(show(value))} for configuration {name_or_sentence}"
            if reason is not None:
                text += f": {reason}"
        super().__init__(text)


class NoSuchClass(ConfigException):
    """The class that a key names does not exist.

    As in Kafka, such a text is not a valid CLASS, so its value is null.
    """


def missing(name: str) -> ConfigException:
    """The error for a missing required key; its ``name`` is set, so that callers can translate it."""
    error = ConfigException(f'Missing required configuration "{name}" which has no default value.')
    error.name = name
    return error


def show(value: object) -> str:
    """A value as Java prints it in messages and in REST responses (``null``, ``true``, ``[a, b]``)."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(show, value)) + "]"
    if isinstance(value, float):
        digits, _, exponent = f"{Decimal(repr(value)).normalize():e}".lower().partition("e")
        return floating_point(value, digits.lstrip("-").replace(".", ""), int(exponent or 0))
    return str(value)


def floating_point(value: float, digits: str, exponent: int) -> str:
    """Java's text of a number with these digits, of which the first one has this power of ten."""
    if math.isnan(value):
        return "NaN"
    sign = "-" if math.copysign(1.0, value) < 0 else ""
    if math.isinf(value):
        return f"{sign}Infinity"
    if value == 0:
        return f"{sign}0.0"
    if -3 <= exponent < 7:
        if exponent < 0:
            return f"{sign}0.{'0' * (-exponent - 1)}{digits}"
        whole = digits[: exponent + 1].ljust(exponent + 1, "0")
        return f"{sign}{whole}.{digits[exponent + 1 :] or '0'}"
    return f"{sign}{digits[0]}.{digits[1:] or '0'}E{exponent}"


def trim(text: str) -> str:
    """Java's ``String.trim``: also removes control characters, but not a no-break space."""
    return text.strip(_JAVA_BLANKS)


def split_list(text: str) -> list[str]:
    """The items of a LIST, split at commas and trimmed; a blank text has no items, and a comma cannot be escaped."""
    trimmed = trim(text)
    return _LIST_SEPARATOR.split(trimmed) if trimmed else []


def parse_type(name: str, value: object, type_: ConfigType) -> object:
    """Convert ``value`` (usually a string) to ``type_``; ``None`` stays ``None``.

    BOOLEAN gives bool, INT/SHORT/LONG int within their width, DOUBLE float, LIST list[str], PASSWORD :class:`Password`,
    STRING and CLASS str (a CLASS is the Java class name; the plugin registry checks whether it exists). Raises
    :class:`ConfigException` with Kafka's text.
    """
    if value is None:
        return None
    match type_:
        case ConfigType.BOOLEAN:
            return _parse_boolean(name, value)
        case ConfigType.INT | ConfigType.SHORT | ConfigType.LONG:
            return _parse_integer(name, value, type_)
        case ConfigType.DOUBLE:
            return _parse_double(name, value)
        case ConfigType.LIST:
            return _parse_list(name, value)
        case ConfigType.PASSWORD:
            return value if isinstance(value, Password) else Password(_text(name, value))
        case ConfigType.STRING:
            return _text(name, value)
        case ConfigType.CLASS:
            return _parse_class(name, value)


def _parse_boolean(name: str, value: object) -> bool:
    if isinstance(value, bool):
        return value
    match trim(value).lower() if isinstance(value, str) else "":
        case "true":
            return True
        case "false":
            return False
        case _:
            raise ConfigException(name, value, "Expected value to be either true or false")


def _parse_integer(name: str, value: object, type_: ConfigType) -> int:
    limit = 1 << (_WIDTH_BITS[type_] - 1)
    if isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit:
        return value
    if not isinstance(value, str):
        raise ConfigException(name, value, f"Expected value to be {_WIDTH_NAME[type_]}, but it was a {_kind(value)}")
    trimmed = trim(value)
    if _INTEGER.fullmatch(trimmed):
        number = int(trimmed)
        if -limit <= number < limit:
            return number
    raise ConfigException(name, value, f"Not a number of type {type_.value}")


def _parse_double(name: str, value: object) -> float:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, str):
        raise ConfigException(name, value, f"Expected value to be a double, but it was a {_kind(value)}")
    trimmed = trim(value)
    if found := _DECIMAL.fullmatch(trimmed):
        return float(found[1])
    if found := _HEXADECIMAL.fullmatch(trimmed):
        return float.fromhex(found[1])
    if _NOT_FINITE.fullmatch(trimmed):
        return float(trimmed)
    raise ConfigException(name, value, "Not a number of type DOUBLE")


def _parse_list(name: str, value: object) -> list[str]:
    if isinstance(value, str):
        return split_list(value)
    if isinstance(value, list | tuple):
        return [str(item) for item in value]
    raise ConfigException(name, value, "Expected a comma separated list.")


def _parse_class(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigException(name, value, "Expected a Class instance or class name.")
    trimmed = trim(value)
    if not trimmed:
        raise ConfigException(name, value, f"Class {trimmed} could not be found.")
    return trimmed


def _text(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ConfigException(name, value, f"Expected value to be a string, but it was a {_kind(value)}")
    return trim(value)


def _kind(value: object) -> str:
    return type(value).__name__
