"""What is done about the events of cursors and outboxes: stopped partitions, changed logs, lost producers, dead letters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import structlog

from mm2.copy.executor.commit.awake import AwakeCursors
from mm2.copy.executor.commit.commits import Commits
from mm2.copy.executor.fetching.source import Source
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.outbox import Outbox, OutgoingBatch
from mm2.copy.executor.partition.window import SourceRange
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
from mm2.copy.executor.target.size_limits import SizeLimits
from mm2.copy.states import PartitionState
from mm2.copy.tally import Tally
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, CorruptBatch, KafkaFailure
from mm2.kafka.records.batch import BatchView
from mm2.kafka.structs import TopicPartition

_SEQUENCE_ERRORS: Final = frozenset({ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER, ErrorCode.UNKNOWN_PRODUCER_ID})


class PartitionEvents:
    """The `Owner` of all cursors of a micro-batch. `attach` completes it, before anything is read or written."""

    def __init__(
        self,
        link: DriverLink,
        source: Source,
        sink: Sink,
        cursors: Mapping[TopicPartition, Cursor],
        tally: Tally,
        awake: AwakeCursors,
    ) -> None:
        self._link = link
        self._source = source
        self._sink = sink
        self._cursors = cursors
        self.tally = tally
        self._awake = awake
        self._log = structlog.get_logger(__name__)

    def attach(
        self,
        new_sessions: NewSessions,
        search: TargetSearch,
        losses: Losses,
        commits: Commits,
        quarantine: Quarantine | None,
        size_limits: SizeLimits,
    ) -> None:
        """``quarantine`` None: there is no dead letter topic."""
        self._new_sessions = new_sessions
        self._search = search
        self._losses = losses
        self._commits = commits
        self._quarantine = quarantine
        self._size_limits = size_limits

    def handle(self, event: ReportedEvent) -> None:
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
                self.wake(cursor)
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

    def wake(self, cursor: Cursor) -> None:
        """The state of a cursor changes."""
        self._awake.wake(cursor)
        self._source.unsettle(cursor.partition)

    @property
    def reads_committed(self) -> bool:
        """Whether the source is read up to the last stable offset only, also because of another partition."""
        return self._source.reads_committed

    # -- copying

    def put(self, outbox: Outbox, outgoing: OutgoingBatch) -> None:
        """Send a batch."""
        self._sink.put(outbox, outgoing)

    def acked(self, cursor: Cursor, entry: SourceRange, last: int) -> None:
        """The target has acknowledged records."""
        self._commits.acked(cursor, entry, last)
        if cursor.gaps is not None:
            cursor.gaps.advance()
        self._source.resume()

    def stopped(self, cursor: Cursor) -> None:
        """The partition has stopped."""
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

    # -- source

    def unreadable(self, cursor: Cursor, failure: BrokerFailure) -> None:
        """The source rejects reads of the partition."""
        self._commits.remember_source(cursor)
        self._losses.unreadable(cursor, failure)

    def source_recreated(self, cursor: Cursor, topic_id: str) -> None:
        """The source topic was recreated."""
        self._commits.remember_source(cursor)
        self._losses.source_recreated(cursor, topic_id)

    def diverged(self, cursor: Cursor, epoch: int, end_offset: int) -> None:
        """The source log was truncated."""
        self._commits.remember_source(cursor)
        self._losses.diverged(cursor, epoch, end_offset)

    def unvalidated(self, cursor: Cursor) -> None:
        """The position has to be validated before it is read."""
        self._commits.remember_source(cursor)
        self._losses.validate(cursor)

    def replaced(self, cursor: Cursor, first: int, records: int, *, exact: bool) -> None:
        """Records that a predecessor copied are no longer on the source."""
        self._losses.replaced(cursor, first, records, exact=exact)

    def deleted(self, cursor: Cursor, first: int, after: int) -> None:
        """The source deleted records before they were copied."""
        self._losses.deleted(cursor, first, after)

    def finished(self, cursor: Cursor) -> None:
        """The records of a session with other rules have been skipped."""
        self._new_sessions.open_next(cursor)

    def replace_session(self, cursor: Cursor) -> None:
        """Other records than the source's now may have the sequences that follow."""
        self._new_sessions.replace(cursor)

    def epoch_read(self, cursor: Cursor) -> int | None:
        """Leader epoch of the source's leader that is read; None while a follower is read."""
        return self._source.epoch_read(cursor.partition)

    def uncertain(self, cursor: Cursor) -> None:
        """The records on the target have to be compared with the source."""
        self._search.match(cursor)

    # -- target

    def target_went_back(self, cursor: Cursor, base_offset: int) -> None:
        """The target assigned an offset twice."""
        self._losses.target_went_back(cursor, base_offset)

    def misplaced(self, cursor: Cursor, entry: SourceRange) -> None:
        """The target has appended a batch at another offset than that of the source."""
        first = entry.next_offset - entry.count
        self._losses.target_diverged(cursor, min(first, entry.target_base), (first, entry.target_base))

    def target_gap(self, cursor: Cursor, first: int, end: int, own: int) -> bool:
        """The target has records that were not acknowledged to this producer."""
        return self._search.search_gap(cursor, first, end, own)

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

    # -- dead letters

    def corrupt(self, cursor: Cursor, view: BatchView, error: CorruptBatch, entry: SourceRange) -> bool:
        """Write a corrupt batch to the dead letter topic."""
        return self._quarantine is not None and self._quarantine.corrupt(cursor, view, error, entry)

    def too_large(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch) -> bool:
        """Write a record that the target never accepts to the dead letter topic."""
        return self._quarantine is not None and self._quarantine.too_large(cursor, entry, outgoing)

    def find_size_limit(self, cursor: Cursor) -> None:
        """Read the limit that the remote topic has for the size of records."""
        self._size_limits.find(cursor)

    def malformed(self, cursor: Cursor, entry: SourceRange, outgoing: OutgoingBatch, error: CorruptBatch) -> bool:
        """Write a batch that the target rejects because of its content to the dead letter topic."""
        return self._quarantine is not None and self._quarantine.malformed(cursor, entry, outgoing, error)


def _is_state_wrong(outbox: Outbox, failure: KafkaFailure) -> bool:
    """Whether the leader's state of a producer rejects batches again and again although the look-ups agree with them."""
    is_sequence = isinstance(failure, BrokerFailure) and failure.code in _SEQUENCE_ERRORS
    return is_sequence and outbox.failures > MAX_SEQUENCE_ERRORS
