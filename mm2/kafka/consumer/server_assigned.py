"""Group membership of a consumer whose coordinator assigns the partitions (KIP-848, ``group.protocol=consumer``).

Java's ConsumerMembershipManager and ConsumerHeartbeatRequestManager. One request does everything: it joins (member
epoch 0), reports the subscription and the owned partitions, brings the assignment, and leaves (epoch -1, or -2 for a
static member). The coordinator assigns only partitions that no other member has: an assignment is *offered* to the
consumer's user, who revokes what is missing in it and takes what is new, and the next heartbeat acknowledges it by
reporting the owned partitions.

A member that the coordinator does not know, or with another epoch, has lost its partitions. It joins again after the
user has handled that. Its id remains the same (KIP-1082).
"""

from __future__ import annotations

import threading
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from kafka.protocol.api_message import ApiMessage

from mm2.kafka.admin.calls import COORDINATOR_MOVED
from mm2.kafka.client.cluster import Cluster
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
from mm2.kafka.errors import BrokerFailure, KafkaFailure, UnsupportedVersion
from mm2.kafka.group.member_thread import Retry
from mm2.kafka.structs import TopicPartition, topic_id_text

_SCHEMAS: Final = "mm2.kafka.schemas"
#: Member epochs with a meaning of their own (KIP-848).
_JOINING: Final = 0
_LEAVING: Final = -1
_LEAVING_AS_STATIC: Final = -2
_FENCED: Final = frozenset({ErrorCode.FENCED_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID})

#: Partition numbers by topic id.
_Partitions = Mapping[uuid.UUID, frozenset[int]]


class ConsumerGroupHeartbeatRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """ConsumerGroupHeartbeat request of Kafka."""


class ConsumerGroupHeartbeatResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """ConsumerGroupHeartbeat response of Kafka."""


@dataclass(frozen=True)
class _Report:
    """What a heartbeat reports about the member, if it has changed since the last one."""

    names: frozenset[str]
    owned: _Partitions


