"""Creates the internal topics of MirrorMaker."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.config.configdef import ConfigDef
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import NewTopic
from mm2.mirror.common.clients import Side
from mm2.mirror.common.recurring_errors import RecurringErrors

log = structlog.get_logger("mm2.mirror.internal_topics")

# The topic exists, or we may not create it: an administrator may have created it, otherwise the first write reports the
# error.
_ASSUMED_THERE: Final = frozenset(
    {
        ErrorCode.TOPIC_ALREADY_EXISTS,
        ErrorCode.UNSUPPORTED_VERSION,
        ErrorCode.TOPIC_AUTHORIZATION_FAILED,
        ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
    }
)


@dataclass(frozen=True)
class KeptTopic:
    """An internal topic: its cluster, its settings, and the `key` that configures its replication factor.

    `or_broker_default`: the user has not set this replication factor, so the broker's default is used if there are too
    few brokers.
    """

    side: Side
    new: NewTopic
    key: str
    or_broker_default: bool

    @classmethod
    def compacted(cls, side: Side, topic: str, props: Mapping[str, str], definition: ConfigDef, key: str) -> KeptTopic:
        """An internal topic with one partition and compaction. Raises ConfigException for a bad replication factor."""
        return cls.of(side, NewTopic(topic, 1, configs={"cleanup.policy": "compact"}), props, definition, key)

    @classmethod
    def of(cls, side: Side, new: NewTopic, props: Mapping[str, str], definition: ConfigDef, key: str) -> KeptTopic:
        """A topic with the replication factor that the connector's properties have under `key`.

        Raises ConfigException if it is bad.
        """
        factor = definition.keys[key].value_in(props)
        return cls(side, dataclasses.replace(new, replication_factor=int(str(factor))), key, key not in props)


def create_kept_topic(admin: Admin, topic: KeptTopic, cluster: str, recurring: RecurringErrors) -> bool:
    """Create the topic unless it exists. False if this failed and should be retried.

    `cluster` is the alias, for messages. An existing topic is used as it is. Raises KafkaFailure if the cluster does
    not answer.
    """
    new, key, or_broker_default = topic.new, topic.key, topic.or_broker_default
    subject = f"topic {new.name}"
    answer = admin.create_topics([new]).get(new.name)
    if or_broker_default and isinstance(answer, BrokerFailure) and answer.code == ErrorCode.INVALID_REPLICATION_FACTOR:
        answer = admin.create_topics([dataclasses.replace(new, replication_factor=-1)]).get(new.name)
        if answer is None:
            log.warning("%s", broker_default_instead(key, new.replication_factor, cluster), topic=new.name)
    if not isinstance(answer, KafkaFailure):
        recurring.resolve(subject)
        log.info("Created topic.", topic=new.name, cluster=cluster)
        return True
    code = answer.code if isinstance(answer, BrokerFailure) else None
    if code in _ASSUMED_THERE:
        recurring.resolve(subject)
        log.debug("The topic exists and is used unchanged.", topic=new.name, cluster=cluster, reason=str(answer))
        return True
    recurring.report(
        subject, f"Topic {new.name} on cluster {cluster} cannot be created: {why_not_created(topic, answer)}"
    )
    return False


def why_not_created(topic: KeptTopic, failure: KafkaFailure) -> str:
    """The reason as a message, with key and value if it is the replication factor."""
    if isinstance(failure, BrokerFailure) and failure.code == ErrorCode.INVALID_REPLICATION_FACTOR:
        return f"{topic.key} is {topic.new.replication_factor}, which the cluster rejects ({failure})"
    return str(failure)


def broker_default_instead(key: str, replication_factor: int, cluster: str) -> str:
    """The message for a default of `key` that exceeds the number of brokers of the cluster."""
    return (
        f"{key} is {replication_factor} by default, more than cluster {cluster} has brokers: the brokers' own "
        f"default.replication.factor is used instead. Set {key} to override it."
    )


def create_compacted_topic(admin: Admin, topic: KeptTopic, cluster: str, recurring: RecurringErrors) -> bool:
    """Call :func:`create_kept_topic`, and warn if the topic is not compacted.

    Usually automatic topic creation has then created it.
    """
    if not create_kept_topic(admin, topic, cluster, recurring):
        return False
    name = topic.new.name
    configs = admin.describe_configs([name]).get(name)
    policy = configs.get("cleanup.policy") if isinstance(configs, dict) else None
    if policy is not None and policy.value != "compact":
        recurring.report(
            f"cleanup of {name}",
            f"Topic {name} on cluster {cluster} has cleanup.policy={policy.value}, so records older than its "
            "retention are deleted; set cleanup.policy=compact.",
        )
    return True
