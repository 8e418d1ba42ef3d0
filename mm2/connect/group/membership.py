"""Membership in the group of workers (WorkerCoordinator and WorkerGroupMember).

Two threads use this module: the *membership thread* of :mod:`mm2.kafka.group.classic_member`, and the *herder thread*, which calls
:meth:`GroupMember.ensure_active` and :meth:`GroupMember.poll`. The listener's callbacks run only inside these two
calls, so they are ordered with the rest of the herder's work. The membership thread does not rejoin before the herder
has handled the last outcome: a member never reports work as its own that it must revoke and that still runs.
"""

from __future__ import annotations

import contextvars
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Protocol

from mm2.connect.api import ConnectError
from mm2.connect.group.assignor import CooperativeAssignor, GroupLeadership
from mm2.connect.group.lease import GroupLease, now_s
from mm2.connect.group.protocol import (
    EAGER,
    PROTOCOL_TYPE,
    SESSIONED,
    WorkerAssignment,
    WorkerState,
    decode_assignment,
    encode_worker_state,
    offered_protocols,
    version_of,
)
from mm2.connect.stores.config_state import ClusterConfigState, ConnectorTaskId
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.group.classic_member import NO_GENERATION, ClassicMember, GroupTimings, Offers
from mm2.kafka.group.member_thread import Retry


class WorkerRebalanceListener(Protocol):
    """Changes to this member's assignment. Called on the herder's thread only."""

    def on_assigned(self, assignment: WorkerAssignment, generation: int) -> None:
        """The complete assignment after a rebalance; its revoked lists contain what was just revoked."""

    def on_revoked(self, leader: str, connectors: Sequence[str], tasks: Sequence[ConnectorTaskId]) -> None:
        """Stop this work: after this returns, other members may start it."""


@dataclass(frozen=True)
class _Rebalanced:
    received: WorkerAssignment
    generation: int
    protocol: str


@dataclass(frozen=True)
class _Dropped:
    """All work is revoked: the coordinator is unreachable, or an eager rebalance begins."""

    reason: str


@dataclass(frozen=True)
class _Fatal:
    reason: str


