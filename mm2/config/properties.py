"""Java ``.properties`` files (spec mirrormaker §1.1): what ``java.util.Properties.load`` makes of them.

The last of several equal keys wins; leading blanks of a value go, trailing ones stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import javaproperties

from mm2.config.values import ConfigException

if TYPE_CHECKING:
    from pathlib import Path


class UnreadableFile(ConfigException):
    """A file of properties that is not there, or may not be read."""


def parse_properties(text: str, *, source: str = "properties text") -> dict[str, str]:
    """Key → value of a file's text. Raises :class:`ConfigException` naming ``source`` and the line of a bad escape."""
    props: dict[str, str] = {}
    line = 1
    elements = javaproperties.parse(text)
    try:
        for element in elements:
            if isinstance(element, javaproperties.KeyValue):
                props[element.key] = element.value
            line += _line_ends(element.source)
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigException(f"{source}, line {line}: {error}") from error
    return props


def load_properties(path: Path, *, encoding: str = "latin-1") -> dict[str, str]:
    """Key → value of a file, ISO 8859-1 as Java reads it.

    Raises :class:`UnreadableFile`, or :class:`ConfigException` naming the file (and the line).
    """
    try:
        # newline="": a lone carriage return ends a line in Java too, and only the parser may judge that.
        with path.open(encoding=encoding, newline="") as file:
            text = file.read()
    except OSError as error:
        raise UnreadableFile(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigException(f"Cannot read {path}: byte {error.start} is not {encoding}.") from error
    return parse_properties(text, source=str(path))


def _line_ends(text: str) -> int:
    return text.replace("\r\n", "\n").replace("\r", "\n").count("\n")
