"""A member of a group with the classic protocol (Java's AbstractCoordinator), as far as all members are alike.

Consumers and Connect workers are members of groups. Each has a *membership thread*, which finds the coordinator, joins,
syncs and sends heartbeats, one request after another. A JoinGroup may take as long as the slowest member needs; only
the membership thread waits for it. Subclasses define the member's protocols and metadata, the assignment by the leader,
and the handling of an assignment.
"""

from __future__ import annotations

import threading
import time
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NoReturn

from kafka.protocol.consumer import HeartbeatRequest, JoinGroupRequest, LeaveGroupRequest, SyncGroupRequest

from mm2.kafka.admin.calls import COORDINATOR_MOVED
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.group.member_thread import MemberThread, Retry

NO_GENERATION: Final = -1
#: How much longer than the rebalance timeout to wait for the answer to JoinGroup (as AbstractCoordinator does).
_JOIN_GRACE_S: Final = 5.0
#: Attempts to join in a row that follow at once, as all do in Java: to get a member id, and when another rebalance has begun meanwhile.
_AT_ONCE: Final = 3
_LOST: Final = frozenset({ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.ILLEGAL_GENERATION})

#: Name and metadata of each protocol that a member supports, in order of preference.
Offers = Sequence[tuple[str, bytes]]


@dataclass(frozen=True)
class GroupTimings:
    """Timings of a member in milliseconds; see the client keys of the same names.

    A consumer's rebalance timeout is its ``max.poll.interval.ms``.
    """

    session_timeout_ms: int
    rebalance_timeout_ms: int
    heartbeat_interval_ms: int


