"""Opens new copy sessions, or begins to copy without one: in transactions, or at least once."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypeVar

import structlog

from mm2.copy.executor.clusters.discovery import new_producer
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.partition.events import TransactionsBegin
from mm2.copy.executor.sessions.preserved_starts import Comparing, PreservedStart, Wanted
from mm2.copy.executor.sessions.session_starts import SessionStarts
from mm2.copy.executor.sessions.session_table import Ending
from mm2.copy.progress.segments import RESET, Gap
from mm2.copy.progress.session import UNBOUNDED, LedgerEntry, Mark, Session
from mm2.copy.progress.target_progress import LOOK_UP_REFUSED_S
from mm2.copy.states import PartitionState, state_of
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, ProducerIdentity, TopicPartition

_Position = TypeVar("_Position", int, int | None)
_RETRY_S: Final = 0.25
_FRESH_RETRY_S: Final = 0.5
_UNCOMPARED: Final = (
    "the remote topic had records before that the ledger does not know; they were not compared with the source, because the flow "
    "changes records"
)


@dataclass(eq=False)
class NewSessions(SessionStarts):
    """Opens sessions, or begins transactions."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self._source_admin = Admin(self._endpoints.source_cluster)
        self._target_cluster = self._endpoints.target_cluster
        self._parked: dict[TopicPartition, int] = {}  # where paused partitions begin, see `resume`
        self._log = structlog.get_logger("mm2.copy.executor.new_sessions")

    def open(self, positions: dict[TopicPartition, int | None]) -> None:
        """Open a session for each of these partitions, under the rules of this job, or begin transactions; None: at the
        offset given by auto.offset.reset.
        """
        positions = self._not_paused(positions)
        for tp in positions:
            cursor = self._cursors[tp]
            # A session with other rules, whose records were skipped under them, ends here.
            cursor.predecessor.finishing = False
            cursor.read_committed = self._spec.read_committed
            cursor.changes = self._sessions.changes
            self._source.isolate(tp, committed=False)
        self._tasks.spawn(self._open(positions))

    def resume(self, partition: TopicPartition) -> None:
        """Open what `open` has left out because the partition was paused."""
        position = self._parked.pop(partition, None)
        if position is not None:
            self.open({partition: position})

    def _not_paused(self, positions: Mapping[TopicPartition, _Position]) -> dict[TopicPartition, _Position]:
        """Those of these partitions that are not paused. The others begin when they are resumed.

        A session that is opened at a position names the target's end as the end of what was copied. While applications write to
        the remote topic, which a pause permits, this end is another one.
        """
        found = {}
        for tp, position in positions.items():
            cursor = self._cursors[tp]
            if position is None or cursor.conditions.paused is None:
                found[tp] = position
                continue
            self._parked[tp] = position
            if cursor.window.position >= 0:
                mark = cursor.window.mark
                cursor.begin(mark if mark.source == position else Mark(position, -1, 0))
                cursor.suspended = True
        return found

    def open_named(self, positions: Mapping[TopicPartition, int]) -> None:
        """Start partitions without a session or a position at configured offsets; at the end of a log that ends before."""
        self._tasks.spawn(self._open_where(dict.fromkeys(positions, LATEST), positions))

    def open_again(self, cursor: Cursor, mark: Mark) -> None:
        """Open a new session at a mark, because the old one cannot continue."""
        self._sessions.forget_ended(cursor.partition)
        self._sessions.current.pop(cursor.partition, None)
        self.open({cursor.partition: mark.source})

    def open_before(self, cursor: Cursor, mark: Mark, leader_epoch: int) -> None:
        """Open a new session at a mark before the start of the current one: the target ends there, in this leader epoch
        (-1: unknown).

        The ledger names the old session until the new one is written, so a crash changes nothing.
        """
        self._sessions.forget_ended(cursor.partition)
        self._sessions.ending[cursor.partition] = Ending((), mark.target, leader_epoch)
        cursor.begin(mark)
        cursor.suspended = cursor.outbox.paused = True
        self.open({cursor.partition: mark.source})

    def continue_without(self, cursor: Cursor, mark: Mark, failure: KafkaFailure) -> None:
        """Copy at least once from a mark on: the remote topic has a message format of before 0.11, which has no producer
        ids (KIP-98), so the target rejects all idempotent batches. Nothing is in flight.
        """
        self._sessions.forget_ended(cursor.partition)
        self._sessions.current.pop(cursor.partition, None)
        outbox = cursor.outbox
        outbox.looked_up, outbox.verified_epoch, outbox.floor, outbox.ended_sessions = False, None, -1, ()
        outbox.is_unverified = False
        if cursor.is_preserved:
            cursor.fail(
                PartitionState.REFUSED, f"preserve.offsets needs message format 2 of the remote topic: {failure}"
            )
            return
        note = f"at least once: the remote topic has an old message format (message.format.version): {failure}"
        self._open_without_idempotence({cursor.partition: mark.source}, note)

    def open_next(self, cursor: Cursor) -> None:
        """Open a new session with the current rules, or the first transaction: the records of the old session have
        been skipped.

        The ledger names the old session until the new one is written, so another crash changes nothing.
        """
        session = self._sessions.current.get(cursor.partition)
        is_same = session is not None and self._sessions.rules_of(session) == self._sessions.rules
        if is_same and self._spec.with_sessions:
            self.replace(cursor)  # only the source has changed
            return
        self._sessions.end_at(cursor.partition, cursor.window.mark)
        self.open({cursor.partition: cursor.window.position})

    def replace(self, cursor: Cursor) -> None:
        """End the session at the position, and open one whose first batch fences the requests of predecessors (rule S9).

        All before the position is acknowledged. What was read behind it is read again. Nothing is read or sent meanwhile, and a
        successor that finds the old session in the ledger continues it with no record.
        """
        mark = cursor.window.mark
        self._log.info("a new copy session begins", partition=str(cursor.partition), position=mark.source)
        self._sessions.replace(cursor.partition, mark, is_preserved=cursor.is_preserved)
        # At once: a dead letter that is acknowledged meanwhile must not end the session again.
        cursor.begin(mark)
        cursor.outbox.queue.clear()
        cursor.suspended = cursor.outbox.paused = True
        cursor.shared_until, cursor.known_epoch = UNBOUNDED, -1
        self.open({cursor.partition: mark.source})

    async def _open(self, positions: dict[TopicPartition, int | None]) -> None:
        """Find unknown positions, then open a session for each partition."""
        known = {tp: position for tp, position in positions.items() if position is not None}
        fresh = [tp for tp, position in positions.items() if position is None]
        if known:
            self._tasks.spawn(self._open_at(known))
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
                self._tasks.spawn(self._open_at(found))
            if when:
                await self._link.pause(_FRESH_RETRY_S)

    async def _open_preserved(self, positions: Mapping[TopicPartition, int]) -> None:
        """Start partitions with offset preservation at the end of their remote partitions."""
        waiting = dict(positions)
        while (waiting := self._not_paused(waiting)) and not self._link.stop.is_set():
            cursors = {tp: self._cursors[tp] for tp in waiting}
            try:
                identity = await self._call(new_producer, self._target_cluster)
                wanted = {tp: self._wanted(tp, position) for tp, position in waiting.items()}
                starts = await self._call(self._preserved.find, cursors, wanted)
            except KafkaFailure as error:
                starts = dict.fromkeys(cursors, error)
            waiting = self._not_paused(waiting)
            for tp, start in starts.items():
                if tp not in waiting:
                    continue  # paused meanwhile
                cursor = cursors[tp]
                if isinstance(start, Comparing):
                    cursor.set_target_error(None)
                    cursor.set_read_error(PartitionState.PREPARING, compared(start))
                    continue
                if not isinstance(start, PreservedStart):
                    cursor.set_target_error(start)
                    continue
                del waiting[tp]
                cursor.conditions.read = None
                if start.refusal:
                    cursor.fail(start.state, start.refusal)
                    continue
                if start.is_uncompared:
                    cursor.annotate(_UNCOMPARED)
                self._sessions.new.discard(tp)
                self._sessions.unproven.discard(tp)
                self._sessions.set_by_user.discard(tp)  # later positions are those of the target
                self._open_one(cursor, Mark(start.end, start.end, 0), identity, start.first)
                cursor.outgoing.fill_leading_gap(start.first)
            if waiting:
                await self._link.pause(_RETRY_S)

    def _wanted(self, tp: TopicPartition, position: int) -> Wanted:
        first = self._sessions.leading_gaps.get(tp, -1)
        if first > position:
            # Some of the offsets before the first record are not filled yet, or the target has lost them.
            return Wanted(first, is_set=True, is_own=tp not in self._sessions.unproven)
        is_new, is_own = tp in self._sessions.new, tp not in self._sessions.unproven
        is_set, committed = tp in self._sessions.set_by_user, self._sessions.committed.get(tp, 0)
        return Wanted(position, is_set=is_set, is_new=is_new, is_own=is_own, committed=committed)

    async def _check_moved(self, positions: Mapping[TopicPartition, int]) -> dict[TopicPartition, int]:
        """Where copying continues at positions that are not those of the ledger; the source offsets that they leave out are kept for
        the ledger (`SessionTable.passed_over`).
        """
        found = dict(positions)
        waiting: dict[TopicPartition, LedgerEntry] = {}
        for tp, position in positions.items():
            entry = self._sessions.moved_from.pop(tp, None)
            if entry is None or entry.is_unbegun or entry.is_preserved != self._cursors[tp].is_preserved:
                continue
            self._sessions.passed_over[tp] = []
            if position > entry.mark.source or self._is_replaced(entry):
                waiting[tp] = entry
        while waiting and not self._link.stop.is_set():
            targets = {tp: self._cursors[tp].outbox.partition for tp in waiting}
            try:
                starts = await self._call(self._source_admin.list_offsets, dict.fromkeys(waiting, EARLIEST))
                ends = await self._call(self._source_admin.list_offsets, dict.fromkeys(waiting, LATEST))
                target_ends = await self._call(self._target_admin.list_offsets, dict.fromkeys(targets.values(), LATEST))
            except KafkaFailure as error:
                starts = ends = target_ends = dict.fromkeys([*waiting, *targets.values()], error)
            for tp, entry in [*waiting.items()]:
                start, end, target = starts[tp], ends[tp], target_ends[targets[tp]]
                if isinstance(start, OffsetInfo) and isinstance(end, OffsetInfo):
                    if isinstance(target, OffsetInfo) or (target.is_final and not target.stale_metadata):
                        target_end = target.offset if isinstance(target, OffsetInfo) else -1
                        found[tp] = self._moved(entry, found[tp], (start.offset, end.offset), target_end)
                        del waiting[tp]
                    else:
                        self._cursors[tp].set_target_error(target)
                else:
                    failure = start if isinstance(start, KafkaFailure) else end
                    self._cursors[tp].set_read_error(state_of(failure), str(failure))
            if waiting:
                await self._link.pause(_FRESH_RETRY_S)
        return {tp: position for tp, position in found.items() if tp not in waiting}

    def _is_replaced(self, entry: LedgerEntry) -> bool:
        return entry.is_replaced_by(self._source.topic_id(entry.topic))

    def _moved(self, entry: LedgerEntry, position: int, source: tuple[int, int], target_end: int) -> int:
        """Where copying continues, if the position is after what was copied. ``source`` is the range of the source's log."""
        tp, (start, end) = entry.source, source
        cursor = self._cursors[tp]
        if position > end:
            # Java's consumer would apply auto.offset.reset, and copy all again or leave out what was not copied.
            note = (
                f"the position was set to offset {position}, and the log of {self._spec.source_alias} ends at {end}: copying continues "
                f"at offset {entry.mark.source}, where it had ended"
            )
            self._log.warning(note, partition=str(tp))
            cursor.annotate(note)
            cursor.resume_log(entry)
            return entry.mark.source
        first = max(0 if self._is_replaced(entry) else entry.mark.source, target_end if cursor.is_preserved else 0)
        if first >= position:
            return position
        # Behind its last record, a transaction has its marker.
        ends_at = entry.mark.target + (self._spec.transactions is not None)
        is_same_target = not entry.target_id or self._sink.topic_ids.get(entry.remote_topic, "") in {
            "",
            entry.target_id,
        }
        if is_same_target and not cursor.is_preserved and not 0 <= target_end <= ends_at:
            note = (
                f"the position was moved from offset {first} to {position}, and other programs have written to the remote topic: "
                "whether they have copied the records between is not known (mm2 verify)"
            )
            self._log.warning(note, partition=str(tp))
            cursor.annotate(note)
            return position
        kept = min(max(first, start), position)
        gaps = [Gap(first, kept, "retention"), Gap(kept, position, RESET)]
        self._sessions.passed_over[tp] = [gap for gap in gaps if gap.first < gap.after]
        self._log.error(
            "records left out by a position that was set", partition=str(tp), first=first, last=position - 1
        )
        return position

    async def _open_at(self, positions: Mapping[TopicPartition, int]) -> None:
        positions = self._not_paused(positions)
        if any(tp in self._sessions.moved_from for tp in positions):
            positions = self._not_paused(await self._check_moved(positions))
        if self._spec.transactions is not None:
            for tp, position in positions.items():
                mark = self._sessions.marks.get(tp)
                self._sessions.current.pop(tp, None)
                self._cursors[tp].set_target_error(None)
                is_known = mark is not None and mark.source == position
                self._begin(self._cursors[tp], mark if mark is not None and is_known else Mark(position, -1, 0))
                self._cursors[tp].window.markers = None
                self._cursors[tp].emit(TransactionsBegin())
            self._source.add(self._cursors[tp] for tp in positions)
            return
        preserved = {tp: position for tp, position in positions.items() if self._cursors[tp].is_preserved}
        if preserved:
            self._tasks.spawn(self._open_preserved(preserved))
        waiting = {tp: position for tp, position in positions.items() if tp not in preserved}
        for tp in [*waiting]:
            ending = self._sessions.ending.get(tp)
            if ending is not None and ending.successor is not None and ending.end >= 0:  # all is known
                self._open_one(self._cursors[tp], Mark(waiting.pop(tp), ending.end, 0), ending.successor)
        refused_since: float | None = None
        while (waiting := self._not_paused(waiting)) and not self._link.stop.is_set():
            targets: dict[TopicPartition, list[TopicPartition]] = {}
            for tp in waiting:
                targets.setdefault(self._cursors[tp].outbox.partition, []).append(tp)
            try:
                # One new producer for all of them: its sequences must never decrease. Copies to the same target partition have one each.
                most = max(map(len, targets.values()))
                identities = [await self._call(new_producer, self._target_cluster) for _ in range(most)]
                refused_since = None
                ends = await self._call(self._target_admin.list_offsets, dict.fromkeys(targets, LATEST))
            except KafkaFailure as error:
                for tp in waiting:
                    self._cursors[tp].set_target_error(error)
                if isinstance(error, BrokerFailure) and error.code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED:
                    refused_since = refused_since or time.monotonic()
                    if time.monotonic() - refused_since > LOOK_UP_REFUSED_S:
                        note = f"at least once: the target does not assign a producer id: {error}"
                        self._open_without_idempotence(waiting, note)
                        return
                await self._link.pause(_RETRY_S)
                continue
            waiting = self._not_paused(waiting)
            answers = [
                (*one, end) for target, end in ends.items() for one in zip(targets[target], identities, strict=False)
            ]
            for tp, identity, end in answers:
                cursor = self._cursors[tp]
                if tp not in waiting:
                    continue  # paused meanwhile
                if isinstance(end, OffsetInfo):
                    self._open_one(cursor, Mark(waiting.pop(tp), end.offset, 0), identity)
                elif end.is_final and not end.stale_metadata:
                    # It may still be writable; its end offset is unknown.
                    self._open_one(cursor, Mark(waiting.pop(tp), -1, 0), identity)
                else:
                    cursor.set_target_error(end)
            if waiting:
                await self._link.pause(_RETRY_S)

    def _open_without_idempotence(self, positions: Mapping[TopicPartition, int], note: str) -> None:
        """Brokers before 2.8 return producer ids only with the IdempotentWrite right (KIP-679)."""
        for tp, position in positions.items():
            cursor = self._cursors[tp]
            cursor.annotate(note)
            self._log.warning(note, partition=str(tp))
            self._begin(cursor, Mark(position, -1, 0))
            cursor.shared_until = -1
            cursor.set_target_error(None)
            cursor.outbox.identity = None
            self._sink.end_pause(cursor.outbox)
        self._source.add(self._cursors[tp] for tp in positions)

    def _open_one(self, cursor: Cursor, mark: Mark, identity: ProducerIdentity, first: int = -1) -> None:
        """``first``: the source offset at which copying begins, if the offsets before it are filled after the mark."""
        ending = self._sessions.ending.pop(cursor.partition, Ending())
        identity = ending.successor or identity
        if ending.end >= 0:
            # Where the look-up of the sessions before ended: what they have after it has appeared since (rule R3). The end offset may
            # come from a deposed leader, or from one that has brought back their records.
            mark = mark._replace(target=ending.end)
        self._begin(cursor, mark)
        cursor.shared_until = -1
        cursor.set_target_error(None)
        cursor.outbox.queue.clear()
        # Nothing is sent with the previous id meanwhile, and nothing of it is in doubt.
        cursor.outbox.begin(ProducerIdentity(-1, -1), 0, known=False)
        if not self._spec.with_sessions:
            cursor.outbox.begin(identity, 0, known=False)
            self._read(cursor)
            return
        start = mark._replace(source=max(mark.source, first))
        session = Session(identity, start, str(self._sessions.rules), ending.sessions)
        self._use(cursor, session)
        if cursor.is_preserved:
            self._sessions.remember_leading_gap(cursor.partition, session)
        if cursor.known_epoch < 0:
            cursor.known_epoch = self._source.leader_epoch(cursor.partition)
        # Fetching starts now; records are sent when the ledger has the session, and the ids of the source. Without them a successor
        # would count the records of a source that has been replaced or created again.
        self._read(cursor)

        def known() -> None:
            if self._use_producer(cursor, session, 0, ending.leader_epoch):
                cursor.outbox.end_offset = cursor.outgoing.end_on_target(mark.target)
                self._sink.end_pause(cursor.outbox)

        cursor.when_identified(lambda: self._commit(cursor, known))

    def _begin(self, cursor: Cursor, mark: Mark) -> None:
        """Continue at a mark. What a later position leaves out is written with it: both are in the ledger, or neither is."""
        cursor.window.trail.settle()
        cursor.begin(mark)
        gaps = self._sessions.passed_over.pop(cursor.partition, None)
        if gaps is not None:
            cursor.copy_again(mark.source)
        for gap in gaps or ():
            cursor.window.trail.missing(*gap)
            cursor.add_lost_range(*gap)

    def _read(self, cursor: Cursor) -> None:
        if not cursor.stopped:  # otherwise it would be read from where it has stopped, again and again
            self._source.add([cursor])


def compared(so_far: Comparing) -> str:
    """The reason for a remote partition whose records are still compared with the source."""
    return (
        f"the remote topic has records that the ledger does not know: before it is written to, they are compared with the source, "
        f"{so_far.at:,} of {so_far.end:,} offsets so far"
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
