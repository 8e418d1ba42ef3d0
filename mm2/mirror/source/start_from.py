"""``start.from``: the offsets at which partitions without a committed position start. Pure except for reading the file.

The value is a timestamp, or ``file:`` and the path of a list of offsets. The file has one of these formats, which are
distinguished by how the file begins:

=====================================================================  ================================================
``topic,partition,offset`` per line (CSV; blank lines, ``#`` comments  the first offset to copy
and a header are allowed), as ``kafka-consumer-groups --export``
writes for one group
``[{"topic": "t", "partition": 0, "offset": 41}, …]``                  the first offset to copy
``{"offsets": [{"partition": {"cluster": "A", "topic": "t",            the **last** offset that was copied, as in
"partition": 0}, "offset": {"offset": 40}}, …]}``, the output of       MirrorMaker's own records: copying starts after
``GET /connectors/<name>/offsets`` of Connect (KIP-875)                it; null = no position
``{"topic": …, "offsets": [{"connector": …, "partition": …,            the same; rows of connectors that are no
"offset": …, …}, …]}``, the output of ``mm2 offsets list --json``      MirrorSourceConnector or have another source
                                                                       are ignored
=====================================================================  ================================================
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from types import MappingProxyType
from typing import Any, Final

from mm2.config.configdef import ConfigException
from mm2.config.definitions.validators import is_topic_name
from mm2.config.files.regular_file import UnusableFile, read_regular_file
from mm2.kafka.structs import TopicPartition

START_FROM_KEY: Final = "start.from"

_FILE: Final = "file:"
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
#: The positions of 200,000 partitions (`remote.partitions.max`), as `mm2 offsets list --json` prints them, take 60 MB.
_MOST_BYTES: Final = 128 << 20
_MAX_OFFSET: Final = 2**63 - 1
_MAX_PARTITION: Final = 2**31 - 1
_DIGITS: Final = re.compile(r"[0-9]{1,19}")
_HEADER: Final = ["topic", "partition", "offset"]
_BLANKS: Final = re.compile(r"\s*")
_DECODER: Final = json.JSONDecoder()
_CONNECT_LIST: Final = re.compile(r'\s*\{\s*(?:"topic"\s*:\s*"[^"]*"\s*,\s*)?"offsets"\s*:\s*(?=\[)')
_SOURCE_FIELDS: Final = {"cluster", "topic", "partition"}
_SHAPE: Final = '{"topic": …, "partition": …, "offset": …}'


@dataclass(frozen=True)
class StartFrom:
    """Start offsets of partitions without a committed position; ``auto.offset.reset`` applies to all others.

    ``timestamp_ms``: start at the first record that is not older. ``offsets``: start at these offsets; other partitions
    start as if nothing were set. At most one of the two is set.
    """

    timestamp_ms: int | None = None
    offsets: Mapping[TopicPartition, int] = field(default_factory=lambda: MappingProxyType({}))


def parse_start_from(text: str, *, source_alias: str | None = None) -> StartFrom:
    """Parse a value of ``start.from``; an empty value sets nothing.

    With ``source_alias``, entries of Connect's format must be of that cluster. Reads the file, if one is given. Raises
    ConfigException with one message, which contains file and line of a bad entry.
    """
    value = text.strip()
    if not value:
        return StartFrom()
    if not names_file(value):
        return StartFrom(timestamp_ms=_timestamp_ms(value))
    path = value.removeprefix(_FILE).strip()
    if not path:
        raise ConfigException(START_FROM_KEY, text, "file: must be followed by a path")
    try:
        content = str(read_regular_file(path, _MOST_BYTES), "utf-8-sig")
    except UnusableFile as error:
        raise ConfigException(START_FROM_KEY, text, f"{path} {error}") from error
    except OSError as error:
        raise ConfigException(START_FROM_KEY, text, f"{path} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigException(START_FROM_KEY, text, f"{path} is not UTF-8 text") from error
    except ValueError as error:  # a NUL
        raise ConfigException(START_FROM_KEY, text, f"{path!r} is not a path") from error
    offsets: dict[TopicPartition, int] = {}
    others: set[str] = set()
    try:
        for line, entry in _entries(content):
            if entry.is_listed and _is_from_elsewhere(entry, source_alias):
                others.add(str(entry.cluster))
            else:
                _add(offsets, line, entry, source_alias)
    except _BadLine as error:
        raise ConfigException(START_FROM_KEY, text, f"line {error.line} of {path}: {error}") from error
    if others and not offsets:
        reason = f"{path} has no position of cluster {source_alias}, only of {', '.join(sorted(others))}"
        raise ConfigException(START_FROM_KEY, text, reason)
    return StartFrom(offsets=MappingProxyType(offsets))


def names_file(text: str) -> bool:
    """Whether a value of ``start.from`` names a file."""
    return text.strip().startswith(_FILE)


class _BadLine(Exception):
    """A line of the file is invalid; the message is the reason."""

    def __init__(self, line: int, message: str) -> None:
        super().__init__(message)
        self.line = line


@dataclass(frozen=True)
class _WrittenOffset:
    """One entry as written, not validated.

    ``copied``: the offset is the last one copied, not the next one. ``is_listed``: a row of ``mm2 offsets list``, which
    lists an offsets topic with all its connectors.
    """

    topic: Any
    partition: Any
    offset: Any
    copied: bool = False
    cluster: Any = None
    is_listed: bool = False


def _timestamp_ms(value: str) -> int:
    if _DIGITS.fullmatch(value) and int(value) <= _MAX_OFFSET:
        return int(value)
    try:
        instant = datetime.fromisoformat(value)
    except ValueError:
        reason = (
            "neither milliseconds since 1970 nor a time as in 2026-11-20T15:00:00Z (ISO 8601) nor file: and the path "
            "of a list of offsets"
        )
        raise ConfigException(START_FROM_KEY, value, reason) from None
    # As in kafka-consumer-groups --to-datetime, a time without a UTC offset is UTC, whatever the machine's time zone
    # is.
    instant = instant if instant.tzinfo is not None else instant.replace(tzinfo=UTC)
    if instant < _EPOCH:
        raise ConfigException(START_FROM_KEY, value, "the time is before 1970")
    return (instant - _EPOCH) // timedelta(milliseconds=1)


def _is_from_elsewhere(entry: _WrittenOffset, source_alias: str | None) -> bool:
    """Whether the entry names another cluster than the one that the flow copies from."""
    return None not in (entry.cluster, source_alias) and entry.cluster != source_alias


def _add(offsets: dict[TopicPartition, int], line: int, entry: _WrittenOffset, source_alias: str | None) -> None:
    """Validate and store one entry."""
    topic, partition, offset = entry.topic, entry.partition, entry.offset
    if not isinstance(topic, str) or not is_topic_name(topic):
        raise _BadLine(line, f"{topic!r} is not a topic name")
    if not _is_integer(partition) or not 0 <= partition <= _MAX_PARTITION:
        raise _BadLine(line, f"{partition!r} is not a partition number")
    place = TopicPartition(topic, partition)
    if _is_from_elsewhere(entry, source_alias):
        raise _BadLine(line, f"{place} is of cluster {entry.cluster!r}, but the flow copies from {source_alias}")
    if entry.copied and offset is None:
        return
    # In exactly-once mode -1 is written for "before the first record"; see docs/how-to/migration.md.
    if not _is_integer(offset) or not (-1 if entry.copied else 0) <= offset < _MAX_OFFSET:
        raise _BadLine(line, f"{offset!r} is not an offset")
    if place in offsets:
        raise _BadLine(line, f"{place} is listed twice")
    offsets[place] = offset + 1 if entry.copied else offset


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _entries(content: str) -> Iterator[tuple[int, _WrittenOffset]]:
    """(line, entry) for each entry of the file."""
    if content.lstrip()[:1] in ("[", "{"):
        return _json_entries(content)
    return _csv_entries(content)


def _csv_entries(content: str) -> Iterator[tuple[int, _WrittenOffset]]:
    reader = csv.reader(content.splitlines(), skipinitialspace=True)
    headed = False
    try:
        for row in reader:
            cells = [cell.strip() for cell in row]
            if not any(cells) or cells[0].startswith("#"):
                continue
            if not headed and [cell.lower() for cell in cells] == _HEADER:
                headed = True
                continue
            headed = True
            if len(cells) != len(_HEADER):
                raise _BadLine(reader.line_num, f"{len(cells)} columns instead of topic,partition,offset")
            topic, partition, offset = cells
            yield reader.line_num, _WrittenOffset(topic, _number(partition), _number(offset))
    except csv.Error as error:
        raise _BadLine(reader.line_num, str(error)) from error


def _number(cell: str) -> int | str:
    """A number, or the cell unchanged for the error message."""
    return int(cell) if _DIGITS.fullmatch(cell) else cell


def _json_entries(content: str) -> Iterator[tuple[int, _WrittenOffset]]:
    """Parse element by element, so that the line of a bad one is known."""
    connect = _CONNECT_LIST.match(content)
    at = connect.end() if connect else _skip_blanks(content, 0)
    line = 1 + content.count("\n", 0, at)
    if content[at : at + 1] != "[":
        raise _BadLine(line, f'neither a list of {_SHAPE} nor what Connect calls "offsets"')
    separator = "["
    while separator != "]":
        begin, at = at, _skip_blanks(content, at + 1)
        if content[at : at + 1] != "]":
            line += content.count("\n", begin, at)
            try:
                element, end = _DECODER.raw_decode(content, at)
            except (ValueError, RecursionError) as error:
                bad_line = error.lineno if isinstance(error, json.JSONDecodeError) else line
                raise _BadLine(bad_line, "not JSON") from error
            if not _is_of_other_connector(element):
                yield line, _json_entry(element, line)
            begin, at = at, _skip_blanks(content, end)
        line += content.count("\n", begin, at)
        separator = content[at : at + 1]
        if separator not in {",", "]"}:
            raise _BadLine(line, "not JSON: a comma or the end of the list is missing")
    if content[at + 1 :].strip() != ("}" if connect else ""):
        raise _BadLine(line, "not JSON: something follows the end of the list")


def _is_of_other_connector(element: Any) -> bool:
    """Whether a row of ``mm2 offsets list`` is not a position of a MirrorSourceConnector."""
    if not isinstance(element, dict) or "connector" not in element:
        return False
    partition = element.get("partition")
    return not isinstance(partition, dict) or partition.keys() != _SOURCE_FIELDS


def _json_entry(element: Any, line: int) -> _WrittenOffset:
    if isinstance(element, dict) and isinstance(partition := element.get("partition"), dict) and "offset" in element:
        offset = element["offset"]
        if offset is None or isinstance(offset, dict):
            number = None if offset is None else offset.get("offset", "")
            found = (partition.get("topic"), partition.get("partition"), number)
            cluster = partition.get("cluster")
            return _WrittenOffset(*found, copied=True, cluster=cluster, is_listed="connector" in element)
    elif isinstance(element, dict) and set(_HEADER) <= element.keys():
        return _WrittenOffset(element["topic"], element["partition"], element["offset"])
    raise _BadLine(line, f"{json.dumps(element, ensure_ascii=False)[:100]} is not {_SHAPE}")


def _skip_blanks(content: str, at: int) -> int:
    found = _BLANKS.match(content, at)
    return found.end() if found else at
