"""Transformations of single records, and predicates for applying them (KIP-585; Java's connect.transforms)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from mm2.connect.api.connector import UNDEFINED_VERSION
from mm2.connect.data.record import ConnectRecord

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigDef

Record = TypeVar("Record", bound=ConnectRecord)


class Transformation(ABC):
    """Transforms one record at a time, for one task, on that task's thread."""

    #: Whether the same record always has the same result. A class that sets it helps MirrorMaker to copy exactly once.
    deterministic: ClassVar[bool] = False

    def version(self) -> str:
        """Version shown in plugin lists."""
        return UNDEFINED_VERSION

    @abstractmethod
    def config(self) -> ConfigDef:
        """The definition of the keys after ``transforms.<alias>.``."""

    @abstractmethod
    def configure(self, props: Mapping[str, Any]) -> None:
        """Called once with the keys after ``transforms.<alias>.``.

        Raises ConnectError or ConfigException if they are invalid.
        """

    @abstractmethod
    def apply(self, record: Record) -> Record | None:
        """The transformed record, made by `ConnectRecord.new_record`; None drops it. Raises DataError on failure."""

    def close(self) -> None:
        """Called once when the task has stopped."""
        return


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
