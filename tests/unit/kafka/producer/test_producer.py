"""The control plane's producer when a broker disconnects. Responses of the cluster are simulated."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import RefusedFailure, TimeoutFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings


class TwoBrokers:
    """Broker 1 is dead; broker 2 is found as the leader after the metadata is refreshed."""

    settings = ClientSettings.from_props({"bootstrap.servers": "localhost:1", "retry.backoff.ms": "1"}, client_id="c")
    name = "B"

    def __init__(self) -> None:
        self.known_leader = 1

    def leader(self, _topic: str, _partition: int) -> int:
        return self.known_leader

    def invalidate(self, _topic: str) -> None:
        self.known_leader = 2

    def send(self, node: int, _request: object) -> Any:
        if node == 1:
            raise RefusedFailure("broker 1 is gone")
        stored = SimpleNamespace(error_code=0, base_offset=7, log_append_time_ms=-1)
        return SimpleNamespace(responses=[SimpleNamespace(partition_responses=[stored])])


def test_the_leader_is_looked_up_again_after_a_disconnect() -> None:
    producer = Producer(cast(Cluster, TwoBrokers()))
    (metadata,) = producer.send("t", [Record(b"k", b"v")], 0, timeout_s=2)
    assert metadata.offset == 7


def test_a_call_does_not_wait_longer_than_its_timeout_for_another_one() -> None:
    """A call without a timeout may wait for its broker forever."""
    cluster = TwoBrokers()
    writing, answered = threading.Event(), threading.Event()
    send = cluster.send

    def send_slowly(node: int, _request: object) -> Any:
        writing.set()
        answered.wait(60)
        return send(node, _request)

    cluster.known_leader, cluster.send = 2, send_slowly  # type: ignore[method-assign]
    producer = Producer(cast(Cluster, cluster))
    first = threading.Thread(target=producer.send, args=("t", [Record(b"k", b"v")], 0))
    first.start()
    try:
        assert writing.wait(60)
        with pytest.raises(TimeoutFailure):
            producer.send("t", [Record(b"k", b"w")], 0, timeout_s=0.05)
    finally:
        answered.set()
        first.join(60)
    (metadata,) = producer.send("t", [Record(b"k", b"w")], 0, timeout_s=60)
    assert metadata.offset == 7
