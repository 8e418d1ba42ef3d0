"""Parser of Java ``.properties`` files, compatible with ``java.util.Properties.load``.

The last of several equal keys wins. Leading blanks of a value are removed, trailing blanks are kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import javaproperties

from mm2.config.definitions.values import ConfigException

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class UnreadableFile(ConfigException):
    """A properties file does not exist or cannot be read."""


def parse_properties(text: str, *, source: str = "properties text") -> dict[str, str]:
    """Key → value of a file's text. Raises :class:`ConfigException` naming ``source`` and the line of a bad escape."""
    return {key: value for key, value, _ in _entries(text, source)}


def property_lines(text: str, *, source: str = "properties text") -> dict[str, int]:
    """Key → line number (from 1) of its last definition. Raises as `parse_properties`."""
    return {key: line for key, _, line in _entries(text, source)}


def load_properties(path: Path) -> dict[str, str]:
    """Key → value of a file, ISO 8859-1 as Java reads it.

    Raises :class:`UnreadableFile`, or :class:`ConfigException` naming the file (and the line).
    """
    return parse_properties(read_text(path), source=str(path))


def read_text(path: Path, *, encoding: str = "latin-1") -> str:
    """The text of a properties file with its original line ends. Raises as `load_properties`."""
    try:
        # newline="": a lone carriage return ends a line in Java too, so the parser needs the original line ends.
        with path.open(encoding=encoding, newline="") as file:
            return file.read()
    except OSError as error:
        raise UnreadableFile(f"Cannot read {path}: {error.strerror}.") from error
    except UnicodeDecodeError as error:
        raise ConfigException(f"Cannot read {path}: byte {error.start} is not {encoding}.") from error


def file_stamp(path: Path) -> tuple[int, ...] | None:
    """What changes with the content of a file; None while it cannot be found. The first item is the time of its last write.

    Permissions are included: changing them may be all that makes an unreadable file readable.
    """
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_size, found.st_ino, found.st_dev, found.st_mode, found.st_uid, found.st_gid)


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
