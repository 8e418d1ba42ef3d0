"""Conversion between a record's values and the bytes in the topic (org.apache.kafka.connect.storage)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from mm2.connect.api.connector import UNDEFINED_VERSION
from mm2.connect.data.schema import Schema, SchemaAndValue

if TYPE_CHECKING:
    from mm2.config.configdef import ConfigDef

KafkaHeaders = Sequence[tuple[str, bytes | None]]
"""Headers as they are on the topic."""


class Converter(ABC):
    """Serializes keys or values of one task; used by one thread at a time."""

    def version(self) -> str:
        """Version shown in plugin lists."""
        return UNDEFINED_VERSION

    def config(self) -> ConfigDef | None:
        """The definition of the keys after the converter's prefix, or None."""
        return None

    def configure(self, props: Mapping[str, Any], *, is_key: bool) -> None:
        """Called once with the keys after the converter's prefix.

        Raises ConnectError or ConfigException if they are invalid.
        """
        return

    @abstractmethod
    def from_connect_data(self, topic: str, headers: KafkaHeaders, schema: Schema | None, value: Any) -> bytes | None:
        """Serialize a value. Raises DataError if it cannot be converted.

        ``headers`` are the record's, already converted. The list is mutable, so a converter may add headers.
        """

    @abstractmethod
    def to_connect_data(self, topic: str, headers: KafkaHeaders, data: bytes | None) -> SchemaAndValue:
        """Deserialize a value. Raises DataError if the bytes do not have this converter's format."""

    def close(self) -> None:
        """Called once when the task has stopped."""
        return


class HeaderConverter(ABC):
    """Serializes headers of one task; used by one thread at a time."""

    def version(self) -> str:
        """Version shown in plugin lists."""
        return UNDEFINED_VERSION

    def config(self) -> ConfigDef | None:
        """The definition of the keys after ``header.converter.``, or None."""
        return None

    def configure(self, props: Mapping[str, Any]) -> None:
        """Called once with the keys after ``header.converter.``.

        Raises ConnectError or ConfigException if they are invalid.
        """
        return

    @abstractmethod
    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """Serialize the value of the header ``key``. Raises DataError if it cannot be converted."""

    @abstractmethod
    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """Deserialize a header's value. Raises DataError if the bytes do not have this converter's format."""

    def close(self) -> None:
        """Called once when the task has stopped."""
        return
