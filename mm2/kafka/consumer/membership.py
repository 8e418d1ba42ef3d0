"""What a consumer and its group membership exchange, for both group protocols.

`mm2.kafka.consumer.classic_membership` and `mm2.kafka.consumer.server_assigned` are the memberships. Two threads share
their state. The *membership thread* keeps the consumer in the group and watches the subscribed topics. The consumer's
user runs rebalance listeners in `Consumer.poll`, so that heartbeats continue while a listener runs. The membership
thread neither joins again nor acknowledges an assignment before the user has handled the last event: a member never
reports partitions as released that it still uses.
"""

from __future__ import annotations

import time
from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.metadata import MetadataRequest

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure
from mm2.kafka.group.member_thread import MemberThread, Retry
from mm2.kafka.structs import TopicInfo, TopicPartition

#: How often to check for subscribed topics that do not exist.
_MISSING_TOPICS_S: Final = 1.0
#: Time limit of each step of leaving the group.
LEAVE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True)
class Topics:
    """The subscription: names, or the topics for which ``matches`` is true."""

    names: frozenset[str] = frozenset()
    matches: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Revoked:
    """All partitions are revoked; ``lost``: another member may own them already, so that no offset can be committed."""

    lost: bool


@dataclass(frozen=True)
class Assigned:
    """All partitions that this member has now."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class MemberIdentity:
    """Member id and generation (KIP-848: member epoch) for commits."""

    member_id: str
    generation: int
    instance_id: str | None


class ConsumerMembership(MemberThread):
    """What the memberships of both group protocols have in common.

    The consumer's user calls all public methods but `start`, `stop` and `join` with the condition held. A subclass calls
    `_subscribe` when it is created.
    """

    def _subscribe(self, settings: ConsumerSettings, topics: Topics) -> None:
        self._settings = settings
        self._subscribed = SubscribedTopics(self._cluster, settings, topics)

        # Guarded by the condition.
        self.event: Revoked | Assigned | None = None
        self.failure: KafkaFailure | None = None
        self._polls = PollInterval(settings.max_poll_interval_ms)
        self._lost = False  # the user has to give up its partitions before the next join
        self._left = False  # no rejoin before the next poll
        self._look_at_s = 0.0

    def start(self) -> None:
        """Start the membership thread."""
        self._polls.leave()
        super().start()

    def enter_poll(self) -> None:
        """The user has entered `poll`: suspend the check of max.poll.interval.ms."""
        self._polls.enter()
        if self._left:
            self._left = False
            self._changed.notify_all()

    def leave_poll(self) -> None:
        """The user has left `poll` and must return within max.poll.interval.ms."""
        self._polls.leave()

    @abstractmethod
    def settle(self, owned: frozenset[TopicPartition], *, rejoin: bool = False) -> None:
        """The event has been handled; ``owned`` is what the member has now, ``rejoin``: after a partial revocation."""

    @abstractmethod
    def identity(self) -> MemberIdentity:
        """Member id and generation. Raises BrokerFailure when this consumer is currently not a member."""

    @abstractmethod
    def reader(self) -> MemberIdentity | None:
        """The identity for OffsetFetch; None: the coordinator does not check it."""

    @abstractmethod
    def on_commit_error(self, code: int, identity: MemberIdentity) -> None:
        """Handle the error code of a commit sent with ``identity``; it may require a rejoin."""

    def look_at_topics(self) -> None:
        """Check soon whether the subscribed topics still exist."""
        self._look_at_s = min(self._look_at_s, time.monotonic() + _MISSING_TOPICS_S)

    @abstractmethod
    def stop(self) -> bool:
        """Leave the group and end the thread. False when leaving failed and should be retried."""

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- called by the membership thread

    def _warn_of_long_absence(self) -> None:
        self._log.warning(
            "too long between two polls, leaving the group; raise max.poll.interval.ms or lower max.poll.records",
            max_poll_interval_ms=self._settings.max_poll_interval_ms,
        )

    def _look_up_topics(self) -> tuple[frozenset[str], Mapping[str, TopicInfo]]:
        """As `SubscribedTopics.look_up`. Raises Retry, or the failure when it is final."""
        try:
            return self._subscribed.look_up()
        except (BrokerFailure, ConnectFailure) as failure:
            if not failure.retriable:
                raise
            raise Retry(f"topics cannot be looked at: {failure}", self._next_wait_s()) from failure

    def _look_again(self, since_s: float, *, is_missing: bool) -> None:
        """Plan the next look-up: soon while topics are missing. Called with the condition held."""
        max_age_s = self._cluster.settings.metadata_max_age_ms / 1000
        self._look_at_s = since_s + (min(_MISSING_TOPICS_S, max_age_s) if is_missing else max_age_s)

    def _fail(self, error: Exception) -> None:
        if isinstance(error, KafkaFailure):
            failure = error
        else:
            self._log.exception("membership thread failed")
            failure = KafkaFailure(f"Membership in group {self._group_id} failed: {error!r}")
        with self._changed:
            if not self._stopping:
                self.failure = failure
            self._changed.notify_all()

    def _no_member(self) -> BrokerFailure:
        """The failure of a request that only a member of the group may send."""
        return BrokerFailure.of(
            ErrorCode.UNKNOWN_MEMBER_ID,
            "this consumer is no member of the group at the moment",
            subject=f"Group {self._group_id} on cluster {self._cluster.name}",
        )


class PollInterval:
    """Measures the time between two polls of the consumer's user (``max.poll.interval.ms``)."""

    def __init__(self, limit_ms: int) -> None:
        self.limit_ms = limit_ms
        self._absent_since_s: float | None = None

    def enter(self) -> None:
        """The user has entered `poll`."""
        self._absent_since_s = None

    def leave(self) -> None:
        """The user has left `poll`."""
        self._absent_since_s = time.monotonic()

    @property
    def is_over(self) -> bool:
        """Whether the user has been outside of `poll` for too long."""
        since_s = self._absent_since_s
        return since_s is not None and (time.monotonic() - since_s) * 1000 > self.limit_ms


class SubscribedTopics:
    """Looks up the topics of a subscription. A pattern is matched here (Java's ``subscribe(Pattern)``), by no broker."""

    def __init__(self, cluster: Cluster, settings: ConsumerSettings, topics: Topics) -> None:
        self._cluster = cluster
        self._settings = settings
        self._topics = topics

    def look_up(self) -> tuple[frozenset[str], Mapping[str, TopicInfo]]:
        """The names subscribed to now, and those of them that exist. Raises BrokerFailure or ConnectFailure."""
        matches = self._topics.matches
        if matches is None:
            names = self._topics.names
            metadata = self._cluster.metadata(names)
            for topic, failure in metadata.errors.items():
                if failure.code in {ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.INVALID_TOPIC_EXCEPTION}:
                    raise failure
                if failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION and self._settings.allow_auto_create_topics:
                    self._ask_for(topic)
        else:
            metadata = self._cluster.metadata(None)
            names = frozenset(
                topic
                for topic, info in metadata.topics.items()
                if matches(topic) and not (info.internal and self._settings.exclude_internal_topics)
            )
        return names, {name: metadata.topics[name] for name in names if name in metadata.topics}

    def _ask_for(self, topic: str) -> None:
        """Request the automatic creation of a topic (allow.auto.create.topics)."""
        wanted: Any = MetadataRequest.MetadataRequestTopic(name=topic)
        self._cluster.send(None, MetadataRequest(topics=[wanted], allow_auto_topic_creation=True, min_version=4))
