"""The broker's side of the protocol: decodes requests and encodes responses."""

from __future__ import annotations

import struct
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kafka.protocol.admin import (
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    DescribeProducersRequest,
    DescribeProducersResponse,
)
from kafka.protocol.consumer import (
    ListOffsetsRequest,
    ListOffsetsResponse,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
)
from kafka.protocol.metadata import ApiVersionsRequest, ApiVersionsResponse, MetadataRequest, MetadataResponse
from kafka.protocol.producer import InitProducerIdRequest, InitProducerIdResponse

from mm2.kafka.varint import uvarint
from mm2.kafka.wire.primitives import INT32, Reader, array_head, string

PRODUCE, FETCH, LIST_OFFSETS, METADATA = 0, 1, 2, 3
API_VERSIONS, INIT_PRODUCER_ID, OFFSET_FOR_EPOCH, DESCRIBE_CONFIGS, DESCRIBE_PRODUCERS = 18, 22, 23, 32, 61

#: Newest version of each request by Kafka release; a release does not support requests that are not listed.
RELEASES: Mapping[str, Mapping[int, int]] = {
    "2.6": {0: 8, 1: 11, 2: 5, 3: 9, 18: 3, 22: 3, 23: 3, 32: 3},
    "2.8": {0: 9, 1: 12, 2: 6, 3: 11, 18: 3, 22: 4, 23: 4, 32: 4, 61: 0},
    "3.7": {0: 10, 1: 16, 2: 8, 3: 12, 18: 3, 22: 4, 23: 4, 32: 4, 61: 0},
    "4.1": {0: 13, 1: 17, 2: 10, 3: 13, 18: 4, 22: 5, 23: 4, 32: 4, 61: 0},
}
_FLEXIBLE = {PRODUCE: 9, FETCH: 12}
_SCHEMAS: Mapping[int, tuple[Any, Any]] = {
    LIST_OFFSETS: (ListOffsetsRequest, ListOffsetsResponse),
    METADATA: (MetadataRequest, MetadataResponse),
    API_VERSIONS: (ApiVersionsRequest, ApiVersionsResponse),
    INIT_PRODUCER_ID: (InitProducerIdRequest, InitProducerIdResponse),
    OFFSET_FOR_EPOCH: (OffsetForLeaderEpochRequest, OffsetForLeaderEpochResponse),
    DESCRIBE_CONFIGS: (DescribeConfigsRequest, DescribeConfigsResponse),
    DESCRIBE_PRODUCERS: (DescribeProducersRequest, DescribeProducersResponse),
}
_LIMITS = struct.Struct(">iiibii")
_WANTED_TAIL = struct.Struct(">qi")


@dataclass(frozen=True, slots=True)
class Head:
    """The request header."""

    api_key: int
    version: int
    correlation_id: int
    client_id: str
    body: int  # where it begins

    @property
    def flexible(self) -> bool:
        least = _FLEXIBLE.get(self.api_key)
        if least is not None:
            return self.version >= least
        return bool(_SCHEMAS[self.api_key][0].flexible_version_q(self.version))


@dataclass(frozen=True, slots=True)
class Write:
    """One batch of a Produce request."""

    topic: str | bytes  # name or id
    partition: int
    data: memoryview


@dataclass(frozen=True, slots=True)
class Read:
    """One partition of a Fetch request; -1: not given."""

    topic: str | bytes
    partition: int
    leader_epoch: int
    offset: int
    fetched_epoch: int
    max_bytes: int


@dataclass(frozen=True, slots=True)
class FetchCall:
    """A Fetch request."""

    max_wait_ms: int
    min_bytes: int
    max_bytes: int
    read_committed: bool
    reads: list[Read]
    rack: str = ""


@dataclass(slots=True)
class Share:
    """One partition of a Fetch response."""

    topic: str | bytes
    partition: int
    error: int = 0
    high_watermark: int = -1
    last_stable: int = -1
    start: int = -1
    aborted: Iterable[tuple[int, int]] = ()
    records: bytes = b""
    diverging: tuple[int, int] | None = None
    preferred_replica: int = -1


def head_of(frame: bytes) -> Head:
    api_key, version, correlation_id, size = struct.unpack_from(">hhih", frame)
    at = 10 + max(0, size)
    head = Head(api_key, version, correlation_id, frame[10:at].decode(), at)
    return Head(api_key, version, correlation_id, head.client_id, at + 1) if head.flexible else head


def produce_call(head: Head, frame: bytes) -> tuple[int, list[Write]]:
    """(timeout in ms, batches)."""
    read = Reader(memoryview(frame), head.body)
    compact = head.flexible
    read.string(compact=compact)
    read.int16()
    timeout_ms = read.int32()
    writes = []
    for _ in range(read.length(compact=compact)):
        topic = bytes(read.bytes_view(16)) if head.version >= 13 else read.string(compact=compact) or ""
        for _ in range(read.length(compact=compact)):
            index = read.int32()
            writes.append(Write(topic, index, read.bytes_view(read.length(compact=compact))))
            if compact:
                read.tags()
        if compact:
            read.tags()
    return timeout_ms, writes


