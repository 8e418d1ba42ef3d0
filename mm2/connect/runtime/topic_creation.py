"""Creation of topics by a source connector's tasks before they write to them (``topic.creation.*``, KIP-158)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import structlog

from mm2.config.configdef import AbstractConfig
from mm2.config.definitions.java_regex import JavaPattern, PatternError, compile_java
from mm2.config.keys.connector_keys import TOPIC_CREATION_PREFIX
from mm2.connect.api import ConnectError, RetriableError
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import NewTopic

log = structlog.get_logger(__name__)

_DEFAULT_GROUP: Final = "default"
_OWN_KEYS: Final = frozenset({"include", "exclude", "replication.factor", "partitions"})


@dataclass(frozen=True)
class TopicCreationGroup:
    """Settings for new topics whose name fully matches one of ``include`` and none of ``exclude``."""

    name: str
    include: tuple[JavaPattern, ...]
    exclude: tuple[JavaPattern, ...]
    partitions: int
    replication_factor: int
    configs: Mapping[str, str] = field(default_factory=dict)

    def matches(self, topic: str) -> bool:
        """Whether a topic belongs to this group."""
        return not any(p.fullmatch(topic) for p in self.exclude) and any(p.fullmatch(topic) for p in self.include)

    def new_topic(self, topic: str) -> NewTopic:
        """The topic to create."""
        return NewTopic(topic, self.partitions, self.replication_factor, dict(self.configs))


def topic_creation_groups(config: AbstractConfig, props: Mapping[str, str]) -> tuple[TopicCreationGroup, ...]:
    """The groups of a source connector in order of matching; none without topic creation settings.

    Raises ConnectError for an invalid pattern.
    """
    if not any(key.startswith(TOPIC_CREATION_PREFIX) for key in props):
        return ()
    names = [name for name in config.list("topic.creation.groups") if name != _DEFAULT_GROUP]
    return tuple(_group(name, config, props) for name in (*names, _DEFAULT_GROUP))


def _group(name: str, config: AbstractConfig, props: Mapping[str, str]) -> TopicCreationGroup:
    prefix = f"{TOPIC_CREATION_PREFIX}{name}."
    # The default group matches all remaining topics.
    include = [".*"] if name == _DEFAULT_GROUP else config.list(f"{prefix}include")
    exclude = [] if name == _DEFAULT_GROUP else config.list(f"{prefix}exclude")
    extra = {key.removeprefix(prefix): value for key, value in props.items() if key.startswith(prefix)}
    return TopicCreationGroup(
        name,
        _patterns(f"{prefix}include", include),
        _patterns(f"{prefix}exclude", exclude),
        config.int(f"{prefix}partitions"),
        config.int(f"{prefix}replication.factor"),
        {key: value for key, value in extra.items() if key not in _OWN_KEYS},
    )


def _patterns(key: str, texts: Sequence[str]) -> tuple[JavaPattern, ...]:
    patterns = []
    for text in texts:
        try:
            patterns.append(compile_java(text))
        except PatternError as error:
            raise ConnectError(f"Invalid value {text} for configuration {key}: {error}") from error
    return tuple(patterns)


class TopicCreation:
    """Checks each topic once, before its first record is sent. For one task."""

    def __init__(self, admin: Admin, groups: Sequence[TopicCreationGroup]) -> None:
        self._admin = admin
        self._groups = tuple(groups)
        self._seen: set[str] = set()

    def knows(self, topic: str) -> bool:
        """Whether `ensure` has been completed for the topic."""
        return topic in self._seen

    def ensure(self, topic: str) -> None:
        """Create the topic if it is missing. Raises RetriableError or ConnectError."""
        if topic in self._seen:
            return
        log.info("The task will send records to topic for the first time. Checking whether topic exists", topic=topic)
        found = self._admin.describe_topics([topic])[topic]
        if isinstance(found, KafkaFailure):
            missing = isinstance(found, BrokerFailure) and found.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if not missing:
                raise _error(topic, "looked at", found)
            self._create(topic)
        self._seen.add(topic)

    def _create(self, topic: str) -> None:
        group = next(group for group in self._groups if group.matches(topic))
        wanted = group.new_topic(topic)
        outcome = self._admin.create_topics([wanted])[topic]
        if outcome is None:
            log.info(
                "Created topic using creation group",
                topic=topic,
                group=group.name,
                partitions=wanted.partitions,
                replication_factor=wanted.replication_factor,
            )
            return
        if isinstance(outcome, BrokerFailure) and outcome.code == ErrorCode.TOPIC_ALREADY_EXISTS:
            return
        raise _error(topic, "created", outcome)


def _error(topic: str, what: str, failure: KafkaFailure) -> ConnectError:
    message = (
        f"Topic {topic} could not be {what}: {failure} Ensure that the task is authorized to create topics or that the topic "
        "exists and restart the task"
    )
    return RetriableError(message) if failure.retriable else ConnectError(message)
