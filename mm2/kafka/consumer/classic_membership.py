"""Group membership of a consumer with the classic protocol (Java's AbstractCoordinator and ConsumerCoordinator)."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.assignors import PROTOCOL_TYPE, Assignor, Member, Subscription, partitions_of, topics_of
from mm2.kafka.consumer.membership import (
    LEAVE_TIMEOUT_S,
    Assigned,
    ConsumerMembership,
    MemberIdentity,
    Revoked,
    Topics,
)
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure
from mm2.kafka.group.classic_member import NO_GENERATION, ClassicMember, GroupTimings, Offers
from mm2.kafka.group.member_thread import Retry
from mm2.kafka.structs import TopicPartition


class ClassicMembership(ClassicMember, ConsumerMembership):
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
            leave_timeout_s=LEAVE_TIMEOUT_S,
            instance_id=settings.group_instance_id,
        )
        self._subscribe(settings, topics)

        # Guarded by the condition.
        self._owned: frozenset[TopicPartition] = frozenset()
        self._previous: frozenset[TopicPartition] = frozenset()

        # Only the membership thread accesses these.
        self._names: frozenset[str] = topics.names
        self._joined_names: frozenset[str] | None = None
        self._counts: dict[str, int] = {}
        self._assigned_with: dict[str, int] | None = None

    # -- called by the consumer's user, as `ConsumerMembership` describes

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
            raise self._no_member()
        return MemberIdentity(self._member_id, self._generation, self._settings.group_instance_id)

    def reader(self) -> None:
        """No identity: the coordinator does not check who reads the offsets of a classic group."""
        return

    def on_commit_error(self, code: int, identity: MemberIdentity) -> None:
        """Handle the error code of a commit sent with ``identity``; it may require a rejoin."""
        if identity.generation != self._generation or identity.member_id != self._member_id:
            return
        if code in {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}:
            self._forget_generation(code)

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

    # -- called by the membership thread

    def _step(self) -> None:
        with self._changed:
            now = time.monotonic()
            joined = self._generation != NO_GENERATION
            overdue = joined and self._polls.is_over
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
            self._warn_of_long_absence()
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
        names, found = self._look_up_topics()
        counts = {name: len(info.partitions) for name, info in found.items()}
        self._names, self._counts = names, counts
        missing = names - counts.keys()
        changed = self._joined_names is not None and names != self._joined_names
        changed = changed or (self._assigned_with is not None and self._assigned_with != counts)
        with self._changed:
            self._look_again(now, is_missing=bool(missing))
            if changed and not self._rejoin:
                self._log.info("topics have changed, joining again", topics=sorted(counts), missing=sorted(missing))
                self._rejoin = True

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


def _assignor(settings: ConsumerSettings, protocol: str) -> type[Assignor]:
    for assignor in settings.assignors:
        if assignor.name == protocol:
            return assignor
    raise KafkaFailure(f"The coordinator chose the protocol {protocol}, which this consumer did not offer.")
