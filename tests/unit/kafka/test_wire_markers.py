"""WriteTxnMarkers requests and answers, compared with those of kafka-python."""

from __future__ import annotations

import pytest
from kafka.protocol.producer import WriteTxnMarkersRequest, WriteTxnMarkersResponse

from mm2.kafka.errors import CorruptBatch
from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire import markers

FIRST, SECOND = TopicPartition("A.orders", 3), TopicPartition("A.ümlaut", 0)
ROWS = [(FIRST, [(1 << 62, 2, 7), (1 << 62, 2, 8)]), (SECOND, [((1 << 62) + 1, 32767, (1 << 31) - 1)])]


def test_a_request_has_the_bytes_of_kafka_python_s() -> None:
    row = WriteTxnMarkersRequest.WritableTxnMarker
    expected = WriteTxnMarkersRequest(
        markers=[
            row(
                producer_id=producer_id,
                producer_epoch=epoch,
                transaction_result=False,
                topics=[row.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
                coordinator_epoch=coordinator_epoch,
            )
            for tp, fields in ROWS
            for producer_id, epoch, coordinator_epoch in fields
        ],
        version=markers.VERSION,
    )
    expected.with_header(correlation_id=5, client_id="copier")
    assert markers.request(5, "copier", ROWS) == expected.encode(header=True, framed=True)


def answer(*results: tuple[int, TopicPartition, int]) -> memoryview:
    """An answer with (producer id, partition, error code) of each marker."""
    row = WriteTxnMarkersResponse.WritableTxnMarkerResult
    topic = row.WritableTxnMarkerTopicResult
    rows = [
        row(
            producer_id=producer_id,
            topics=[
                topic(
                    name=tp.topic,
                    partitions=[topic.WritableTxnMarkerPartitionResult(partition_index=tp.partition, error_code=code)],
                )
            ],
        )
        for producer_id, tp, code in results
    ]
    made = WriteTxnMarkersResponse(markers=rows, version=markers.VERSION)
    return memoryview(b"\x00\x00\x00\x05\x00" + made.encode())


def test_the_first_error_of_a_partition_counts() -> None:
    frame = answer((1, FIRST, 0), (2, FIRST, 51), (3, FIRST, 0), (1, SECOND, 0))
    assert markers.response(frame) == {FIRST: 51, SECOND: 0}


def test_a_cut_answer_is_an_error() -> None:
    frame = answer((1, FIRST, 0))
    for size in range(4, len(frame)):
        with pytest.raises(CorruptBatch, match="WriteTxnMarkers answer"):
            markers.response(frame[:size])
