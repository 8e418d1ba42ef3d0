"""Record batches that take up many offsets at little cost, until they are deleted (KIP-107)."""

from __future__ import annotations

import functools
from typing import Any, Final

from kafka.protocol.producer import ProduceRequest

from mm2.kafka.client.answer_checks import only
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.records.batch import BatchHeader, assemble
from mm2.kafka.records.codec import codec_of
from mm2.kafka.structs import TopicPartition
from mm2.kafka.varint import varint

#: Records of one batch. zstd compresses a million of them to about 817 KB, less than the default of max.message.bytes.
FILLER_RECORDS: Final = 1_000_000
#: By which the batches are recognized: a broker may replace timestamps (message.timestamp.type) and codecs (compression.type), but
#: never the producer. Brokers assign producer ids in ascending order from 0, so they never reach it.
FILLER_PRODUCER_ID: Final = (1 << 62) - 1
#: Before the first record, so that a search by time never finds a filler.
_TIMESTAMP_MS: Final = 1
_SEQUENCES: Final = 1 << 31
_PRODUCE_VERSION: Final = 9


def is_filler(header: BatchHeader) -> bool:
    """Whether a batch consists of filler records, also those of versions before 0.3, which had no producer."""
    stamps = header.base_timestamp, header.max_timestamp
    is_old = header.producer_id < 0 and stamps == (_TIMESTAMP_MS, _TIMESTAMP_MS)
    return header.producer_id == FILLER_PRODUCER_ID or is_old


@functools.lru_cache(maxsize=2)
def _filler_records(count: int) -> bytes:
    """So many records with an empty key, which compacted topics require, and without a value; compressed."""
    out = bytearray()
    for index in range(count):
        # attributes, timestamp delta, offset delta, key of 0 bytes, null value, no headers
        body = b"\x00\x00" + varint(index) + b"\x00\x01\x00"
        out += varint(len(body)) + body
    return bytes(codec_of("zstd").compress(out, level=None))


def filler_batch(at: int, count: int) -> bytes:
    """A batch of filler records for the offsets ``at .. at+count-1``.

    Its sequence numbers are the offsets, so the broker appends it nowhere else after another filler, and only once.
    """
    return bytes(
        assemble(
            _filler_records(count),
            count=count,
            attributes=codec_of("zstd").id,
            base_timestamp=_TIMESTAMP_MS,
            max_timestamp=_TIMESTAMP_MS,
            producer=(FILLER_PRODUCER_ID, 0, at % _SEQUENCES),
        )
    )


def produce_filler(cluster: Cluster, partition: TopicPartition, at: int, count: int, timeout_s: float) -> int:
    """Append a batch of so many filler records to a log that ends at ``at``; returns its base offset. Raises KafkaFailure."""
    topic = ProduceRequest.TopicProduceData
    rows = [topic.PartitionProduceData(index=partition.partition, records=filler_batch(at, count))]
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=int(timeout_s * 1000),
        topic_data=[topic(name=partition.topic, partition_data=rows)],
        max_version=_PRODUCE_VERSION,
    )
    leader = cluster.leader(*partition, timeout_s=timeout_s)
    answer: Any = cluster.send(leader, request, timeout_s=timeout_s)
    result = only(only(answer.responses, "topic").partition_responses, "partition")
    if result.error_code:
        cluster.invalidate(partition.topic)
        raise BrokerFailure.of(result.error_code, result.error_message, subject=f"filling {partition}", needed="WRITE")
    return int(result.base_offset)
