"""The report of a command: its findings, its changes and its failures, as plain data. Pure.

Offsets are those of the next record; None is unknown. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mm2.kafka.structs import TopicPartition


def counted(count: int, thing: str) -> str:
    """``1 record``, ``1,200 records``."""
    return f"{count:,} {thing}" if count == 1 else f"{count:,} {thing}s"


class FoundBy(StrEnum):
    """The method by which a group's offset on the target was found."""

    EXACT = "segments"  # of the ledger: no record is skipped or read again
    CONSERVATIVE = "conservative"  # offset syncs, or the edge of a segment: no record is skipped, some may be re-read
    CHECKPOINT = "checkpoint"  # no better result than the last checkpoint
    NOTHING = "nothing"


class Outcome(StrEnum):
    """The result for a group's offset in a partition of the target."""

    WRITTEN = "written"  # and verified
    TO_WRITE = "to be written"  # in a dry run
    ALREADY_COMMITTED = "there already"  # the same offset
    AHEAD = "ahead"  # the group is further ahead there, and is not rewound
    IN_USE = "in use"  # the group has members on the target
    UNTRANSLATED = "no place"
    FAILED = "failed"


#: Outcomes that require no further action.
DONE = frozenset({Outcome.WRITTEN, Outcome.TO_WRITE, Outcome.ALREADY_COMMITTED, Outcome.AHEAD})


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """One source partition.

    - ``end``: the source's log end offset; as of ``end_ms`` if the source does not answer (None: unknown).
    - ``target_offset``: the offset on the target after the last record of this flow, and after the marker of its
      transaction.
    - ``target_end``: the target's log end offset.
    - ``unmarked``: records on the target that the ledger does not contain yet; included in ``target_offset``.
    - ``end_error``: why a reachable source did not return the end offset; also "" if the topic no longer exists there.
    """

    topic: str
    partition: int
    remote_topic: str
    copied: int
    target_offset: int | None
    end: int | None = None
    end_ms: int | None = None
    target_end: int | None = None
    unmarked: int = 0
    state: str = ""
    note: str = ""
    end_error: str = ""

    @property
    def source(self) -> TopicPartition:
        """The partition on the source."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """The partition on the target."""
        return TopicPartition(self.remote_topic, self.partition)

    @property
    def missing(self) -> int | None:
        """The number of source offsets before ``end`` that are not on the target."""
        return None if self.end is None else max(0, self.end - self.copied - self.unmarked)

    @property
    def others(self) -> int | None:
        """The number of target offsets after the last record of this flow, written by other clients."""
        if self.target_end is None or self.target_offset is None:
            return None
        return max(0, self.target_end - self.target_offset)

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "remote_topic": self.remote_topic,
            "copied_up_to": self.copied,
            "source_end": self.end,
            "source_end_known_at_ms": self.end_ms,
            "source_end_trouble": self.end_error,
            "missing": self.missing,
            "target_offset": self.target_offset,
            "target_end": self.target_end,
            "others": self.others,
            "unmarked": self.unmarked,
            "state": self.state,
            "note": self.note,
        }


@dataclass(frozen=True, slots=True)
class GroupEvidence:
    """A group in one partition.

    ``source_offset`` is its committed offset on the source, from the source or its last checkpoint (``offset_source``).
    ``before`` and ``after`` are the committed offsets on the target.
    """

    group: str
    topic: str
    partition: int
    remote_topic: str
    source_offset: int
    offset_source: str
    translated: int | None = None
    found: FoundBy = FoundBy.NOTHING
    before: int | None = None
    after: int | None = None
    outcome: Outcome = Outcome.UNTRANSLATED
    reason: str = ""

    @property
    def target(self) -> TopicPartition:
        """The partition on the target."""
        return TopicPartition(self.remote_topic, self.partition)

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "topic": self.topic,
            "partition": self.partition,
            "remote_topic": self.remote_topic,
            "source_offset": self.source_offset,
            "told_by": self.offset_source,
            "translated": self.translated,
            "found_by": str(self.found),
            "offset_before": self.before,
            "offset_after": self.after,
            "outcome": str(self.outcome),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class StartEvidence:
    """The offset at which the opposite flow starts in a partition, and its previous source offset."""

    topic: str
    partition: int
    offset: int
    before: int | None
    verified: bool

    def to_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "offset": self.offset,
            "offset_before": self.before,
            "verified": self.verified,
        }


@dataclass(frozen=True)
class FailoverReport:
    """The report of one command on one flow.

    ``source_error`` is why the source did not answer; ``last_contact_ms`` is the time of the newest data from it on the
    target. ``done``, ``problems`` (what failed) and ``advice`` (next steps) are messages.
    """

    verb: str
    flow: str
    dry_run: bool
    at_ms: int
    source_error: str = ""
    last_contact_ms: int | None = None
    partitions: Sequence[PartitionEvidence] = ()
    groups: Sequence[GroupEvidence] = ()
    starts: Sequence[StartEvidence] = ()
    acls: Sequence[str] = ()
    done: Sequence[str] = ()
    problems: Sequence[str] = ()
    advice: Sequence[str] = ()

    @property
    def is_well(self) -> bool:
        """Whether everything was done and verified."""
        return not self.problems

    @property
    def missing(self) -> int | None:
        """Source offsets that are on the source only; None if this is not known for all partitions."""
        return None if self.unknown_ends else self.missing_at_least

    @property
    def missing_at_least(self) -> int:
        """The same, for the partitions whose end on the source is known."""
        return sum(one.missing or 0 for one in self.partitions)

    @property
    def unknown_ends(self) -> list[TopicPartition]:
        """Partitions whose end on the source is unknown."""
        return [one.source for one in self.partitions if one.end is None]

    @property
    def seconds_at_risk(self) -> float | None:
        """Seconds since the newest data of an unreachable source; records that it accepted later are unknown."""
        if not self.source_error or self.last_contact_ms is None:
            return None
        return max(0.0, (self.at_ms - self.last_contact_ms) / 1000)

    def to_json(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "flow": self.flow,
            "dry_run": self.dry_run,
            "at_ms": self.at_ms,
            "source_answers": not self.source_error,
            "source_trouble": self.source_error,
            "last_sign_of_source_ms": self.last_contact_ms,
            "seconds_at_risk": self.seconds_at_risk,
            "records_at_risk": self.missing,
            "records_at_risk_at_least": self.missing_at_least,
            "partitions": [one.to_json() for one in self.partitions],
            "groups": [one.to_json() for one in self.groups],
            "starts": [one.to_json() for one in self.starts],
            "acls": list(self.acls),
            "done": list(self.done),
            "problems": list(self.problems),
            "advice": list(self.advice),
            "well": self.is_well,
        }
