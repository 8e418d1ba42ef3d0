"""The predicates that ship with Kafka 4.3.0 (KIP-585; org.apache.kafka.connect.transforms.predicates)."""

from __future__ import annotations

from typing import Final

from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type, non_empty
from mm2.config.definitions.java_regex import compile_java
from mm2.config.definitions.validators import regular_expression
from mm2.connect.api.transformation import Predicate
from mm2.connect.data.record import ConnectRecord
from mm2.connect.transforms.base import Configured, every

NAME: Final = "name"
PATTERN: Final = "pattern"


class HasHeaderKey(Configured, Predicate):
    """True for records with a header of this name."""

    CONFIG = ConfigDef().define(
        NAME, Type.STRING, validator=non_empty(), importance=Importance.MEDIUM, doc="The name of the header."
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._name = settings.str(NAME)

    def test(self, record: ConnectRecord) -> bool:
        return record.headers.last_with_name(self._name) is not None


class RecordIsTombstone(Configured, Predicate):
    """True for records without a value."""

    def test(self, record: ConnectRecord) -> bool:
        return record.value is None


class TopicNameMatches(Configured, Predicate):
    """True for records whose whole topic name matches."""

    CONFIG = ConfigDef().define(
        PATTERN,
        Type.STRING,
        validator=every(non_empty(), regular_expression()),
        importance=Importance.MEDIUM,
        doc="A Java regular expression that the topic name must match.",
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._pattern = compile_java(settings.str(PATTERN))

    def test(self, record: ConnectRecord) -> bool:
        return self.matches(record.topic)

    def matches(self, topic: str) -> bool:
        """Whether the pattern matches the whole name."""
        return self._pattern.fullmatch(topic) is not None
