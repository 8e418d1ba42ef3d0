"""The effect of each setting of a distributed worker on its requests and its topics."""

from __future__ import annotations

import base64
import json
import time
from collections.abc import Mapping
from typing import Any, Final

import pytest
from kafka.protocol.admin import CreateTopicsRequest
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest
from kafka.protocol.metadata import MetadataRequest

from mm2.connect.errors import Forbidden
from mm2.connect.herder.distributed import DistributedHerder
from mm2.connect.stores.kafka_offset_store import KafkaOffsetStore
from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, pairs
from tests.integration.connect_toy import connector_props, running_worker
from tests.integration.mirror_flow import partitions_of
from tests.support.sent_requests import SentRequests, recorded
from tests.support.waiting import wait_until
from tests.unit.config.key_tests import keys_of

STORES: Final = ("config", "offset", "status")
UNUSUAL: Final = {
    "client.id": "unusual-client",
    "group.id": "unusual-group",
    "heartbeat.interval.ms": "50",
    "inter.worker.key.generation.algorithm": "HmacSHA512",
    "inter.worker.key.size": "384",
    "inter.worker.key.ttl.ms": "300",
    "offset.flush.timeout.ms": "1234",
    "offset.storage.partitions": "4",
    "rebalance.timeout.ms": "34567",
    "session.timeout.ms": "23456",
    "status.storage.partitions": "6",
    "topic.creation.enable": "false",
    "topic.tracking.enable": "false",
    **{f"{store}.storage.topic": f"unusual-{store}" for store in STORES},
    # The brokers' default, which is 1.
    **{f"{store}.storage.replication.factor": "-1" for store in STORES},
}
EXPECTED: Final[Mapping[str, object]] = {
    "client.id": "unusual-client",
    "group.id": "unusual-group",
    "inter.worker.key.generation.algorithm": "HmacSHA512",
    "inter.worker.key.size": 48,
    "inter.worker.key.ttl.ms": True,
    "offset.flush.timeout.ms": 1.234,
    "offset.storage.partitions": 4,
    "rebalance.timeout.ms": 34567,
    "session.timeout.ms": 23456,
    "status.storage.partitions": 6,
    "topic.creation.enable": False,
    "topic.tracking.enable": "Topic tracking is disabled.",
    **{f"{store}.storage.topic": True for store in STORES},
    **{f"{store}.storage.replication.factor": -1 for store in STORES},
}


def observed(kafka: LocalKafka, name: str, settings: Mapping[str, str], patch: pytest.MonkeyPatch) -> dict[str, object]:
    """What a worker with these settings did, by key, while a connector wrote to a topic and another to a missing one."""
    flush_timeouts_s: list[float] = []
    write = KafkaOffsetStore.write

    def noting(store: KafkaOffsetStore, connector: str, offsets: Any, timeout_s: float) -> None:
        flush_timeouts_s.append(timeout_s)
        write(store, connector, offsets, timeout_s)

    patch.setattr(KafkaOffsetStore, "write", noting)
    missing, creation = f"{name}-missing", {"topic.creation.default.partitions": "2"}
    creation["topic.creation.default.replication.factor"] = "1"
    with recorded() as sent, running_worker(kafka, name, **settings) as node:
        create_topic(kafka.bootstrap, name)
        for topic in (name, missing):
            props = connector_props(topic, topic, **creation)
            node.herder.put_connector_config(topic, props, allow_replace=True).result(30)
        wait_until(lambda: flush_timeouts_s and len(sent.of(HeartbeatRequest)) > 1)
        wait_until(lambda: partitions_of(kafka, missing) == 2 or is_left_to_brokers(sent, missing))
        time.sleep(1)  # for heartbeats and session keys
        joined, created = sent.of(JoinGroupRequest)[-1], created_topics(sent)
        internal = {store: settings.get(f"{store}.storage.topic", f"{name}-{store}") for store in STORES}
        session_keys = [
            json.loads(value) for key, value in pairs(kafka.bootstrap, internal["config"]) if key == "session-key"
        ]
        return {
            "client.id": next(one.client_id for one in sent.all if one.api_key == JoinGroupRequest.API_KEY),
            "group.id": joined.group_id,
            "heartbeats": len(sent.of(HeartbeatRequest)),
            "inter.worker.key.generation.algorithm": session_keys[0]["algorithm"],
            "inter.worker.key.size": len(base64.b64decode(session_keys[0]["key"])),
            "inter.worker.key.ttl.ms": len(session_keys) > 2,
            "offset.flush.timeout.ms": flush_timeouts_s[0],
            "rebalance.timeout.ms": joined.rebalance_timeout_ms,
            "session.timeout.ms": joined.session_timeout_ms,
            "topic.creation.enable": missing in created,
            "topic.tracking.enable": tracked(node.herder, name),
            **{f"{store}.storage.partitions": created[internal[store]].num_partitions for store in STORES},
            **{f"{store}.storage.replication.factor": created[internal[store]].replication_factor for store in STORES},
            **{f"{store}.storage.topic": f"unusual-{store}" in created for store in STORES},
        }


def is_left_to_brokers(sent: SentRequests, topic: str) -> bool:
    """Whether brokers were asked to create the topic, which is done when Connect has not created it."""
    requests = [one for one in sent.of(MetadataRequest) if one.allow_auto_topic_creation]
    return topic in [wanted.name for one in requests for wanted in one.topics or ()]


def created_topics(sent: SentRequests) -> dict[str, Any]:
    return {topic.name: topic for request in sent.of(CreateTopicsRequest) for topic in request.topics}


def tracked(herder: DistributedHerder, connector: str) -> object:
    try:
        return herder.connector_topics(connector).topics
    except Forbidden as refused:
        return str(refused)


@pytest.fixture(scope="module")
def both(kafka_pair: tuple[LocalKafka, LocalKafka]) -> tuple[dict[str, object], dict[str, object]]:
    """What a worker did with the toy's settings, and what one did with unusual ones."""
    unique = f"worker-keys-{time.time_ns()}"
    found = []
    for kind, settings in (
        ("default", {f"{store}.storage.topic": f"{unique}-{store}" for store in STORES}),
        ("unusual", UNUSUAL),
    ):
        with pytest.MonkeyPatch.context() as patch:
            found.append(observed(kafka_pair[1], f"{unique}-{kind}", settings, patch))
    return found[0], found[1]


@pytest.mark.parametrize("key", EXPECTED)
def test_a_setting_of_a_worker_is_in_its_requests_or_its_topics(
    both: tuple[dict[str, object], dict[str, object]], key: str
) -> None:
    by_default, unusual = both
    assert unusual[key] == EXPECTED[key]
    assert by_default[key] != EXPECTED[key]


def test_each_of_these_keys_has_a_case() -> None:
    assert EXPECTED.keys() == {key for _, key in keys_of("test_a_setting_of_a_worker_is_in_its_requests_or_its_topics")}


def test_a_worker_sends_heartbeats_at_its_interval(both: tuple[dict[str, object], dict[str, object]]) -> None:
    """The interval of the other worker is ten times as long, the default is 3 s."""
    by_default, unusual = (float(str(one["heartbeats"])) for one in both)
    assert unusual > 3 * by_default
