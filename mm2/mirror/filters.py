"""Filters that select the topics, groups and topic properties to replicate.

A filter is created without arguments and then configured with all properties of its connector. A custom filter
subclasses one of these interfaces; its Python path is set in `*.filter.class`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

import structlog

from mm2.config.configdef import ConfigException
from mm2.config.definitions.java_regex import JavaPattern, PatternError, PatternTooSlow, compile_java

log = structlog.get_logger(__name__)

TOPICS_KEY: Final = "topics"
TOPICS_EXCLUDE_KEY: Final = "topics.exclude"
GROUPS_KEY: Final = "groups"
GROUPS_EXCLUDE_KEY: Final = "groups.exclude"
CONFIG_PROPERTIES_EXCLUDE_KEY: Final = "config.properties.exclude"
_PATTERN_KEYS: Final = {
    TOPICS_KEY,
    TOPICS_EXCLUDE_KEY,
    GROUPS_KEY,
    GROUPS_EXCLUDE_KEY,
    CONFIG_PROPERTIES_EXCLUDE_KEY,
}
USE_DEFAULTS_FROM_KEY: Final = "use.defaults.from"

TOPICS_DEFAULT: Final = ".*"
TOPICS_EXCLUDE_DEFAULT: Final = r"mm2.*\.internal, .*\.replica, __.*"
GROUPS_DEFAULT: Final = ".*"
GROUPS_EXCLUDE_DEFAULT: Final = "console-consumer-.*, connect-.*, __.*"
CONFIG_PROPERTIES_EXCLUDE_DEFAULT: Final = (
    "follower.replication.throttled.replicas, leader.replication.throttled.replicas, "
    "message.timestamp.difference.max.ms, log.message.timestamp.before.max.ms, log.message.timestamp.after.max.ms, "
    "message.timestamp.type, unclean.leader.election.enable, min.insync.replicas"
)


class MirrorFilter:
    """The base of the three filter interfaces."""

    def configure(self, props: Mapping[str, str]) -> None:
        """Configure the filter with the connector's properties. Raises ConfigException if they are invalid."""

    def close(self) -> None:
        """Release resources; called after the filter's connector or task has stopped."""


class TopicFilter(MirrorFilter, ABC):
    """Selects topics by their name on the source."""

    @abstractmethod
    def should_replicate_topic(self, topic: str) -> bool: ...


class GroupFilter(MirrorFilter, ABC):
    """Selects consumer groups by their id."""

    @abstractmethod
    def should_replicate_group(self, group: str) -> bool: ...


class ConfigPropertyFilter(MirrorFilter, ABC):
    """Selects the topic properties that are copied to the remote topic."""

    @abstractmethod
    def should_replicate_config_property(self, name: str) -> bool: ...

    def should_replicate_source_default(self, name: str) -> bool:
        """Whether to copy a source default instead of using the target's default. Called only for default values."""
        return False


def close_quietly(filter_: MirrorFilter) -> None:
    """Close the filter. An exception of a custom class is logged and ignored."""
    try:
        filter_.close()
    except Exception:
        log.exception("A filter could not be closed.", filter=type(filter_).__name__)


class DefaultTopicFilter(TopicFilter):
    """`topics` and not `topics.exclude`."""

    def configure(self, props: Mapping[str, str]) -> None:
        self._include = pattern_list(TOPICS_KEY, props.get(TOPICS_KEY, TOPICS_DEFAULT))
        self._exclude = pattern_list(TOPICS_EXCLUDE_KEY, props.get(TOPICS_EXCLUDE_KEY, TOPICS_EXCLUDE_DEFAULT))

    def should_replicate_topic(self, topic: str) -> bool:
        return _matches(TOPICS_KEY, self._include, topic) and not _matches(TOPICS_EXCLUDE_KEY, self._exclude, topic)


class DefaultGroupFilter(GroupFilter):
    """`groups` and not `groups.exclude`."""

    def configure(self, props: Mapping[str, str]) -> None:
        self._include = pattern_list(GROUPS_KEY, props.get(GROUPS_KEY, GROUPS_DEFAULT))
        self._exclude = pattern_list(GROUPS_EXCLUDE_KEY, props.get(GROUPS_EXCLUDE_KEY, GROUPS_EXCLUDE_DEFAULT))

    def should_replicate_group(self, group: str) -> bool:
        return _matches(GROUPS_KEY, self._include, group) and not _matches(GROUPS_EXCLUDE_KEY, self._exclude, group)


class DefaultConfigPropertyFilter(ConfigPropertyFilter):
    """All but `config.properties.exclude`; defaults of the source only with `use.defaults.from=source`."""

    def configure(self, props: Mapping[str, str]) -> None:
        self._exclude = pattern_list(
            CONFIG_PROPERTIES_EXCLUDE_KEY, props.get(CONFIG_PROPERTIES_EXCLUDE_KEY, CONFIG_PROPERTIES_EXCLUDE_DEFAULT)
        )
        self._source_defaults = props.get(USE_DEFAULTS_FROM_KEY, "target") == "source"

    def should_replicate_config_property(self, name: str) -> bool:
        return not _matches(CONFIG_PROPERTIES_EXCLUDE_KEY, self._exclude, name)

    def should_replicate_source_default(self, name: str) -> bool:
        return self._source_defaults


def pattern_list(key: str, value: str) -> JavaPattern | None:
    """One pattern for a comma-separated list of Java regexes; None for an empty list, which matches nothing.

    The items are joined with `|` before they are compiled, as in Java: `(a,b)`, which the list splits in two, still
    works.
    """
    items = list(dict.fromkeys(re.split(r"\s*,\s*", value.strip()))) if value.strip() else []
    try:
        return compile_java("|".join(items)) if items else None
    except PatternError as exc:
        hint = " (to match everything, write .*)" if "*" in items else ""
        raise ConfigException(key, value, f"{_reason(items, exc)}{hint}") from exc


def slow_patterns(props: Mapping[str, str]) -> list[tuple[str, str]]:
    """Key and error of each list of patterns that backtracks without end.

    Other errors of patterns are reported by the start of the connector, as in Java.
    """
    errors = []
    for key in _PATTERN_KEYS & props.keys():
        try:
            pattern_list(key, props[key])
        except ConfigException as error:
            if isinstance(error.__cause__, PatternTooSlow):
                errors.append((key, str(error)))
    return errors


def _reason(items: list[str], joined: PatternError) -> PatternError:
    """The error of the single bad item, if there is one, instead of that of the whole list."""
    for item in items:
        try:
            compile_java(item)
        except PatternError as exc:
            return exc
    return joined


def _matches(key: str, pattern: JavaPattern | None, name: str) -> bool:
    try:
        return pattern is not None and pattern.fullmatch(name) is not None
    except PatternTooSlow as error:
        raise ConfigException(key, pattern.pattern if pattern else "", str(error)) from error
