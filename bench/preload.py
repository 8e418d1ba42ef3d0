"""Writes a shape's records to the source, in batches of exactly the size the shape asks for."""

import itertools
import time
from collections.abc import Iterable
from dataclasses import dataclass

from confluent_kafka import KafkaError, Message, Producer

from bench.errors import BenchFailed
from bench.shapes import Shape
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.readers.reader import BatchReader
from mm2.kafka.structs import NewTopic, TopicPartition

_SENT_BETWEEN_POLLS = 1000
_FLUSH_S = 300.0
_DAY_MS = 24 * 60 * 60 * 1000

SENTINEL_KEY = b"last"
"""Of the last record of each partition; no other record has a key."""


@dataclass(frozen=True)
class Stored:
    """How the data really lies on the source, from the first batches of partition 0. Bytes as stored, compressed."""

    records_per_batch: float
    bytes_per_batch: float


def preload(cluster: Cluster, bootstrap: str, topic: str, shape: Shape) -> Stored:
    """Creates `topic` and writes the whole shape, the last record of each partition after all others and with a key.

    Raises BenchFailed or KafkaFailure.
    """
    made = Admin(cluster).create_topics([NewTopic(topic, shape.partitions, 1)])[topic]
    if isinstance(made, KafkaFailure):
        raise made
    failed: list[KafkaError] = []

    def delivered(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    producer = Producer(
        {
            "bootstrap.servers": bootstrap,
            "compression.type": shape.codec,
            # A batch goes when it has its number of records, not earlier and not by its bytes.
            "batch.num.messages": shape.records_per_batch,
            "batch.size": 4 << 20,
            "linger.ms": 2000,
            "queue.buffering.max.messages": 500_000,
            "queue.buffering.max.kbytes": 512 << 10,
            "acks": 1,
            "on_delivery": delivered,
        }
    )
    values = itertools.cycle(shape.values())
    timestamp_ms = int(time.time() * 1000) - shape.age_days * _DAY_MS

    def write(partitions: Iterable[int], key: bytes | None) -> None:
        for index, partition in enumerate(partitions):
            while True:
                try:
                    producer.produce(topic, next(values), key, partition=partition, timestamp=timestamp_ms)
                    break
                except BufferError:
                    producer.poll(0.05)
            if index % _SENT_BETWEEN_POLLS == 0:
                producer.poll(0)
        left = producer.flush(_FLUSH_S)
        if left or failed:
            raise BenchFailed(f"{left + len(failed)} records could not be written to the source: {failed[:1]}.")

    write(itertools.islice(shape.record_partitions(), shape.records - shape.partitions), None)
    write(range(shape.partitions), SENTINEL_KEY)
    return _look(cluster, topic)


def _look(cluster: Cluster, topic: str) -> Stored:
    info = Admin(cluster).describe_topics([topic])[topic]
    if isinstance(info, KafkaFailure):
        raise info
    reader = BatchReader(cluster, cluster.leader(topic, 0), {topic: info})
    try:
        reader.positions[TopicPartition(topic, 0)] = 0
        batches = reader.poll(max_wait_ms=1000)
    finally:
        reader.close()
    records = sum(batch.view.header.records_count for batch in batches if batch.view.header is not None)
    stored = sum(len(batch.view.data) for batch in batches)
    return Stored(records / max(1, len(batches)), stored / max(1, len(batches)))