class GroupMember(ClassicMember):
    """A worker's membership in its group. Public methods except :meth:`wakeup` belong to the herder's thread."""

    def __init__(
        self,
        cluster: Cluster,
        *,
        group_id: str,
        timings: GroupTimings,
        connect_protocol: str,
        url: str,
        assignor: CooperativeAssignor,
        configs: Callable[[], ClusterConfigState],
        listener: WorkerRebalanceListener,
        stage: Callable[[], str],
    ) -> None:
        heartbeat_s = timings.heartbeat_interval_ms / 1000
        super().__init__(
            cluster,
            group_id=group_id,
            protocol_type=PROTOCOL_TYPE,
            timings=timings,
            changed=threading.Condition(),
            thread_name=f"group-{group_id}",
            leave_timeout_s=heartbeat_s,
            coordinator_timeout_s=heartbeat_s,
        )
        self._offered = offered_protocols(connect_protocol)
        self._url = url
        self._configs = configs
        self._leadership = GroupLeadership(assignor, configs, self._log)
        self._waits_for_lost_members = assignor.max_delay_ms > 0
        self._listener = listener
        self._stage = stage
        self._lease = GroupLease(timings.session_timeout_ms / 1000)

        # Guarded by the condition.
        self._woken = False
        self._on_leave = False  # left the group; rejoin only after the herder polls
        self._event: _Rebalanced | _Dropped | _Fatal | None = None
        self._allocation: WorkerAssignment | None = None
        self._protocol = self._offered[0]
        self._herder_left_poll_s: float | None = None
        self._last_completed_generation = NO_GENERATION
        self._joined = False
        self._lost = False  # the lease is lost: other members may already run the work of this one

        # Only the membership thread uses this.
        self._unreachable_since_s: float | None = None

    # -- the herder's side

    @property
    def member_id(self) -> str:
        """Id assigned by the coordinator; empty before the first join."""
        with self._changed:
            return self._member_id

    @property
    def protocol_version(self) -> int:
        """Version of the embedded protocol that the group agreed on (2 = sessioned)."""
        with self._changed:
            return version_of(self._protocol)

    @property
    def signs_requests(self) -> bool:
        """Whether members sign their internal REST requests (KIP-507)."""
        return self.protocol_version >= version_of(SESSIONED)

    def owner_url(self, work: str | ConnectorTaskId) -> str | None:
        """REST URL of the member to which this one, when it was last the leader, assigned a connector or task."""
        return self._leadership.owner_url(work)

    def start(self) -> None:
        """Start to join the group. :meth:`ensure_active` delivers the first assignment."""
        self._herder_left_poll_s = time.monotonic()
        super().start()
        watch = contextvars.copy_context()
        threading.Thread(
            target=lambda: watch.run(self._watch_lease), name=f"lease-{self._group_id}", daemon=True
        ).start()

    def is_ours(self) -> bool:
        """Whether this member's assignment is still valid, as far as can be known. Any thread; cheap."""
        return self._lease.is_valid()

    def wakeup(self) -> None:
        """End the herder's current or next wait. Any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def ensure_active(self) -> bool:
        """Wait until this worker is a member with a valid assignment; False when woken before that.

        Runs callbacks. Raises ConnectError when the group permanently rejects this worker.
        """
        with self._herder_present():
            while True:
                self._handle_event()
                with self._changed:
                    if self._event is not None or self._lost:
                        continue
                    if self._is_active():
                        return True
                    if self._take_wakeup() or self._stopping:
                        return False
                    self._changed.wait()

    def poll(self, timeout_s: float | None) -> None:
        """Wait for a rebalance, a wake-up or ``timeout_s`` (None: no limit), and run callbacks.

        Raises ConnectError when the group permanently rejects this worker.
        """
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._herder_present():
            with self._changed:
                while self._event is None and not self._lost and not self._stopping and not self._take_wakeup():
                    left = None if deadline is None else deadline - time.monotonic()
                    if left is not None and left <= 0:
                        return
                    self._changed.wait(left)
            self._handle_event()

    def request_rejoin(self, reason: str) -> None:
        """Request a rebalance; the membership thread rejoins immediately."""
        self._log.debug("rejoin requested", reason=reason)
        with self._changed:
            self._rejoin = True
            self._changed.notify_all()

    def clear_revocations(self) -> bool:
        """Clear the revoked lists of the current assignment; returns whether there were any."""
        with self._changed:
            held = self._allocation
            if held is None or not (held.revoked_connectors or held.revoked_tasks):
                return False
            self._allocation = replace(held, revoked_connectors=(), revoked_tasks=())
            return True

    def revoke_all(self, reason: str) -> None:
        """Revoke all work, as if the membership were lost. Runs the callback."""
        with self._changed:
            held, self._allocation = self._allocation, None
        if held is not None:
            self._log.warning("giving up all work", reason=reason)
            self._listener.on_revoked(held.leader, held.connectors, held.tasks)
        self._lease.end()

    def leave(self, reason: str) -> None:
        """Leave the group without stopping work; the next poll of the herder rejoins."""
        with self._changed:
            member_id = self._forget_membership()
            self._on_leave = True
        self._lease.end()
        self._send_leave(member_id, reason)

    def stop(self) -> None:
        """Leave the group and end the thread. Stop all work first."""
        with self._changed:
            self._stopping = True
            member_id = self._forget_membership()
            self._changed.notify_all()
        self._send_leave(member_id, "the worker is stopping")
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    @contextmanager
    def _herder_present(self) -> Iterator[None]:
        """A block in which the herder polls; the time outside of it is limited by ``rebalance.timeout.ms``."""
        self._enter_poll()
        try:
            yield
        finally:
            self._leave_poll()

    def _enter_poll(self) -> None:
        with self._changed:
            self._herder_left_poll_s = None
            self._on_leave = False
            self._changed.notify_all()

    def _leave_poll(self) -> None:
        with self._changed:
            self._herder_left_poll_s = time.monotonic()
            self._changed.notify_all()

    def _take_wakeup(self) -> bool:
        woken, self._woken = self._woken, False
        return woken

    def _is_active(self) -> bool:
        return self._joined and not self._rejoin and self._allocation is not None

    def _handle_event(self) -> None:
        """Run the callbacks of the pending event. Only afterwards may the membership thread rejoin."""
        with self._changed:
            lost = self._lost
            event = self._event
            if lost and not isinstance(event, _Fatal):
                event = _Dropped(
                    "the session expired while this worker was suspended; its work may have been reassigned"
                )
            held = self._allocation
        if event is None:
            return
        if isinstance(event, _Fatal):
            raise ConnectError(event.reason)
        # The time that callbacks take counts as time outside of poll.
        self._leave_poll()
        following: WorkerAssignment | None = None
        try:
            if isinstance(event, _Dropped):
                # Also after a failed round: the work kept during it is still running.
                if held is not None:
                    self._log.info("giving up all work", reason=event.reason)
                    self._listener.on_revoked(held.leader, held.connectors, held.tasks)
                self._lease.end()
            else:
                received = event.received
                if version_of(event.protocol) == 0:
                    if held is not None:
                        # Eager: an assignment lists no revocations. Work is still held only if the group has just
                        # become eager.
                        self._listener.on_revoked(held.leader, held.connectors, held.tasks)
                    following = received
                else:
                    if received.revoked_connectors or received.revoked_tasks:
                        self._listener.on_revoked(received.leader, received.revoked_connectors, received.revoked_tasks)
                    following = _merge(held, received)
                self._listener.on_assigned(following, event.generation)
        finally:
            with self._changed:
                self._allocation = following
                self._event = None
                if lost:
                    self._lost = False
                self._herder_left_poll_s = None
                self._on_leave = False
                self._changed.notify_all()

    # -- the membership thread's side

    def _step(self) -> None:
        with self._changed:
            now = time.monotonic()
            stalled_s = 0.0 if self._herder_left_poll_s is None else now - self._herder_left_poll_s
            overdue = stalled_s * 1000 > self._timings.rebalance_timeout_ms and self._generation != NO_GENERATION
            if overdue:
                member_id = self._forget_membership()
                self._on_leave = True
                self._lose()
            join = self._rejoin and self._event is None and not self._on_leave and not self._lost
            if join and self._protocol == EAGER and self._holds_work():
                # Eager: no member may run work while the group rebalances.
                self._event = _Dropped("the group rebalances eagerly")
                self._changed.notify_all()
                return
            heartbeat = self._generation != NO_GENERATION and now >= self._next_heartbeat_s
            if not overdue and not join and not heartbeat and not self._stopping:
                until = self._next_heartbeat_s if self._generation != NO_GENERATION else now + 1.0
                self._changed.wait(max(0.0, min(until - now, 1.0)))
                return
        if overdue:
            self._log.warning(
                "worker did not poll its group within rebalance.timeout.ms and leaves the group",
                rebalance_timeout_ms=self._timings.rebalance_timeout_ms,
                stage=self._stage(),
            )
            self._send_leave(member_id, "rebalance.timeout.ms passed without a poll")
        elif join:
            self._join()
        elif heartbeat:
            self._heartbeat()

    def _holds_work(self) -> bool:
        held = self._allocation
        return held is not None and bool(held.connectors or held.tasks)

    def _heartbeat(self) -> None:
        asked_s = now_s()
        super()._heartbeat()
        self._lease.renew(asked_s)

    def _join(self) -> None:
        self._lease.await_answer()
        again_s = self._timings.heartbeat_interval_ms / 1000
        try:
            super()._join()
        except ConnectError as error:  # the coordinator, or the member that leads, has sent what no worker sends
            self._lease.answer_failed(again_s)
            self._log.warning("assignment not usable, joining again", reason=str(error))
            raise Retry(str(error), again_s) from error
        except BaseException:
            self._lease.answer_failed(again_s)
            raise

    def _prepare_join(self) -> Callable[[], Offers]:
        member_id, allocation = self._member_id, self._allocation
        self._joined = False

        def offers() -> Offers:
            state = WorkerState(self._url, self._configs().offset, allocation)
            self._log.info("joining the group", config_offset=state.config_offset, member_id=member_id or None)
            return [(name, encode_worker_state(state, name)) for name in self._offered]

        return offers

    def _assign(self, joined: Any) -> dict[str, bytes]:
        """Compute the assignment as leader."""
        with self._changed:
            last_completed, was_eager = self._last_completed_generation, self._protocol == EAGER
        return self._leadership.assign(joined, last_completed, was_eager=was_eager)

    def _accept(self, assignment: bytes, generation: int, protocol: str) -> Mapping[str, object]:
        received = decode_assignment(assignment)
        self._protocol = protocol
        self._last_completed_generation = generation
        self._joined = True
        self._lease.begin()
        self._event = _Rebalanced(received, generation, protocol)
        return {}

    def _forget_generation(self, code: int) -> None:
        super()._forget_generation(code)
        if code == ErrorCode.UNKNOWN_MEMBER_ID and not self._waits_for_lost_members and self._holds_work():
            # The group has removed this member and does not wait for it to return.
            self._lose()

    def _is_final(self, failure: KafkaFailure) -> bool:
        return isinstance(failure, BrokerFailure) and not failure.retriable

    def _ask(self, request: Any, timeout_s: float) -> Any:
        answer = super()._ask(request, timeout_s)
        self._unreachable_since_s = None
        return answer

    def _on_silence(self, failure: KafkaFailure, asked_s: float) -> None:
        """Revoke all work when the coordinator has been unreachable for a heartbeat interval."""
        if self._unreachable_since_s is None:
            self._unreachable_since_s = asked_s
            self._log.warning("group coordinator unreachable", reason=str(failure))
        if time.monotonic() - self._unreachable_since_s >= self._timings.heartbeat_interval_ms / 1000:
            self._drop(str(failure))

    def _drop(self, reason: str) -> None:
        with self._changed:
            if self._event is not None or self._allocation is None or self._stopping:
                return
            self._rejoin = True
            self._joined = False
            self._event = _Dropped(f"not a member of the group, its coordinator cannot be reached: {reason}")
            self._changed.notify_all()

    def _watch_lease(self) -> None:
        """Detect that the session has ended while this process was frozen or the coordinator did not respond."""
        pause_s = min(1.0, self._timings.session_timeout_ms / 10_000)
        while True:
            with self._changed:
                self._changed.wait(pause_s)
                if self._stopping:
                    return
                if not self._lease.tick() or self._lost:
                    continue
                self._lose()
            self._log.warning("group session expired; stopping all connectors and tasks")

    def _lose(self) -> None:
        """Other members may run the work of this one: ignore a response in flight. Call it with the condition held."""
        self._lost = self._rejoin = True
        self._joined = False
        self._membership += 1
        self._generation = NO_GENERATION
        self._lease.lose()
        self._changed.notify_all()

    def _fail(self, error: Exception) -> None:
        reason = str(error)
        if not isinstance(error, ConnectError | KafkaFailure):
            self._log.exception("membership thread failed")
            reason = f"Membership in group {self._group_id} failed: {error}"
        with self._changed:
            self._event = _Fatal(reason)
            self._changed.notify_all()

    # -- both sides

    def _forget_membership(self) -> str:
        self._joined = False
        return super()._forget_membership()


def _merge(held: WorkerAssignment | None, received: WorkerAssignment) -> WorkerAssignment:
    """A cooperative member's work after a rebalance: what it kept, and what was added."""
    if held is None:
        return received
    connectors = dict.fromkeys(received.connectors)
    connectors.update(dict.fromkeys(c for c in held.connectors if c not in received.revoked_connectors))
    tasks = dict.fromkeys(received.tasks)
    tasks.update(dict.fromkeys(t for t in held.tasks if t not in received.revoked_tasks))
    return replace(received, connectors=tuple(connectors), tasks=tuple(tasks))
