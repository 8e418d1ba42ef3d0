"""Conditions for applying a transformation (org.apache.kafka.connect.transforms.predicates; KIP-585)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from mm2.connect.api.connector import UNDEFINED_VERSION
from mm2.connect.data.record import ConnectRecord

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigDef


class Predicate(ABC):
    """Tests one record at a time, for one task, on that task's thread."""

    #: As `mm2.connect.api.Transformation.deterministic`.
    deterministic: ClassVar[bool] = False

    def version(self) -> str:
        """Version shown in plugin lists."""
        return UNDEFINED_VERSION

    @abstractmethod
    def config(self) -> ConfigDef:
        """The definition of the keys after ``predicates.<alias>.``."""

    @abstractmethod
    def configure(self, props: Mapping[str, Any]) -> None:
        """Called once with the keys after ``predicates.<alias>.``.

        Raises ConnectError or ConfigException if they are invalid.
        """

    @abstractmethod
    def test(self, record: ConnectRecord) -> bool:
        """Whether the transformation applies; ``negate`` inverts the result."""

    def close(self) -> None:
        """Called once when the task has stopped."""
        return