class ServerAssignedMembership(ConsumerMembership):
    """``changed`` is the consumer's condition: it guards the shared state and is notified of events."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, topics: Topics, changed: threading.Condition
    ) -> None:
        super().__init__(
            cluster,
            group_id=settings.group_id,
            changed=changed,
            thread_name=f"consumer-membership-{settings.client.client_id}",
            leave_timeout_s=LEAVE_TIMEOUT_S,
            instance_id=settings.group_instance_id,
        )
        self._subscribe(settings, topics)
        self._member_id = topic_id_text(uuid.uuid4())

        # Guarded by the condition.
        self._epoch = _JOINING
        self._held: frozenset[TopicPartition] | None = None  # by the user; None: nothing since the last join
        self._owned: _Partitions = {}  # the same by topic id, as it is reported
        self._beat_now = False

        # Only the membership thread accesses these.
        self._names: frozenset[str] | None = None
        self._names_by_id: dict[str, str] = {}
        self._target: _Partitions | None = None
        self._considered: _Partitions | None = None  # the target that was offered, perhaps in part
        self._offered: _Partitions = {}
        self._reported: _Report | None = None
        self._has_asked = False

    # -- called by the consumer's user, as `ConsumerMembership` describes

    def settle(self, owned: frozenset[TopicPartition], *, rejoin: bool = False) -> None:
        """The event has been handled; ``owned`` is what the member has now, to be acknowledged."""
        if isinstance(self.event, Assigned):
            self._held, self._owned = owned, self._offered
            self._beat_now = True
        else:
            self._held, self._owned = None, {}
            self._lost = False
        self.event = None
        self._changed.notify_all()

    def identity(self) -> MemberIdentity:
        """Member id and epoch. Raises BrokerFailure when this consumer is currently not a member."""
        if self._epoch == _JOINING:
            raise self._no_member()
        return MemberIdentity(self._member_id, self._epoch, self._instance_id)

    def reader(self) -> MemberIdentity | None:
        """The identity for OffsetFetch; None while this consumer is not a member, as in Java's CommitRequestManager."""
        return None if self._epoch == _JOINING else self.identity()

    def on_commit_error(self, code: int, identity: MemberIdentity) -> None:
        """Refresh the epoch: only the answer to a heartbeat decides whether the partitions are lost."""
        if identity.generation == self._epoch and code in {*_FENCED, ErrorCode.STALE_MEMBER_EPOCH}:
            self._beat_now = True
            self._changed.notify_all()

    def stop(self) -> bool:
        """End the thread and leave the group. Called without the condition.

        False when leaving failed and should be retried.
        """
        with self._changed:
            self._stopping = True
            self._epoch = _JOINING
            self._changed.notify_all()
        self.join(LEAVE_TIMEOUT_S)  # a heartbeat that is answered after the member has left could join again
        return self._leave("the consumer is being closed") if self._has_asked else True

    # -- called by the membership thread

    def _step(self) -> None:
        with self._changed:
            now = time.monotonic()
            if self._lost and self.event is None:
                self._report_loss()
                return
            overdue = self._epoch != _JOINING and self._polls.is_over
            look = now >= self._look_at_s and not self._left
            offer = self._epoch != _JOINING and self.event is None and self._considered is not self._target
            heartbeat = self._must_beat(now)
            if overdue:
                self._abandon()
                self._left = True
            elif not (look or offer or heartbeat):
                until = min(self._look_at_s, now + 1.0 if self._epoch == _JOINING else self._next_heartbeat_s)
                self._changed.wait(max(0.0, min(until - now, 1.0)))
                return
        if overdue:
            self._warn_of_long_absence()
            self._leave("max.poll.interval.ms passed without a poll")
        elif look:
            self._look()
        elif offer:
            self._offer()
        else:
            self._heartbeat()

    def _must_beat(self, now: float) -> bool:
        if self._epoch != _JOINING:
            return self._beat_now or now >= self._next_heartbeat_s
        return not self._left and not self._lost and self.event is None

    def _report_loss(self) -> None:
        """Let the user give up its partitions, which other members may have already."""
        if not self._held:
            self._held, self._owned, self._lost = None, {}, False
        else:
            self.event = Revoked(lost=True)
            self._changed.notify_all()

    def _abandon(self) -> None:
        """Discard the membership. Called with the condition held."""
        self._epoch = _JOINING
        self._lost = True
        self._beat_now = False
        self._target = self._considered = self._reported = None
        self._offered = {}
        self._changed.notify_all()

    def _look(self) -> None:
        """Refresh the names and ids of the subscribed topics; a change of the names is reported at once."""
        names, found = self._look_up_topics()
        before = self._unknown_ids()
        self._names_by_id.update({info.topic_id: name for name, info in found.items()})
        unknown = self._unknown_ids()
        if unknown != before:
            self._considered = None
        missing = unknown or names - found.keys()
        with self._changed:
            self._look_again(time.monotonic(), is_missing=bool(missing))
            self._beat_now = self._beat_now or (self._names is not None and names != self._names)
        self._names = names

    def _unknown_ids(self) -> set[uuid.UUID]:
        return {topic for topic in self._target or {} if topic_id_text(topic) not in self._names_by_id}

    # -- the assignment

    def _offer(self) -> None:
        """Offer the assignment to the user, without the topics whose names the brokers do not know yet."""
        if self._unknown_ids():
            self._look()
        assert self._target is not None  # noqa: S101 - otherwise nothing is offered
        target = self._considered = self._target
        self._offered = {topic: found for topic, found in target.items() if topic_id_text(topic) in self._names_by_id}
        partitions = frozenset(
            TopicPartition(self._names_by_id[topic_id_text(topic)], partition)
            for topic, found in self._offered.items()
            for partition in found
        )
        with self._changed:
            if partitions == self._held:
                self._owned = self._offered
                self._beat_now = True
            else:
                self.event = Assigned(partitions)
                self._changed.notify_all()

    # -- the coordinator

    def _heartbeat(self) -> None:
        with self._changed:
            epoch = self._epoch
            report = _Report(self._names or frozenset(), self._owned)
            self._beat_now = False
            self._has_asked = True
        sent_s = time.monotonic()
        self._next_heartbeat_s = 0.0  # after a failure the next one is due as soon as the back-off ends
        try:
            answer = self._ask(self._request(epoch, report), self._cluster.settings.request_timeout_ms / 1000)
        except UnsupportedVersion as failure:
            raise self._not_supported(failure) from failure
        except Retry:
            self._reported = None
            raise
        if answer.error_code:
            self._react(answer, epoch)
        with self._changed:
            if self._stopping:
                return
            self._member_id = answer.member_id or self._member_id
            self._epoch = int(answer.member_epoch)
            self._changed.notify_all()
        self._next_heartbeat_s = sent_s + answer.heartbeat_interval_ms / 1000
        self._reported = report
        if answer.assignment is not None:
            self._target = {topic.topic_id: frozenset(topic.partitions) for topic in answer.assignment.topic_partitions}
        if epoch == _JOINING:
            self._log.info("joined the group", member_id=self._member_id, epoch=int(answer.member_epoch))

    def _request(self, epoch: int, report: _Report) -> Any:
        """A heartbeat; everything is reported to join and after a failure, otherwise only what has changed."""
        last = None if epoch == _JOINING else self._reported
        api: Any = ConsumerGroupHeartbeatRequest
        request = api(
            group_id=self._group_id, member_id=self._member_id, member_epoch=epoch, instance_id=self._instance_id
        )
        if last is None:
            request.rebalance_timeout_ms = self._settings.max_poll_interval_ms
            request.server_assignor = self._settings.remote_assignor
            request.rack_id = self._settings.client.client_rack or None
        if last is None or last.names != report.names:
            request.subscribed_topic_names = sorted(report.names)
        if last is None or last.owned != report.owned:
            request.topic_partitions = [
                api.HeartbeatTopicPartitions(topic_id=topic, partitions=sorted(found))
                for topic, found in report.owned.items()
            ]
        return request

    def _react(self, answer: Any, epoch: int) -> NoReturn:
        """Handle an error code: raises Retry, or the error that ends the membership."""
        code = int(answer.error_code)
        subject = f"ConsumerGroupHeartbeat in group {self._group_id} on cluster {self._cluster.name}"
        failure = BrokerFailure.of(code, answer.error_message, subject=subject, needed="READ")
        self._reported = None
        if code in _FENCED:
            self._log.info("the coordinator has removed this member", epoch=epoch, reason=str(failure))
            with self._changed:
                self._abandon()
            raise Retry(str(failure), self._next_wait_s() if epoch == _JOINING else 0.0)
        if code in COORDINATOR_MOVED:
            self._cluster.invalidate_coordinator(self._group_id)
        if failure.retriable:
            raise Retry(str(failure), self._next_wait_s())
        raise self._not_supported(failure) if code == ErrorCode.UNSUPPORTED_VERSION else failure

    def _not_supported(self, failure: BrokerFailure) -> BrokerFailure:
        return UnsupportedVersion.of(
            failure.code,
            "the brokers do not support group.protocol=consumer (KIP-848, Kafka 4.0 or newer); set "
            f"group.protocol=classic until they are upgraded: {failure}",
            subject=f"Group {self._group_id} on cluster {self._cluster.name}",
        )

    # -- any thread

    def _leave(self, reason: str) -> bool:
        """Send the heartbeat that leaves the group. False when it failed and should be retried."""
        self._log.info("leaving the group", reason=reason)
        request: Any = ConsumerGroupHeartbeatRequest(
            group_id=self._group_id,
            member_id=self._member_id,
            member_epoch=_LEAVING if self._instance_id is None else _LEAVING_AS_STATIC,
            instance_id=self._instance_id,
        )
        try:
            node = self._cluster.coordinator(self._group_id, timeout_s=self._leave_timeout_s)
            answer = self._cluster.send(node, request, timeout_s=self._leave_timeout_s)
        except KafkaFailure as failure:
            # The coordinator removes the member when its session times out.
            self._cluster.invalidate_coordinator(self._group_id)
            self._log.info("could not leave the group", reason=str(failure))
            return not failure.retriable
        if answer.error_code in COORDINATOR_MOVED:
            self._cluster.invalidate_coordinator(self._group_id)
            return False
        return True
