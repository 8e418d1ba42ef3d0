"""A consumer's place in its group (AbstractCoordinator and ConsumerCoordinator of Java, classic protocol).

Two threads meet here. The *membership thread* talks to the coordinator: it finds it, joins, syncs, sends heartbeats, and
looks after the topics that are subscribed to. The consumer's user comes by in `Consumer.poll`; only there are rebalance
listeners run, so heartbeats go on however long a listener takes. Until it has dealt with one event the membership thread
does not join again: a member never offers what it was told to give up and still uses.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import structlog
from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest
from kafka.protocol.metadata import MetadataRequest

from mm2.kafka.admin.calls import COORDINATOR_MOVED
from mm2.kafka.backoff import Backoff
from mm2.kafka.cluster import Cluster
from mm2.kafka.consumer.assignors import PROTOCOL_TYPE, Assignor, Member, Subscription, partitions_of, topics_of
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure
from mm2.kafka.structs import TopicPartition

log = structlog.get_logger(__name__)

_NO_GENERATION: Final = -1
#: How much longer than the rebalance timeout an answer to JoinGroup is waited for (as AbstractCoordinator does).
_JOIN_GRACE_S: Final = 5.0
#: How often topics are looked for that are subscribed to and do not exist.
_MISSING_TOPICS_S: Final = 1.0
_LEAVE_TIMEOUT_S: Final = 2.0
_LOST: Final = {ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION}


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


class _Retry(Exception):
    """The present attempt ended; the loop goes on after ``wait_s``."""

    def __init__(self, reason: str, wait_s: float = 0.0) -> None:
        super().__init__(reason)
        self.wait_s = wait_s


class Membership:
    """``changed`` is the consumer's condition: it guards all that both threads see and tells of events."""

    def __init__(
        self, cluster: Cluster, settings: ConsumerSettings, topics: Topics, changed: threading.Condition
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._subscribed = topics
        self._changed = changed
        self._group = settings.group_id
        self._log = log.bind(group=self._group, cluster=cluster.name)

        # Guarded by the condition.
        self.event: Revoked | Assigned | None = None
        self.failure: KafkaFailure | None = None
        self._owned: frozenset[TopicPartition] = frozenset()
        self._previous: frozenset[TopicPartition] = frozenset()
        self._stopping = False
        self._rejoin = True
        self._lost = False
        self._left = False  # not to be joined again before the next poll
        self._absent_since_s: float | None = None
        self._member_id = ""
        self._generation = _NO_GENERATION
        self._membership = 0  # counts the times we left: an answer that belongs to an older one is void
        self._look_at_s = 0.0

        # Only the membership thread touches these.
        self._names: frozenset[str] = topics.names
        self._joined_names: frozenset[str] | None = None
        self._counts: dict[str, int] = {}
        self._assigned_with: dict[str, int] | None = None
        self._next_heartbeat_s = 0.0
        self._failures = 0
        self._backoff = Backoff(cluster.settings.retry_backoff_ms, cluster.settings.retry_backoff_max_ms)
        context = contextvars.copy_context()
        self._thread = threading.Thread(
            target=lambda: context.run(self._run), name=f"consumer-membership-{settings.client.client_id}", daemon=True
        )

    # -- the side of the consumer's user; but for start and stop with the condition held

    def start(self) -> None:
        """Begin to look for the group."""
        self._absent_since_s = time.monotonic()
        self._thread.start()

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
        if self._generation == _NO_GENERATION:
            raise BrokerFailure.of(
                ErrorCode.UNKNOWN_MEMBER_ID,
                "this consumer is no member of the group at the moment",
                subject=f"Group {self._group} on cluster {self._cluster.name}",
            )
        return Identity(self._member_id, self._generation, self._settings.group_instance_id)

    def heard(self, code: int, identity: Identity) -> None:
        """What the coordinator said of a commit that was signed so; it may mean that we have to join again."""
        if identity.generation != self._generation or identity.member_id != self._member_id:
            return
        if code in _LOST:
            self._forget_generation(code)

    def look_at_topics(self) -> None:
        """Something is wrong with a topic: see soon whether it still exists."""
        self._look_at_s = min(self._look_at_s, time.monotonic() + _MISSING_TOPICS_S)

    def stop(self) -> bool:
        """Leave the group and end the thread; without the condition. False when the group could not be told: call it again."""
        with self._changed:
            self._stopping = True
            member_id = self._member_id
            self._generation = _NO_GENERATION
            self._membership += 1
            self._changed.notify_all()
        # A static member comes back under its name and is not to be missed meanwhile.
        if not member_id or self._settings.group_instance_id is not None:
            return True
        return self._send_leave(member_id, "the consumer is being closed")

    def join(self, timeout_s: float) -> None:
        """Wait for the end of the thread."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)

    # -- the membership thread's side

    def _run(self) -> None:
        while True:
            try:
                with self._changed:
                    if self._stopping:
                        return
                self._step()
            except _Retry as retry:
                self._log.debug("group attempt ended", reason=str(retry))
                self._pause(retry.wait_s)
            except KafkaFailure as failure:
                self._fail(failure)
                return
            except Exception as error:  # noqa: BLE001 - the user's poll dies of it, not this thread in silence
                self._log.exception("membership thread failed")
                self._fail(KafkaFailure(f"Membership in group {self._group} failed: {error!r}"))
                return

    def _step(self) -> None:
        with self._changed:
            now = time.monotonic()
            absent_s = 0.0 if self._absent_since_s is None else now - self._absent_since_s
            joined = self._generation != _NO_GENERATION
            overdue = joined and absent_s * 1000 > self._settings.max_poll_interval_ms
            look = now >= self._look_at_s and not self._left
            join = self._rejoin and self.event is None and not self._left
            heartbeat = joined and now >= self._next_heartbeat_s
            if join and not look and self._must_give_up():
                self.event = Revoked(lost=self._lost)
                self._changed.notify_all()
                return
            if overdue:
                member_id, self._member_id = self._member_id, ""
                self._generation = _NO_GENERATION
                self._membership += 1
                self._rejoin = self._lost = self._left = True
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
            raise _Retry(f"topics cannot be looked at: {failure}", self._next_wait_s()) from failure
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

    def _heartbeat(self) -> None:
        with self._changed:
            membership, member_id, generation = self._membership, self._member_id, self._generation
        self._next_heartbeat_s = time.monotonic() + self._settings.heartbeat_interval_ms / 1000
        answer = self._ask(
            HeartbeatRequest(
                group_id=self._group,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=self._settings.group_instance_id,
            ),
            max(1.0, (self._settings.session_timeout_ms - self._settings.heartbeat_interval_ms) / 1000),
        )
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            with self._changed:
                self._rejoin = True
        elif answer.error_code:
            self._react(int(answer.error_code), membership, "Heartbeat")

    def _join(self) -> None:
        names = self._names
        with self._changed:
            membership, member_id = self._membership, self._member_id
            subscription = Subscription(names, self._owned, self._previous, self._generation)
            self._rejoin = False
        try:
            self._join_and_sync(membership, member_id, subscription)
        except BaseException:
            with self._changed:
                self._rejoin = True
            raise
        self._joined_names = names

    def _join_and_sync(self, membership: int, member_id: str, subscription: Subscription) -> None:
        self._log.debug("joining the group", member_id=member_id or None)
        timeout_s = max(
            self._settings.max_poll_interval_ms / 1000 + _JOIN_GRACE_S, self._cluster.settings.request_timeout_ms / 1000
        )
        answer = self._ask(
            JoinGroupRequest(
                group_id=self._group,
                session_timeout_ms=self._settings.session_timeout_ms,
                rebalance_timeout_ms=self._settings.max_poll_interval_ms,
                member_id=member_id,
                group_instance_id=self._settings.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocols=[
                    JoinGroupRequest.JoinGroupRequestProtocol(
                        name=assignor.name, metadata=assignor.metadata(subscription)
                    )
                    for assignor in self._settings.assignors
                ],
            ),
            timeout_s,
        )
        if answer.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            with self._changed:
                if self._membership == membership:
                    self._member_id = answer.member_id
            raise _Retry("the coordinator gave us a member id")
        if answer.error_code:
            self._react(int(answer.error_code), membership, "JoinGroup")
        generation, protocol = int(answer.generation_id), str(answer.protocol_name)
        with self._changed:
            if self._membership != membership:
                raise _Retry("left the group meanwhile")
            self._member_id, self._generation = answer.member_id, generation
        self._next_heartbeat_s = time.monotonic() + self._settings.heartbeat_interval_ms / 1000
        leads = answer.leader == answer.member_id
        # Only who leads looks after changes of partitions.
        self._assigned_with = None
        assignments = self._assign(answer, protocol) if leads else {}
        synced = self._ask(
            SyncGroupRequest(
                group_id=self._group,
                generation_id=generation,
                member_id=answer.member_id,
                group_instance_id=self._settings.group_instance_id,
                protocol_type=PROTOCOL_TYPE,
                protocol_name=protocol,
                assignments=[
                    SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
                    for member, data in assignments.items()
                ],
            ),
            timeout_s,
        )
        if synced.error_code:
            self._react(int(synced.error_code), membership, "SyncGroup")
        partitions = partitions_of(bytes(synced.assignment))
        with self._changed:
            if self._membership != membership:
                raise _Retry("left the group meanwhile")
            self.event = Assigned(partitions)
            self._lost = False
            self._changed.notify_all()
        self._log.info(
            "joined the group", generation=generation, leader=leads, protocol=protocol, partitions=len(partitions)
        )

    def _assign(self, joined: Any, protocol: str) -> dict[str, bytes]:
        """As leader, decide who reads what."""
        members = [Member(str(m.member_id), m.group_instance_id, bytes(m.metadata)) for m in joined.members]
        topics = {topic for member in members for topic in topics_of(member.metadata)} | self._names
        try:
            metadata = self._cluster.metadata(topics)
        except (BrokerFailure, ConnectFailure) as failure:
            if not failure.retriable:
                raise
            raise _Retry(
                f"partitions of {len(topics)} topics are not known: {failure}", self._next_wait_s()
            ) from failure
        counts = {name: len(info.partitions) for name, info in metadata.topics.items()}
        self._assigned_with = {name: count for name, count in counts.items() if name in self._names}
        self._counts = dict(self._assigned_with)
        return _assignor(self._settings, protocol).assign(members, counts)

    def _react(self, code: int, membership: int, api: str) -> None:
        """Draw the consequences of an error code; always raises."""
        failure = BrokerFailure.of(code, subject=f"{api} in group {self._group} on cluster {self._cluster.name}")
        with self._changed:
            if self._membership != membership:
                raise _Retry("left the group meanwhile")
            if code in _LOST:
                self._forget_generation(code)
                raise _Retry(str(failure))
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._rejoin = True
                raise _Retry(str(failure))
        if code in COORDINATOR_MOVED:
            self._cluster.invalidate_coordinator(self._group)
            raise _Retry(str(failure), self._next_wait_s())
        if failure.retriable:
            raise _Retry(str(failure), self._next_wait_s())
        raise failure

    def _forget_generation(self, code: int) -> None:
        """The group goes on without us; with the condition held."""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        self._generation = _NO_GENERATION
        self._assigned_with = None
        self._rejoin = self._lost = True
        self._changed.notify_all()

    def _ask(self, request: Any, timeout_s: float) -> Any:
        try:
            node = self._cluster.coordinator(self._group)
            answer = self._cluster.send(node, request, timeout_s=timeout_s)
        except (BrokerFailure, ConnectFailure) as failure:
            self._cluster.invalidate_coordinator(self._group)
            if not failure.retriable:
                raise
            if self._failures == 0:
                self._log.warning("the coordinator cannot be reached", reason=str(failure))
            raise _Retry(str(failure), self._next_wait_s()) from failure
        self._failures = 0
        return answer

    def _next_wait_s(self) -> float:
        self._failures += 1
        return self._backoff.delay_s(self._failures - 1)

    def _pause(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        with self._changed:
            while not self._stopping and (left := deadline - time.monotonic()) > 0:
                self._changed.wait(left)

    def _fail(self, failure: KafkaFailure) -> None:
        with self._changed:
            if not self._stopping:
                self.failure = failure
            self._changed.notify_all()

    def _send_leave(self, member_id: str, reason: str) -> bool:
        request = LeaveGroupRequest(
            group_id=self._group,
            member_id=member_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None, reason=reason)],
        )
        try:
            node = self._cluster.coordinator(self._group, timeout_s=_LEAVE_TIMEOUT_S)
            self._cluster.send(node, request, timeout_s=_LEAVE_TIMEOUT_S)
        except KafkaFailure as failure:
            # The session ends by itself.
            self._cluster.invalidate_coordinator(self._group)
            self._log.info("could not say good-bye to the group", reason=str(failure))
            return not failure.retriable
        return True


def _assignor(settings: ConsumerSettings, protocol: str) -> type[Assignor]:
    for assignor in settings.assignors:
        if assignor.name == protocol:
            return assignor
    raise KafkaFailure(f"The coordinator chose the protocol {protocol}, which this consumer did not offer.")
