"""Group membership of a consumer (Java's AbstractCoordinator and ConsumerCoordinator, classic protocol).

Two threads share this state. The *membership thread* of `mm2.kafka.classic_member` also watches the subscribed topics.
The consumer's user runs rebalance listeners in `Consumer.poll`, so that heartbeats continue while a listener runs. The
membership thread does not join again before the user has handled the last event: a member never offers partitions that
it had to revoke and still uses.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kafka.protocol.metadata import MetadataRequest

from mm2.kafka.classic_member import NO_GENERATION, ClassicMember, GroupTimings, Offers, Retry
from mm2.kafka.cluster import Cluster
from mm2.kafka.consumer.assignors import PROTOCOL_TYPE, Assignor, Member, Subscription, partitions_of, topics_of
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure
from mm2.kafka.structs import TopicPartition

#: How often to check for subscribed topics that do not exist.
_MISSING_TOPICS_S: Final = 1.0
_LEAVE_TIMEOUT_S: Final = 2.0


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
    """Member id and generation for commits."""

    member_id: str
    generation: int
    instance_id: str | None


class Membership(ClassicMember):
    """``changed`` is the consumer's condition: it guards the shared state and is notified of events."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, topics: Topics, changed: threading.Condition
    ) -> None:
        super().__init__(
            cluster,
            group_id=settings.group_id,
            protocol_type=PROTOCOL_TYPE,
            timings=GroupTimings(
                settings.session_timeout_ms, settings.max_poll_interval_ms, settings.heartbeat_interval_ms
            ),
            changed=changed,
            thread_name=f"consumer-membership-{settings.client.client_id}",
            leave_timeout_s=_LEAVE_TIMEOUT_S,
            instance_id=settings.group_instance_id,
        )
        self._settings = settings
        self._subscribed = topics

        # Guarded by the condition.
        self.event: Revoked | Assigned | None = None
        self.failure: KafkaFailure | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._previous: frozenset[TopicPartition] = frozenset()
        self._lost = False
        self._left = False  # no rejoin before the next poll
        self._absent_since_s: float | None = None
        self._look_at_s = 0.0

        # Only the membership thread accesses these.
        self._names: frozenset[str] = topics.names
        self._joined_names: frozenset[str] | None = None
        self._counts: dict[str, int] = {}
        self._assigned_with: dict[str, int] | None = None

    # -- called by the consumer's user, with the condition held except in start, stop and join

    def start(self) -> None:
        """Start the membership thread."""
        self._absent_since_s = time.monotonic()
        super().start()

    def enter_poll(self) -> None:
        """The user has entered `poll`: suspend the check of max.poll.interval.ms."""
        self._absent_since_s = None
        if self._left:
            self._left = False
            self._changed.notify_all()

    def leave_poll(self) -> None:
        """The user has left `poll` and must return within max.poll.interval.ms."""
        self._absent_since_s = time.monotonic()

    def settle(self, owned: frozenset[TopicPartition], *, rejoin: bool = False) -> None:
        """The event has been handled; ``owned`` is what the member has now."""
        if isinstance(self.event, Assigned):
            self._previous = owned
        else:
            self._lost = False
        self.event = None
        self._owned = owned
        self._rejoin = self._rejoin or rejoin
        self._changed.notify_all()

    def identity(self) -> MemberIdentity:
        """Member id and generation. Raises BrokerFailure when this consumer is currently not a member."""
        if self._generation == NO_GENERATION:
            raise BrokerFailure.of(
                ErrorCode.UNKNOWN_MEMBER_ID,
                "this consumer is no member of the group at the moment",
                subject=f"Group {self._group_id} on cluster {self._cluster.name}",
            )
        return MemberIdentity(self._member_id, self._generation, self._settings.group_instance_id)

    def on_commit_error(self, code: int, identity: MemberIdentity) -> None:
        """Handle the error code of a commit sent with ``identity``; it may require a rejoin."""
        if identity.generation != self._generation or identity.member_id != self._member_id:
            return
        if code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
            self._forget_generation(code)

    def look_at_topics(self) -> None:
        """Check soon whether the subscribed topics still exist."""
        self._look_at_s = min(self._look_at_s, time.monotonic() + _MISSING_TOPICS_S)

    def stop(self) -> bool:
        """Leave the group and end the thread. Called without the condition.

        False when LeaveGroup failed and should be retried.
        """
        with self._changed:
            self._stopping = True
            member_id = self._member_id
            self._generation = NO_GENERATION
            self._membership += 1
            self._changed.notify_all()
        # A static member does not leave: it may return under its instance id without a rebalance (KIP-345).
        if self._instance_id is not None:
            return True
        failure = self._send_leave(member_id, "the consumer is being closed")
        return failure is None or not failure.retriable

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- called by the membership thread

    def _step(self) -> None:
        with self._changed:
            now = time.monotonic()
            absent_s = 0.0 if self._absent_since_s is None else now - self._absent_since_s
            joined = self._generation != NO_GENERATION
            overdue = joined and absent_s * 1000 > self._settings.max_poll_interval_ms
            look = now >= self._look_at_s and not self._left
            join = self._rejoin and self.event is None and not self._left
            heartbeat = joined and now >= self._next_heartbeat_s
            if join and not look and self._must_give_up():
                self.event = Revoked(lost=self._lost)
                self._changed.notify_all()
                return
            if overdue:
                member_id = self._forget_membership()
                self._lost = self._left = True
            elif not look and not join and not heartbeat:
                wake = min(self._look_at_s, self._next_heartbeat_s if joined else now + 1.0, now + 1.0)
                self._changed.wait(max(0.0, wake - now))
                return
        if overdue:
            self._log.warning(
                "too long between two polls, leaving the group; raise max.poll.interval.ms or lower max.poll.records",
                max_poll_interval_ms=self._settings.max_poll_interval_ms,
            )
            self._send_leave(member_id, "max.poll.interval.ms passed without a poll")
        elif look:
            self._look()
        elif join:
            self._join()
        else:
            self._heartbeat()

    def _must_give_up(self) -> bool:
        """Whether to revoke before joining: all partitions when they are lost, and always in the eager protocol."""
        return bool(self._owned) and (self._lost or not self._settings.is_cooperative)

    # -- topics

    def _look(self) -> None:
        """Refresh the subscribed topics; the leader rejoins when their partitions have changed."""
        now = time.monotonic()
        max_age_s = self._cluster.settings.metadata_max_age_ms / 1000
        try:
            names, counts = self._existing()
        except (BrokerFailure, ConnectFailure) as failure:
            if not failure.retriable:
                raise
            raise Retry(f"topics cannot be looked at: {failure}", self._next_wait_s()) from failure
        self._names, self._counts = names, counts
        missing = names - counts.keys()
        changed = self._joined_names is not None and names != self._joined_names
        changed = changed or (self._assigned_with is not None and self._assigned_with != counts)
        with self._changed:
            self._look_at_s = now + (min(_MISSING_TOPICS_S, max_age_s) if missing else max_age_s)
            if changed and not self._rejoin:
                self._log.info("topics have changed, joining again", topics=sorted(counts), missing=sorted(missing))
                self._rejoin = True

    def _existing(self) -> tuple[frozenset[str], dict[str, int]]:
        """The names subscribed to now, and the partition counts of those that exist."""
        matches = self._subscribed.matches
        if matches is None:
            names = self._subscribed.names
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
        return names, {name: len(metadata.topics[name].partitions) for name in names if name in metadata.topics}

    def _ask_for(self, topic: str) -> None:
        """Request the automatic creation of a topic (allow.auto.create.topics)."""
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        self._cluster.send(None, MetadataRequest(topics=[wanted], allow_auto_topic_creation=True, min_version=4))

    # -- the coordinator

    def _join(self) -> None:
        names = self._names
        super()._join()
        self._joined_names = names

    def _prepare_join(self) -> Callable[[], Offers]:
        # Only the leader watches partition counts.
        self._assigned_with = None
        member_id = self._member_id
        subscription = Subscription(self._names, self._owned, self._previous, self._generation)

        def offers() -> Offers:
            self._log.debug("joining the group", member_id=member_id or None)
            return [(assignor.name, assignor.metadata(subscription)) for assignor in self._settings.assignors]

        return offers

    def _assign(self, joined: Any) -> Mapping[str, bytes]:
        """As leader, compute the assignments."""
        members = [Member(str(m.member_id), m.group_instance_id, bytes(m.metadata)) for m in joined.members]
        topics = {topic for member in members for topic in topics_of(member.metadata)} | self._names
        try:
            metadata = self._cluster.metadata(topics)
        except (BrokerFailure, ConnectFailure) as failure:
            if not failure.retriable:
                raise
            raise Retry(
                f"partitions of {len(topics)} topics are not known: {failure}", self._next_wait_s()
            ) from failure
        counts = {name: len(info.partitions) for name, info in metadata.topics.items()}
        self._assigned_with = {name: count for name, count in counts.items() if name in self._names}
        self._counts = dict(self._assigned_with)
        return _assignor(self._settings, str(joined.protocol_name)).assign(members, counts)

    def _accept(self, assignment: bytes, _generation: int, _protocol: str) -> Mapping[str, object]:
        partitions = partitions_of(assignment)
        self.event = Assigned(partitions)
        self._lost = False
        return {"partitions": len(partitions)}

    def _forget_generation(self, code: int) -> None:
        super()._forget_generation(code)
        self._assigned_with = None
        self._lost = True

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


def _assignor(settings: ConsumerSettings, protocol: str) -> type[Assignor]:
    for assignor in settings.assignors:
        if assignor.name == protocol:
            return assignor
    raise KafkaFailure(f"The coordinator chose the protocol {protocol}, which this consumer did not offer.")
