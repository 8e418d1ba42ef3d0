"""The partitions that are read: the receiver of each, its state, and the partitions of each broker."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from mm2.copy.executor.clusters.brokers import BrokerAddress, Link
from mm2.copy.executor.partition.cursor import Cursor
from mm2.kafka.backoff import HastyAnswers
from mm2.kafka.structs import PartitionInfo, TopicInfo, TopicPartition
from mm2.kafka.wire import fetch
from mm2.kafka.wire.fetch import FetchSession, Position

_BLOCKED_WAIT_MS: Final = 20
#: The broker responds as soon as there are records, so the maximum wait grows by this factor while none arrive.
_QUIET_WAITS: Final = 4
#: A lower leader epoch than one that was read is accepted when all brokers name it for this time.
_SET_BACK_AFTER_S: Final = 3.0


@dataclass(slots=True, eq=False)
class PartitionFetchState:
    """A receiver, and the source's state of its partition."""

    receiver: Cursor
    max_bytes: int
    slot: int = 0
    address: BrokerAddress | None = None  # of the leader, or of the replica that is read instead
    leader: int = -1
    leader_epoch: int = -1
    replica: int = -1  # the follower that is read from; -1: the leader
    replica_until: float = 0.0  # monotonic seconds; the leader is asked again then
    paused_until: float = 0.0
    asked_for: int = -1  # the offset that the request under way names
    topic_id: str = ""  # of the topic as it is now
    unvalidated: bool = True  # its leader or the leader's epoch changed since the position was validated
    topic_replaced: bool = False  # the receiver's offset belongs to a deleted topic
    set_back_s: float = 0.0  # since when (monotonic) all brokers name a lower leader epoch than the known one
    passed_over: int = 0  # number of consecutive responses of which nothing was taken for lack of time
    refuted: int = -1  # a leader epoch of the receiver that all brokers contradict: the cluster was restored

    def is_stale(self, info: TopicInfo, partition: PartitionInfo) -> bool:
        """Whether a later leader of the same topic is known than the one in the metadata."""
        known = self.leader_epoch if self.topic_id == info.topic_id else -1
        receiver = self.receiver
        if receiver.topic_id in ("", info.topic_id) and receiver.leader_epoch > self.refuted:
            known = max(known, receiver.leader_epoch)
        return 0 <= partition.leader_epoch < known

    def is_set_back(self, now_s: float, *, stale: bool) -> bool:
        """Whether all brokers have named an older leader epoch (``stale``) long enough for it to be accepted."""
        if not stale:
            self.set_back_s = 0.0
            return False
        self.set_back_s = self.set_back_s or now_s
        return now_s - self.set_back_s >= _SET_BACK_AFTER_S

    def accept_older_leader(self, leader_epoch: int) -> None:
        """The known leader epochs no longer count."""
        self.refuted = max(self.receiver.leader_epoch, leader_epoch)
        self.leader_epoch = -1
        self.set_back_s = 0.0

    def must_be_validated(self, version: int) -> bool:
        """Whether the position has to be validated before a Fetch of this version.

        From version 12 on the leader itself compares the epoch of the last batch that was read (KIP-595).
        """
        return self.unvalidated and version < fetch.FLEXIBLE_FROM and self.receiver.leader_epoch >= 0

    def check_topic(self) -> bool:
        """Update `topic_replaced` and return it. If it is true, the receiver is called."""
        receiver = self.receiver
        receiver.topic_id = receiver.topic_id or self.topic_id
        receiver.identified()
        if not self.topic_id or receiver.topic_id == self.topic_id:
            self.topic_replaced = False
            return False
        receiver.source_recreated(self.topic_id)
        self.topic_replaced = True
        return True


@dataclass(slots=True, eq=False)
class SourceBroker(Link):
    """One connection to a broker: its fetch session and the partitions that are read from the broker."""

    session: FetchSession = field(default_factory=lambda: FetchSession({}))
    asked_at: float | None = None  # monotonic seconds; None while no answer is due
    wait_ms: int = 0  # maximum time until the broker responds
    paced_until_s: float = 0.0  # monotonic; the next request waits until then
    quiet: int = 0  # consecutive responses without records
    hasty: HastyAnswers = field(default_factory=HastyAnswers)
    fetch_states: dict[TopicPartition, PartitionFetchState] = field(default_factory=dict)  # all partitions
    # To be considered for the next request.
    to_consider: dict[TopicPartition, PartitionFetchState] = field(default_factory=dict)
    wanted: dict[TopicPartition, Position] = field(default_factory=dict)  # all partitions of the last request
    left: dict[TopicPartition, None] = field(default_factory=dict)  # removed since the last request, in order
    throttle_pending: bool = False  # some partitions wait for the throttle
    comparing: bool = False  # the request under way only compares positions, see `FetchMode`

    def read(self, partition: TopicPartition, fetch_state: PartitionFetchState) -> None:
        """Read a partition from this broker."""
        self.fetch_states[partition] = self.to_consider[partition] = fetch_state

    def leave(self, partition: TopicPartition) -> None:
        """Stop reading a partition from this broker."""
        if self.fetch_states.pop(partition, None) is not None:
            self.to_consider.pop(partition, None)
            self.left[partition] = None

    def candidates(self, *, include_unchanged: bool) -> list[tuple[TopicPartition, PartitionFetchState]]:
        """The partitions to consider for the next request; the entries of the others stay as they are."""
        return list((self.fetch_states if include_unchanged else self.to_consider).items())

    def set_wait(self, max_wait_ms: int, *, has_changes: bool, left_out: bool) -> None:
        """Set the maximum wait of the next request."""
        if has_changes:
            self.quiet = 0
        if left_out:
            # A partition that was left out must not wait until the others have records.
            self.wait_ms = _BLOCKED_WAIT_MS
        else:
            self.wait_ms = max_wait_ms * min(1 << self.quiet, _QUIET_WAITS)

    def count_quiet(self, *, is_empty: bool) -> None:
        """Count a response, which is empty or not."""
        self.quiet = min(self.quiet + 1, _QUIET_WAITS) if is_empty else 0
