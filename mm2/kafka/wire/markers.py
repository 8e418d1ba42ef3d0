"""WriteTxnMarkers v1 with abort markers only (KIP-98): a thousand of them are encoded in a millisecond."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from kafka.protocol.producer import WriteTxnMarkersRequest

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.structs import TopicPartition
from mm2.kafka.varint import uvarint
from mm2.kafka.wire.primitives import INT32, Reader, request_header, string

API_KEY: Final = 27
REQUEST: Final = WriteTxnMarkersRequest
#: Version 2 has the transaction version, with which a broker compares epochs differently (KIP-1228).
VERSION: Final = 1
#: Much more than the largest answer, which has one result for each producer id and partition of a request.
LARGEST_ANSWER_BYTES: Final = 8 << 20

_PRODUCER: Final = struct.Struct(">qhB")  # producer id, producer epoch, 0 = abort
_COORDINATOR: Final = struct.Struct(">iB")  # coordinator epoch, no tagged fields


def request(
    correlation_id: int, client_id: str, markers: Iterable[tuple[TopicPartition, Iterable[tuple[int, int, int]]]]
) -> bytes:
    """The framed request: abort markers in order, each (producer id, producer epoch, coordinator epoch)."""
    rows = bytearray()
    count = 0
    for tp, fields in markers:
        place = uvarint(2) + string(tp.topic, compact=True) + uvarint(2) + INT32.pack(tp.partition) + b"\x00"
        for producer_id, producer_epoch, coordinator_epoch in fields:
            rows += _PRODUCER.pack(producer_id, producer_epoch, 0) + place + _COORDINATOR.pack(coordinator_epoch, 0)
            count += 1
    head = request_header(API_KEY, VERSION, correlation_id, client_id, flexible=True) + uvarint(count + 1)
    return INT32.pack(len(head) + len(rows) + 1) + head + rows + b"\x00"


def response(frame: memoryview) -> dict[TopicPartition, int]:
    """The first error of each partition, 0 for none, of an answer (without size prefix, correlation id included).

    A broker reports one result for all markers of a producer id, that of the last one. Raises CorruptBatch when it does
    not parse.
    """
    try:
        return _parse(frame)
    except (struct.error, IndexError, UnicodeDecodeError) as error:
        message = f"a WriteTxnMarkers answer of {len(frame)} bytes does not parse: {error}"
        raise CorruptBatch(message) from error


def _parse(frame: memoryview) -> dict[TopicPartition, int]:
    codes: dict[TopicPartition, int] = {}
    read = Reader(frame, 4)
    read.tags()
    for _ in range(read.length(compact=True)):
        read.int64()  # producer id
        for _ in range(read.length(compact=True)):
            topic = read.string(compact=True) or ""
            for _ in range(read.length(compact=True)):
                tp = TopicPartition(topic, read.int32())
                code = read.int16()
                codes[tp] = codes.get(tp) or code
                read.tags()
            read.tags()
        read.tags()
    read.tags()
    return codes
