"""The client library with several hops, tombstones, records of other producers, and recreated topics."""

from __future__ import annotations

import re
import socket
import time

import pytest

from mm2.kafka.errors import BrokerFailure, ConnectFailure, TimeoutFailure
from mm2.mirror.client import (
    Checkpoint,
    FreshnessWatch,
    Heartbeat,
    MirrorClient,
    OffsetAndMetadata,
    RemoteClusterUtils,
    TopicPartition,
)
from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import admin, create, partitions_of, write
from tests.support.waiting import wait_until


def test_the_newest_checkpoint_counts_and_a_tombstone_deletes_it(kafka_b: LocalKafka) -> None:
    create(kafka_b, "pts.checkpoints.internal")
    one, two = (Checkpoint("g.1", "pts.t", partition, 10, 9) for partition in range(2))
    later = Checkpoint("g.1", "pts.t", 0, 20, 19, "said")
    other, back = Checkpoint("g2", "pts.t", 0, 5, 5), Checkpoint("g2", "pts.t", 0, 4, 4)
    records: list[tuple[bytes | None, bytes | None]] = [(point.key(), point.value()) for point in (one, two, other)]
    records += [(b"no key of ours", b"?"), (None, None), (one.key(), b"\0\1" + one.value()[2:]), (two.key(), None)]
    records += [(later.key(), later.value()), (back.key(), back.value()), (back.key(), b"cut")]
    write(kafka_b, "pts.checkpoints.internal", records, 0)
    props = {"bootstrap.servers": kafka_b.bootstrap}
    found = {TopicPartition("pts.t", 0): OffsetAndMetadata(19, "said")}
    assert RemoteClusterUtils.translate_offsets(props, "pts", "g.1") == found
    assert RemoteClusterUtils.translate_offsets(props, "pts", "g") == {}
    by_group = RemoteClusterUtils.translate_offsets(props, "pts", re.compile(r"g\.?\d"))
    assert by_group == {"g.1": found, "g2": {TopicPartition("pts.t", 0): OffsetAndMetadata(4)}}
    assert RemoteClusterUtils.translate_offsets(props, "pts", re.compile("g")) == {}, "a pattern matches as a whole"
    assert "pts.checkpoints.internal" in RemoteClusterUtils.checkpoint_topics(props)
    with pytest.raises(BrokerFailure, match="Topic nowhere"):
        RemoteClusterUtils.translate_offsets(props, "nowhere", "g.1")
    with pytest.raises(TimeoutFailure, match=r"pts\.checkpoints\.internal-0 .* was not read to its end in 0 s"):
        RemoteClusterUtils.translate_offsets(props, "pts", "g.1", timeout_s=0)  # an incomplete result is an error


def test_freshness_over_several_hops_follows_new_heartbeats(kafka_b: LocalKafka) -> None:
    topics = ("fb.fa.heartbeats", "fb.heartbeats")
    now_ms = int(time.time() * 1000)

    def beat(topic: str, source: str, target: str, age_ms: int) -> None:
        record = Heartbeat(source, target, now_ms - age_ms)
        write(kafka_b, topic, [(record.key(), record.value())], 0)

    for topic in topics:
        create(kafka_b, topic)
    beat("fb.fa.heartbeats", "fx", "fa", 5_000)
    beat("fb.fa.heartbeats", "fx", "fa", 9_000)  # an old one that was copied again
    beat("fb.heartbeats", "fa", "fb", 1_000)
    write(kafka_b, "fb.heartbeats", [(b"no heartbeat", b"?"), (None, None)], 0)
    with MirrorClient({"bootstrap.servers": kafka_b.bootstrap}) as client:
        assert {"fa", "fb"} <= client.upstream_clusters()
        assert (client.replication_hops("fb"), client.replication_hops("fa")) == (1, 2)
        watch, late = FreshnessWatch(client), FreshnessWatch(client, window_s=0)
        assert not [one for one in late.look() if one.topic in topics]

        def looked() -> dict[str, tuple[tuple[str, ...], str, int]]:
            seen = [one for one in watch.look() if one.topic in topics]
            assert all(one.age_ms >= now_ms - one.heartbeat.timestamp_ms > -1 for one in seen)
            return {one.topic: (one.route, one.flow, now_ms - one.heartbeat.timestamp_ms) for one in seen}

        assert looked() == {
            "fb.heartbeats": (("fb",), "fa->fb", 1_000),
            "fb.fa.heartbeats": (("fb", "fa"), "fx->fa", 5_000),
        }
        beat("fb.fa.heartbeats", "fx", "fa", 2_000)
        assert looked()["fb.fa.heartbeats"][2] == 2_000
        assert [one.flow for one in late.look() if one.topic in topics] == ["fx->fa"]
        # The topic is deleted and recreated: its records are read although their offsets were read before.
        for done in admin(kafka_b).delete_topics(["fb.heartbeats"]).values():
            done.result(30)
        wait_until(lambda: not partitions_of(kafka_b, "fb.heartbeats"), 30, what="deletion")
        assert set(looked()) == {"fb.fa.heartbeats"}
        create(kafka_b, "fb.heartbeats")
        beat("fb.heartbeats", "fa", "fb", 500)
        assert looked()["fb.heartbeats"][2] == 500


def test_client_settings_are_kept_including_those_of_one_client_type(kafka_b: LocalKafka) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:  # which accepts connections and never responds
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        props = {"bootstrap.servers": address, "request.timeout.ms": "1500", "client.id": "mine"}
        with MirrorClient({**props, "admin.bootstrap.servers": kafka_b.bootstrap}) as client:
            client.heartbeat_topics()
            began_s = time.monotonic()
            with pytest.raises(ConnectFailure):
                client.remote_consumer_offsets("g", "A")
    # The default is thirty seconds; with a margin for a busy machine.
    assert 1 < time.monotonic() - began_s < 25
