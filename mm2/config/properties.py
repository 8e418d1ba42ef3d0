"""Java ``.properties`` files (spec mirrormaker §1.1): what ``java.util.Properties.load`` makes of them.

The last of several equal keys wins; leading blanks of a value go, trailing ones stay.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import javaproperties

from mm2.config.values import ConfigException

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class UnreadableFile(ConfigException):
    """A file of properties that is not there, or may not be read."""


def parse_properties(text: str, *, source: str = "properties text") -> dict[str, str]:
    """Key → value of a file's text. Raises :class:`ConfigException` naming ``source`` and the line of a bad escape."""
    return {key: value for key, value, _ in _entries(text, source)}


def property_lines(text: str, *, source: str = "properties text") -> dict[str, int]:
    """Key → number of the line (from 1) where what counts of it begins, the last one of several. Raises as `parse_properties`."""
    return {key: line for key, _, line in _entries(text, source)}


def load_properties(path: Path, *, encoding: str = "latin-1") -> dict[str, str]:
    """Key → value of a file, ISO 8859-1 as Java reads it.

    Raises :class:`UnreadableFile`, or :class:`ConfigException` naming the file (and the line).
    """
    return parse_properties(read_text(path, encoding=encoding), source=str(path))


def read_text(path: Path, *, encoding: str = "latin-1") -> str:
    """The text of a file of properties, line ends as they are. Raises as `load_properties`."""
    try:
        # newline="": a lone carriage return ends a line in Java too, and only the parser may judge that.
        with path.open(encoding=encoding, newline="") as file:
            return file.read()
    except OSError as error:
        raise UnreadableFile(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigException(f"Cannot read {path}: byte {error.start} is not {encoding}.") from error


def _entries(text: str, source: str) -> Iterator[tuple[str, str, int]]:
    line = 1
    try:
        for element in javaproperties.parse(text):
            if isinstance(element, javaproperties.KeyValue):
                yield element.key, element.value, line
            line += _line_ends(element.source)
    except javaproperties.InvalidUEscapeError as error:
        raise ConfigException(f"{source}, line {line}: {error}") from error


def _line_ends(text: str) -> int:
    return text.replace("\r\n", "\n").replace("\r", "\n").count("\n")
