"""Records in Connect, and their headers (org.apache.kafka.connect.connector.ConnectRecord and .header.Headers)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Final, NamedTuple, Self

from mm2.connect.data.schema import Schema


class Header(NamedTuple):
    """One header; the schema is None if the value has none."""

    key: str
    value: Any
    schema: Schema | None = None


class Headers(tuple[Header, ...]):
    """An ordered multimap. Immutable: methods that change it return a new one."""

    __slots__ = ()

    @classmethod
    def of(cls, headers: Iterable[Header | tuple[str, Any]] = ()) -> Self:
        """Create headers from (key, value) pairs or from `Header` objects."""
        return cls(header if isinstance(header, Header) else Header(*header) for header in headers)

    def with_header(self, key: str, value: Any, schema: Schema | None = None) -> Headers:
        """These headers with one appended."""
        return Headers((*self, Header(key, value, schema)))

    def without(self, *keys: str) -> Headers:
        """These headers without those that have one of the keys."""
        return Headers([header for header in self if header.key not in keys])

    def last_with_name(self, key: str) -> Header | None:
        """The last header with a key."""
        return next((header for header in reversed(self) if header.key == key), None)

    def all_with_name(self, key: str) -> Headers:
        """All headers with a key, in order."""
        return Headers(header for header in self if header.key == key)

    def apply(self, change: Callable[[Header], Header | None]) -> Headers:
        """Replace each header by the result of ``change``; None removes it."""
        return Headers(changed for header in self if (changed := change(header)) is not None)


NO_HEADERS: Final = Headers()


class ConnectRecord:
    """The fields that source and sink records share. Immutable; `new_record` returns a changed copy."""

    topic: str
    #: None: chosen by the key's hash as Java's default partitioner does.
    partition: int | None
    key: Any
    value: Any
    headers: Headers
    #: Milliseconds since the epoch. None: no timestamp; a source record then gets the time of producing.
    timestamp: int | None
    #: None: the key, or the value, has no schema.
    key_schema: Schema | None
    value_schema: Schema | None

    def new_record(self, **changes: Any) -> Self:
        """A copy with other contents; the origin stays the same."""
        return replace(self, **changes)  # type: ignore[type-var]

    def _settle_headers(self) -> None:
        """Convert headers that were given as (key, value) pairs."""
        given: object = self.headers
        if not isinstance(given, Headers):
            object.__setattr__(self, "headers", Headers.of(self.headers))


_set: Final = object.__setattr__  # the records are frozen


@dataclass(frozen=True, init=False)
class SourceRecord(ConnectRecord):
    """A record to be written to Kafka (org.apache.kafka.connect.source.SourceRecord)."""

    #: The source partition and the source's position after this record; string keys, primitive values. None: no
    #: position is stored, and a restarted task finds no offset.
    source_partition: dict[str, Any] | None
    source_offset: dict[str, Any] | None
    topic: str
    partition: int | None
    key: Any
    value: Any
    headers: Headers = NO_HEADERS
    timestamp: int | None = None
    key_schema: Schema | None = None
    value_schema: Schema | None = None

    def __init__(
        self,
        source_partition: dict[str, Any] | None,
        source_offset: dict[str, Any] | None,
        topic: str,
        partition: int | None,
        key: Any,
        value: Any,
        headers: Iterable[Header | tuple[str, Any]] = NO_HEADERS,
        timestamp: int | None = None,
        key_schema: Schema | None = None,
        value_schema: Schema | None = None,
    ) -> None:
        # The assignments that dataclass would generate, field by field, take three times as long.
        _set(
            self,
            "__dict__",
            {
                "source_partition": source_partition,
                "source_offset": source_offset,
                "topic": topic,
                "partition": partition,
                "key": key,
                "value": value,
                "headers": headers if type(headers) is Headers else Headers.of(headers),
                "timestamp": timestamp,
                "key_schema": key_schema,
                "value_schema": value_schema,
            },
        )

    def __post_init__(self) -> None:
        """For dataclasses derived from this one, whose own ``__init__`` calls it."""
        self._settle_headers()

    def new_record(self, **changes: Any) -> Self:
        if type(self) is not SourceRecord:
            return super().new_record(**changes)
        contents = {**self.__dict__, **changes}
        if len(contents) > _SOURCE_FIELDS:
            return super().new_record(**changes)
        if type(contents["headers"]) is not Headers:
            contents["headers"] = Headers.of(contents["headers"])
        made = object.__new__(type(self))  # `replace` takes five times as long
        _set(made, "__dict__", contents)
        return made


_SOURCE_FIELDS: Final = len(fields(SourceRecord))


class TimestampType(Enum):
    """The origin of a record's timestamp."""

    NO_TIMESTAMP_TYPE = "NoTimestampType"
    CREATE_TIME = "CreateTime"
    LOG_APPEND_TIME = "LogAppendTime"


@dataclass(frozen=True)
class SinkRecord(ConnectRecord):
    """A record that was read from Kafka (org.apache.kafka.connect.sink.SinkRecord)."""

    topic: str
    partition: int
    key: Any
    value: Any
    kafka_offset: int
    headers: Headers = NO_HEADERS
    timestamp: int | None = None
    timestamp_type: TimestampType = TimestampType.NO_TIMESTAMP_TYPE
    key_schema: Schema | None = None
    value_schema: Schema | None = None
    #: Where the record was consumed, independent of transformations of topic and partition (KIP-793). Set by the
    #: runtime.
    original_topic: str = ""
    original_kafka_partition: int = -1
    original_kafka_offset: int = -1

    def __post_init__(self) -> None:
        self._settle_headers()
        if not self.original_topic:
            object.__setattr__(self, "original_topic", self.topic)
            object.__setattr__(self, "original_kafka_partition", self.partition)
            object.__setattr__(self, "original_kafka_offset", self.kafka_offset)
