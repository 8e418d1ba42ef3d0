"""Creation of MirrorMaker's own compacted topics: offset syncs, checkpoints, heartbeats (spec mirrormaker §2.2)."""

from __future__ import annotations

from typing import Final

import structlog

from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import NewTopic
from mm2.mirror.complaints import Complaints

log = structlog.get_logger(__name__)

# Somebody made it, or we may not: then an administrator did, or the first write will say what is wrong.
_ASSUMED_THERE: Final = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)


def create_compacted_topic(
    admin: Admin, topic: str, *, cluster: str, replication_factor: int, key: str, complaints: Complaints
) -> bool:
    """Make `topic` with one partition unless it exists. False when that failed and is worth another try.

    `cluster` is the alias and `key` the configuration key of the replication factor, both for the sentence. An existing
    topic is taken as it is. Raises KafkaFailure when the cluster does not answer.
    """
    subject = f"topic {topic}"
    new = NewTopic(topic, 1, replication_factor, {"cleanup.policy": "compact"})
    answer = admin.create_topics([new]).get(topic)
    if not isinstance(answer, KafkaFailure):
        complaints.over(subject)
        log.info("Created topic.", topic=topic, cluster=cluster)
        return True
    code = answer.code if isinstance(answer, BrokerFailure) else None
    if code in _ASSUMED_THERE:
        complaints.over(subject)
        log.debug("Topic is taken as it is.", topic=topic, cluster=cluster, reason=str(answer))
        return True
    reason = str(answer)
    if code == ErrorCode.INVALID_REPLICATION_FACTOR:
        reason = f"{key} is {replication_factor}, which the cluster cannot hold ({reason})"
    complaints.say(subject, f"Topic {topic} on cluster {cluster} cannot be created: {reason}")
    return False
