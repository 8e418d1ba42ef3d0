"""Fetch responses that need a real broker: a diverging log."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.batch import iter_batches
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import NewTopic, TopicPartition, topic_id_bytes
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import Fetched, FetchSession, Position
from mm2.sandbox.kafka import LocalKafka

T0 = TopicPartition("orders", 0)


def ask(cluster: Cluster, position: Position, max_version: int) -> Fetched:
    info = cluster.metadata([T0.topic], max_age_s=0).topics[T0.topic]
    session = FetchSession({T0.topic: topic_id_bytes(info.topic_id)})
    connection = cluster.open_connection(info.partitions[0].leader)
    try:
        version = connection.version_of(fetch.REQUEST, max_version)
        frame = session.request(
            version,
            connection.next_correlation_id(),
            connection.client_id,
            {T0: position},
            max_wait_ms=500,
            min_bytes=1,
            max_bytes=1 << 20,
            read_committed=False,
        )
        connection.send_buffers([frame])
        (fetched,) = session.response(version, connection.receive_frame(bytearray(1 << 21), timeout_s=10))
    finally:
        connection.close()
    return fetched


def test_a_consumer_learns_where_its_log_diverges_from_the_brokers(tmp_path: Path) -> None:
    # GIVEN ten records of one leader epoch and five of a later one (a restarted leader starts an epoch)
    with LocalKafka("A", tmp_path) as broker:
        settings = ClientSettings.from_props({"bootstrap.servers": broker.bootstrap})
        with closing(Cluster(settings, name="A")) as cluster:
            Admin(cluster).create_topics([NewTopic(T0.topic, 1, 1)])
            Producer(cluster).send(T0.topic, [Record(b"old", b"v")] * 10, 0)
        broker.stop()
        broker.start()
        with closing(Cluster(settings, name="A")) as cluster:
            Producer(cluster).send(T0.topic, [Record(b"new", b"v")] * 5, 0)
            whole = ask(cluster, Position(0, -1, 1 << 20), fetch.MAX_VERSION)
            old, new = (view.header.leader_epoch for view in iter_batches(whole.records) if view.header is not None)
            assert old < new
            leader = cluster.metadata([T0.topic]).topics[T0.topic].partitions[0].leader_epoch

            # WHEN a consumer sends its last fetched epoch THEN the broker returns the diverging epoch if its log differs
            for max_version in (12, fetch.MAX_VERSION):
                assert ask(cluster, Position(12, leader, 1 << 20, new), max_version).diverging is None
                assert ask(cluster, Position(10, leader, 1 << 20, old), max_version).diverging is None
                parted = ask(cluster, Position(12, leader, 1 << 20, old), max_version)
                assert (parted.diverging, parted.error_code, bytes(parted.records)) == ((old, 10), 0, b"")
                unheard = ask(cluster, Position(12, leader, 1 << 20, leader + 1), max_version)
                assert unheard.error_code == ErrorCode.OFFSET_OUT_OF_RANGE