class ClassicMember(MemberThread):
    """Base class of members with the classic protocol; the arguments are those of `MemberThread`, and the timings."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        group_id: str,
        protocol_type: str,
        timings: GroupTimings,
        changed: threading.Condition,
        thread_name: str,
        leave_timeout_s: float,
        coordinator_timeout_s: float | None = None,
        instance_id: str | None = None,
    ) -> None:
        super().__init__(
            cluster,
            group_id=group_id,
            changed=changed,
            thread_name=thread_name,
            leave_timeout_s=leave_timeout_s,
            coordinator_timeout_s=coordinator_timeout_s,
            instance_id=instance_id,
        )
        self._protocol_type = protocol_type
        self._timings = timings

        # Guarded by the condition.
        self._rejoin = True
        self._member_id = ""
        self._generation = NO_GENERATION
        self._membership = 0  # counts departures from the group: an answer to an earlier membership is ignored

        self._failed_joins = 0  # in a row; only the membership thread accesses it

    # -- implemented by subclasses; all but `_assign` are called with the condition held

    @abstractmethod
    def _prepare_join(self) -> Callable[[], Offers]:
        """Prepare a join. Returns a function that makes the offers, which is called without the condition."""

    @abstractmethod
    def _assign(self, joined: Any) -> Mapping[str, bytes]:
        """As leader, compute the assignment of each member in the answer to JoinGroup. Raises Retry."""

    @abstractmethod
    def _accept(self, assignment: bytes, generation: int, protocol: str) -> Mapping[str, object]:
        """Accept the assignment of a new generation. Returns the fields to log."""

    def _forget_generation(self, code: int) -> None:
        """Discard the generation after the coordinator has rejected it or the member id."""
        if code == ErrorCode.UNKNOWN_MEMBER_ID:
            self._member_id = ""
        self._generation = NO_GENERATION
        self._rejoin = True
        self._changed.notify_all()

    def _forget_membership(self) -> str:
        """Discard the membership. Returns the previous member id."""
        member_id, self._member_id = self._member_id, ""
        self._generation = NO_GENERATION
        self._membership += 1
        self._rejoin = True
        return member_id

    # -- the membership thread

    def _heartbeat(self) -> None:
        """Send a heartbeat. Returns if the coordinator knows the member, also if it requests a rejoin."""
        with self._changed:
            membership, member_id, generation = self._membership, self._member_id, self._generation
        self._next_heartbeat_s = time.monotonic() + self._timings.heartbeat_interval_ms / 1000
        answer = self._ask(
            HeartbeatRequest(
                group_id=self._group_id,
                generation_id=generation,
                member_id=member_id,
                group_instance_id=self._instance_id,
            ),
            max(1.0, (self._timings.session_timeout_ms - self._timings.heartbeat_interval_ms) / 1000),
        )
        if answer.error_code == ErrorCode.REBALANCE_IN_PROGRESS:
            with self._changed:
                self._rejoin = True
        elif answer.error_code:
            self._react(int(answer.error_code), membership, "Heartbeat")

    def _join(self) -> None:
        with self._changed:
            membership, member_id = self._membership, self._member_id
            offers = self._prepare_join()
            self._rejoin = False
        try:
            self._join_and_sync(membership, member_id, offers())
        except BaseException as error:
            with self._changed:
                self._rejoin = True
            self._failed_joins += 1
            if isinstance(error, Retry) and self._failed_joins > _AT_ONCE:
                # A coordinator that does not know the members that it has accepted got hundreds of requests in a second.
                wait_s = self._backoff.delay_s(self._failed_joins - _AT_ONCE)
                raise Retry(str(error), max(error.wait_s, wait_s)) from error
            raise
        self._failed_joins = 0

    def _join_and_sync(self, membership: int, member_id: str, offers: Offers) -> None:
        timeout_s = max(
            self._timings.rebalance_timeout_ms / 1000 + _JOIN_GRACE_S,
            self._cluster.settings.request_timeout_ms / 1000,
        )
        joined = self._ask(self._join_request(member_id, offers), timeout_s)
        if joined.error_code == ErrorCode.MEMBER_ID_REQUIRED:
            with self._changed:
                if self._membership == membership:
                    self._member_id = joined.member_id
            raise Retry("the coordinator gave us a member id")
        if joined.error_code:
            self._react(int(joined.error_code), membership, "JoinGroup")
        generation, protocol = int(joined.generation_id), str(joined.protocol_name)
        with self._changed:
            self._require_same(membership)
            self._member_id, self._generation = joined.member_id, generation
        self._next_heartbeat_s = time.monotonic() + self._timings.heartbeat_interval_ms / 1000
        leads = joined.leader == joined.member_id
        assignments = self._assign(joined) if leads else {}
        synced = self._ask(self._sync_request(joined.member_id, generation, protocol, assignments), timeout_s)
        if synced.error_code:
            self._react(int(synced.error_code), membership, "SyncGroup")
        with self._changed:
            self._require_same(membership)
            noted = self._accept(bytes(synced.assignment), generation, protocol)
            self._changed.notify_all()
        self._log.info("joined the group", generation=generation, leader=leads, protocol=protocol, **noted)

    def _join_request(self, member_id: str, offers: Offers) -> JoinGroupRequest:
        return JoinGroupRequest(
            group_id=self._group_id,
            session_timeout_ms=self._timings.session_timeout_ms,
            rebalance_timeout_ms=self._timings.rebalance_timeout_ms,
            member_id=member_id,
            group_instance_id=self._instance_id,
            protocol_type=self._protocol_type,
            protocols=[
                JoinGroupRequest.JoinGroupRequestProtocol(name=name, metadata=metadata) for name, metadata in offers
            ],
        )

    def _sync_request(
        self, member_id: str, generation: int, protocol: str, assignments: Mapping[str, bytes]
    ) -> SyncGroupRequest:
        return SyncGroupRequest(
            group_id=self._group_id,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=self._instance_id,
            protocol_type=self._protocol_type,
            protocol_name=protocol,
            assignments=[
                SyncGroupRequest.SyncGroupRequestAssignment(member_id=member, assignment=data)
                for member, data in assignments.items()
            ],
        )

    def _require_same(self, membership: int) -> None:
        """Raise Retry when the answer belongs to an earlier membership. Called with the condition held."""
        if self._membership != membership:
            raise Retry("left the group")

    def _react(self, code: int, membership: int, api: str) -> NoReturn:
        """Handle an error code: raises Retry, or the error that ends the membership."""
        subject = f"{api} in group {self._group_id} on cluster {self._cluster.name}"
        failure = BrokerFailure.of(code, subject=subject, needed="READ")
        with self._changed:
            self._require_same(membership)
            if code in _LOST:
                self._forget_generation(code)
                raise Retry(str(failure))
            if code == ErrorCode.REBALANCE_IN_PROGRESS:
                self._rejoin = True
                raise Retry(str(failure))
        if code in COORDINATOR_MOVED:
            self._cluster.invalidate_coordinator(self._group_id)
        if failure.retriable:
            raise Retry(str(failure), self._next_wait_s())
        raise failure

    # -- any thread

    def _send_leave(self, member_id: str, reason: str) -> KafkaFailure | None:
        """Send LeaveGroup; returns the failure, if any."""
        if not member_id:
            return None
        self._log.info("leaving the group", reason=reason)
        request = LeaveGroupRequest(
            group_id=self._group_id,
            member_id=member_id,
            members=[LeaveGroupRequest.MemberIdentity(member_id=member_id, group_instance_id=None, reason=reason)],
        )
        try:
            node = self._cluster.coordinator(self._group_id, timeout_s=self._leave_timeout_s)
            self._cluster.send(node, request, timeout_s=self._leave_timeout_s)
        except KafkaFailure as failure:
            # The coordinator removes the member when its session times out.
            self._cluster.invalidate_coordinator(self._group_id)
            self._log.info("could not leave the group", reason=str(failure))
            return failure
        return None
