"""The status topic when writes are delayed or fail."""

from __future__ import annotations

from mm2.connect.stores.config_state import ConnectorTaskId
from mm2.connect.stores.internal_topic import InternalTopic
from mm2.connect.stores.kafka_status_store import KafkaStatusStore
from mm2.connect.stores.status_store import State, Status
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.sandbox.kafka import LocalKafka
from tests.support.waiting import wait_until


def test_a_stack_trace_that_is_too_long_does_not_lose_other_statuses(kafka_b: LocalKafka, unique: str) -> None:
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": kafka_b.bootstrap}), name="B")
    topic = InternalTopic(unique, "status.storage.", 1, 1)
    store = KafkaStatusStore(cluster, topic, start_timeout_s=60)
    store.start()
    try:
        kafka_b.pause()  # so that they are sent together
        for number in range(10):
            trace = "x" * 3_000_000 if number == 3 else None
            store.put(Status(ConnectorTaskId("c", number), State.FAILED, "w", 1, trace))
        kafka_b.resume()
        wait_until(lambda: len(store.tasks("c")) >= 9, 60)
        assert [status.id for status in store.tasks("c")] == [ConnectorTaskId("c", n) for n in range(10) if n != 3]
    finally:
        kafka_b.resume()
        store.stop()
        cluster.close()
