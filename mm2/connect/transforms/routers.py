"""Transformations that change the topic of a record or drop the record (RegexRouter, TimestampRouter and Filter of Java)."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigDef, ConfigException, Importance
from mm2.config.configdef import Type as ConfigType
from mm2.config.definitions.java_regex import JavaPattern, compile_java
from mm2.config.definitions.validators import regular_expression
from mm2.connect.api.transformation import Record, Transformation
from mm2.connect.data.simple_date_format import DatePatternError, SimpleDateFormat
from mm2.connect.errors import DataError
from mm2.connect.transforms.base import Configured

REGEX: Final = "regex"
REPLACEMENT: Final = "replacement"
TOPIC_FORMAT: Final = "topic.format"
TIMESTAMP_FORMAT: Final = "timestamp.format"
_NAMED_GROUP: Final = re.compile(r"\$\{([a-zA-Z][a-zA-Z0-9]*)\}")


def expand(replacement: str, regex: JavaPattern, group: Callable[[int | str], str | None]) -> str:
    """A replacement with the groups of a match filled in, in Java's form: $1, ${name}, a backslash before a literal character.

    Raises DataError for a group that does not exist.
    """
    result = ""
    at = 0
    while at < len(replacement):
        char = replacement[at]
        if char == "\\":
            if at + 1 == len(replacement):
                raise DataError("A backslash at the end of a replacement escapes nothing")
            result, at = result + replacement[at + 1], at + 2
        elif char != "$":
            result, at = result + char, at + 1
        elif named := _NAMED_GROUP.match(replacement, at):
            if named[1] not in regex.groupindex:
                raise DataError(f"No group with name {{{named[1]}}}")
            result, at = result + (group(named[1]) or ""), named.end()
        else:
            number, at = _numbered(replacement, at + 1, regex.groups)
            result += group(number) or ""
    return result


def _numbered(replacement: str, at: int, groups: int) -> tuple[int, int]:
    """The group number at this position, with as many digits as form an existing group, and its end."""
    digits = re.compile("[0-9]+").match(replacement, at)
    if digits is None:
        raise DataError(f"Illegal group reference in the replacement {replacement}")
    number, end = int(digits[0][0]), at + 1
    if number > groups:
        raise DataError(f"No group {number}")
    while end < digits.end() and number * 10 + int(replacement[end]) <= groups:
        number, end = number * 10 + int(replacement[end]), end + 1
    return number, end


class RegexRouter(Configured, Transformation):
    """If the whole topic matches, replaces the first match; other topics are not changed."""

    CONFIG = (
        ConfigDef()
        .define(
            REGEX,
            ConfigType.STRING,
            validator=regular_expression(),
            importance=Importance.HIGH,
            doc="The pattern that topics must match.",
        )
        .define(REPLACEMENT, ConfigType.STRING, importance=Importance.HIGH, doc="The new topic; $1 is the first group.")
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._regex = compile_java(settings.str(REGEX))
        self._replacement = settings.str(REPLACEMENT)

    def apply(self, record: Record) -> Record | None:
        topic = self.route(record.topic)
        return record if topic == record.topic else record.new_record(topic=topic)

    def route(self, topic: str) -> str:
        """The new name of a topic. Raises DataError if the replacement refers to a group that does not exist."""
        if not self._regex.fullmatch(topic):
            return topic
        # Java replaces the first match found, which may be shorter than the match of the whole topic.
        found = self._regex.search(topic)
        if found is None:
            raise AssertionError("what matches as a whole is found")
        return topic[: found.start()] + expand(self._replacement, self._regex, found.__getitem__) + topic[found.end() :]

    def check_replacement(self) -> None:
        """Raise DataError if `route` raises it for each topic that matches."""
        expand(self._replacement, self._regex, lambda _: "")


class TimestampRouter(Configured, Transformation):
    """Inserts the record's timestamp, in UTC, into the topic name."""

    CONFIG = (
        ConfigDef()
        .define(
            TOPIC_FORMAT,
            ConfigType.STRING,
            "${topic}-${timestamp}",
            importance=Importance.HIGH,
            doc="The new topic; it may contain <code>${topic}</code> and <code>${timestamp}</code>.",
        )
        .define(
            TIMESTAMP_FORMAT,
            ConfigType.STRING,
            "yyyyMMdd",
            importance=Importance.HIGH,
            doc="Format of the timestamp, a pattern of <code>java.text.SimpleDateFormat</code>.",
        )
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._topic_format = settings.str(TOPIC_FORMAT)
        pattern = settings.str(TIMESTAMP_FORMAT)
        try:
            self._format = SimpleDateFormat(pattern)
        except DatePatternError as error:
            raise ConfigException(TIMESTAMP_FORMAT, pattern, str(error)) from error

    def apply(self, record: Record) -> Record | None:
        if record.timestamp is None:
            raise DataError(f"Timestamp missing on a record of topic {record.topic}")
        topic = self._topic_format.replace("${topic}", record.topic)
        return record.new_record(topic=topic.replace("${timestamp}", self._format.format(record.timestamp)))


class Filter(Configured, Transformation):
    """Drops every record; use it with a predicate."""

    CONFIG = ConfigDef()

    def apply(self, record: Record) -> Record | None:
        return None
