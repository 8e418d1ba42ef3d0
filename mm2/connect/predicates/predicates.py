"""Which records a transformation is for (KIP-585)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Final

from mm2 import __version__
from mm2.config.configdef import AbstractConfig, ConfigDef, Importance, Type, non_empty
from mm2.config.java_regex import compile_java
from mm2.connect.api.predicate import Predicate
from mm2.connect.data.record import ConnectRecord
from mm2.connect.transforms.validators import every, java_regex

NAME: Final = "name"
PATTERN: Final = "pattern"


class ConfiguredPredicate(Predicate):
    """A predicate with a definition of its configuration."""

    CONFIG: ClassVar[ConfigDef] = ConfigDef()

    def version(self) -> str:
        return __version__

    def config(self) -> ConfigDef:
        return self.CONFIG

    def configure(self, props: Mapping[str, Any]) -> None:
        self._configured(AbstractConfig(self.CONFIG, props))

    def _configured(self, settings: AbstractConfig) -> None:
        """Take over the settings."""


class HasHeaderKey(ConfiguredPredicate):
    """Records with a header of some name."""

    CONFIG = ConfigDef().define(
        NAME, Type.STRING, validator=non_empty(), importance=Importance.MEDIUM, doc="The name of the header."
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._name = settings.str(NAME)

    def test(self, record: ConnectRecord) -> bool:
        return record.headers.last_with_name(self._name) is not None


class RecordIsTombstone(ConfiguredPredicate):
    """Records without a value."""

    def test(self, record: ConnectRecord) -> bool:
        return record.value is None


class TopicNameMatches(ConfiguredPredicate):
    """Records of topics whose whole name matches."""

    CONFIG = ConfigDef().define(
        PATTERN,
        Type.STRING,
        validator=every(non_empty(), java_regex()),
        importance=Importance.MEDIUM,
        doc="A regular expression of Java's that the topic's name has to match.",
    )

    def _configured(self, settings: AbstractConfig) -> None:
        self._pattern = compile_java(settings.str(PATTERN))

    def test(self, record: ConnectRecord) -> bool:
        return self._pattern.fullmatch(record.topic) is not None
