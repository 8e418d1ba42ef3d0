"""The copy session of each partition of a micro-batch, and whether a predecessor's session continues."""

from __future__ import annotations

from mm2.copy.session import LedgerEntry, Mark, Session, rules_of
from mm2.copy.spec import CopySpec
from mm2.kafka.structs import TopicPartition


class SessionTable:
    """State that opening, continuing and committing share.

    ``rules`` are those of new sessions. ``current`` has the session of each partition; none while positions do not
    depend on one. ``marks`` are those of the ledger, of partitions whose position was not moved since.
    """

    def __init__(self, spec: CopySpec) -> None:
        self.rules = rules_of(read_committed=spec.read_committed)
        self.current: dict[TopicPartition, Session] = {}
        self.marks: dict[TopicPartition, Mark] = {}
        self._with_sessions = spec.with_sessions

    def has_other_rules(self, entry: LedgerEntry) -> bool:
        """Whether the count of a session includes other records than this job copies."""
        return entry.session is not None and entry.session.rules not in ("", self.rules)

    def is_to_end(self, entry: LedgerEntry) -> bool:
        """Whether the records of a session are only skipped, and copying then continues differently."""
        return self.has_other_rules(entry) or not self._with_sessions
