"""Which topics, groups and topic properties are replicated (spec mirrormaker §1.6.7).

A filter is made with no arguments and then configured with all properties of its connector; a filter of the user's own
subclasses one of the interfaces and is named by its Python path in `*.filter.class`.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Final

import structlog

from mm2.config.configdef import ConfigException
from mm2.config.java_regex import PatternError, compile_java

log = structlog.get_logger(__name__)

TOPICS_KEY: Final = "topics"
TOPICS_EXCLUDE_KEY: Final = "topics.exclude"
GROUPS_KEY: Final = "groups"
GROUPS_EXCLUDE_KEY: Final = "groups.exclude"
CONFIG_PROPERTIES_EXCLUDE_KEY: Final = "config.properties.exclude"
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


class Filter:
    """What the three have in common."""

    def configure(self, props: Mapping[str, str]) -> None:
        """Take the connector's properties; ConfigException when they make no filter."""

    def close(self) -> None:
        """Release what the filter holds; called when its connector or task has stopped."""


class TopicFilter(Filter, ABC):
    """Chooses topics by their name on the source."""

    @abstractmethod
    def should_replicate_topic(self, topic: str) -> bool: ...


class GroupFilter(Filter, ABC):
    """Chooses consumer groups by their id."""

    @abstractmethod
    def should_replicate_group(self, group: str) -> bool: ...


class ConfigPropertyFilter(Filter, ABC):
    """Chooses topic properties that the remote topic takes over."""

    @abstractmethod
    def should_replicate_config_property(self, name: str) -> bool: ...

    def should_replicate_source_default(self, name: str) -> bool:
        """Asked only when the source's value is a default: copy that value, rather than let the target's default rule."""
        return False


def close_quietly(filter_: Filter) -> None:
    """Close it; what a class of the user's own raises then is logged, and stops nothing."""
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
        return _matches(self._include, topic) and not _matches(self._exclude, topic)


class DefaultGroupFilter(GroupFilter):
    """`groups` and not `groups.exclude`."""

    def configure(self, props: Mapping[str, str]) -> None:
        self._include = pattern_list(GROUPS_KEY, props.get(GROUPS_KEY, GROUPS_DEFAULT))
        self._exclude = pattern_list(GROUPS_EXCLUDE_KEY, props.get(GROUPS_EXCLUDE_KEY, GROUPS_EXCLUDE_DEFAULT))

    def should_replicate_group(self, group: str) -> bool:
        return _matches(self._include, group) and not _matches(self._exclude, group)


class DefaultConfigPropertyFilter(ConfigPropertyFilter):
    """All but `config.properties.exclude`; defaults of the source only with `use.defaults.from=source`."""

    def configure(self, props: Mapping[str, str]) -> None:
        self._exclude = pattern_list(
            CONFIG_PROPERTIES_EXCLUDE_KEY, props.get(CONFIG_PROPERTIES_EXCLUDE_KEY, CONFIG_PROPERTIES_EXCLUDE_DEFAULT)
        )
        self._source_defaults = props.get(USE_DEFAULTS_FROM_KEY, "target") == "source"

    def should_replicate_config_property(self, name: str) -> bool:
        return not _matches(self._exclude, name)

    def should_replicate_source_default(self, name: str) -> bool:
        return self._source_defaults


def pattern_list(key: str, value: str) -> re.Pattern[str] | None:
    """One pattern for a comma-separated list of Java regexes; None for an empty list, which matches nothing.

    The items are joined with `|` before they are compiled, as in Java: so `(a,b)`, cut in two by the list, still works.
    """
    items = list(dict.fromkeys(re.split(r"\s*,\s*", value.strip()))) if value.strip() else []
    try:
        return compile_java("|".join(items)) if items else None
    except PatternError as exc:
        hint = " (to match everything, write .*)" if "*" in items else ""
        raise ConfigException(key, value, f"{_reason(items, exc)}{hint}") from exc


def _reason(items: list[str], joined: PatternError) -> PatternError:
    """The complaint about the single bad item rather than about the whole list, where there is one."""
    for item in items:
        try:
            compile_java(item)
        except PatternError as exc:
            return exc
    return joined


def _matches(pattern: re.Pattern[str] | None, name: str) -> bool:
    return pattern is not None and pattern.fullmatch(name) is not None
