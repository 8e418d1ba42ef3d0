"""What an executor asks the clusters before it copies. All functions block, and raise KafkaFailure."""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Any, Final

from kafka.protocol.producer import InitProducerIdRequest

from mm2.kafka.admin import Admin
from mm2.kafka.client.answer_checks import producer_of
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import ProducerIdentity

_CLEANUP_POLICY: Final = "cleanup.policy"
_EXPIRATIONS: Final = ("producer.id.expiration.ms", "transactional.id.expiration.ms")
#: Per broker. A broker handles one request of a connection at a time; with two connections it reads one while it appends another.
LOW_LATENCY_CONNECTIONS: Final = 2
#: From this round trip on the TCP window of a connection limits the throughput.
_HIGH_LATENCY_S: Final = 0.004
_HIGH_LATENCY_CONNECTIONS: Final = 8


def connections_per_broker(cluster: Cluster) -> int:
    """The number of connections that the round-trip time requires."""
    cluster.metadata(())  # opens a connection
    began = time.monotonic()
    cluster.metadata(())
    return LOW_LATENCY_CONNECTIONS if time.monotonic() - began < _HIGH_LATENCY_S else _HIGH_LATENCY_CONNECTIONS


def producer_expiration_ms(cluster: Cluster) -> int | None:
    """How long all brokers remember producers (KIP-854; `transactional.id.expiration.ms` before it); None: unknown."""
    admin = Admin(cluster)
    values = []
    for node in cluster.metadata(()).brokers:
        found = admin.describe_broker(node, _EXPIRATIONS)
        value = next((found[name] for name in _EXPIRATIONS if found.get(name)), None)
        if value is None:
            return None
        values.append(int(value))
    return min(values, default=None)


def new_producer(cluster: Cluster) -> ProducerIdentity:
    """A new producer id, without a transactional id."""
    request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, max_version=4)
    answer: Any = cluster.send(None, request)
    if answer.error_code:
        raise BrokerFailure.of(
            answer.error_code, subject=f"requesting a producer id from cluster {cluster.name}", needed="WRITE"
        )
    return producer_of(answer)


def uncompacted(cluster: Cluster, topics: Iterable[str]) -> set[str]:
    """Those of the topics that are certainly not compacted, so that holes in their offsets are not expected."""
    found = Admin(cluster).describe_configs(topics, [_CLEANUP_POLICY])
    policies = {
        topic: None if isinstance(configs, KafkaFailure) else configs.get(_CLEANUP_POLICY)
        for topic, configs in found.items()
    }
    return {
        topic
        for topic, policy in policies.items()
        if policy is not None and policy.value is not None and "compact" not in policy.value
    }


def partition_count(cluster: Cluster, topic: str) -> int:
    """Number of partitions of a topic."""
    metadata = cluster.metadata([topic])
    info = metadata.topics.get(topic)
    if info is None:
        subject = f"topic {topic} of cluster {cluster.name}"
        raise metadata.errors.get(topic) or BrokerFailure.of(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject=subject)
    return len(info.partitions)
