"""Searches the target for records of copy sessions: by content, to find the source records that a predecessor copied, and
by batch headers, to find duplicates between two acknowledged batches (rule L7 of docs/explanation/copy-sessions.md).
"""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from typing import Final

import structlog

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.sessions.new_sessions import NewSessions
from mm2.copy.executor.sessions.session_table import SessionTable
from mm2.copy.progress.session import Session
from mm2.copy.progress.target_progress import LOOK_UP_REFUSED_S, Prints, TargetLookUp
from mm2.copy.spec import CopySpec
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, value_of
from mm2.kafka.structs import LATEST

_RETRY_S: Final = 0.25


@dataclass(eq=False)
class TargetSearch:
    """Searches for all cursors of a micro-batch."""

    _spec: CopySpec
    _link: DriverLink
    _tasks: BackgroundTasks
    _endpoints: Endpoints
    _sessions: SessionTable
    _new_sessions: NewSessions

    def __post_init__(self) -> None:
        self._source = self._endpoints.source
        self._target_admin = Admin(self._endpoints.target_cluster)
        self._look_up = TargetLookUp(self._endpoints.target_cluster)
        self._call = self._endpoints.call
        self._log = structlog.get_logger("mm2.copy.executor.target_search")

    # -- by content ------------------------------------------------------------------------------------------------------

    def match(self, cursor: Cursor) -> None:
        """Find out by content which records of a partition are on the target (`CountUncertain`).

        The predecessor may have sent others with the sequences that follow, so the session ends after them (rule S9).
        """
        cursor.predecessor.finishing = True
        self._tasks.spawn(self._match(cursor))

    async def _match(self, cursor: Cursor) -> None:
        session = self._sessions.current.get(cursor.partition)
        refused_s: float | None = None
        while not self._link.stop.is_set() and session is not None:
            first = self._first_uncertain(cursor)
            if first < 0:
                break
            try:
                prints = await self._prints(cursor, first, session)
            except KafkaFailure as error:
                cursor.set_target_error(error)
                code = error.code if isinstance(error, BrokerFailure) else 0
                refused_s = (refused_s or time.monotonic()) if error.is_final else None
                # A deposed leader may have answered, whose log is shorter, or a broker that has just started.
                may_be_stale = code == ErrorCode.OFFSET_OUT_OF_RANGE
                if refused_s and not (may_be_stale and time.monotonic() - refused_s < LOOK_UP_REFUSED_S):
                    break
                await self._link.pause(_RETRY_S)
                continue
            self._compare(cursor, prints)
            return
        if not self._link.stop.is_set():
            note = f"at least once: it is unknown which records of {cursor.partition} are on the target after a crash"
            cursor.annotate(note)
            self._log.warning(note)
            self._new_sessions.open_again(cursor, cursor.window.mark)

    def _first_uncertain(self, cursor: Cursor) -> int:
        """The target offset from which records that a predecessor copied are searched; -1: unknown."""
        first = cursor.predecessor.target_base if cursor.predecessor.target_base >= 0 else cursor.window.target
        if first < 0 and (mark := self._sessions.marks.get(cursor.partition)) is not None:
            first = mark.target
        # The session's records are identified by their producer, so more of the log than needed may be read.
        return first if first >= 0 else cursor.outbox.floor

    async def _prints(self, cursor: Cursor, first: int, session: Session) -> Prints:
        """Fingerprints of the records that are to be skipped. Raises KafkaFailure."""
        target = cursor.spec.target
        end = value_of((await self._call(self._target_admin.list_offsets, {target: LATEST}))[target])
        if end.offset < first + cursor.predecessor.remaining:
            # A look-up has found them all, so a deposed leader has answered, or the target has been truncated since.
            raise BrokerFailure.of(ErrorCode.OFFSET_OUT_OF_RANGE, subject=f"reading {target}")
        found: Prints = await self._call(
            self._look_up.fingerprints, target, first, end.offset, session.producer, cursor.predecessor.remaining
        )
        return found

    def _compare(self, cursor: Cursor, prints: Prints) -> None:
        """Let the cursor compare what it reads with these records."""
        self._log.info(
            "comparing records of a predecessor with the source by content",
            partition=str(cursor.partition),
            records=cursor.predecessor.remaining,
        )
        cursor.fingerprints = deque(prints.values[-cursor.predecessor.remaining :])
        cursor.predecessor.with_time = prints.with_time
        if len(cursor.fingerprints) < cursor.predecessor.remaining:
            # They are in the count, but those left on the source count as new.
            note = f"at least once: {cursor.spec.target} was compacted while copying was stopped"
            cursor.annotate(note)
            self._log.warning(note)
            cursor.window.records += cursor.predecessor.remaining - len(cursor.fingerprints)
            cursor.predecessor.remaining = len(cursor.fingerprints)
            cursor.window.target = -1
        cursor.predecessor.forget_offsets()
        if not cursor.fingerprints:
            cursor.predecessor.conclude()
        cursor.set_target_error(None)
        if cursor.predecessor.finishing and not cursor.predecessor.remaining:
            self._new_sessions.open_next(cursor)
            return
        cursor.suspended = False
        self._source.resume()

    # -- by batch headers ------------------------------------------------------------------------------------------------

    def search_gap(self, cursor: Cursor, first: int, end: int, own: int) -> bool:
        """Count the session's records at target offsets ``first .. end-1``. More than ``own`` are duplicates, and the
        partition is stopped. `Window.gap_searched` is called in any other case. False: there is no session to search for.
        """
        session = self._sessions.current.get(cursor.partition)
        if session is None or not self._spec.with_sessions:
            return False
        self._tasks.spawn(self._search_gap(cursor, first, end, own, session))
        return True

    async def _search_gap(self, cursor: Cursor, first: int, end: int, own: int, session: Session) -> None:
        target = cursor.spec.target
        failure: KafkaFailure | None = None
        refused_s: float | None = None
        # In all epochs: a session and those that ended before it may have the same producer id (rule S9).
        producers = {
            producer.producer_id for producer in (session.producer, *(ended.producer for ended in session.after))
        }
        found: int | None = None
        while found is None and cursor.window.is_searching_to(end):
            try:
                found = await self._call(self._look_up.count_own, target, first, end, producers)
            except KafkaFailure as error:
                self._log.info("gap on the target could not be searched", partition=str(target), error=str(error))
                # The start of the log may have moved again, or a deposed leader may have responded.
                may_be_stale = isinstance(error, BrokerFailure) and error.code == ErrorCode.OFFSET_OUT_OF_RANGE
                refused_s = (refused_s or time.monotonic()) if error.is_final else None
                if refused_s and not (may_be_stale and time.monotonic() - refused_s < LOOK_UP_REFUSED_S):
                    found = own  # no READ right: `ContinuedSessions.check_rights` has reported it
                    continue
                if self._link.stop.is_set():
                    cursor.window.gap_searched(end, is_known=False)
                    return
                failure = error
                cursor.set_target_error(error)
                await self._link.pause(_RETRY_S)
        if failure is not None and cursor.outbox.last_error is failure:
            cursor.set_target_error(None)
        if found is None or not cursor.window.is_searching_to(end):
            return  # the target has been truncated meanwhile: what is there now was sent again
        if found > own:
            cursor.fail(
                PartitionState.INCONSISTENT,
                f"{target} of cluster {self._spec.target_alias} has {found - own} records of the copy session at offsets "
                f"{first} to {end - 1} that were not acknowledged there: they were appended twice",
            )
        else:
            cursor.window.gap_searched(end, is_known=True)
