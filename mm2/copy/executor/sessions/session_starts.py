"""What opening and continuing copy sessions have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from mm2.copy.executor.background import BackgroundTasks
from mm2.copy.executor.endpoints import Endpoints
from mm2.copy.executor.link import DriverLink
from mm2.copy.executor.partition.cursor import Cursor
from mm2.copy.executor.sessions.preserved_starts import PreservedStarts
from mm2.copy.executor.sessions.session_table import SessionTable
from mm2.copy.progress.session import Session
from mm2.copy.spec import CopySpec
from mm2.kafka.admin import Admin
from mm2.kafka.structs import TopicPartition


@dataclass(eq=False)
class SessionStarts:
    """Starts sessions of cursors of a micro-batch. ``_commit(cursor, then)`` writes a cursor's entry and calls ``then``."""

    _spec: CopySpec
    _link: DriverLink
    _tasks: BackgroundTasks
    _endpoints: Endpoints
    _cursors: Mapping[TopicPartition, Cursor]
    _sessions: SessionTable
    _commit: Callable[[Cursor, Callable[[], None]], None]

    def __post_init__(self) -> None:
        endpoints, spec = self._endpoints, self._spec
        self._source, self._sink, self._call = endpoints.source, endpoints.sink, endpoints.call
        self._target_admin = Admin(endpoints.target_cluster)
        self._preserved = PreservedStarts(
            endpoints, spec.source_alias, spec.target_alias, is_changed=spec.changes is not None
        )

    def _use(self, cursor: Cursor, session: Session) -> None:
        """Copy in this session from now on. Nothing is sent before `_use_producer`."""
        outbox = cursor.outbox
        self._sessions.current[cursor.partition] = session
        outbox.looked_up = True
        outbox.floor = session.start.target
        outbox.ended_sessions = session.after

    def _use_producer(self, cursor: Cursor, session: Session, records: int, leader_epoch: int) -> bool:
        """Send with the producer of a session, of which so many records were found on the target in this leader epoch (-1: there was
        no look-up). False: another session has been opened meanwhile.
        """
        if not self._sessions.is_current(cursor.partition, session):
            return False
        outbox = cursor.outbox
        outbox.begin(session.producer, records, known=False)
        outbox.verified_epoch = leader_epoch if leader_epoch >= 0 else None
        # The sessions before it are looked up again before its first batch (rule R3), or the end of the target is.
        is_unsettled = cursor.partition in self._sessions.unsettled
        outbox.is_unverified = (bool(session.after) and not records) or is_unsettled
        return True
