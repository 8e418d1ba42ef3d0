"""The binary formats of the three records that MirrorMaker itself writes: heartbeat, checkpoint and offset sync.

```
record      key                                              value
heartbeat   STRING source, STRING target                     INT16 version=0, INT64 timestamp (ms)
checkpoint  STRING group, STRING topic (downstream), INT32 p INT16 version=0, INT64 up, INT64 down, STRING metadata
offset sync STRING topic (upstream), INT32 p                 INT64 up, INT64 down           (no version)
```
Big endian; STRING = INT16 length in bytes + UTF-8, never null. Readers accept version 0 only and ignore trailing bytes.
The `str()` of each record is the text that Kafka's console formatters print.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Final, Self

VERSION: Final = 0

_INT16 = struct.Struct(">h")
_INT32 = struct.Struct(">i")
_INT64 = struct.Struct(">q")
_TWO_INT64 = struct.Struct(">qq")


class FormatError(ValueError):
    """The bytes, or the values to encode, are not a valid MirrorMaker record."""


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """A worker of the flow source->target was running at `timestamp_ms`."""

    source: str
    target: str
    timestamp_ms: int

    def key(self) -> bytes:
        return _string(self.source) + _string(self.target)

    def value(self) -> bytes:
        return _INT16.pack(VERSION) + _INT64.pack(self.timestamp_ms)

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self:
        """Decode a record. Raises FormatError if key or value is null, truncated or of another version."""
        keys, values = _FormatReader("heartbeat key", key), _FormatReader("heartbeat value", value)
        source, target = keys.string(), keys.string()
        values.version()
        return cls(source, target, values.int64())

    def connect_partition(self) -> dict[str, str]:
        """Source partition for the Connect offsets topic, in the field order of the bytes that Java looks up."""
        return {"sourceClusterAlias": self.source, "targetClusterAlias": self.target}

    def __str__(self) -> str:
        return (
            f"Heartbeat{{sourceClusterAlias={self.source}, targetClusterAlias={self.target}, "
            f"timestamp={self.timestamp_ms}}}"
        )


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A translated group offset.

    `topic` is the name on the target; `metadata` is that of the group's commit on the source.
    """

    group: str
    topic: str
    partition: int
    upstream_offset: int
    downstream_offset: int
    metadata: str = ""

    def key(self) -> bytes:
        return self.key_of(self.group, self.topic, self.partition)

    @staticmethod
    def key_of(group: str, topic: str, partition: int) -> bytes:
        """The key of the checkpoints of this group and partition."""
        return _string(group) + _string(topic) + _INT32.pack(partition)

    def value(self) -> bytes:
        return (
            _INT16.pack(VERSION)
            + _TWO_INT64.pack(self.upstream_offset, self.downstream_offset)
            + _string(self.metadata)
        )

    @classmethod
    def decode_key(cls, key: bytes | None) -> tuple[str, str, int]:
        """Group, topic and partition. Raises FormatError if the key is null or truncated."""
        keys = _FormatReader("checkpoint key", key)
        return keys.string(), keys.string(), keys.int32()

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self:
        """Decode a record. Raises FormatError if key or value is null, truncated or of another version."""
        group, topic, partition = cls.decode_key(key)
        values = _FormatReader("checkpoint value", value)
        values.version()
        return cls(group, topic, partition, values.int64(), values.int64(), values.string())

    def connect_partition(self) -> dict[str, str | int]:
        """Source partition for the Connect offsets topic, in the field order of the bytes that Java looks up."""
        return {"partition": self.partition, "topic": self.topic, "group": self.group}

    def __str__(self) -> str:
        return (
            f"Checkpoint{{consumerGroupId={self.group}, topicPartition={self.topic}-{self.partition}, "
            f"upstreamOffset={self.upstream_offset}, downstreamOffset={self.downstream_offset}, "
            f"metadata={self.metadata}}}"
        )


@dataclass(frozen=True, slots=True)
class OffsetSync:
    """The record at `upstream_offset` of the source partition is at `downstream_offset` of the remote one."""

    topic: str
    partition: int
    upstream_offset: int
    downstream_offset: int

    def key(self) -> bytes:
        return _string(self.topic) + _INT32.pack(self.partition)

    def value(self) -> bytes:
        return _TWO_INT64.pack(self.upstream_offset, self.downstream_offset)

    @classmethod
    def decode(cls, key: bytes | None, value: bytes | None) -> Self:
        """Decode a record. Raises FormatError if key or value is null or truncated."""
        keys, values = _FormatReader("offset sync key", key), _FormatReader("offset sync value", value)
        topic, partition = keys.string(), keys.int32()
        return cls(topic, partition, values.int64(), values.int64())

    def __str__(self) -> str:
        return (
            f"OffsetSync{{topicPartition={self.topic}-{self.partition}, upstreamOffset={self.upstream_offset}, "
            f"downstreamOffset={self.downstream_offset}}}"
        )


def _string(text: str) -> bytes:
    data = text.encode()
    if len(data) > 0x7FFF:
        raise FormatError(f"a string of {len(data)} bytes does not fit a MirrorMaker record (at most 32767)")
    return _INT16.pack(len(data)) + data


class _FormatReader:
    def __init__(self, what: str, data: bytes | None) -> None:
        if data is None:
            raise FormatError(f"{what} is null")
        self._what = what
        self._data = data
        self._at = 0

    def _take(self, fmt: struct.Struct) -> int:
        try:
            (number,) = fmt.unpack_from(self._data, self._at)
        except struct.error:
            raise FormatError(f"{self._what} of {len(self._data)} bytes is truncated") from None
        self._at += fmt.size
        return int(number)

    def int32(self) -> int:
        return self._take(_INT32)

    def int64(self) -> int:
        return self._take(_INT64)

    def string(self) -> str:
        size = self._take(_INT16)
        raw = self._data[self._at : self._at + max(size, 0)]
        if size < 0 or len(raw) < size:
            raise FormatError(f"{self._what} of {len(self._data)} bytes is truncated")
        self._at += size
        try:
            return raw.decode()
        except UnicodeDecodeError as exc:
            raise FormatError(f"{self._what} contains a string that is not UTF-8") from exc

    def version(self) -> None:
        if (version := self._take(_INT16)) != VERSION:
            raise FormatError(f"{self._what} has version {version}, only {VERSION} is known")
