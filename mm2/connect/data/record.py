"""Records on their way through Connect (org.apache.kafka.connect.connector.ConnectRecord; spec connect G.3)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

from mm2.connect.data.headers import NO_HEADERS, Header, Headers
from mm2.connect.data.schema import Schema


class ConnectRecord:
    """What records of both directions have. Immutable; `new_record` gives a changed one."""

    topic: str
    #: None: chosen by the key's hash as Java's default partitioner does.
    partition: int | None
    key: Any
    value: Any
    headers: Headers
    #: Milliseconds since the epoch; None: there is none, for a source record the time of producing.
    timestamp: int | None
    #: None: the key, or the value, has no schema.
    key_schema: Schema | None
    value_schema: Schema | None

    def new_record(self, **changes: Any) -> Self:
        """A copy with other contents; where it came from stays the same."""
        return replace(self, **changes)  # type: ignore[type-var]

    def _settle_headers(self) -> None:
        """Pairs of key and value will do where a record is made."""
        given: object = self.headers
        if not isinstance(given, Headers):
            object.__setattr__(self, "headers", Headers.of(self.headers))


@dataclass(frozen=True, init=False)
class SourceRecord(ConnectRecord):
    """A record to be written to Kafka (org.apache.kafka.connect.source.SourceRecord)."""

    #: Where it comes from and how far that source has been read with it; string keys, primitive values. None: there is no
    #: such thing, and a task that starts again finds no offset.
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
        # As dataclass would write it, field by field, it takes three times as long.
        object.__setattr__(
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


class TimestampType(Enum):
    """Who gave a record its timestamp."""

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
    #: Where it was read, whatever transformations have made of topic and partition (KIP-793). Given by the runtime.
    original_topic: str = ""
    original_kafka_partition: int = -1
    original_kafka_offset: int = -1

    def __post_init__(self) -> None:
        self._settle_headers()
        if not self.original_topic:
            object.__setattr__(self, "original_topic", self.topic)
            object.__setattr__(self, "original_kafka_partition", self.partition)
            object.__setattr__(self, "original_kafka_offset", self.kafka_offset)
