"""Batches to be sent to one target partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Final

from mm2.copy.executor.partition.target_ranges import AcknowledgedRanges
from mm2.copy.executor.partition.window import SourceRange
from mm2.copy.progress.session import EndedSession, sequence_of
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.records.batch import BatchHeader, patch, read_header
from mm2.kafka.records.merge import MAX_MERGED_BYTES
from mm2.kafka.records.record import Record, encode_batch
from mm2.kafka.structs import ProducerIdentity, TopicPartition

#: Number of batches that a broker remembers of an idempotent producer.
MAX_IN_FLIGHT: Final = 5
#: Merging more records costs more than a request.
_MERGEABLE_RECORDS: Final = 64
_MERGED_BATCHES: Final = 512


class OutboxState(Enum):
    """Whether batches are sent, and if not, what an error has led to. `Outbox.paused` and `Outbox.stopped` are independent
    of it.
    """

    OPEN = auto()
    DRAINING = auto()
    """A batch in flight has failed, or the leader has changed: nothing is sent until all requests in flight are
    answered or their connection is closed."""
    REFUSED = auto()
    """The target rejects the first batch for a reason that does not change by itself. It is resent every 5 s."""
    QUARANTINING = auto()
    """The target rejects the first batch, which is being written to the dead letter topic."""


@dataclass(slots=True, eq=False)
class OutgoingBatch:
    """One batch to be sent. ``data`` is the whole batch; ``acked`` is called with the target's base offset (-1:
    unknown).

    ``split`` returns smaller batches of the same records when the target rejects the size; None = cannot be split.
    ``separate`` does the same when the target rejects a record, so that the others of a merged batch are copied.
    ``without`` returns the batch without its first n records, which are on the target at this offset (-1: unknown). ``merge`` returns a
    batch of the records of the first batches of a run, and their number, which may be 1; see `Outbox.merge_waiting`.
    None = not merged: it is not small, or it cannot be read.
    """

    data: memoryview
    header: BatchHeader
    acked: Callable[[int], None]
    split: Callable[[], list[OutgoingBatch] | None] | None = None
    separate: Callable[[], list[OutgoingBatch] | None] | None = None
    without: Callable[[int, int], OutgoingBatch] | None = None
    entry: SourceRange | None = None  # its source offsets, if it is a batch of the source
    merge: Callable[[Sequence[OutgoingBatch]], tuple[OutgoingBatch, int]] | None = None
    at: int = -1  # number of its first record in the producer's count; -1: not assigned
    base_offset: int | None = None  # once acknowledged
    under_way: bool = False
    leader_epoch: int = -1  # in which it was sent
    failure: int = 0

    @property
    def count(self) -> int:
        """The number of records, and so of sequence numbers."""
        return self.header.records_count

    @property
    def end(self) -> int:
        """The number of the record after its last one."""
        return self.at + self.header.records_count

    @property
    def is_mergeable(self) -> bool:
        """Whether it is small, was never sent, and has a record for each of its source offsets."""
        entry = self.entry
        return (
            entry is not None
            and self.merge is not None
            and self.at < 0
            and self.header.records_count <= _MERGEABLE_RECORDS
            and entry.offsets is None
            and not entry.dropped
            and entry.first == self.header.base_offset
            and entry.next_offset - entry.first == self.header.records_count
        )

    def is_followed_by(self, other: OutgoingBatch) -> bool:
        """Whether the source offsets of another batch follow, and it is alike."""
        return (
            other.is_mergeable
            and other.header.base_offset == self.header.base_offset + self.header.records_count
            and other.header.codec == self.header.codec
            and other.header.leader_epoch == self.header.leader_epoch
        )


@dataclass(slots=True, eq=False)
class Outbox:
    """Batches for one target partition, in order.

    ``identity`` None means a producer without idempotence, which has one batch in flight at a time. With an id below
    0 the producer is not known yet, and nothing is sent. ``next`` is the number of the next record that is sent for
    the first time; the first ``acked`` records are on the target.

    ``looked_up`` is set for copy sessions: a batch whose outcome is unknown is looked up on the target before
    anything is resent. ``last_error`` is the last error, until an acknowledgement.

    ``paused`` can begin in every state: where the topic was recreated, batches may be in flight, or the first one may
    be rejected. It also lasts until the ledger has the entry of a dead letter. ``stopped`` is permanent.
    """

    partition: TopicPartition
    identity: ProducerIdentity | None
    transactional: bool = False
    source: TopicPartition | None = None  # which is copied to it; None: it is of an internal topic
    looked_up: bool = False
    waits_for_commit: bool = False
    enrolled: bool = True  # part of the open transaction, or of none
    next: int = 0
    acked: int = 0
    doubtful_to: int = 0  # the end of the last batch that may have been appended although its request failed
    known: bool = False  # this leader, over this connection, has acknowledged a batch of this identity
    acked_ms: int = -1  # largest timestamp of the last acknowledged batch, by which the leader forgets the producer
    leader_epoch: int = -1  # of the partition, by the newest metadata
    verified_epoch: int | None = None  # of the last look-up, until the first acknowledgement that follows it
    is_unverified: bool = False  # nothing is sent before a look-up
    is_cut_off: bool = False  # the same, because the connection was lost, or the leader has changed, since the last one
    floor: int = -1  # target offset where the session began; -1: unknown
    ended_sessions: tuple[EndedSession, ...] = ()  # `Session.after`
    look_up_cause: KafkaFailure | None = None  # why the look-up is made; None when there was no response
    queue: deque[OutgoingBatch] = field(default_factory=deque)
    sent: deque[OutgoingBatch] = field(default_factory=deque)
    address: tuple[int, int] | None = None  # the leader's node id and the number of the connection to it
    slot: int = 0
    state: OutboxState = OutboxState.OPEN
    ready: bool = False  # scheduled on a broker's connection
    paused: bool = False  # nothing is sent until `Sink.end_pause`
    failures: int = 0
    stopped: bool = False  # permanently in this micro-batch
    end_offset: int = -1  # target offset after the last acknowledged record, or marker behind it
    own_end: int = -1  # the same, but not after records that were acknowledged to the copies of other source partitions
    is_preserved: bool = False  # all before ``end_offset`` was acknowledged to this session or its predecessors
    shared: SharedPartition | None = None  # other source partitions are copied to this target partition, too
    last_error: KafkaFailure | None = None

    @property
    def idle(self) -> bool:
        """Whether nothing waits and nothing is in flight."""
        return not self.queue and not self.sent

    @property
    def is_blocked(self) -> bool:
        """Whether nothing may be sent now."""
        return self.state is not OutboxState.OPEN or self.paused or self.stopped

    @property
    def refused(self) -> bool:
        """Whether the target rejects the first batch, and it is resent every 5 s."""
        return self.state is OutboxState.REFUSED

    def has_room(self, remembered_ms: float) -> bool:
        """Whether another batch may be in flight (rule S1 of docs/explanation/copy-sessions.md).

        A leader accepts any sequence from a producer that it does not remember, so a batch behind a rejected one
        would take its place. It forgets producers by the timestamp of their last batch: ``remembered_ms`` is the
        oldest timestamp at which it cannot have done so. A producer with an open transaction is never forgotten.
        """
        if not self.sent:
            return True
        if self.identity is None or not self.known or len(self.sent) >= MAX_IN_FLIGHT:
            return False
        if self.transactional:
            return True
        return self.acked_ms >= remembered_ms and all(p.header.max_timestamp >= remembered_ms for p in self.sent)

    def may_be_processed_late(self, remembered_ms: float) -> bool:
        """Whether the leader would append the first batch a second time if it processed one of the two after a look-up
        (rule S8 of docs/explanation/copy-sessions.md).
        """
        return self.looked_up and self.queue[0].header.max_timestamp < remembered_ms

    @property
    def needs_producer_id(self) -> bool:
        """Whether it is idempotent and has no producer id yet."""
        return self.identity is not None and self.identity.producer_id < 0

    @property
    def is_doubtful(self) -> bool:
        """Whether a batch was sent, is not acknowledged, and may be on the target."""
        return self.acked < self.doubtful_to

    def doubt(self, outgoing: OutgoingBatch) -> None:
        """A batch in flight may have been appended, although it is not acknowledged."""
        if outgoing.at >= 0:
            self.doubtful_to = max(self.doubtful_to, outgoing.end)

    def begin(self, identity: ProducerIdentity, count: int, *, known: bool) -> None:
        """Continue with a producer of which ``count`` records are on the target. Queued batches get new sequences."""
        self.identity = identity
        self.next = self.acked = self.doubtful_to = count
        self.known = known
        self.acked_ms = -1
        self.verified_epoch = None
        self.is_unverified = self.is_cut_off = False
        for outgoing in self.queue:
            outgoing.at = -1

    def merge_waiting(self) -> None:
        """Merge the first batches of the queue, if they are small and alike and were never sent.

        A request has one batch of a partition, so they would need a request each.
        """
        run = self._mergeable() if len(self.queue) > 1 else []
        if len(run) > 1 and (merge := run[0].merge) is not None:
            merged, count = merge(run)
            for _ in range(count):
                self.queue.popleft()
            self.queue.appendleft(merged)

    def send_next(self) -> OutgoingBatch:
        """Take the first batch from the queue; from now on it is in flight."""
        outgoing = self.queue.popleft()
        self.stamp(outgoing)
        outgoing.under_way = True
        outgoing.leader_epoch = self.leader_epoch
        self.sent.append(outgoing)
        return outgoing

    def _mergeable(self) -> list[OutgoingBatch]:
        run: list[OutgoingBatch] = []
        size = 0
        for outgoing in self.queue:
            size += len(outgoing.data)
            if len(run) == _MERGED_BATCHES or size > MAX_MERGED_BYTES:
                break
            if not (run[-1].is_followed_by(outgoing) if run else outgoing.is_mergeable):
                break
            run.append(outgoing)
        return run

    def deliver(self, outgoing: OutgoingBatch, base_offset: int) -> None:
        """A batch and all before it are on the target, at this offset (-1: unknown)."""
        if outgoing.at >= 0:
            self.acked = max(self.acked, outgoing.end)
        self.end_offset = self.own_end = base_offset + outgoing.count if base_offset >= 0 else -1
        if self.shared is not None and base_offset >= 0:
            self.shared.acknowledged.add(base_offset, self.end_offset)
        outgoing.acked(base_offset)

    def stamp(self, outgoing: OutgoingBatch) -> None:
        """Assign a sequence to a batch, once, and write its header for the target."""
        if outgoing.at >= 0:
            return
        identity = self.identity
        if identity is None:
            patch(outgoing.data, outgoing.header, (-1, -1, -1))
            return
        outgoing.at = self.next
        self.next += outgoing.count
        self._write(outgoing, identity)

    def restamp(self, whole: OutgoingBatch, pieces: list[OutgoingBatch]) -> None:
        """The parts of a split batch get exactly its sequences, so later batches keep theirs."""
        at = whole.at
        identity = self.identity
        if identity is None or at < 0:
            return
        for piece in pieces:
            piece.at = at
            at += piece.count
            self._write(piece, identity)

    def _write(self, outgoing: OutgoingBatch, identity: ProducerIdentity) -> None:
        producer = (identity.producer_id, identity.producer_epoch, sequence_of(outgoing.at))
        patch(outgoing.data, outgoing.header, producer, transactional=self.transactional)


@dataclass(slots=True, eq=False)
class SharedPartition:
    """A target partition to which several source partitions are copied, each by an outbox of its own.

    Each copy session has its own producer, so the outboxes send independently of each other. A transaction has one producer, whose
    sequences they share: there one outbox sends at a time, the ``holder``. It passes the turn on after `MAX_IN_FLIGHT`
    batches if others are ``waiting``, and when nothing of it is in flight or in doubt.
    """

    outboxes: list[Outbox] = field(default_factory=list)
    acknowledged: AcknowledgedRanges = field(default_factory=AcknowledgedRanges)
    holder: Outbox | None = None
    waiting: deque[Outbox] = field(default_factory=deque)
    _left: int = 0  # number of batches that the holder may send before it has to pass the turn on

    @property
    def records(self) -> int:
        """The number of records of the transactions' producer that were acknowledged, which all outboxes count."""
        return max(outbox.acked for outbox in self.outboxes)

    def begin(self) -> None:
        """The producer or its count changes: the turn is nobody's, and nothing is in flight."""
        self.holder = None
        self.waiting.clear()

    def wait(self, outbox: Outbox) -> None:
        """The outbox has something to send."""
        if outbox is not self.holder and outbox not in self.waiting:
            self.waiting.append(outbox)

    def may_send(self, outbox: Outbox) -> bool:
        """Whether it is the outbox's turn."""
        has_turn = self._left > 0 or not self.waiting or outbox.queue[0].at >= 0
        return not outbox.transactional or (self.holder is outbox and has_turn)

    def sent(self) -> None:
        """The holder has sent a batch for the first time."""
        self._left -= 1

    def pass_on(self) -> Outbox | None:
        """Give the turn to the next outbox that waits, if the holder can do without; returns that outbox."""
        holder = self.holder
        if not self.waiting or (holder is not None and not self._is_over(holder)):
            return None
        following = self.waiting.popleft()
        records = self.records
        if holder is not None:
            # Batches that the target has rejected with certainty get other sequences.
            holder.next = holder.acked
            for outgoing in holder.queue:
                outgoing.at = -1
            following.known = following.known or holder.known
        self.holder, self._left = following, MAX_IN_FLIGHT
        following.next = following.acked = following.doubtful_to = records
        return following

    def _is_over(self, holder: Outbox) -> bool:
        if holder.sent or holder.is_doubtful:
            return False
        if not holder.queue or holder.stopped or holder.state in {OutboxState.REFUSED, OutboxState.QUARANTINING}:
            return True
        return holder.queue[0].at < 0 and (holder.is_blocked or self._left <= 0)


def subject_of(outbox: Outbox, cluster: str) -> str:
    """What is done in an outbox, for error messages."""
    return f"writing to {outbox.partition} of cluster {cluster}"


def outgoing_of(records: list[Record], acked: Callable[[], None]) -> OutgoingBatch:
    """A batch of these records."""
    batch = encode_batch(records)
    return OutgoingBatch(memoryview(batch), read_header(batch), lambda _: acked())
