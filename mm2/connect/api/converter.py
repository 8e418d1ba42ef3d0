"""From a record's values to the bytes on the topic and back (org.apache.kafka.connect.storage; spec connect G.4)."""

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
    """Serialises keys or values of one task; used by one thread at a time."""

    def version(self) -> str:
        """Version shown in plugin lists."""
        return UNDEFINED_VERSION

    def config(self) -> ConfigDef | None:
        """The definition of the keys behind the converter's prefix; None: it has none."""
        return None

    def configure(self, props: Mapping[str, Any], *, is_key: bool) -> None:
        """Called once with the keys behind the converter's prefix. Raises ConnectError or ConfigException when they are bad."""
        return

    @abstractmethod
    def from_connect_data(self, topic: str, headers: KafkaHeaders, schema: Schema | None, value: Any) -> bytes | None:
        """Bytes for a value. Raises DataError when it cannot be said.

        ``headers`` are the record's, already converted. A converter that wants to add some has them as a mutable list.
        """

    @abstractmethod
    def to_connect_data(self, topic: str, headers: KafkaHeaders, data: bytes | None) -> SchemaAndValue:
        """The value in some bytes. Raises DataError when they are not what this converter writes."""

    def close(self) -> None:
        """Called once when the task is over."""
        return


class HeaderConverter(ABC):
    """Serialises headers of one task; used by one thread at a time."""

    def version(self) -> str:
        """Version shown in plugin lists."""
        return UNDEFINED_VERSION

    def config(self) -> ConfigDef | None:
        """The definition of the keys behind ``header.converter.``; None: it has none."""
        return None

    def configure(self, props: Mapping[str, Any]) -> None:
        """Called once with the keys behind ``header.converter.``. Raises ConnectError or ConfigException when they are bad."""
        return

    @abstractmethod
    def from_connect_header(self, topic: str, key: str, schema: Schema | None, value: Any) -> bytes | None:
        """Bytes for the value of the header ``key``. Raises DataError when it cannot be said."""

    @abstractmethod
    def to_connect_header(self, topic: str, key: str, data: bytes | None) -> SchemaAndValue:
        """The value in the bytes of a header. Raises DataError when they are not what this converter writes."""

    def close(self) -> None:
        """Called once when the task is over."""
        return
