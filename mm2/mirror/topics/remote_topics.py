"""Creates remote topics and adds partitions to them, and verifies the result.

Java sends the requests without awaiting the results. A task may then produce to a topic that does not exist yet; a
broker with automatic topic creation creates it with the wrong number of partitions. Here a partition counts as existing
only when the target has described it.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, TypeVar

import structlog

from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import NewTopic, TopicInfo
from mm2.mirror.common.discovery import TOPICS_PER_REQUEST, chunks
from mm2.mirror.common.internal_topics import broker_default_instead
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.topics.config_sync import ConfigSync
from mm2.mirror.topics.selection import TopicSelection
from mm2.mirror.topics.topic_limits import RemoteTopicsLimits

log = structlog.get_logger("mm2.mirror.remote_topics")

REPLICATION_FACTOR_KEY: Final = "replication.factor"
VERIFY_TIMEOUT_S: Final = 15.0
# KRaft rejects requests that create more than 10,000 partitions.
PARTITIONS_PER_REQUEST: Final = 5000

_T = TypeVar("_T")


@dataclass(frozen=True)
class RemoteTopicsPlan:
    """What `RemoteTopics.ensure` requests: the topics to create, and new partition counts by remote topic.

    `wide` topics have more partitions than their sources. `unknown` topics cannot be created, since the configs of
    their sources are not known. `over_limit` topics are not created, or get no more partitions, because of
    `RemoteTopicsLimits`. All have a message each, without its subject.
    """

    create: tuple[NewTopic, ...]
    grow: Mapping[str, int]
    wide: Mapping[str, str]
    unknown: Mapping[str, str]
    over_limit: Mapping[str, str] = field(default_factory=dict)


@dataclass
class RemoteTopics:
    """The remote topics of one flow. `pause` sleeps and returns False at stop.

    `over_limit` are the remote topics that exceeded `limits` at the last `ensure`, `refused` those that could not be created or
    did not get all partitions, with a message each.

    `or_broker_default`: the user has not set `replication_factor`, so the target's default is used if it has too few
    brokers.
    """

    source_admin: Admin
    target_admin: Admin
    selection: TopicSelection
    config_sync: ConfigSync
    replication_factor: int
    pause: Callable[[float], bool]
    recurring: RecurringErrors = field(default_factory=RecurringErrors)
    or_broker_default: bool = False
    limits: RemoteTopicsLimits | None = None
    over_limit: Mapping[str, str] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    # Properties with their values that this target has rejected.
    _rejected: set[tuple[str, str]] = field(default_factory=set)
    _is_default_reported: bool = False

    def ensure(self, source: Mapping[str, int], target: Mapping[str, int]) -> dict[str, int]:
        """Create missing topics and partitions. Returns the number of partitions by remote topic.

        `source` and `target` are the numbers of partitions by topic on each cluster. The result is `target` with the
        changes that were made and verified. Failures are reported and left out.
        """
        return {**target, **self._verified(self.request(source, target), target)}

    def request(self, source: Mapping[str, int], target: Mapping[str, int]) -> dict[str, int]:
        """`ensure`, without verification: the number of partitions of each remote topic that the target has accepted."""
        plan = self.plan(source, target)
        self.over_limit, self.refused = plan.over_limit, {}
        for remote, message in (*plan.wide.items(), *plan.over_limit.items()):
            self._report(remote, message)
        for remote, message in plan.unknown.items():
            self._refuse(remote, message)
        wanted = self._create(plan.create) | self._grow(plan.grow)
        touched = [*(topic.name for topic in plan.create), *plan.grow, *plan.wide, *plan.unknown, *plan.over_limit]
        self.recurring.keep_only("remote topic ", {f"remote topic {remote}" for remote in touched})
        return wanted

    def plan(self, source: Mapping[str, int], target: Mapping[str, int]) -> RemoteTopicsPlan:
        """What `ensure` requests. Changes nothing; reads from the source the configs of missing topics."""
        # Of several topics with one remote topic, it gets the most partitions, and the configs of the first one by name.
        remote_of = {self.selection.remote(topic): topic for topic in sorted(source, key=source.__getitem__)}
        config_of = {self.selection.remote(topic): topic for topic in sorted(source, reverse=True)}
        missing = {remote: topic for remote, topic in remote_of.items() if remote not in target}
        grow = {
            remote: source[topic]
            for remote, topic in remote_of.items()
            if remote in target and target[remote] < source[topic]
        }
        wide = {
            remote: f"has {target[remote]} partitions and its source {source[topic]}: no records are copied to the others, and "
            "the partition of a key differs from that on the source"
            for remote, topic in remote_of.items()
            if target.get(remote, 0) > source[topic]
        }
        over_limit = self._over_limit(remote_of, source, target)
        grow = {remote: count for remote, count in grow.items() if remote not in over_limit}
        missing = {remote: topic for remote, topic in missing.items() if remote not in over_limit}
        new, unknown = [], {}
        for some in chunks(missing, TOPICS_PER_REQUEST):
            described = self.source_admin.describe_configs([config_of[remote] for remote in some])
            for remote in some:
                topic = config_of[remote]
                configs = described.get(topic)
                if configs is None or isinstance(configs, KafkaFailure):
                    unknown[remote] = f"cannot be created: the configs of {topic} are not known ({configs})"
                else:
                    copied = self._acceptable(self.config_sync.for_creation(configs))
                    new.append(NewTopic(remote, source[missing[remote]], self.replication_factor, copied))
        return RemoteTopicsPlan(tuple(new), grow, wide, unknown, over_limit)

    def _over_limit(
        self, remote_of: Mapping[str, str], source: Mapping[str, int], target: Mapping[str, int]
    ) -> dict[str, str]:
        """The remote topics that would exceed a limit, with a message that names both numbers of partitions."""
        if self.limits is None:
            return {}
        existing = {remote: target[remote] for remote in remote_of if remote in target}
        wanted = {
            remote: source[topic] for remote, topic in remote_of.items() if existing.get(remote, 0) < source[topic]
        }
        return {
            remote: f"{why}: it has {existing.get(remote, 0)}, its source {wanted[remote]}. No records of the others are copied"
            for remote, why in self.limits.exceeded(wanted, existing).items()
        }

    def _create(self, new: Iterable[NewTopic]) -> dict[str, int]:
        wanted = {}
        for request in in_requests(new, lambda topic: topic.partitions):
            answers = self._make(request)
            for topic_ in request:
                answer = answers.get(topic_.name)
                if not isinstance(answer, KafkaFailure):
                    log.info("Created remote topic.", topic=topic_.name, partitions=topic_.partitions)
                elif _code(answer) != ErrorCode.TOPIC_ALREADY_EXISTS:
                    self._refuse(topic_.name, f"cannot be created: {self._explained(answer)}")
                    continue
                wanted[topic_.name] = topic_.partitions
        return wanted

    def _make(self, topics: list[NewTopic]) -> dict[str, KafkaFailure | None]:
        """The result by topic. If a dispensable property of a topic is rejected, the topic is created without it."""
        answers = self.target_admin.create_topics(topics)
        again, few = [], []
        for topic in topics:
            code = _code(answers.get(topic.name))
            if code == ErrorCode.INVALID_CONFIG and (lesser := self._without_rejected(topic)) != topic:
                again.append(lesser)
            elif (
                code == ErrorCode.INVALID_REPLICATION_FACTOR
                and self.or_broker_default
                and topic.replication_factor != -1
            ):
                few.append(dataclasses.replace(topic, replication_factor=-1))
        if few and not self._is_default_reported:
            # For these topics only: later ones find more brokers, if some were down.
            cluster = self.selection.target_alias
            self._is_default_reported = True
            log.warning("%s", broker_default_instead(REPLICATION_FACTOR_KEY, self.replication_factor, cluster))
        return {**answers, **self._make(again + few)} if again or few else answers

    def _without_rejected(self, topic: NewTopic) -> NewTopic:
        """`topic` without the properties that the target rejects; each of them is reported.

        An older broker does not know all properties of a newer one, and reports only one unknown property at a time.
        """
        for name, value in topic.configs.items():
            alone = dataclasses.replace(topic, configs={name: value})
            answer = self.target_admin.create_topics([alone], validate_only=True).get(topic.name)
            if isinstance(answer, KafkaFailure) and _code(answer) == ErrorCode.INVALID_CONFIG:
                self._rejected.add((name, value))
                cluster = self.selection.target_alias
                message = f"Cluster {cluster} rejects {name}={value}, so remote topics are created without it: {answer}"
                self.recurring.report(f"property {name}={value}", message, is_note=True)
        return dataclasses.replace(topic, configs=self._acceptable(topic.configs))

    def _acceptable(self, configs: Mapping[str, str]) -> dict[str, str]:
        return {name: value for name, value in configs.items() if (name, value) not in self._rejected}

    def _grow(self, short: Mapping[str, int]) -> dict[str, int]:
        wanted = {}
        for some in in_requests(short, short.__getitem__):
            answers = self.target_admin.create_partitions({remote: short[remote] for remote in some})
            for remote in some:
                count = short[remote]
                answer = answers.get(remote)
                if not isinstance(answer, KafkaFailure):
                    log.info("Added partitions to remote topic.", topic=remote, partitions=count)
                elif _code(answer) != ErrorCode.INVALID_PARTITIONS:  # another client has added them
                    self._refuse(remote, f"cannot get {count} partitions: {self._explained(answer)}")
                    continue
                wanted[remote] = count
        return wanted

    def _verified(self, wanted: Mapping[str, int], target: Mapping[str, int]) -> dict[str, int]:
        """Wait until the target reports the wanted partitions, each with a leader."""
        verified: dict[str, int] = {}
        waiting = dict(wanted)
        deadline = time.monotonic() + VERIFY_TIMEOUT_S
        delay_s = 0.05
        while waiting:
            for some in chunks(list(waiting), TOPICS_PER_REQUEST):
                for remote, answer in self.target_admin.describe_topics(some).items():
                    led = _partitions_with_leader(answer)
                    if led >= waiting[remote]:
                        verified[remote] = led
                        del waiting[remote]
                    elif led > target.get(remote, 0):
                        verified[remote] = led
            if not waiting or time.monotonic() > deadline or not self.pause(delay_s):
                break
            delay_s = min(delay_s * 2, 1.0)
        for remote, count in waiting.items():
            self._refuse(remote, f"did not report its {count} partitions within {VERIFY_TIMEOUT_S:.0f} s")
        return verified

    def _refuse(self, remote: str, what: str) -> None:
        self.refused[remote] = f"topic {remote} {what}"
        self._report(remote, what)

    def _report(self, remote: str, what: str) -> None:
        cluster = self.selection.target_alias
        self.recurring.report(f"remote topic {remote}", f"Topic {remote} on cluster {cluster} {what}")

    def _explained(self, failure: KafkaFailure) -> str:
        """Why a topic cannot be created, and how to fix it."""
        if _code(failure) == ErrorCode.INVALID_REPLICATION_FACTOR:
            return (
                f"{REPLICATION_FACTOR_KEY} is {self.replication_factor}, which the cluster rejects ({failure}) "
                f"Set {REPLICATION_FACTOR_KEY} to at most the number of its brokers, or to -1 for its own default."
            )
        return str(failure)


def in_requests(topics: Iterable[_T], partitions: Callable[[_T], int]) -> list[list[_T]]:
    """Split into requests that stay below the controller's limit; a single topic may exceed it."""
    requests: list[list[_T]] = []
    size = 0
    for topic in topics:
        if not requests or size + partitions(topic) > PARTITIONS_PER_REQUEST:
            requests.append([])
            size = 0
        requests[-1].append(topic)
        size += partitions(topic)
    return requests


def _partitions_with_leader(answer: TopicInfo | KafkaFailure) -> int:
    """The number of partitions, counted from 0, that have a leader."""
    if isinstance(answer, KafkaFailure):
        return 0
    count = 0
    while (info := answer.partitions.get(count)) is not None and info.leader >= 0:
        count += 1
    return count


def _code(failure: KafkaFailure | None) -> int | None:
    return failure.code if isinstance(failure, BrokerFailure) else None
