"""The hand-written Produce compared with kafka-python's schemas, byte for byte."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kafka.protocol.producer import ProduceRequest, ProduceResponse

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire import produce
from mm2.kafka.wire.produce import MAX_VERSION, MIN_VERSION, Buffer, Produced

VERSIONS = range(MIN_VERSION, MAX_VERSION + 1)
T0, T1, U0 = TopicPartition("A.orders", 0), TopicPartition("A.orders", 1), TopicPartition("A.clicks-ü", 5)


def id_of(name: str) -> uuid.UUID:
    return uuid.uuid5(uuid.NAMESPACE_DNS, name)


def ours(version: int, batches: Mapping[TopicPartition, Buffer], transactional_id: str | None = None) -> list[Buffer]:
    return produce.request(
        version,
        5,
        "mm2",
        batches,
        acks=-1,
        timeout_ms=30_000,
        transactional_id=transactional_id,
        topic_ids={tp.topic: id_of(tp.topic).bytes for tp in batches},
    )


def theirs(version: int, batches: Mapping[TopicPartition, Buffer], transactional_id: str | None = None) -> bytes:
    topic_class = ProduceRequest.TopicProduceData
    topics: dict[str, list[Any]] = {}
    for tp, batch in batches.items():
        part = topic_class.PartitionProduceData(index=tp.partition, records=bytes(batch))
        topics.setdefault(tp.topic, []).append(part)
    request = ProduceRequest(
        transactional_id=transactional_id,
        acks=-1,
        timeout_ms=30_000,
        topic_data=[
            topic_class(name=name, topic_id=id_of(name), partition_data=parts) for name, parts in topics.items()
        ],
    )
    request.API_VERSION = version
    request.with_header(correlation_id=5, client_id="mm2")
    return bytes(request.encode(header=True, framed=True))


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("transactional_id", [None, "A->B-0"])
def test_requests_equal_those_of_kafka_python_byte_for_byte(version: int, transactional_id: str | None) -> None:
    batches = {T0: b"first", U0: b"x" * 200, T1: b"second"}
    assert b"".join(ours(version, batches, transactional_id)) == theirs(version, batches, transactional_id)


@pytest.mark.parametrize("version", [3, 9, 12, 13])
@settings(max_examples=50, deadline=None)
@given(st.dictionaries(st.builds(TopicPartition, st.sampled_from("abc"), st.integers(0, 9)), st.binary(max_size=300)))
def test_any_set_of_batches_is_encoded_like_kafka_python(version: int, batches: dict[TopicPartition, bytes]) -> None:
    assert b"".join(ours(version, batches)) == theirs(version, batches)


@pytest.mark.parametrize("version", VERSIONS)
def test_batches_are_passed_by_reference(version: int) -> None:
    batch = memoryview(bytearray(b"a batch"))
    assert any(buffer is batch for buffer in ours(version, {T0: batch, T1: b"other"}))


def frame_of(version: int) -> memoryview:
    topic_class = ProduceResponse.TopicProduceResponse
    part = topic_class.PartitionProduceResponse
    detail = part.BatchIndexAndErrorMessage
    rows: list[Any] = [
        part(
            index=0,
            error_code=0,
            base_offset=1 << 40,
            log_append_time_ms=-1,
            log_start_offset=3,
            record_errors=[],
            error_message=None,
        ),
        part(
            index=1,
            error_code=87,
            base_offset=-1,
            log_append_time_ms=1234,
            log_start_offset=-1,
            record_errors=[detail(batch_index=2, batch_index_error_message="this record is bad")],
            error_message="one record is bad",
        ),
    ]
    response = ProduceResponse(
        responses=[topic_class(name="A.orders", topic_id=id_of("A.orders"), partition_responses=rows)],
        throttle_time_ms=9,
        node_endpoints=[],
    )
    body = bytes(response.encode(version=version))
    return memoryview((5).to_bytes(4, "big") + (b"\x00" if version >= 9 else b"") + body)


@pytest.mark.parametrize("version", VERSIONS)
def test_responses_are_parsed(version: int) -> None:
    start = 3 if version >= 5 else -1
    message = "one record is bad" if version >= 8 else None
    answer = produce.response(version, frame_of(version), {id_of("A.orders").bytes: "A.orders"})
    assert answer == [
        Produced(T0, 0, 1 << 40, -1, start, None),
        Produced(T1, 87, -1, 1234, -1, message, (2,) if version >= 8 else ()),
    ]
    assert answer.throttle_ms == 9


@pytest.mark.parametrize("version", VERSIONS)
def test_a_batch_at_an_offset_that_no_log_has_is_corrupt(version: int) -> None:
    frame = bytes(frame_of(version)).replace((1 << 40).to_bytes(8, "big"), (2**63 - 1).to_bytes(8, "big"))
    with pytest.raises(CorruptBatch, match="an offset that no log has"):
        produce.response(version, memoryview(frame), {id_of("A.orders").bytes: "A.orders"})


@pytest.mark.parametrize("version", [3, 8, 9, 12, 13])
@settings(max_examples=100, deadline=None)
@given(st.data())
def test_damaged_responses_raise_corrupt_batch(version: int, data: st.DataObject) -> None:
    frame = bytearray(frame_of(version))
    frame[data.draw(st.integers(4, len(frame) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(CorruptBatch):
        produce.response(version, memoryview(frame)[: data.draw(st.integers(4, len(frame)))])
