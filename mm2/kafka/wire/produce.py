"""Produce v3 to v13, one batch per partition, sent as a list of buffers so that no record byte is copied."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kafka.protocol.producer import ProduceRequest

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.records.batch import LAST_BASE_OFFSET
from mm2.kafka.structs import TopicPartition
from mm2.kafka.varint import uvarint
from mm2.kafka.wire.primitives import INT32, Reader, array_head, request_header, string

API_KEY: Final = 0
REQUEST: Final = ProduceRequest
MIN_VERSION: Final = 3
MAX_VERSION: Final = 13
#: From this version on topics are named by id, so that a batch is never written to another topic of the same name
#: (KIP-516).
TOPIC_IDS_FROM: Final = 13
FLEXIBLE_FROM: Final = 9
#: From this version on a broker responds before it throttles a connection (KIP-219).
MUTED_FROM: Final = 6

_PARTITION: Final = struct.Struct(">ihqq")  # index, error, base offset, log append time
# The same and the log start offset, for a success: no rejected records, no message, no tagged fields.
_TAKEN: Final = struct.Struct(">ihqqqBBB")
_NOTHING: Final = [1, 0, 0]
_MOST_REJECTED: Final = 1 << 20
#: Much more than the largest answer: a few hundred bytes for each partition of a request, with its error message.
LARGEST_ANSWER_BYTES: Final = 8 << 20

Buffer = bytes | bytearray | memoryview


@dataclass(frozen=True, slots=True)
class Produced:
    """Result of one partition's batch.

    ``bad_records``: indexes of the rejected records, if the broker reports them (KIP-467).
    """

    topic_partition: TopicPartition
    error_code: int
    base_offset: int
    log_append_time: int  # ms, -1 with CreateTime
    log_start_offset: int
    message: str | None
    bad_records: tuple[int, ...] = ()


class Answer(list[Produced]):
    """Results of all partitions of a request.

    ``throttle_ms``: because of a quota, the broker reads nothing from this connection for that time (KIP-219).
    """

    throttle_ms: int = 0


def request(
    version: int,
    correlation_id: int,
    client_id: str,
    batches: Mapping[TopicPartition, Buffer],
    *,
    acks: int,
    timeout_ms: int,
    transactional_id: str | None = None,
    topic_ids: Mapping[str, bytes] | None = None,
) -> list[Buffer]:
    """The framed request as buffers to be written in order; the batches are included by reference.

    ``topic_ids`` (16 bytes by name) are needed for every topic from version 13 on.
    """
    flexible = version >= FLEXIBLE_FROM
    by_topic: dict[str, list[tuple[int, Buffer]]] = {}
    for tp, batch in batches.items():
        by_topic.setdefault(tp.topic, []).append((tp.partition, batch))

    pending = bytearray(4)
    pending += request_header(API_KEY, version, correlation_id, client_id, flexible=flexible)
    pending += string(transactional_id, compact=flexible)
    pending += struct.pack(">hi", acks, timeout_ms)
    pending += array_head(len(by_topic), compact=flexible)
    out: list[Buffer] = []
    first = pending
    total = -4
    for topic, partitions in by_topic.items():
        if version >= TOPIC_IDS_FROM:
            pending += (topic_ids or {})[topic]
        else:
            pending += string(topic, compact=flexible)
        pending += array_head(len(partitions), compact=flexible)
        for index, batch in partitions:
            pending += INT32.pack(index)
            pending += uvarint(len(batch) + 1) if flexible else INT32.pack(len(batch))
            out += (pending, batch)
            total += len(pending) + len(batch)
            pending = bytearray(b"\x00") if flexible else bytearray()
        if flexible:
            pending += b"\x00"
    if flexible:
        pending += b"\x00"
    out.append(pending)
    INT32.pack_into(first, 0, total + len(pending))
    return out


def response(version: int, frame: memoryview, names: Mapping[bytes, str] | None = None) -> Answer:
    """Parse an answer (frame without size prefix, correlation id included). Raises CorruptBatch when it does not parse.

    ``names`` by topic id are needed from version 13 on.
    """
    try:
        answer = _parse(version, frame, names or {})
        if any(one.base_offset > LAST_BASE_OFFSET for one in answer):
            message = "a batch was appended at an offset that no log has"
            raise IndexError(message)
        return answer
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        message = f"a Produce answer of {len(frame)} bytes does not parse: {error}"
        raise CorruptBatch(message) from error


def _parse(version: int, frame: memoryview, names: Mapping[bytes, str]) -> Answer:
    flexible = version >= FLEXIBLE_FROM
    read = Reader(frame, 4)
    if flexible:
        read.tags()
    produced = Answer()
    for _ in range(read.length(compact=flexible)):
        if version >= TOPIC_IDS_FROM:
            topic = names.get(bytes(read.bytes_view(16)), "")
        else:
            topic = read.string(compact=flexible) or ""
        for _ in range(read.length(compact=flexible)):
            if flexible and len(frame) - read.at >= _TAKEN.size:
                index, error_code, base_offset, append_time, log_start, *rest = _TAKEN.unpack_from(frame, read.at)
                if rest == _NOTHING:
                    read.at += _TAKEN.size
                    tp = TopicPartition(topic, index)
                    produced.append(Produced(tp, error_code, base_offset, append_time, log_start, None))
                    continue
            index, error_code, base_offset, append_time = read.fields(_PARTITION)
            log_start = read.int64() if version >= 5 else -1
            message = None
            bad_records = []
            if version >= 8:
                rejected = read.length(compact=flexible)
                if rejected > _MOST_REJECTED:
                    message = f"{rejected} rejected records"
                    raise IndexError(message)
                for _ in range(max(0, rejected)):
                    bad_records.append(read.int32())
                    detail = read.string(compact=flexible)
                    message = message or detail
                    if flexible:
                        read.tags()
                message = read.string(compact=flexible) or message
            if flexible:
                read.tags()
            tp = TopicPartition(topic, index)
            produced.append(Produced(tp, error_code, base_offset, append_time, log_start, message, tuple(bad_records)))
        if flexible:
            read.tags()
    produced.throttle_ms = read.int32()
    return produced
