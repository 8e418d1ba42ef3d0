"""The copy session of each partition of a micro-batch, and whether a predecessor's session continues."""

from __future__ import annotations

import dataclasses
from typing import Final, NamedTuple

from mm2.copy.changes import Changer
from mm2.copy.progress.segments import Gap
from mm2.copy.progress.session import EndedSession, LedgerEntry, Mark, Rules, Session
from mm2.copy.spec import CopySpec
from mm2.kafka.structs import ProducerIdentity, TopicPartition

_ENDED_KEPT: Final = 8


class Ending(NamedTuple):
    """Sessions that a new one replaces, oldest first: the rules have changed, or the source has (rule S9). ``end`` is the log
    end of the target up to which they were counted, in this leader epoch. There are none where the target has lost more than
    the session. ``successor`` is the producer of the new session; None: a new one.
    """

    sessions: tuple[EndedSession, ...] = ()
    end: int = -1
    leader_epoch: int = -1
    successor: ProducerIdentity | None = None


class SessionTable:
    """State that opening, continuing and committing share.

    ``rules`` are those of new sessions, ``changes`` what they do to records (None: nothing). ``current`` has the session of each partition; none while positions do not
    depend on one. ``marks`` are those of the ledger, of partitions whose position was not moved since. ``ending`` are
    those that are being replaced. Of partitions with preserved offsets, before they are opened, ``new`` are those without an
    entry in the ledger, ``unproven`` those of which it does not show that this flow has written the target in this mode, and
    ``set_by_user`` those whose position a user has set; ``committed`` are positions of unproven ones. ``leading_gaps`` has the source
    offsets before which their gaps are no loss,
    because copying began there. ``unsettled`` are those on which requests of a session that ends may be unanswered.
    ``moved_from`` has the ledger's entries of partitions whose position is another one, until they are opened, and ``passed_over``
    the source offsets that a later position leaves out, with the reasons.
    """

    def __init__(self, spec: CopySpec, changes: Changer | None = None) -> None:
        self.rules = Rules(spec.read_committed, "" if spec.changes is None else spec.changes.digest)
        self.changes = changes
        self.current: dict[TopicPartition, Session] = {}
        self.marks: dict[TopicPartition, Mark] = {}
        self.ending: dict[TopicPartition, Ending] = {}
        self.new: set[TopicPartition] = set()
        self.unproven: set[TopicPartition] = set()
        self.set_by_user: set[TopicPartition] = set()
        self.committed: dict[TopicPartition, int] = {}
        self.leading_gaps: dict[TopicPartition, int] = {}
        self.unsettled: set[TopicPartition] = set()
        self.moved_from: dict[TopicPartition, LedgerEntry] = {}
        self.passed_over: dict[TopicPartition, list[Gap]] = {}
        self._remote_topics = {part.source: part.remote_topic for part in spec.partitions}
        self._with_sessions = spec.with_sessions
        self._not_repeatable = "" if spec.changes is None else spec.changes.not_repeatable

    def rules_of(self, session: Session | EndedSession) -> Rules | None:
        """The rules of a predecessor's session; None if they are of an unknown version."""
        return Rules.parse(session.rules) if session.rules else self.rules._replace(changes="")

    def why_not_counted(self, session: Session | EndedSession) -> str:
        """Why reading the source again does not show which records a session has copied; "": it does."""
        rules = self.rules_of(session)
        if rules is None:
            return f"a predecessor counted records under unknown rules ({session.rules})"
        if rules.changes not in ("", self.rules.changes):
            return "a predecessor copied records with transformations that are no longer configured"
        return self._not_repeatable if rules.changes else ""

    def has_other_rules(self, entry: LedgerEntry) -> bool:
        """Whether the count of a session includes other records than this job copies."""
        return entry.session is not None and self.rules_of(entry.session) != self.rules

    def has_former_topic(self, entry: LedgerEntry) -> bool:
        """Whether a partition was copied to a remote topic of another name: the replication policy or a router has changed."""
        return entry.remote_topic != self._remote_topics[entry.source]

    def is_to_end(self, entry: LedgerEntry) -> bool:
        """Whether the records of a session are only skipped, and copying then continues differently."""
        return self.has_other_rules(entry) or not self._with_sessions

    def is_current(self, partition: TopicPartition, session: Session) -> bool:
        """Whether no other session of the partition has been opened since."""
        current = self.current.get(partition)
        return current is not None and (current.producer, current.start) == (session.producer, session.start)

    def remember_leading_gap(self, partition: TopicPartition, session: Session) -> None:
        """Offsets are preserved, and this session may have begun with offsets that had to be filled before its first record."""
        self.leading_gaps.pop(partition, None)
        if session.start.source > session.start.target:
            self.leading_gaps[partition] = session.start.source

    def end(self, partition: TopicPartition, entry: LedgerEntry, end: int, leader_epoch: int) -> None:
        """A session that was counted up to this log end of the target ends at the entry's mark, or later (`end_at`)."""
        session = entry.session
        if session is not None:
            ended = EndedSession(session.producer, session.start, session.rules, entry.mark, entry.known_epoch)
            self.ending[partition] = Ending((*entry.ended_sessions, ended)[-_ENDED_KEPT:], end, leader_epoch)

    def end_at(self, partition: TopicPartition, mark: Mark) -> None:
        """The session that is to end does so at this mark."""
        if (ending := self.ending.get(partition)) is not None:
            *others, last = ending.sessions
            self.ending[partition] = ending._replace(sessions=(*others, last._replace(mark=mark)))

    def replace(self, partition: TopicPartition, mark: Mark, *, is_preserved: bool) -> None:
        """The current session ends at this mark, and a predecessor may have requests of it in flight (rule S9). The source is
        not the one that the predecessor has read, so records that appear later are compared by content.

        Where offsets are preserved, the next session starts where the target ends.
        """
        if is_preserved:
            self.unsettled.add(partition)
        session = self.current.get(partition)
        if session is not None:
            ended = EndedSession(session.producer, session.start, session.rules, mark)
            # Records that cannot be counted are copied at least once.
            is_counted = not self.why_not_counted(session)
            sessions = (*session.at(mark).after, ended)[-_ENDED_KEPT:] if is_counted else ()
            self.ending[partition] = Ending(sessions, -1 if is_preserved else mark.target, successor=session.successor)

    def forget_ended(self, partition: TopicPartition) -> None:
        """The position has been moved: records of ended sessions are no longer those from there on."""
        self.ending.pop(partition, None)
        if (session := self.current.get(partition)) is not None and session.after:
            self.current[partition] = dataclasses.replace(session, after=())
