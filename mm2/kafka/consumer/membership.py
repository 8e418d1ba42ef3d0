"""A consumer's place in its group (AbstractCoordinator and ConsumerCoordinator of Java, classic protocol).

Two threads meet here: the *membership thread* of `mm2.kafka.classic_member`, which also looks after the topics that are
subscribed to, and the consumer's user, who comes by in `Consumer.poll`; only there are rebalance listeners run, so heartbeats
go on however long a listener takes. Until it has dealt with one event the membership thread does not join again: a member
never offers what it was told to give up and still uses.
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

#: How often topics are looked for that are subscribed to and do not exist.
_MISSING_TOPICS_S: Final = 1.0
_LEAVE_TIMEOUT_S: Final = 2.0


@dataclass(frozen=True)
class Topics:
    """What is subscribed to: names, or those that ``matches`` says yes to."""

    names: frozenset[str] = frozenset()
    matches: Callable[[str], bool] | None = None


@dataclass(frozen=True)
class Revoked:
    """Give up everything; ``lost``: it is somebody else's already, so nothing can be committed."""

    lost: bool


@dataclass(frozen=True)
class Assigned:
    """All that this member has now."""

    partitions: frozenset[TopicPartition]


@dataclass(frozen=True)
class Identity:
    """How a member signs its commits."""

    member_id: str
    generation: int
    instance_id: str | None


class Membership(ClassicMember):
    """``changed`` is the consumer's condition: it guards all that both threads see and tells of events."""

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
        self._left = False  # not to be joined again before the next poll
        self._absent_since_s: float | None = None
        self._look_at_s = 0.0

        # Only the membership thread touches these.
        self._names: frozenset[str] = topics.names
        self._joined_names: frozenset[str] | None = None
        self._counts: dict[str, int] = {}
        self._assigned_with: dict[str, int] | None = None

    # -- the side of the consumer's user; but for start and stop with the condition held

    def start(self) -> None:
        """Begin to look for the group."""
        self._absent_since_s = time.monotonic()
        super().start()

    def enter_poll(self) -> None:
        """The user is here: what happens need not wait."""
        self._absent_since_s = None
        if self._left:
            self._left = False
            self._changed.notify_all()

    def leave_poll(self) -> None:
        """The user has gone and has max.poll.interval.ms to come back."""
        self._absent_since_s = time.monotonic()

    def settle(self, owned: frozenset[TopicPartition], *, rejoin: bool = False) -> None:
        """The event has been dealt with, and this is what the member has now."""
        if isinstance(self.event, Assigned):
            self._previous = owned
        else:
            self._lost = False
        self.event = None
        self._owned = owned
        self._rejoin = self._rejoin or rejoin
        self._changed.notify_all()

    def identity(self) -> Identity:
        """Raises BrokerFailure when this consumer is not a member at the moment."""
        if self._generation == NO_GENERATION:
            raise BrokerFailure.of(
                ErrorCode.UNKNOWN_MEMBER_ID,
                "this consumer is no member of the group at the moment",
                subject=f"Group {self._group_id} on cluster {self._cluster.name}",
            )
        return Identity(self._member_id, self._generation, self._settings.group_instance_id)

    def heard(self, code: int, identity: Identity) -> None:
        """What the coordinator said of a commit that was signed so; it may mean that we have to join again."""
        if identity.generation != self._generation or identity.member_id != self._member_id:
            return
        if code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
            self._forget_generation(code)

    def look_at_topics(self) -> None:
        """Something is wrong with a topic: see soon whether it still exists."""
        self._look_at_s = min(self._look_at_s, time.monotonic() + _MISSING_TOPICS_S)

    def stop(self) -> bool:
        """Leave the group and end the thread; without the condition. False when the group could not be told: call it again."""
        with self._changed:
            self._stopping = True
            member_id = self._member_id
            self._generation = NO_GENERATION
            self._membership += 1
            self._changed.notify_all()
        # A static member comes back under its name and is not to be missed meanwhile.
        if self._instance_id is not None:
            return True
        failure = self._send_leave(member_id, "the consumer is being closed")
        return failure is None or not failure.retriable

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- the membership thread's side

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
        """Before joining: everything when it is lost, and everything in the eager protocol."""
        return bool(self._owned) and (self._lost or not self._settings.is_cooperative)

    # -- topics

    def _look(self) -> None:
        """See which topics there are; who leads joins again when their partitions have changed."""
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
        """The names that are subscribed to now, and how many partitions those that exist have."""
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
        """Let the brokers create a topic, if they are set up to (allow.auto.create.topics)."""
        wanted = MetadataRequest.MetadataRequestTopic(name=topic)
        self._cluster.send(None, MetadataRequest(topics=[wanted], allow_auto_topic_creation=True, min_version=4))

    # -- the coordinator

    def _join(self) -> None:
        names = self._names
        super()._join()
        self._joined_names = names

    def _prepare_join(self) -> Callable[[], Offers]:
        # Only who leads looks after changes of partitions.
        self._assigned_with = None
        member_id = self._member_id
        subscription = Subscription(self._names, self._owned, self._previous, self._generation)

        def offers() -> Offers:
            self._log.debug("joining the group", member_id=member_id or None)
            return [(assignor.name, assignor.metadata(subscription)) for assignor in self._settings.assignors]

        return offers

    def _assign(self, joined: Any) -> Mapping[str, bytes]:
        """As leader, decide who reads what."""
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
