"""What is done about the events of partitions and their outboxes: stopped partitions, changed logs, lost producers, dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.commit.commits import Commits
from mm2.copy.executor.fetching.source import Source
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.events import (
    STATE_CHANGED,
    BatchesQueued,
    BatchMalformed,
    CorruptFetched,
    CountUncertain,
    GapDue,
    PartitionEvent,
    PartitionStopped,
    PositionUnvalidated,
    PredecessorPassed,
    RecordsDeleted,
    RecordsReplaced,
    RecordTooLarge,
    SessionEnds,
    SizeLimitUnknown,
    SourceDiverged,
    SourceRecreated,
    StateChanged,
    TransactionsBegin,
    Unreadable,
)
from mm2.copy.executor.partition.outbox import Outbox
from mm2.copy.executor.partition.window import (
    BatchMisplaced,
    RangeAcknowledged,
    TargetGap,
    TargetWentBack,
)
from mm2.copy.executor.producing.outbox_events import (
    Accepted,
    ErrorChanged,
    NotInTransaction,
    ProducerLost,
    Rejected,
    ReportedEvent,
    ResendUncertain,
    TargetInconsistent,
    TargetRecreated,
    TargetTruncated,
    Throttled,
)
from mm2.copy.executor.producing.produce_outcomes import MAX_SEQUENCE_ERRORS
from mm2.copy.executor.producing.sink import Sink
from mm2.copy.executor.sessions.losses import Losses
from mm2.copy.executor.sessions.new_sessions import NewSessions
from mm2.copy.executor.sessions.target_search import TargetSearch
from mm2.copy.executor.target.dead_letters import Quarantine
from mm2.copy.executor.target.gap_fills import GapFills
from mm2.copy.executor.target.size_limits import SizeLimits
from mm2.copy.executor.target.target_watch import TargetWatch
from mm2.copy.states import PartitionState
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import TopicPartition

_SEQUENCE_ERRORS: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


@dataclass(eq=False)
class PartitionEvents:
    """Acts on the events of the partitions of a micro-batch, and of their outboxes. ``quarantine`` None: there is no dead letter
    topic.
    """

    _link: DriverLink
    _source: Source
    _sink: Sink
    _cursors: Mapping[TopicPartition, Cursor]
    _awake: AwakeCursors
    _new_sessions: NewSessions
    _search: TargetSearch
    _losses: Losses
    _commits: Commits
    _fills: GapFills
    _quarantine: Quarantine | None
    _size_limits: SizeLimits
    _watch: TargetWatch

    def __post_init__(self) -> None:
        self._log = structlog.get_logger(__name__)

    def handle(self, partition: TopicPartition, event: PartitionEvent) -> None:
        """Act on an event of a source partition."""
        cursor = self._cursors[partition]
        match event:
            case StateChanged():
                self._awake.wake(cursor)
                self._source.consider(partition)
            case BatchesQueued():
                self._sink.wake(cursor.outbox)
            case RangeAcknowledged(entry, last):
                self._commits.acked(cursor, entry, last)
                if cursor.outgoing.waiting:
                    cursor.outgoing.advance()
                self._source.resume()
            case GapDue(version):
                self._fills.fill(cursor, version)
            case TransactionsBegin():
                self._commits.remember_start(cursor)
                self._watch.prove(cursor)
            case PartitionStopped():
                self._stopped(cursor)
            case TargetGap(first, end, own):
                if not self._search.search_gap(cursor, first, end, own):
                    cursor.window.leave_unsearched(end)
            case TargetWentBack(base_offset):
                self._losses.target_went_back(cursor, base_offset)
            case BatchMisplaced(entry):
                first = entry.next_offset - entry.count
                self._losses.target_diverged(cursor, min(first, entry.target_base), (first, entry.target_base))
            case Unreadable() | SourceRecreated() | SourceDiverged() | PositionUnvalidated():
                self._source_changed(cursor, event)
            case RecordsReplaced(first, records, exact):
                self._losses.replaced(cursor, first, records, exact=exact)
            case RecordsDeleted(first, after):
                self._losses.deleted(cursor, first, after)
            case CountUncertain():
                self._search.match(cursor)
            case PredecessorPassed():
                self._new_sessions.open_next(cursor)
            case SessionEnds():
                self._new_sessions.replace(cursor)
            case CorruptFetched() | RecordTooLarge() | BatchMalformed():
                self._not_copied(cursor, event)
            case SizeLimitUnknown():
                self._size_limits.find(cursor)

    def handle_outbox(self, event: ReportedEvent) -> None:
        """Act on an event of an outbox."""
        outbox = event.outbox
        cursor = None if outbox.source is None else self._cursors[outbox.source]
        match event:
            case NotInTransaction():
                self._commits.enroll(outbox)
            case ProducerLost(_, failure):
                self._producer_lost(outbox, cursor, failure)
            case _ if cursor is None:
                pass  # its topic is internal: what is written there reads `Outbox.last_error`
            case ErrorChanged():
                self.handle(cursor.partition, STATE_CHANGED)
            case Accepted():
                cursor.accepted()
            case Rejected(_, failure):
                cursor.rejected(failure)
            case Throttled(_, by, for_s):
                cursor.throttled(by, for_s)
            case ResendUncertain(_, note):
                cursor.annotate(note)
            case TargetInconsistent(_, reason):
                cursor.fail(PartitionState.INCONSISTENT, reason)
            case TargetTruncated(_, records, end):
                self._losses.target_truncated(cursor, records, end)
            case TargetRecreated():
                self._losses.target_recreated(cursor)

    def _stopped(self, cursor: Cursor) -> None:
        if not cursor.conditions.is_stopped_at_source:
            cursor.outbox.stopped = True
        self._source.remove(cursor.partition)
        condition = cursor.conditions.stop
        if condition is not None:
            self._log.error(
                "partition stopped",
                partition=str(cursor.partition),
                state=str(condition.state),
                reason=condition.reason,
            )

    def _source_changed(
        self, cursor: Cursor, event: Unreadable | SourceRecreated | SourceDiverged | PositionUnvalidated
    ) -> None:
        self._commits.remember_source(cursor)
        match event:
            case Unreadable(failure):
                self._losses.unreadable(cursor, failure)
            case SourceRecreated(topic_id):
                self._losses.source_recreated(cursor, topic_id)
            case SourceDiverged(epoch, end_offset):
                self._losses.diverged(cursor, epoch, end_offset)
            case PositionUnvalidated():
                self._losses.validate(cursor)

    def _not_copied(self, cursor: Cursor, event: CorruptFetched | RecordTooLarge | BatchMalformed) -> None:
        """Write it to the dead letter topic, if there is one."""
        if self._quarantine is None:
            return
        match event:
            case CorruptFetched(view, error, entry):
                self._quarantine.corrupt(cursor, view, error, entry)
            case RecordTooLarge(entry, outgoing):
                self._quarantine.too_large(cursor, entry, outgoing)
            case BatchMalformed(entry, outgoing, error):
                self._quarantine.malformed(cursor, entry, outgoing, error)

    def _producer_lost(self, outbox: Outbox, cursor: Cursor | None, failure: KafkaFailure) -> None:
        """The target's state of the producer contradicts ours: another process writes with its id, or the target
        forgot it. Or it stores records in a message format without producer ids.
        """
        if outbox.transactional:
            self._link.end(f"the transaction failed: {failure}")
            return
        if cursor is None:
            return
        if isinstance(failure, BrokerFailure) and failure.code == ErrorCode.UNSUPPORTED_FOR_MESSAGE_FORMAT:
            cursor.outbox.queue.clear()
            cursor.outbox.failures = 0
            self._new_sessions.continue_without(cursor, cursor.window.mark, failure)
            return
        if not outbox.looked_up:
            # Without a look-up the progress is unknown; a new producer resends.
            self._log.warning("the target forgot the producer id; using a new one", partition=str(outbox.partition))
            cursor.annotate("at least once: the target forgot the producer id")
            cursor.outbox.queue.clear()
            cursor.outbox.failures = 0
            cursor.outbox.paused = False
            self._new_sessions.open_again(cursor, cursor.window.mark)
            return
        if _is_state_wrong(outbox, failure):
            self._replace_producer(cursor, failure)
            return
        self._link.end(f"{outbox.partition}: {failure}; the next micro-batch looks up the progress on the target")

    def _replace_producer(self, cursor: Cursor, failure: KafkaFailure) -> None:
        """Look-ups have found every acknowledged record in the log, and the leader's state of the producer contradicts that. The log
        is the authority, so a new session continues. Other partitions are not affected.
        """
        outbox, window = cursor.outbox, cursor.window
        if outbox.acked == window.records and not window.is_searching:
            self._log.warning("the target rejects the producer id; using a new one", partition=str(outbox.partition))
            outbox.failures = 0
            self._new_sessions.replace(cursor)
            return
        cursor.fail(
            PartitionState.INCONSISTENT,
            f"{outbox.partition} has {outbox.acked} records of the copy session, of which {window.records} are before the position, "
            f"and its leader rejects the next one: {failure}; reset the position of this partition to copy it again",
        )


def _is_state_wrong(outbox: Outbox, failure: KafkaFailure) -> bool:
    """Whether the leader's state of a producer rejects batches again and again although the look-ups agree with them."""
    is_sequence = isinstance(failure, BrokerFailure) and failure.code in _SEQUENCE_ERRORS
    return is_sequence and outbox.failures > MAX_SEQUENCE_ERRORS
