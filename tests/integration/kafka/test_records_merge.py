"""Merged and rewritten batches on a real broker: accepted, and read by another client's decoder."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from itertools import chain

import confluent_kafka
import pytest

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.records.batch import iter_batches, patch
from mm2.kafka.records.codec import CODECS
from mm2.kafka.records.merge import Merged, coalesce
from mm2.kafka.records.record import Record, decode_batch, encode_batch, rewrite
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import NewTopic, TopicPartition
from mm2.kafka.wire import produce
from mm2.sandbox.kafka import LocalKafka
from tests.unit.kafka.test_records_legacy import ROWS

NOON = 1_700_000_000_000


def write(cluster: Cluster, topic: str, batches: Sequence[bytearray]) -> None:
    """Send one request for each batch, as the sink does."""
    connection = cluster.open_connection(cluster.leader(topic, 0))
    try:
        version = connection.version_of(produce.REQUEST, produce.TOPIC_IDS_FROM - 1)
        for batch in batches:
            buffers = produce.request(
                version,
                connection.next_correlation_id(),
                connection.client_id,
                {TopicPartition(topic, 0): batch},
                acks=-1,
                timeout_ms=10_000,
            )
            connection.send_buffers(buffers)
            (taken,) = produce.response(version, connection.receive_frame(bytearray(1 << 16), timeout_s=10))
            assert (taken.error_code, taken.message) == (0, None)
    finally:
        connection.close()


def read(broker: LocalKafka, topic: str, count: int) -> list[tuple[int, bytes | None, bytes | None]]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": broker.bootstrap, "group.id": topic, "check.crcs": True})
    try:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        found = consumer.consume(count, timeout=20)
        assert not any(message.error() for message in found)
        return [(message.timestamp()[1], message.key(), message.value()) for message in found]
    finally:
        consumer.close()


@pytest.mark.parametrize("codec", [codec.name for codec in CODECS])
def test_merged_batches_are_accepted_and_read(kafka_a: LocalKafka, unique: str, codec: str) -> None:
    # GIVEN a topic of tiny batches: of one record, and of several
    groups = [[Record(b"k%d" % i, b"v" * (i % 200), (("h", b"x"),), NOON + i)] * (1 + i % 3) for i in range(400)]
    fetched, base = bytearray(), 0
    for group in groups:
        fetched += encode_batch(group, codec=codec, base_offset=base)
        base += len(group)
    # WHEN they are merged and written
    merged = list(coalesce(memoryview(fetched), 0, max_bytes=40_000, compressed=True))
    assert sum(one.batches for one in merged if isinstance(one, Merged)) > 395
    batches = [bytearray(one.data) for one in merged]
    for batch in batches:
        (view,) = iter_batches(memoryview(batch))
        assert view.header is not None
        patch(view.data, view.header, (-1, -1, -1))
    with closing(Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_a.bootstrap}), name="A")) as cluster:
        Admin(cluster).create_topics([NewTopic(unique, 1, 1)])
        write(cluster, unique, batches)
    # THEN another client reads them as if each had been written separately
    wanted = [(record.timestamp, record.key, record.value) for record in chain.from_iterable(groups)]
    assert read(kafka_a, unique, len(wanted)) == wanted


def test_old_message_sets_are_accepted_once_rewritten(kafka_a: LocalKafka, unique: str) -> None:
    batches, wanted = [], []
    for row in ROWS:
        for view in iter_batches(memoryview(bytes.fromhex(row[3]))):
            rewritten = rewrite(view)
            assert rewritten is not None
            batches.append(rewritten.data)
            wanted += [(record.timestamp, record.key, record.value) for record in decode_batch(view)]
    with closing(Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_a.bootstrap}), name="A")) as cluster:
        topic = NewTopic(unique, 1, 1, {"message.timestamp.before.max.ms": str((1 << 63) - 1)})
        Admin(cluster).create_topics([topic])
        write(cluster, unique, batches)
    # librdkafka shows a timestamp of -1, none, as it is
    assert read(kafka_a, unique, len(wanted)) == wanted
