"""Determines where each partition's copying starts, and with which producer (see `mm2.copy.session`).

==== what is known ======================== what is done =============================================================
  a session, handed off cleanly              continue
  a session, its last holder died            look up its progress on the target, skip those records
  a session, but its target was recreated    stop: RECREATED
  a session with other rules                 skip its records under its rules, then a new session
  a session, but now in transactions         the same, then transactions
  a position only                            a new session, written to the ledger before the first batch is sent
  nothing                                    the same, from the offset given by auto.offset.reset
======================================================================================================================
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

import structlog
from kafka.protocol.producer import InitProducerIdRequest

from mm2.copy.executor.cursor import Cursor
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.sink import Sink
from mm2.copy.executor.source import Source
from mm2.copy.executor.target_progress import (
    LOOK_UP_REFUSED_S,
    InconsistentTarget,
    ProgressQuestion,
    TargetLookUp,
    TargetProgress,
)
from mm2.copy.executor.topic_ids import retire
from mm2.copy.segments import Trail
from mm2.copy.session import RULES, LedgerEntry, Mark, Session, Start, rules_of
from mm2.copy.spec import CopySpec
from mm2.copy.states import LASTS_UNTIL_RESET, PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.cluster import Cluster
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, ProducerIdentity, TopicPartition

_RETRY_S: Final = 0.25
_FRESH_RETRY_S: Final = 0.5

Call = Callable[..., Awaitable[Any]]


class Opening:
    """Brings cursors to their start positions. ``commit(cursor, then)`` writes a cursor's entry and calls ``then``."""

    def __init__(
        self,
        spec: CopySpec,
        link: DriverLink,
        source: Source,
        sink: Sink,
        source_cluster: Cluster,
        target_cluster: Cluster,
        cursors: Mapping[TopicPartition, Cursor],
        call: Call,
        commit: Callable[[Cursor, Callable[[], None]], None],
        on_truncated: Callable[[Cursor, int, int], None],
    ) -> None:
        self._spec = spec
        self._link = link
        self._source = source
        self._sink = sink
        self._source_admin = Admin(source_cluster)
        self._target_cluster = target_cluster
        self._target_admin = Admin(target_cluster)
        self._look_up = TargetLookUp(target_cluster)
        self._cursors = cursors
        self._call = call
        self._commit = commit
        self._on_truncated = on_truncated
        self._tasks: set[asyncio.Task[None]] = set()
        self.sessions: dict[TopicPartition, Session] = {}
        self._behind: dict[TopicPartition, int] = {}  # target offset after the mark
        self._marks: dict[TopicPartition, Mark] = {}  # from the ledger
        self._rules = rules_of(read_committed=spec.read_committed)
        self._log = structlog.get_logger(__name__)

    @property
    def with_sessions(self) -> bool:
        """Whether sequences are positions and sessions are continued. Otherwise transactions are used, or delivery is
        at-least-once.
        """
        return self._spec.ledger_topic is not None and self._spec.transactions is None

    def check_rights(self) -> None:
        """Report in advance that a crash could cause duplicates (see `_check_read_rights`)."""
        if self.with_sessions:
            self._spawn(self._check_read_rights())

    def begin(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Start every partition, each as soon as possible."""
        self._begin(starts, None)

    def _begin(self, starts: Mapping[TopicPartition, Start], only: Collection[TopicPartition] | None) -> None:
        """``only``: these partitions, whose remote topics' ids are confirmed."""
        clean, asking, positions, named = [], [], {}, {}
        renamed: dict[TopicPartition, Start] = {}
        for tp, cursor in self._cursors.items():
            if only is not None and tp not in only:
                continue
            start = starts.get(tp, Start(None))
            entry = start.entry
            if entry is not None and only is None and self._has_another_target(entry):
                renamed[tp] = start
                continue
            if entry is not None:
                self._remember(cursor, entry, start)
            if (
                entry is not None
                and not start.moved
                and entry.condition is not None
                and entry.condition.state in LASTS_UNTIL_RESET
            ):
                # Ends only with a reset: what contradicts the count may no longer be detectable from the mark.
                cursor.stop_with(entry.condition)
                continue
            if entry is not None and not start.moved and self._has_another_target(entry):
                cursor.fail(PartitionState.RECREATED, self.recreated(entry.target, entry.mark.records))
                continue
            if entry is None and start.committed is None and start.position is not None:
                named[tp] = start.position
            elif entry is None or entry.session is None or self._spec.ledger_topic is None:
                positions[tp] = start.position
            elif start.clean and self._is_to_end(entry):
                positions[tp] = entry.mark.source
            elif start.clean:
                clean.append((cursor, entry))
            elif self._has_other_rules(entry) and entry.session.rules not in RULES:
                cursor.conditions.note = (
                    f"at least once: a predecessor counted records under unknown rules ({entry.session.rules})"
                )
                self._log.warning(cursor.conditions.note, partition=str(tp))
                positions[tp] = entry.mark.source
            else:
                asking.append((cursor, entry))
        for cursor, entry in clean:
            self._continue_session(cursor, entry)
        self._spawn(self._ask(asking))
        self._spawn(self._open(positions))
        for topic in {self._cursors[tp].spec.remote_topic for tp in renamed}:
            rows = {tp: start for tp, start in renamed.items() if self._cursors[tp].spec.remote_topic == topic}
            self._spawn(self._begin_certainly(topic, rows))
        if named:
            self._spawn(self._open_where(dict.fromkeys(named, LATEST), named))

    async def _begin_certainly(self, topic: str, starts: Mapping[TopicPartition, Start]) -> None:
        """Start partitions whose remote topic has another id in the metadata than in the ledger: one response may be
        stale.
        """
        known = [start.entry for start in starts.values() if start.entry is not None]
        # Partitions of one topic may have been written before and after it was recreated.
        retired = {topic_id for entry in known for topic_id in entry.retired}
        newest = next((entry.target_id for entry in known if entry.target_id not in retired), known[0].target_id)
        if await self._sink.settle_id(topic, newest, retired):
            self._begin(starts, starts.keys())

    def open_again(self, cursor: Cursor, mark: Mark) -> None:
        """Open a new session at a mark, because the old one cannot continue."""
        self._use_present_rules(cursor)
        self.sessions.pop(cursor.partition, None)
        self._spawn(self._open({cursor.partition: mark.source}))

    def open_next(self, cursor: Cursor) -> None:
        """Open a new session with the current rules, or the first transaction: the records of the old session have
        been skipped.

        The ledger names the old session until the new one is written, so another crash changes nothing.
        """
        self._use_present_rules(cursor)
        self._spawn(self._open({cursor.partition: cursor.window.position}))

    def _use_present_rules(self, cursor: Cursor) -> None:
        cursor.predecessor.finishing = False
        cursor.read_committed = self._spec.read_committed
        self._source.isolate(cursor.partition, committed=False)

    def _has_other_rules(self, entry: LedgerEntry) -> bool:
        """Whether the count of a session includes other records than this job copies."""
        return entry.session is not None and entry.session.rules not in ("", self._rules)

    def _is_to_end(self, entry: LedgerEntry) -> bool:
        """Whether the records of a session are only skipped, and copying then continues differently."""
        return self._has_other_rules(entry) or not self.with_sessions

    def _use_rules_of(self, cursor: Cursor, entry: LedgerEntry) -> None:
        """Read a partition under its session's rules."""
        if entry.session is not None and self._has_other_rules(entry):
            cursor.read_committed = RULES[entry.session.rules]
            self._source.isolate(cursor.partition, committed=cursor.read_committed)

    def match(self, cursor: Cursor) -> None:
        """Find out by content which records of a partition are on the target (`Cursor.uncertain`)."""
        self._spawn(self._match(cursor))

    def _spawn(self, work: Any) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._on_task_done)

    def _on_task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._link.fail(error)

    def _remember(self, cursor: Cursor, entry: LedgerEntry, start: Start) -> None:
        cursor.window.trail = Trail(start.chunk, entry.gaps, start.unwritten)
        cursor.retired = entry.retired
        if start.moved and self._has_another_target(entry):
            cursor.window.trail.restart()
            cursor.retired = retire(cursor.retired, entry.target_id)
        cursor.lost, cursor.lost_before = list(entry.lost), entry.lost_before
        cursor.window.foreign = entry.foreign
        cursor.rate.value = float(entry.rate)
        if not start.moved:
            cursor.leader_epoch = entry.source_epoch
            cursor.known_epoch = entry.known_epoch
            cursor.epochs = entry.source_epochs
            cursor.topic_id = entry.source_id
            cursor.known_end = entry.end
            self._marks[cursor.partition] = entry.mark

    def _has_another_target(self, entry: LedgerEntry) -> bool:
        """Whether the remote topic is another one than in the ledger."""
        now = self._sink.topic_ids.get(entry.remote_topic, "")
        return bool(now and entry.target_id) and now != entry.target_id

    def recreated(self, target: TopicPartition, records: int) -> str:
        """The reason for a remote topic that was recreated."""
        return (
            f"{target} of {self._spec.target_alias} was deleted and recreated, {records} records that were copied to it "
            "are lost; reset the position of this partition to copy it again"
        )

    def _continue_session(self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress | None = None) -> None:
        """Continue a session at its mark; records that ``progress`` found after it are skipped.

        Without ``progress`` it was handed off cleanly. Otherwise nothing is sent before the ledger has an entry of
        this lease holder (rule C7): a late entry of the previous holder could otherwise start another session.
        """
        session = entry.session
        if session is None:
            return
        mark = entry.mark
        skip = 0 if progress is None else progress.records - mark.records
        outbox = cursor.outbox
        self.sessions[cursor.partition] = session
        outbox.looked_up = True
        outbox.floor = session.start.target
        base = -1
        if progress is not None and skip:
            base = progress.offset_of(mark.records, skip)

        def begin() -> None:
            if self.sessions.get(cursor.partition) != session:
                return  # another session has been opened meanwhile
            outbox.begin(session.producer, mark.records + skip, known=False)
            outbox.end_offset = mark.target
            if progress is not None:
                outbox.verified_epoch = progress.leader_epoch if progress.leader_epoch >= 0 else None
                if skip:
                    outbox.end_offset = progress.target_end
            self._sink.end_pause(outbox)

        cursor.begin(mark, skip=skip, skip_base=base)
        self._behind[cursor.partition] = mark.target
        if skip:
            self._log.info("skipping records that a predecessor copied", partition=str(cursor.partition), records=skip)
        if progress is None:
            begin()
        else:
            outbox.last_error = None
            outbox.identity = ProducerIdentity(-1, -1)
            self._commit(cursor, begin)
        self._source.add([cursor])

    # -- sessions whose holder died ------------------------------------------------------------------------------------

    async def _ask(self, asking: list[tuple[Cursor, LedgerEntry]]) -> None:
        waiting = {entry.target: (cursor, entry) for cursor, entry in asking}
        refused_since: dict[TopicPartition, float] = {}
        while waiting and not self._link.stop.is_set():
            questions = {
                tp: ProgressQuestion(
                    entry.session.producer,
                    entry.mark.records,
                    entry.mark.target,
                    entry.session.start.target,
                    max(entry.target_epoch, cursor.outbox.leader_epoch),
                    self._sink.topic_ids.get(tp.topic, ""),
                )
                for tp, (cursor, entry) in waiting.items()
                if entry.session is not None
            }
            blind: dict[TopicPartition, int | None] = {}
            for tp, answer in (await self.look_up(questions)).items():
                cursor, entry = waiting[tp]
                if isinstance(answer, TargetProgress):
                    del waiting[tp]
                    if self._is_to_end(entry) and answer.records == entry.mark.records:
                        blind[cursor.partition] = entry.mark.source
                    else:
                        self._continue_after_look_up(cursor, entry, answer)
                elif isinstance(answer, InconsistentTarget):
                    del waiting[tp]
                    cursor.fail(PartitionState.INCONSISTENT, str(answer))
                elif (
                    not answer.is_final
                    or time.monotonic() - refused_since.setdefault(tp, time.monotonic()) < LOOK_UP_REFUSED_S
                ):
                    # A broker may just have started, or an ACL may be about to be granted.
                    cursor.outbox.last_error = answer
                else:
                    del waiting[tp]
                    cursor.conditions.note = (
                        f"at least once: the progress of the predecessor cannot be looked up: {answer}"
                    )
                    self._log.warning(cursor.conditions.note, partition=str(cursor.partition))
                    blind[cursor.partition] = entry.mark.source
            if blind:
                self._spawn(self._open(blind))
            if waiting:
                await self._link.pause(_RETRY_S)

    def _continue_after_look_up(self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress) -> None:
        self._use_rules_of(cursor, entry)
        if progress.records < entry.mark.records and not self.with_sessions:
            self._copy_again(cursor, entry, progress)
            return
        cursor.predecessor.finishing = self._is_to_end(entry)
        if progress.records < entry.mark.records:
            self._continue_session(cursor, entry)
            cursor.suspended = True
            self._on_truncated(cursor, progress.records, progress.end)
            return
        if self.with_sessions:
            self._continue_session(cursor, entry, progress)
        else:
            self._read_past(cursor, entry, progress)

    def _read_past(self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress) -> None:
        """Skip the records that a copy session has put on the target after its mark; then transactions begin
        (`open_next`).

        Until the first of them is committed the ledger names the session, so another crash changes nothing.
        """
        if entry.session is None:
            return
        mark, skip = entry.mark, progress.records - entry.mark.records
        self.sessions[cursor.partition] = entry.session
        self._behind[cursor.partition] = mark.target
        cursor.outbox.last_error = None
        cursor.begin(mark, skip=skip, skip_base=progress.offset_of(mark.records, skip))
        self._log.info(
            "skipping records that were copied before transactions", partition=str(cursor.partition), records=skip
        )
        self._source.add([cursor])

    def _copy_again(self, cursor: Cursor, entry: LedgerEntry, progress: TargetProgress) -> None:
        """The target lost acknowledged records of a copy session: begin transactions at their current end."""
        lost, end = entry.mark.records - progress.records, progress.end
        last = cursor.window.trail.source_of(end - 1) if end > 0 else None
        if last is None or cursor.window.foreign:
            cursor.fail(PartitionState.LOST_RANGE, truncated(cursor.spec.target, self._spec.target_alias, lost, end))
            return
        self._log.error(
            "target lost acknowledged records, resending them",
            partition=str(cursor.spec.target),
            records=lost,
            end=end,
        )
        self._use_present_rules(cursor)
        cursor.window.trail.target_cut(end)
        self._spawn(self._open({cursor.partition: last + 1}))

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
                if cursor.spec.remote_topic == target.topic:
                    cursor.conditions.note = note

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

    def search_gap(self, cursor: Cursor, first: int, end: int, own: int) -> bool:
        """Count the session's records at target offsets ``first .. end-1``. More than ``own`` are duplicates, and the
        partition is stopped. `Window.gap_searched` is called in any other case. False: there is no session to search for.
        """
        session = self.sessions.get(cursor.partition)
        if session is None or not self.with_sessions:
            return False
        self._spawn(self._search_gap(cursor, first, end, own, session))
        return True

    async def _search_gap(self, cursor: Cursor, first: int, end: int, own: int, session: Session) -> None:
        target = cursor.spec.target
        failure: KafkaFailure | None = None
        while True:
            try:
                found = await self._call(self._look_up.count_own, target, first, end, session.producer)
                break
            except KafkaFailure as error:
                self._log.info("gap on the target could not be searched", partition=str(target), error=str(error))
                if error.is_final:
                    found = own  # no READ right: `check_rights` has reported it
                    break
                if self._link.stop.is_set():
                    cursor.window.gap_searched(end, is_known=False)
                    return
                failure = cursor.outbox.last_error = error
                await self._link.pause(_RETRY_S)
        if failure is not None and cursor.outbox.last_error is failure:
            cursor.outbox.last_error = None
        if found > own:
            cursor.fail(
                PartitionState.INCONSISTENT,
                f"{target} of cluster {self._spec.target_alias} has {found - own} records of the copy session at offsets "
                f"{first} to {end - 1} that were not acknowledged there: they were appended twice",
            )
        else:
            cursor.window.gap_searched(end, is_known=True)

    async def _match(self, cursor: Cursor) -> None:
        partition = cursor.partition
        session = self.sessions.get(partition)
        while not self._link.stop.is_set() and session is not None:
            first = cursor.predecessor.target_base if cursor.predecessor.target_base >= 0 else cursor.window.target
            first = first if first >= 0 else self._behind.get(partition, -1)
            # The session's records are identified by their producer, so more of the log than needed may be read.
            first = first if first >= 0 else cursor.outbox.floor
            if first < 0:
                break
            try:
                ends = await self._call(self._target_admin.list_offsets, {cursor.spec.target: LATEST})
                end = ends[cursor.spec.target]
                if isinstance(end, KafkaFailure):
                    raise end
                prints = await self._call(
                    self._look_up.fingerprints,
                    cursor.spec.target,
                    first,
                    end.offset,
                    session.producer,
                    cursor.predecessor.remaining,
                )
            except KafkaFailure as error:
                cursor.outbox.last_error = error
                if error.is_final:
                    break
                await self._link.pause(_RETRY_S)
                continue
            self._log.info(
                "comparing records of a predecessor with the source by content",
                partition=str(partition),
                records=cursor.predecessor.remaining,
            )
            cursor.predecessor.fingerprints = deque(prints.values[-cursor.predecessor.remaining :])
            cursor.predecessor.with_time = prints.with_time
            if len(cursor.predecessor.fingerprints) < cursor.predecessor.remaining:
                # They are in the count, but those left on the source count as new.
                cursor.conditions.note = f"at least once: {cursor.spec.target} was compacted while copying was stopped"
                self._log.warning(cursor.conditions.note)
                cursor.window.records += cursor.predecessor.remaining - len(cursor.predecessor.fingerprints)
                cursor.predecessor.remaining = len(cursor.predecessor.fingerprints)
                cursor.window.target = -1
            if not cursor.predecessor.fingerprints:
                cursor.predecessor.fingerprints = None
            cursor.predecessor.target_base = -1
            cursor.outbox.last_error = None
            if cursor.predecessor.finishing and not cursor.predecessor.remaining:
                self.open_next(cursor)
                return
            cursor.suspended = False
            self._source.resume()
            return
        if not self._link.stop.is_set():
            cursor.conditions.note = (
                f"at least once: it is unknown which records of {partition} are on the target after a crash"
            )
            self._log.warning(cursor.conditions.note)
            self.open_again(cursor, cursor.window.mark)

    # -- new sessions --------------------------------------------------------------------------------------------------

    async def _open(self, positions: dict[TopicPartition, int | None]) -> None:
        """Find unknown positions, then open a session for each partition."""
        known = {tp: position for tp, position in positions.items() if position is not None}
        fresh = [tp for tp, position in positions.items() if position is None]
        if known:
            self._spawn(self._open_at(known))
        if fresh:
            await self._open_fresh(fresh)

    async def _open_fresh(self, missing: list[TopicPartition]) -> None:
        """Start partitions without a position. A partition whose position cannot be found does not block others."""
        spec = self._spec
        reset = spec.auto_offset_reset
        if reset == "none" and spec.start_timestamp_ms is None:
            for tp in missing:
                self._cursors[tp].fail(
                    PartitionState.LOST_RANGE, f"{tp} has no committed position and auto.offset.reset is none"
                )
            return
        when = dict.fromkeys(missing, LATEST if reset == "latest" else EARLIEST)
        if spec.start_timestamp_ms is not None:
            when = dict.fromkeys(missing, spec.start_timestamp_ms)
        elif reset.startswith("by_duration:"):
            when = dict.fromkeys(missing, int(time.time() * 1000) - duration_ms(reset.removeprefix("by_duration:")))
        await self._open_where(when, {})

    async def _open_where(self, when: dict[TopicPartition, int], named: Mapping[TopicPartition, int]) -> None:
        """Start at the offsets that ListOffsets returns for ``when``, or at ``named`` offsets that are not after
        them.

        Nothing has been read up to a named offset yet, so a log that ends before it has lost nothing.
        """
        while when and not self._link.stop.is_set():
            try:
                results = await self._call(self._source_admin.list_offsets, when)
            except KafkaFailure as error:
                results = dict.fromkeys(when, error)
            found = {}
            for tp, result in results.items():
                if isinstance(result, OffsetInfo) and result.offset >= 0:
                    found[tp] = min(result.offset, named.get(tp, result.offset))
                    if found[tp] < named.get(tp, 0):
                        self._log.warning(
                            "log ends before the requested start offset, starting at its end",
                            partition=str(tp),
                            offset=named[tp],
                            end=result.offset,
                        )
                    del when[tp]
                elif isinstance(result, OffsetInfo):
                    when[tp] = LATEST  # no record is as new as requested: start at the end
                elif isinstance(result, BrokerFailure):
                    self._cursors[tp].failed(result)
                else:
                    self._cursors[tp].set_read_error(PartitionState.UNREACHABLE, str(result))
            if found:
                self._spawn(self._open_at(found))
            if when:
                await self._link.pause(_FRESH_RETRY_S)

    async def _open_at(self, positions: Mapping[TopicPartition, int]) -> None:
        if self._spec.transactions is not None:
            for tp, position in positions.items():
                mark = self._marks.get(tp)
                if self.sessions.pop(tp, None) is not None or self._cursors[tp].predecessor.finishing:
                    self._use_present_rules(self._cursors[tp])
                self._cursors[tp].outbox.last_error = None
                self._cursors[tp].window.trail.settle()
                self._cursors[tp].begin(mark if mark is not None and mark.source == position else Mark(position, -1, 0))
                self._cursors[tp].window.markers = None
            self._source.add(self._cursors[tp] for tp in positions)
            return
        waiting = dict(positions)
        refused_since: float | None = None
        while waiting and not self._link.stop.is_set():
            targets = {self._cursors[tp].spec.target: tp for tp in waiting}
            try:
                # One new producer for all of them: its sequences must never decrease.
                identity = await self._call(self._new_identity)
                refused_since = None
                ends = await self._call(self._target_admin.list_offsets, dict.fromkeys(targets, LATEST))
            except KafkaFailure as error:
                for tp in waiting:
                    self._cursors[tp].outbox.last_error = error
                if isinstance(error, BrokerFailure) and error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    refused_since = refused_since or time.monotonic()
                    if time.monotonic() - refused_since > LOOK_UP_REFUSED_S:
                        self._open_without_idempotence(waiting, error)
                        return
                await self._link.pause(_RETRY_S)
                continue
            for target, end in ends.items():
                tp = targets[target]
                cursor = self._cursors[tp]
                if isinstance(end, OffsetInfo):
                    self._open_one(cursor, Mark(waiting.pop(tp), end.offset, 0), identity)
                elif end.is_final and not end.stale_metadata:
                    # It may still be writable; its end offset is unknown.
                    self._open_one(cursor, Mark(waiting.pop(tp), -1, 0), identity)
                else:
                    cursor.outbox.last_error = end
            if waiting:
                await self._link.pause(_RETRY_S)

    def _open_without_idempotence(self, positions: Mapping[TopicPartition, int], error: KafkaFailure) -> None:
        """Brokers before 2.8 return producer ids only with the IdempotentWrite right (KIP-679)."""
        for tp, position in positions.items():
            cursor = self._cursors[tp]
            cursor.conditions.note = f"at least once: the target does not assign a producer id: {error}"
            self._log.warning(cursor.conditions.note, partition=str(tp))
            cursor.window.trail.settle()
            cursor.begin(Mark(position, -1, 0))
            cursor.outbox.last_error = None
            cursor.outbox.identity = None
            self._sink.end_pause(cursor.outbox)
        self._source.add(self._cursors[tp] for tp in positions)

    def _open_one(self, cursor: Cursor, mark: Mark, identity: ProducerIdentity) -> None:
        cursor.window.trail.settle()
        cursor.begin(mark)
        cursor.outbox.last_error = None
        cursor.outbox.queue.clear()
        cursor.outbox.identity = ProducerIdentity(-1, -1)  # nothing is sent with the previous id meanwhile
        if not self.with_sessions:
            cursor.outbox.begin(identity, 0, known=False)
            self._source.add([cursor])
            return
        session = self.sessions[cursor.partition] = Session(identity, mark, self._rules)
        cursor.outbox.looked_up = True
        cursor.outbox.floor = mark.target
        if cursor.known_epoch < 0:
            cursor.known_epoch = self._source.leader_epoch(cursor.partition)
        # Fetching starts now; records are sent when the ledger has the session.
        self._source.add([cursor])

        def known() -> None:
            if self.sessions.get(cursor.partition) is not session:
                return  # another session has been opened meanwhile
            cursor.outbox.begin(identity, 0, known=False)
            cursor.outbox.end_offset = mark.target
            self._sink.end_pause(cursor.outbox)

        self._commit(cursor, known)

    def _new_identity(self) -> ProducerIdentity:
        request = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=60_000, max_version=4)
        cluster = self._target_cluster
        answer: Any = cluster.send(None, request)
        if answer.error_code:
            raise BrokerFailure.of(answer.error_code, subject=f"requesting a producer id from cluster {cluster.name}")
        return ProducerIdentity(answer.producer_id, answer.producer_epoch)


def truncated(target: TopicPartition, alias: str, lost: int, end: int) -> str:
    """The reason for a remote topic that lost acknowledged records at its end, if it is unknown which."""
    return (
        f"{target} of {alias} lost {lost} acknowledged records at its end ({end}), and which they were is not known; reset the "
        "position of this partition to copy them again"
    )


def duration_ms(text: str) -> int:
    """Milliseconds of an ISO 8601 duration such as P3DT12H (KIP-1106); ValueError for anything else."""
    import re  # noqa: PLC0415  (rare: workers start faster without)

    match = re.fullmatch(r"P(?:(\d+)D)?(?:T(?:(\d+)H)?(?:(\d+)M)?(?:(\d+(?:\.\d+)?)S)?)?", text)
    if match is None or not any(match.groups()):
        message = f"auto.offset.reset: {text!r} is not an ISO 8601 duration"
        raise ValueError(message)
    days, hours, minutes, seconds = (float(group or 0) for group in match.groups())
    return int((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000)
