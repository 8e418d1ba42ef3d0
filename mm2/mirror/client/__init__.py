"""Client library for mirrored clusters: Kafka's connect-mirror-client (KIP-382, KIP-1239).

A consumer that moves to another cluster starts at the translated offsets of its group::

    from mm2.mirror.client import RemoteClusterUtils

    backup = {"bootstrap.servers": "backup:9092"}
    offsets = RemoteClusterUtils.translate_offsets(backup, "primary", "billing")
    # {TopicPartition("primary.orders", 0): OffsetAndMetadata(4711), …}
"""

from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition
from mm2.mirror.client.freshness import Freshness, FreshnessWatch
from mm2.mirror.client.mirror_client import MirrorClient
from mm2.mirror.client.remote_cluster import RemoteClusterUtils
from mm2.mirror.client.routes import replication_hops, route, upstream_clusters
from mm2.mirror.common.formats import Checkpoint, Heartbeat, OffsetSync
from mm2.mirror.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, ReplicationPolicy

__all__ = [
    "Checkpoint",
    "DefaultReplicationPolicy",
    "Freshness",
    "FreshnessWatch",
    "Heartbeat",
    "IdentityReplicationPolicy",
    "KafkaFailure",
    "MirrorClient",
    "OffsetAndMetadata",
    "OffsetSync",
    "RemoteClusterUtils",
    "ReplicationPolicy",
    "TopicPartition",
    "replication_hops",
    "route",
    "upstream_clusters",
]
