"""Consumer in a group (Java's KafkaConsumer, as far as Connect sinks need it).

kafka-python's consumer is not used: its rebalance listeners run on its event loop, where blocking calls such as a
commit are refused and heartbeats stop meanwhile, and nothing can wake up a `poll` (KafkaConsumer 3.0.12,
``NetworkSelector.run``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor, wait
from typing import Any, Final, Protocol

import structlog
from kafka.protocol.consumer import OffsetCommitRequest

from mm2.kafka.admin import Admin
from mm2.kafka.admin.calls import COORDINATOR_MOVED
from mm2.kafka.backoff import Backoff
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.consumer.classic_membership import ClassicMembership
from mm2.kafka.consumer.fetching import Fetcher
from mm2.kafka.consumer.membership import Assigned, ConsumerMembership, MemberIdentity, Topics
from mm2.kafka.consumer.records import ConsumerRecord
from mm2.kafka.consumer.server_assigned import ServerAssignedMembership
from mm2.kafka.consumer.settings import ConsumerSettings
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure, TimeoutFailure, value_of
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition

log = structlog.get_logger(__name__)

Offsets = Mapping[TopicPartition, OffsetAndMetadata]
#: Called in `Consumer.poll` with None or the failure of the commit.
OnCommit = Callable[[KafkaFailure | None], None]

_NAMES_TOPICS: Final = 9  # newer versions of OffsetCommit name topics by id
_RESOLVE_S: Final = 10.0
_LOOK_S: Final = 0.2
_LEAVE_AGAIN_S: Final = 0.5
#: Errors of a commit that a retry cannot fix: the first lasts until the rebalance, the second means a deleted topic.
_FINAL: Final = {ErrorCode.REBALANCE_IN_PROGRESS, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
#: The coordinator has another epoch of this member, or has removed it (KIP-848). The next heartbeat brings the epoch.
_STALE: Final = {ErrorCode.STALE_MEMBER_EPOCH, ErrorCode.UNKNOWN_MEMBER_ID}


class ConsumerRebalanceListener(Protocol):
    """Receives partition changes; called in `Consumer.poll`, on the user's thread (ConsumerRebalanceListener)."""

    def on_partitions_assigned(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions have been added, possibly none."""

    def on_partitions_revoked(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions are being revoked; their offsets can be committed until this returns."""

    def on_partitions_lost(self, partitions: frozenset[TopicPartition]) -> None:
        """Partitions have been lost; offsets can no longer be committed for them."""


class Consumer:
    """For one thread; only `wakeup` and `give_up` may be called from others.

    ``name`` is the cluster's name for messages.
    """

    def __init__(self, settings: ConsumerSettings, *, name: str) -> None:
        self.settings = settings
        self._name = settings.client.client_id
        self._cluster = Cluster(settings.client, name=name)
        self._admin = Admin(self._cluster)
        self._changed = threading.Condition()
        self._membership: ConsumerMembership | None = None
        self._listener: ConsumerRebalanceListener | None = None
        self._fetcher = Fetcher(self._cluster, settings, self._changed, on_gone=self._look_at_topics)
        self._commits = ThreadPoolExecutor(1, thread_name_prefix=f"consumer-commits-{settings.client.client_id}")
        self._committed: deque[tuple[OnCommit, KafkaFailure | None]] = deque()
        self._losses = 0  # how often all partitions were lost
        self._woken = False
        self._closed = False
        self._resolve_at_s = 0.0
        self._resolve_failures = 0
        self._backoff = Backoff(settings.client.retry_backoff_ms, settings.client.retry_backoff_max_ms)
        self._log = log.bind(group=settings.group_id, cluster=name)

    def subscribe(self, topics: Topics, listener: ConsumerRebalanceListener) -> None:
        """Subscribe and start to join the group. May be called once."""
        if self._membership is not None:
            raise RuntimeError("subscribe() of a consumer that has subscribed already")
        self._listener = listener
        protocol = ServerAssignedMembership if self.settings.server_assigned else ClassicMembership
        self._membership = protocol(self._cluster, self.settings, topics, self._changed)
        self._membership.start()
        self._fetcher.start()

    def poll(self, timeout_s: float) -> list[ConsumerRecord]:
        """The next records, at most max.poll.records; empty after ``timeout_s`` or `wakeup`.

        Runs the rebalance listener and the callbacks of `commit_async`. Raises KafkaFailure when this consumer cannot
        continue, and any exception of a listener or callback.
        """
        membership = self._joined()
        deadline = time.monotonic() + timeout_s
        with self._changed:
            membership.enter_poll()
        try:
            while True:
                self._raise_failure()
                self._run_callbacks()
                self._rebalance()
                self._resolve_positions()
                records = self._fetcher.take(self.settings.max_poll_records)
                if records:
                    return records
                with self._changed:
                    if self._woken or self._closed:
                        self._woken = False
                        return []
                    if self._has_news():
                        continue
                    now = time.monotonic()
                    if now >= deadline:
                        return []
                    until = deadline
                    if self._fetcher.without_position():
                        until = min(deadline, max(now, self._resolve_at_s))
                    self._changed.wait(max(0.0, until - now))
        finally:
            with self._changed:
                membership.leave_poll()

    def wakeup(self) -> None:
        """End the current or the next `poll`. Any thread."""
        with self._changed:
            self._woken = True
            self._changed.notify_all()

    def assignment(self) -> frozenset[TopicPartition]:
        """The partitions that are currently assigned."""
        with self._changed:
            return self._fetcher.assigned

    def pause(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop returning records of these partitions. Raises KeyError for one that is not assigned."""
        with self._changed:
            self._fetcher.pause(partitions, paused=True)

    def resume(self, partitions: Iterable[TopicPartition]) -> None:
        """Continue to return records of these partitions. Raises KeyError for one that is not assigned."""
        with self._changed:
            self._fetcher.pause(partitions, paused=False)

    def paused(self) -> frozenset[TopicPartition]:
        """The assigned partitions that are paused."""
        with self._changed:
            return self._fetcher.paused

    def seek(self, partition: TopicPartition, offset: int) -> None:
        """Set the position. Raises KeyError when the partition is not assigned."""
        with self._changed:
            self._fetcher.seek(partition, offset)

    def position(self, partition: TopicPartition, timeout_s: float | None = None) -> int:
        """Offset of the next record to return, looked up if needed, by default within default.api.timeout.ms.

        Raises KeyError and KafkaFailure, TimeoutFailure when it took too long.
        """
        patience_s = self.settings.default_api_timeout_ms / 1000 if timeout_s is None else timeout_s
        deadline = time.monotonic() + patience_s
        while True:
            with self._changed:
                found = self._fetcher.position(partition)
            if found is not None:
                return found
            if time.monotonic() >= deadline or self._closed:
                raise TimeoutFailure(
                    f"The position of {partition} for group {self.settings.group_id} was not found out."
                )
            self._resolve_positions()
            with self._changed:
                left = self._resolve_at_s - time.monotonic()
                if self._fetcher.position(partition) is None and left > 0:
                    self._changed.wait(left)

    def commit_sync(self, offsets: Offsets) -> None:
        """Commit after all pending `commit_async` and wait, up to default.api.timeout.ms. Raises KafkaFailure."""
        deadline = time.monotonic() + self.settings.default_api_timeout_ms / 1000
        failures = 0
        while True:
            try:
                self._commit_in_order(offsets, deadline)
                return
            except (BrokerFailure, ConnectFailure) as failure:
                wait_s = self._backoff.delay_s(failures)
                failures += 1
                code = failure.code if isinstance(failure, BrokerFailure) else None
                # A loss would be handled by this thread, so the partitions are still assigned: the next attempt sends
                # the member's new epoch (KIP-848).
                final = code in _FINAL or not (failure.retriable or code == ErrorCode.STALE_MEMBER_EPOCH)
                if final or time.monotonic() + wait_s >= deadline or self._closed:
                    raise
                time.sleep(wait_s)

    def commit_async(self, offsets: Offsets, on_commit: OnCommit) -> None:
        """Commit in the background, without retries and in order; ``on_commit`` is called in a later `poll`.

        It fails if the partitions are lost before it is sent: the coordinator would accept it from the member that has
        joined again, also for partitions of other members.
        """
        with self._changed:
            losses = self._losses
        self._commits.submit(self._commit_behind, dict(offsets), on_commit, losses)

    def give_up(self) -> None:
        """Cancel all waits for brokers and all retries. The membership stays alive until `close`. Any thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def close(self) -> None:
        """Leave the group and release all resources. The listener is not called.

        If LeaveGroup fails, it is retried in the background until the session timeout.
        """
        self.give_up()
        self._commits.shutdown(wait=False, cancel_futures=True)
        if self._membership is None or self._membership.stop():
            self._release()
        else:
            threading.Thread(target=self._leave_later, name=f"consumer-leaving-{self._name}", daemon=True).start()

    def _leave_later(self) -> None:
        deadline = time.monotonic() + self.settings.session_timeout_ms / 1000
        while time.monotonic() < deadline and not self._joined().stop():
            time.sleep(_LEAVE_AGAIN_S)
        self._release()

    def _release(self) -> None:
        self._cluster.close()
        if self._membership is not None:
            self._membership.join(5)
            self._fetcher.close()

    def _joined(self) -> ConsumerMembership:
        if self._membership is None:
            raise RuntimeError("a consumer that has not subscribed")
        return self._membership

    def _look_at_topics(self) -> None:
        if self._membership is not None:
            self._membership.look_at_topics()

    def _has_news(self) -> bool:
        membership = self._joined()
        return bool(
            membership.event or membership.failure or self._fetcher.failure or self._committed or self._fetcher.is_ready
        )

    def _raise_failure(self) -> None:
        failure = self._joined().failure or self._fetcher.failure
        if failure is not None:
            raise failure

    def _run_callbacks(self) -> None:
        while self._committed:
            on_commit, failure = self._committed.popleft()
            on_commit(failure)

    # -- rebalances

    def _rebalance(self) -> None:
        """Handle the event of the membership thread, which waits for it before it joins again."""
        membership = self._joined()
        with self._changed:
            event, had = membership.event, self._fetcher.assigned
            # The time that the listener takes counts as time outside of poll.
            membership.leave_poll()
        try:
            if event is None:
                return
            if isinstance(event, Assigned):
                self._take_over(membership, had, event.partitions)
            else:
                self._give_up(membership, had, lost=event.lost)
        finally:
            with self._changed:
                membership.enter_poll()

    def _take_over(
        self, membership: ConsumerMembership, had: frozenset[TopicPartition], now: frozenset[TopicPartition]
    ) -> None:
        assert self._listener is not None  # noqa: S101 - subscribe() sets both
        revoked, added = had - now, now - had
        try:
            if revoked:
                self._log.info("partitions revoked", partitions=sorted(map(str, revoked)))
                self._listener.on_partitions_revoked(revoked)
            with self._changed:
                self._fetcher.assign(now)
            self._log.info("partitions assigned", partitions=sorted(map(str, added)), all=len(now))
            self._listener.on_partitions_assigned(added)
        finally:
            with self._changed:
                self._fetcher.assign(now)
                membership.settle(now, rejoin=bool(revoked))

    def _give_up(self, membership: ConsumerMembership, had: frozenset[TopicPartition], *, lost: bool) -> None:
        assert self._listener is not None  # noqa: S101
        try:
            if lost:
                self._log.warning("partitions lost", partitions=sorted(map(str, had)))
                self._listener.on_partitions_lost(had)
            else:
                self._log.info("partitions revoked", partitions=sorted(map(str, had)))
                self._listener.on_partitions_revoked(had)
        finally:
            with self._changed:
                self._losses += lost
                self._fetcher.assign(())
                membership.settle(frozenset())

    # -- offsets

    def _resolve_positions(self) -> None:
        """Look up the start offsets of partitions without a position. Raises final failures; retries others later."""
        with self._changed:
            missing = self._fetcher.without_position()
        if not missing or time.monotonic() < self._resolve_at_s:
            return
        try:
            self._resolve(missing)
            self._resolve_failures = 0
            self._resolve_at_s = 0.0
        except (BrokerFailure, ConnectFailure) as failure:
            gone = isinstance(failure, BrokerFailure) and failure.stale_metadata
            passing = isinstance(failure, BrokerFailure) and failure.code in {*_STALE, ErrorCode.UNKNOWN_SERVER_ERROR}
            if not failure.retriable and not gone and not passing:
                raise
            if gone:
                with self._changed:
                    self._look_at_topics()
            self._log.debug("positions are not known yet", reason=str(failure))
            self._resolve_at_s = time.monotonic() + self._backoff.delay_s(self._resolve_failures)
            self._resolve_failures += 1

    def _resolve(self, missing: Mapping[TopicPartition, bool]) -> None:
        committed: Mapping[TopicPartition, OffsetAndMetadata] = {}
        if not all(missing.values()):
            group = self.settings.group_id
            with self._changed:
                reader = self._joined().reader()
            answers = self._admin.list_group_offsets(
                [group], member=None if reader is None else (reader.member_id, reader.generation)
            )
            committed = value_of(answers[group])
        to_reset: list[TopicPartition] = []
        failures: list[KafkaFailure] = []
        for tp, out_of_range in missing.items():
            known = committed.get(tp)
            if known is not None and not out_of_range:
                self._seek_if_assigned(tp, known.offset)
            else:
                to_reset.append(tp)
        if not to_reset:
            return
        for tp, found in self._admin.list_offsets(*self._reset_query(to_reset)).items():
            if isinstance(found, KafkaFailure):
                failures.append(found)
            else:
                self._seek_if_assigned(tp, max(0, found.offset))
        if failures:
            raise failures[0]

    def _reset_query(self, partitions: list[TopicPartition]) -> tuple[dict[TopicPartition, int], str]:
        reset = self.settings.offset_reset
        if reset.is_none:
            raise BrokerFailure.of(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                "there is no committed offset that exists, and auto.offset.reset is none",
                subject=f"Group {self.settings.group_id}, {', '.join(map(str, sorted(partitions)))}",
            )
        at = reset.timestamp if reset.timestamp is not None else int(time.time() * 1000) - (reset.age_ms or 0)
        return dict.fromkeys(partitions, at), "read_committed" if self.settings.read_committed else "read_uncommitted"

    def _seek_if_assigned(self, tp: TopicPartition, offset: int) -> None:
        with self._changed:
            if tp in self._fetcher.without_position():
                self._fetcher.seek(tp, offset)

    def _commit_in_order(self, offsets: Offsets, deadline: float) -> None:
        # On one thread for all commits: with two connections an older commit could arrive last and cause duplicates.
        commit = self._commits.submit(self._commit, dict(offsets), self._losses)
        while not wait([commit], _LOOK_S).done:
            if self._closed or time.monotonic() >= deadline:
                commit.cancel()
                raise TimeoutFailure(f"Offsets of group {self.settings.group_id} were not committed in time.")
        commit.result()

    def _commit_behind(self, offsets: Offsets, on_commit: OnCommit, losses: int) -> None:
        failure: KafkaFailure | None = None
        try:
            self._commit(offsets, losses)
        except KafkaFailure as refused:
            failure = refused
        except Exception as error:  # noqa: BLE001 - passed to the callback
            failure = KafkaFailure(f"Offsets of group {self.settings.group_id} were not committed: {error!r}")
        with self._changed:
            self._committed.append((on_commit, failure))
            self._changed.notify_all()

    def _commit(self, offsets: Offsets, losses: int) -> None:
        """Commit once; ``losses`` are those at the time of the call. Raises BrokerFailure or ConnectFailure."""
        if not offsets:
            return
        membership, group = self._joined(), self.settings.group_id
        with self._changed:
            identity = membership.identity()
            if losses != self._losses:
                raise BrokerFailure.of(
                    ErrorCode.UNKNOWN_MEMBER_ID,
                    "the partitions were lost before their offsets were committed",
                    subject=f"Group {group} on cluster {self._cluster.name}",
                )
        try:
            node = self._cluster.coordinator(group, timeout_s=_RESOLVE_S)
            answer = self._cluster.send(node, _commit_request(group, identity, offsets))
        except ConnectFailure:
            self._cluster.invalidate_coordinator(group)
            raise
        for topic in answer.topics:
            for partition in topic.partitions:
                code = int(partition.error_code)
                if not code:
                    continue
                if code in COORDINATOR_MOVED:
                    self._cluster.invalidate_coordinator(group)
                with self._changed:
                    membership.on_commit_error(code, identity)
                where = TopicPartition(topic.name, partition.partition_index)
                raise BrokerFailure.of(
                    code, subject=f"Committing the offset of {where} for group {group}", needed="READ"
                )


def _commit_request(group: str, identity: MemberIdentity, offsets: Offsets) -> Any:
    request: Any = OffsetCommitRequest
    topics: dict[str, list[Any]] = {}
    for tp, offset in offsets.items():
        partition = request.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
            partition_index=tp.partition,
            committed_offset=offset.offset,
            committed_leader_epoch=offset.leader_epoch,
            committed_metadata=offset.metadata,
        )
        topics.setdefault(tp.topic, []).append(partition)
    return request(
        group_id=group,
        generation_id_or_member_epoch=identity.generation,
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=[
            request.OffsetCommitRequestTopic(name=topic, partitions=partitions) for topic, partitions in topics.items()
        ],
        max_version=_NAMES_TOPICS,
    )
