"""Creation of the topics that MirrorMaker keeps for itself (spec mirrormaker §2.2)."""

from __future__ import annotations

import dataclasses
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
    admin: Admin,
    topic: str,
    *,
    cluster: str,
    replication_factor: int,
    key: str,
    complaints: Complaints,
    or_broker_default: bool = False,
) -> bool:
    """`create_internal_topic` for one of MM2's own: compacted, one partition."""
    new = NewTopic(topic, 1, replication_factor, {"cleanup.policy": "compact"})
    return create_internal_topic(
        admin, new, cluster=cluster, key=key, complaints=complaints, or_broker_default=or_broker_default
    )


def create_internal_topic(
    admin: Admin, new: NewTopic, *, cluster: str, key: str, complaints: Complaints, or_broker_default: bool = False
) -> bool:
    """Make `new` unless it exists. False when that failed and is worth another try.

    `cluster` is the alias and `key` the configuration key of the replication factor, both for the sentence.
    `or_broker_default`: when there are not that many brokers, the broker's own replication factor will do. An existing
    topic is taken as it is. Raises KafkaFailure when the cluster does not answer.
    """
    subject = f"topic {new.name}"
    answer = admin.create_topics([new]).get(new.name)
    if or_broker_default and isinstance(answer, BrokerFailure) and answer.code == ErrorCode.INVALID_REPLICATION_FACTOR:
        answer = admin.create_topics([dataclasses.replace(new, replication_factor=-1)]).get(new.name)
        if answer is None:
            log.warning("%s", broker_default_instead(key, new.replication_factor, cluster), topic=new.name)
    if not isinstance(answer, KafkaFailure):
        complaints.over(subject)
        log.info("Created topic.", topic=new.name, cluster=cluster)
        return True
    code = answer.code if isinstance(answer, BrokerFailure) else None
    if code in _ASSUMED_THERE:
        complaints.over(subject)
        log.debug("Topic is taken as it is.", topic=new.name, cluster=cluster, reason=str(answer))
        return True
    reason = str(answer)
    if code == ErrorCode.INVALID_REPLICATION_FACTOR:
        reason = f"{key} is {new.replication_factor}, which the cluster cannot hold ({reason})"
    complaints.say(subject, f"Topic {new.name} on cluster {cluster} cannot be created: {reason}")
    return False


def broker_default_instead(key: str, replication_factor: int, cluster: str) -> str:
    """The sentence for a default of `key` that the cluster has too few brokers for."""
    return (
        f"{key} is {replication_factor} by default, more than cluster {cluster} has brokers: the brokers' own "
        f"default.replication.factor counts instead. Set {key} to have it otherwise."
    )


def complain_unless_compacted(admin: Admin, topic: str, *, cluster: str, complaints: Complaints) -> None:
    """Say what is lost when somebody else made `topic` and did not have it compacted."""
    configs = admin.describe_configs([topic]).get(topic)
    policy = configs.get("cleanup.policy") if isinstance(configs, dict) else None
    if policy is None or policy.value == "compact":
        return
    complaints.say(
        f"cleanup of {topic}",
        f"Topic {topic} on cluster {cluster} has cleanup.policy={policy.value}, so what was written before its "
        "retention is forgotten; set cleanup.policy=compact.",
    )