def produce_answer(head: Head, results: list[tuple[str | bytes, int, int, int]]) -> bytes:
    """``results``: topic, partition, error code, base offset."""
    compact = head.flexible
    out = bytearray()
    topics: dict[str | bytes, list[tuple[int, int, int]]] = {}
    for topic, index, error, base in results:
        topics.setdefault(topic, []).append((index, error, base))
    out += array_head(len(topics), compact=compact)
    for topic, rows in topics.items():
        out += topic if isinstance(topic, bytes) else string(topic, compact=compact)
        out += array_head(len(rows), compact=compact)
        for index, error, base in rows:
            out += struct.pack(">ihqq", index, error, base, -1)
            if head.version >= 5:
                out += struct.pack(">q", 0)
            if head.version >= 8:
                out += array_head(0, compact=compact) + string(None, compact=compact)
            if compact:
                out += b"\x00"
        if compact:
            out += b"\x00"
    out += INT32.pack(0)
    if compact:
        out += b"\x00"
    return answer(head, bytes(out))


def fetch_call(head: Head, frame: bytes) -> FetchCall:
    version, compact = head.version, head.flexible
    read = Reader(memoryview(frame), head.body)
    if version < 15:
        read.int32()
    max_wait_ms, min_bytes, max_bytes, isolation, _, _ = read.fields(_LIMITS)
    reads = []
    for _ in range(read.length(compact=compact)):
        topic = bytes(read.bytes_view(16)) if version >= 13 else read.string(compact=compact) or ""
        for _ in range(read.length(compact=compact)):
            index = read.int32()
            epoch = read.int32() if version >= 9 else -1
            offset = read.int64()
            fetched_epoch = read.int32() if version >= 12 else -1
            _, size = read.fields(_WANTED_TAIL)
            if compact:
                read.tags()
            reads.append(Read(topic, index, epoch, offset, fetched_epoch, size))
        if compact:
            read.tags()
    for _ in range(read.length(compact=compact)):  # partitions to remove from the session
        read.string(compact=compact) if version < 13 else read.bytes_view(16)
        for _ in range(read.length(compact=compact)):
            read.int32()
        if compact:
            read.tags()
    rack = (read.string(compact=compact) or "") if version >= 11 else ""
    return FetchCall(max_wait_ms, min_bytes, max_bytes, bool(isolation), reads, rack)


def fetch_answer(head: Head, shares: list[Share]) -> bytes:
    version, compact = head.version, head.flexible
    out = bytearray(struct.pack(">ihi", 0, 0, 0))  # no session: each request is a full one
    topics: dict[str | bytes, list[Share]] = {}
    for share in shares:
        topics.setdefault(share.topic, []).append(share)
    out += array_head(len(topics), compact=compact)
    for topic, rows in topics.items():
        out += topic if isinstance(topic, bytes) else string(topic, compact=compact)
        out += array_head(len(rows), compact=compact)
        for row in rows:
            out += struct.pack(">ihqqq", row.partition, row.error, row.high_watermark, row.last_stable, row.start)
            aborted = list(row.aborted)
            out += array_head(len(aborted), compact=compact)
            for producer_id, first in aborted:
                out += struct.pack(">qq", producer_id, first)
                if compact:
                    out += b"\x00"
            if version >= 11:
                out += INT32.pack(row.preferred_replica)
            out += uvarint(len(row.records) + 1) if compact else INT32.pack(len(row.records))
            out += row.records
            if compact:
                if row.diverging is None:
                    out += b"\x00"
                else:
                    out += b"\x01\x00\x0d" + struct.pack(">iq", *row.diverging) + b"\x00"
        if compact:
            out += b"\x00"
    if compact:
        out += b"\x00"
    return answer(head, bytes(out))


def answer(head: Head, body: bytes) -> bytes:
    front = INT32.pack(head.correlation_id) + (b"\x00" if head.flexible and head.api_key != API_VERSIONS else b"")
    return INT32.pack(len(front) + len(body)) + front + body


def call_of(head: Head, frame: bytes) -> Any:
    """A request of one of the APIs that have a schema."""
    return _SCHEMAS[head.api_key][0].decode(memoryview(frame)[head.body :], version=head.version)


def schema_answer(head: Head, *, version: int | None = None, **fields: Any) -> bytes:
    response = _SCHEMAS[head.api_key][1](version=head.version if version is None else version, **fields)
    return answer(head, bytes(response.encode()))


def versions_answer(head: Head, release: str) -> bytes:
    known = RELEASES[release]
    too_new = head.version > known[API_VERSIONS]
    rows = [
        ApiVersionsResponse.ApiVersion(api_key=key, min_version=0, max_version=newest) for key, newest in known.items()
    ]
    if not too_new:
        return schema_answer(head, error_code=0, api_keys=rows, throttle_time_ms=0)
    return schema_answer(head, version=0, error_code=35, api_keys=rows)


def topic_id_of(cluster: str, name: str, generation: int) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_URL, f"{cluster}/{name}/{generation}")
