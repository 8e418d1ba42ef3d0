"""Record batches that take up many offsets at little cost, until they are deleted (KIP-107)."""

from __future__ import annotations

import functools
from typing import Any, Final

from kafka.protocol.producer import ProduceRequest

from mm2.kafka.answer_checks import only
from mm2.kafka.cluster import Cluster
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.records.batch import BatchHeader, assemble
from mm2.kafka.records.codec import codec_of
from mm2.kafka.structs import TopicPartition
from mm2.kafka.varint import varint

#: Records of one batch. zstd compresses a million of them to about 817 KB, less than the default of max.message.bytes.
FILLER_RECORDS: Final = 1_000_000
#: By which the batches are recognized, together with the missing producer id. No retention is shorter.
FILLER_TIMESTAMP_MS: Final = 1
_PRODUCE_VERSION: Final = 9


def is_filler(header: BatchHeader) -> bool:
    """Whether a batch consists of filler records."""
    stamps = header.base_timestamp, header.max_timestamp
    return header.producer_id < 0 and stamps == (FILLER_TIMESTAMP_MS, FILLER_TIMESTAMP_MS)


@functools.lru_cache(maxsize=2)
def filler_batch(count: int) -> bytes:
    """A batch of so many records with an empty key, which compacted topics require, and without a value."""
    out = bytearray()
    for index in range(count):
        # attributes, timestamp delta, offset delta, key of 0 bytes, null value, no headers
        body = b"\x00\x00" + varint(index) + b"\x00\x01\x00"
        out += varint(len(body)) + body
    codec = codec_of("zstd")
    block = codec.compress(out, level=None)
    stamp = FILLER_TIMESTAMP_MS
    return bytes(assemble(block, count=count, attributes=codec.id, base_timestamp=stamp, max_timestamp=stamp))


def produce_filler(cluster: Cluster, partition: TopicPartition, count: int, timeout_s: float) -> int:
    """Append a batch of so many filler records, once; returns its base offset. Raises KafkaFailure."""
    topic = ProduceRequest.TopicProduceData
    rows = [topic.PartitionProduceData(index=partition.partition, records=filler_batch(count))]
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
        raise BrokerFailure.of(result.error_code, result.error_message, subject=f"filling {partition}")
    return int(result.base_offset)
