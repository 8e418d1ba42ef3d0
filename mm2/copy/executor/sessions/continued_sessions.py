"""Continues the copy sessions of predecessors at their marks: after a clean hand-off, or when their progress has been
looked up on the target.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.fetched_batches import MISSING
from mm2.copy.executor.partition.outgoing_records import CopiedRange
from mm2.copy.executor.sessions.losses import Losses, cut_at
from mm2.copy.executor.sessions.new_sessions import NewSessions
from mm2.copy.executor.sessions.preserved_starts import PreservedStart
from mm2.copy.executor.sessions.session_starts import SessionStarts
from mm2.copy.progress.session import UNBOUNDED, LedgerEntry, Session
from mm2.copy.progress.target_progress import (
    LOOK_UP_REFUSED_S,
    InconsistentTarget,
    ProgressQuestion,
    ReappearedSession,
    RecordsAt,
    TargetLookUp,
    TargetProgress,
    WrittenRange,
)
from mm2.copy.states import PartitionState
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import ProducerIdentity, TopicPartition

_RETRY_S: Final = 0.25
#: Least time between two look-ups of a session that neither continues nor is looked up later.
_SETTLED_S: Final = 1.0


@dataclass(eq=False)
class ContinuedSessions(SessionStarts):
    """Continues sessions, or has new ones opened."""

    _new_sessions: NewSessions
    _losses: Losses

    def __post_init__(self) -> None:
        super().__post_init__()
        self._look_up = TargetLookUp(self._endpoints.target_cluster)
        self._log = structlog.get_logger("mm2.copy.executor.continued_sessions")

    def continue_session(
        self,
        cursor: Cursor,
        entry: LedgerEntry,
        progress: TargetProgress | None = None,
        copied: CopiedRange | None = None,
    ) -> None:
        """Continue a session at its mark; records that ``progress`` found after it are skipped. ``copied``: everything up to
        its end is on the target, because offsets are preserved.

        Without ``progress`` it was handed off cleanly. Otherwise nothing is sent before the ledger has an entry of
        this lease holder (rule C7): a late entry of the previous holder could otherwise start another session.
        """
        session = entry.session
        if session is None:
            return
        mark = entry.mark
        skip = 0 if progress is None else progress.records - mark.records
        outbox = cursor.outbox
        self._use(cursor, session)
        batches = progress.batches if progress is not None and skip else ()

        def begin() -> None:
            leader_epoch = -1 if progress is None else progress.leader_epoch
            if not self._use_producer(cursor, session, mark.records + skip, leader_epoch):
                return
            outbox.end_offset, outbox.own_end = mark.target, cursor.window.trail.own_end(session.start.target)
            if copied is not None:
                outbox.end_offset = cursor.outgoing.end_on_target(copied.end)
            elif progress is not None and skip:
                outbox.end_offset = outbox.own_end = progress.target_end
            self._sink.end_pause(outbox)

        if copied is not None:
            cursor.begin(mark)
            cursor.outgoing.copied = copied
        else:
            cursor.begin(mark, skip=skip, found=batches, is_clean=progress is None)
        cursor.outgoing.fill_leading_gap(session.start.source)
        if copied is not None and copied.end <= cursor.offset:
            cursor.outgoing.copied = None  # nothing of it is read again
        # Without a clean hand-off the predecessor may have sent more than is on the target (rule S9).
        cursor.shared_until = entry.shared_until if progress is None else UNBOUNDED
        if skip:
            self._log.info("skipping records that a predecessor copied", partition=str(cursor.partition), records=skip)
        if progress is None:
            begin()
        else:
            cursor.set_target_error(None)
            outbox.identity = ProducerIdentity(-1, -1)
            self._commit(cursor, begin)
        self._source.add([cursor])

    # -- sessions that were not handed off cleanly ---------------------------------------------------------------------

    async def take_over(self, asking: list[tuple[Cursor, LedgerEntry]]) -> None:
        """Look up the progress of sessions that were not handed off cleanly, then continue each or open a new one."""
        waiting = {entry.target: (cursor, entry) for cursor, entry in asking}
        if others := [(cursor, entry) for cursor, entry in asking if waiting[entry.target][0] is not cursor]:
            # Several source partitions are copied to one partition (a merge).
            self._tasks.spawn(self.take_over(others))
        refused_since: dict[TopicPartition, float] = {}
        found: dict[TopicPartition, tuple[int, float]] = {}
        while waiting and not self._link.stop.is_set():
            questions = {
                tp: self._question(cursor, entry, entry.session)
                for tp, (cursor, entry) in waiting.items()
                # While it is paused, applications may write to the remote topic (`mm2 failover`), which must not count as divergence.
                if entry.session is not None and (not cursor.is_preserved or cursor.conditions.paused is None)
            }
            positions: dict[TopicPartition, int | None] = {}
            for tp, answer in (await self.look_up(questions)).items():
                cursor, entry = waiting[tp]
                if isinstance(answer, TargetProgress):
                    if not self._spec.with_sessions and not _is_settled(found, tp, answer):
                        continue
                    if not cursor.is_preserved:
                        self._take_over(cursor, entry, answer, positions)
                    elif not await self._take_over_preserved(cursor, entry, answer, positions):
                        continue
                elif isinstance(answer, InconsistentTarget):
                    cursor.fail(PartitionState.INCONSISTENT, str(answer))
                elif self._is_refused(entry, answer, refused_since):
                    what = f"the progress of the predecessor cannot be looked up: {answer}"
                    self._copy_at_least_once(cursor, entry, what, positions)
                else:
                    cursor.set_target_error(answer)
                    continue
                del waiting[tp]
            if positions:
                self._new_sessions.open(positions)
            if waiting:
                await self._link.pause(_RETRY_S)

    def _take_over(
        self, cursor: Cursor, entry: LedgerEntry, answer: TargetProgress, positions: dict[TopicPartition, int | None]
    ) -> None:
        """Continue a session whose progress is known, or add the position at which a new one opens."""
        entry, progress = self._newest(cursor, entry, answer)
        if cursor.stopped:
            return
        if self._sessions.is_to_end(entry):
            self._sessions.end(cursor.partition, entry, progress.end, progress.leader_epoch)
        if self._sessions.is_to_end(entry) and progress.records == entry.mark.records and not _is_lost(entry, progress):
            positions[cursor.partition] = entry.mark.source
        elif progress.records > entry.mark.records and (why := self._why_not_counted(entry)):
            self._sessions.forget_ended(cursor.partition)
            self._copy_at_least_once(cursor, entry, why, positions)
        else:
            self._continue_after_look_up(cursor, entry, progress)

    async def _take_over_preserved(
        self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress, positions: dict[TopicPartition, int | None]
    ) -> bool:
        """Continue a session whose records have the source's offsets: all before the end of the target is there.

        A new one opens where the target has lost records, or under other rules. False if the clusters could not be read: the
        target may have a record of another program in the place of one of the source, and later acknowledgements would not
        show that. Nor would they show that an election on the source has replaced what was copied after the mark.
        """
        session, mark, end = entry.session, entry.mark, progress.end
        is_lost = progress.records < mark.records or end < mark.target
        if session is None or is_lost or self._sessions.is_to_end(entry) or progress.reappeared is not None:
            if is_lost:
                cursor.window.trail.target_cut(end)
            self._sessions.forget_ended(cursor.partition)
            self._sessions.unsettled.add(cursor.partition)
            positions[cursor.partition] = end
            return True
        try:
            own = {session.producer, *(ended.producer for ended in session.after)}
            found = WrittenRange(-1)
            if mark.target < end:
                found = await self._call(self._look_up.written, entry.target, mark.target, end, own)
            offset, start = found.foreign, PreservedStart()
            content: RecordsAt | None = None
            if offset < 0 and mark.target < end:
                start = await self._call(self._preserved.refusal, cursor, mark.target, end)
                if not start.refusal and self._spec.changes is not None and not self._why_not_counted(entry):
                    content = await self._call(self._preserved.copied, cursor, mark.target, end)
        except KafkaFailure as error:
            cursor.set_target_error(error)
            return False
        if offset >= 0:
            self._losses.target_diverged(cursor, offset)
        elif start.refusal:
            cursor.fail(start.state, start.refusal)
        else:
            markers = found.markers if self._is_gap_certain(cursor, entry) else ()
            copied = CopiedRange(end, progress.records, content, entry.known_epoch, markers)
            self.continue_session(cursor, entry, progress, copied)
        return True

    def _is_gap_certain(self, cursor: Cursor, entry: LedgerEntry) -> bool:
        """Whether the source has no record where a predecessor has filled a gap, unless its log was replaced.

        Each replica compacts its log for itself, so after an election there may be records again. The predecessor may
        have written a record to the dead letter topic.
        """
        is_uncompacted = cursor.window.hole_reason == MISSING
        return is_uncompacted and self._spec.dead_letter_topic is None and not self._why_not_counted(entry)

    def _copy_at_least_once(
        self, cursor: Cursor, entry: LedgerEntry, why: str, positions: dict[TopicPartition, int | None]
    ) -> None:
        note = f"at least once: {why}"
        cursor.annotate(note)
        self._log.warning(note, partition=str(cursor.partition))
        positions[cursor.partition] = entry.mark.source

    def _question(self, cursor: Cursor, entry: LedgerEntry, session: Session) -> ProgressQuestion:
        return ProgressQuestion(
            session.producer,
            entry.mark.records,
            entry.mark.target,
            session.start.target,
            max(entry.target_epoch, cursor.outbox.leader_epoch),
            self._sink.topic_ids.get(entry.remote_topic, ""),
            entry.ended_sessions,
            cursor.is_preserved,
            None if cursor.window.others is None else cursor.window.trail.own_end(session.start.target),
        )

    def _is_refused(self, entry: LedgerEntry, answer: KafkaFailure, since: dict[TopicPartition, float]) -> bool:
        """Whether look-ups have failed for some time for a cause that does not change by itself: a broker may just have
        started, or an ACL may be about to be granted.
        """
        if not answer.is_final:
            since.pop(entry.target, None)
            return False
        now = time.monotonic()
        return now - since.setdefault(entry.target, now) >= LOOK_UP_REFUSED_S

    def _newest(
        self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress
    ) -> tuple[LedgerEntry, TargetProgress]:
        """The session to continue, and its progress: the entry's, or the one before, if records of it have come back
        and the entry's has none (rule R3).
        """
        if progress.reappeared is None:
            return entry, progress
        ended, found = progress.reappeared
        if why := self._sessions.why_not_counted(ended):
            cursor.fail(PartitionState.INCONSISTENT, _not_counted(progress.reappeared, why))
            return entry, progress
        self._log.warning(
            "records of a session that had ended have appeared on the target, it continues",
            partition=str(cursor.partition),
            records=found.records - ended.mark.records,
            producer_id=ended.producer.producer_id,
        )
        cursor.known_epoch = ended.known_epoch
        self._sessions.marks[cursor.partition] = ended.mark
        if entry.mark.source > ended.mark.source:
            cursor.window.trail.cut(ended.mark.source)  # what was dropped since is read again, under other rules
        return entry.continuing(ended), found

    def _continue_after_look_up(self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress) -> None:
        self._use_rules_of(cursor, entry)
        is_lost = _is_lost(entry, progress)
        if is_lost and (not self._spec.with_sessions or self._why_not_counted(entry)):
            self._copy_again(cursor, entry, progress)
            return
        cursor.predecessor.finishing = self._sessions.is_to_end(entry)
        if is_lost:
            self.continue_session(cursor, entry)
            cursor.shared_until = UNBOUNDED
            cursor.suspended = True
            self._losses.target_truncated(cursor, progress.records, progress.own_end)
            return
        if self._spec.with_sessions:
            self.continue_session(cursor, entry, progress)
        else:
            self._read_past(cursor, entry, progress)

    def _use_rules_of(self, cursor: Cursor, entry: LedgerEntry) -> None:
        """Read a partition under its session's rules."""
        rules = None if entry.session is None else self._sessions.rules_of(entry.session)
        if rules is not None and self._sessions.has_other_rules(entry):
            cursor.read_committed = rules.read_committed
            cursor.changes = self._sessions.changes if rules.changes else None
            self._source.isolate(cursor.partition, committed=cursor.read_committed)

    def _why_not_counted(self, entry: LedgerEntry) -> str:
        return "" if entry.session is None else self._sessions.why_not_counted(entry.session)

    def _read_past(self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress) -> None:
        """Skip the records that a copy session has put on the target after its mark; then transactions begin
        (`NewSessions.open_next`).

        Until the first of them is committed the ledger names the session, so another crash changes nothing.
        """
        if entry.session is None:
            return
        mark, skip = entry.mark, progress.records - entry.mark.records
        self._sessions.current[cursor.partition] = entry.session
        cursor.set_target_error(None)
        cursor.begin(mark, skip=skip, found=progress.batches)
        self._log.info(
            "skipping records that were copied before transactions", partition=str(cursor.partition), records=skip
        )
        self._source.add([cursor])

    def _copy_again(self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress) -> None:
        """The target lost acknowledged records of a copy session that cannot continue: copy from its end there."""
        lost, end, position = entry.mark.records - progress.records, progress.own_end, entry.mark.source
        if entry.session is not None and (before := entry.session.start.target - end) > 0:
            lost, position = lost + before, entry.session.start.source
        last = cursor.window.trail.last_source(end)
        if cut_at(cursor, self._spec.target_alias, last, lost, end) and last is not None:
            self._new_sessions.open({cursor.partition: min(last + 1, position)})

    # -- look-ups -------------------------------------------------------------------------------------------------------

    async def look_up(
        self, questions: Mapping[TopicPartition, ProgressQuestion]
    ) -> Mapping[TopicPartition, TargetProgress | KafkaFailure]:
        """Look up the progress of sessions on the target."""
        if not questions:
            return {}
        try:
            found: Mapping[TopicPartition, TargetProgress | KafkaFailure] = await self._call(
                self._look_up.progress, questions
            )
        except KafkaFailure as error:
            return dict.fromkeys(questions, error)
        return found

    def check_rights(self) -> None:
        """Report in advance that a crash could cause duplicates (see `_check_read_rights`)."""
        if self._spec.with_sessions:
            self._tasks.spawn(self._check_read_rights())

    async def _check_read_rights(self) -> None:
        """Without READ on a remote topic a look-up is not possible. Checks one partition of each topic."""
        asked = {part.remote_topic: part.target for part in self._spec.partitions}
        try:
            answers = await self._call(self._target_admin.describe_producers, asked.values())
        except KafkaFailure:
            return  # an unreachable broker reports no rights
        for target, answer in answers.items():
            # DescribeProducers is optional: the log can be read instead.
            if not isinstance(answer, BrokerFailure) or answer.code != ErrorCode.TOPIC_AUTHORIZATION_FAILED:
                continue
            note = f"at least once: after a crash the progress could not be looked up: {answer}"
            for cursor in self._cursors.values():
                if cursor.outbox.partition.topic == target.topic:
                    cursor.annotate(note)


def _is_lost(entry: LedgerEntry, progress: TargetProgress) -> bool:
    """Whether the target has lost acknowledged records: of the session, or before it."""
    start = -1 if entry.session is None else entry.session.start.target
    return progress.records < entry.mark.records or progress.own_end < start


def _is_settled(found: dict[TopicPartition, tuple[int, float]], tp: TopicPartition, progress: TargetProgress) -> bool:
    """Whether a look-up has found the same as an earlier one.

    A broker reads the requests that a dead executor has pipelined one after another, each when the one before is answered
    (fact 6). Where a session continues, its producer prevents that those which a look-up has not found are there twice. Where
    another session follows in the same topic, the look-up is repeated before its first batch (rule R3). Neither applies in
    transactions.
    """
    records, since = found.get(tp, (-1, 0.0))
    if records != progress.records:
        found[tp] = progress.records, time.monotonic()
        return False
    return time.monotonic() - since >= _SETTLED_S


def _not_counted(reappeared: ReappearedSession, why: str) -> str:
    ended, progress = reappeared
    return (
        f"{progress.records - ended.mark.records} records of a copy session have appeared on the target after it had ended, and "
        f"which they are is not known: {why}; reset the position of this partition to copy them again"
    )
