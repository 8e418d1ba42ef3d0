"""Determines where each partition's copying starts, and with which producer (see `mm2.copy.progress.session`).

==== what is known ======================== what is done =============================================================
  a session, handed off cleanly              continue
  a session, not handed off cleanly          look up its progress on the target, skip those records
  a session, but its target was recreated    stop: RECREATED
  a session with other rules                 skip its records under its rules, then a new session
  a remote topic with another name           a new session in the topic with the new name, at the position
  a session whose records cannot be counted  if there are some after the mark: a new session at the mark, at least once
  a session, but now in transactions         the same, then transactions
  the same, and gaps were filled by          end its transactions before anything is looked up
  transactions
  a position only                            a new session, written to the ledger before the first batch is sent
  nothing                                    the same, from the offset given by auto.offset.reset
======================================================================================================================
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

import structlog

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.clusters.topic_ids import retire
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.producing.sink import Sink
from mm2.copy.executor.sessions.continued_sessions import ContinuedSessions
from mm2.copy.executor.sessions.losses import recreated
from mm2.copy.executor.sessions.new_sessions import NewSessions
from mm2.copy.executor.sessions.session_table import SessionTable
from mm2.copy.progress.segments import Trail
from mm2.copy.progress.session import CopyOrigin, FormerTopic, LedgerEntry, Start
from mm2.copy.spec import CopySpec
from mm2.copy.states import LASTS_UNTIL_RESET, PartitionState
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition


@dataclass(slots=True)
class _Ways:
    """Partitions by the way in which they start.

    ``clean`` and ``asking`` continue or end a session: the latter after a look-up. ``positions`` open a new one. ``named``
    have a configured offset and no state. Of ``renamed`` the id of the remote topic has to be confirmed first, and of
    ``unsettled`` the transactions that fill gaps have to be ended.
    """

    clean: list[tuple[Cursor, LedgerEntry]] = field(default_factory=list)
    asking: list[tuple[Cursor, LedgerEntry]] = field(default_factory=list)
    positions: dict[TopicPartition, int | None] = field(default_factory=dict)
    named: dict[TopicPartition, int] = field(default_factory=dict)
    renamed: dict[TopicPartition, Start] = field(default_factory=dict)
    unsettled: dict[TopicPartition, Start] = field(default_factory=dict)


@dataclass(eq=False)
class Opening:
    """Starts the partitions of a micro-batch. ``settle`` ends the transactions of a predecessor that fill gaps; False at the
    stop.
    """

    _spec: CopySpec
    _sink: Sink
    _tasks: BackgroundTasks
    _cursors: Mapping[TopicPartition, Cursor]
    _sessions: SessionTable
    _continued: ContinuedSessions
    _new_sessions: NewSessions
    _settle: Callable[[Cursor], Awaitable[bool]]

    def __post_init__(self) -> None:
        self._settled: set[TopicPartition] = set()
        self._log = structlog.get_logger("mm2.copy.executor.opening")

    def begin(self, starts: Mapping[TopicPartition, Start]) -> None:
        """Start these partitions, each as soon as possible."""
        self._begin(starts, confirmed=False)

    def _begin(self, starts: Mapping[TopicPartition, Start], *, confirmed: bool) -> None:
        """``confirmed``: the ids of their remote topics are."""
        ways = _Ways()
        for tp, start in starts.items():
            self._choose(ways, self._cursors[tp], start, confirmed=confirmed)
        for cursor, entry in ways.clean:
            self._continued.continue_session(cursor, entry)
        self._tasks.spawn(self._continued.take_over(ways.asking))
        self._new_sessions.open(ways.positions)
        for topic in {self._cursors[tp].spec.remote_topic for tp in ways.renamed}:
            rows = {tp: start for tp, start in ways.renamed.items() if self._cursors[tp].spec.remote_topic == topic}
            self._tasks.spawn(self._begin_certainly(topic, rows))
        for tp, start in ways.unsettled.items():
            self._tasks.spawn(self._begin_settled(tp, start, confirmed=confirmed))
        if ways.named:
            self._new_sessions.open_named(ways.named)

    def _choose(self, ways: _Ways, cursor: Cursor, start: Start, *, confirmed: bool) -> None:
        """Add a partition to one of the ways, or stop it."""
        tp, entry = cursor.partition, start.entry
        if entry is None:
            self._sessions.new.add(tp)
            self._add_unproven(tp, start.committed)
            cursor.origin = start.origin
            if start.committed is None and start.position is not None:
                ways.named[tp] = start.position
            else:
                # Where offsets are preserved, the target shows what was copied. If it is empty, nothing was.
                ways.positions[tp] = start.position if not cursor.is_preserved else None
            return
        if not confirmed and self._has_another_target(entry):
            ways.renamed[tp] = start
            return
        if entry.fills_by_transactions and not start.clean and cursor.is_preserved and tp not in self._settled:
            ways.unsettled[tp] = start
            return
        self._remember(cursor, entry, start)
        condition = entry.condition
        if not start.moved and condition is not None and condition.state in LASTS_UNTIL_RESET and condition.offset >= 0:
            # Ends only with a reset: what contradicts the count may no longer be detectable from the mark. What stopped it before
            # copying began has no offset and is checked again.
            cursor.stop_with(condition)
        elif not start.moved and self._has_another_target(entry):
            reason = recreated(entry.target, self._spec.target_alias, entry.mark.records)
            cursor.fail(PartitionState.RECREATED, reason)
        elif cursor.is_preserved and not entry.is_preserved:
            ways.positions[tp] = start.position  # it was copied without offset preservation
            self._add_unproven(tp, start.position)
        elif self._sessions.has_former_topic(entry) or entry.session is None or self._spec.ledger_topic is None:
            ways.positions[tp] = start.position
        elif start.clean and self._sessions.is_to_end(entry) and entry.shared_until < 0:
            ways.positions[tp] = entry.mark.source
        elif start.clean and not self._sessions.is_to_end(entry):
            ways.clean.append((cursor, entry))
        else:
            ways.asking.append((cursor, entry))

    def _add_unproven(self, partition: TopicPartition, committed: int | None) -> None:
        self._sessions.unproven.add(partition)
        if committed is not None:
            self._sessions.committed[partition] = committed

    async def _begin_certainly(self, topic: str, starts: Mapping[TopicPartition, Start]) -> None:
        """Start partitions whose remote topic has another id in the metadata than in the ledger: one response may be
        stale.
        """
        known = [start.entry for start in starts.values() if start.entry is not None]
        # Partitions of one topic may have been written before and after it was recreated.
        retired = {topic_id for entry in known for topic_id in entry.retired}
        newest = next((entry.target_id for entry in known if entry.target_id not in retired), known[0].target_id)

        def set_error(failure: KafkaFailure | None) -> None:
            for tp in starts:
                self._cursors[tp].set_target_error(failure)

        if await self._sink.settle_id(topic, newest, retired, set_error):
            set_error(None)
            self._begin(starts, confirmed=True)

    async def _begin_settled(self, tp: TopicPartition, start: Start, *, confirmed: bool) -> None:
        if await self._settle(self._cursors[tp]):
            self._settled.add(tp)
            self._begin({tp: start}, confirmed=confirmed)

    def _remember(self, cursor: Cursor, entry: LedgerEntry, start: Start) -> None:
        """Give a cursor the state that is in the ledger."""
        cursor.window.trail = Trail(start.chunk, entry.gaps, start.unwritten)
        cursor.retired, cursor.former = entry.retired, entry.former
        cursor.window.foreign = entry.foreign
        cursor.origin = start.origin if start.origin.code else entry.origin
        is_former = self._sessions.has_former_topic(entry)
        if is_former:
            self._leave(cursor, entry, start)
        if start.moved and self._has_another_target(entry):
            cursor.origin = CopyOrigin()  # what was copied before is not in this topic
            cursor.window.trail.restart()
            cursor.retired = retire(cursor.retired, entry.target_id)
        cursor.lost, cursor.lost_before = list(entry.lost), entry.lost_before
        cursor.rate.value = float(entry.rate)
        if start.moved:
            self._sessions.moved_from[cursor.partition] = entry
        if not start.moved:
            cursor.copy_id = cursor.copy_id._replace(cluster=entry.copy_id.cluster)
            cursor.resume_log(entry)
            cursor.is_handed_off = start.clean
            if is_former:
                return
            # Entries of older versions name with a session the producer of the transaction before it.
            cursor.written_by = entry.written_by if entry.session is None else -1
            self._sessions.marks[cursor.partition] = entry.mark
            if entry.session is not None and cursor.is_preserved:
                self._sessions.remember_leading_gap(cursor.partition, entry.session)
        elif entry.is_preserved and start.position is not None:
            self._sessions.set_by_user.add(cursor.partition)

    def _leave(self, cursor: Cursor, entry: LedgerEntry, start: Start) -> None:
        """The replication policy or a router has given the remote topic another name. What is known of the one before does not
        apply to it.
        """
        if not entry.is_unbegun:
            position = entry.mark.source if start.position is None else min(start.position, entry.mark.source)
            cursor.former = FormerTopic(entry.remote_topic, position)
        cursor.window.trail.restart()
        cursor.window.foreign, cursor.origin = 0, CopyOrigin()
        self._log.info(
            "the remote topic has another name, copying continues there",
            partition=str(cursor.partition),
            position=start.position,
            before=entry.remote_topic,
            topic=cursor.spec.remote_topic,
        )

    def _has_another_target(self, entry: LedgerEntry) -> bool:
        """Whether the remote topic is another one than in the ledger, with the same name."""
        now = "" if self._sessions.has_former_topic(entry) else self._sink.topic_ids.get(entry.remote_topic, "")
        return bool(now and entry.target_id) and now != entry.target_id
