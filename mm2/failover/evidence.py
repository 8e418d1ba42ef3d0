"""What a verb found, did and could not do: plain data, for people and for programs. Pure.

Offsets are the next to be done; None is what nobody knows. Times are milliseconds since the epoch.
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


class Found(StrEnum):
    """By what a group's place on the target was found."""

    EXACT = "segments"  # of the ledger: nothing is skipped, nothing read again
    CONSERVATIVE = "conservative"  # offset syncs, or the edge of a segment: nothing is skipped, some may be read again
    CHECKPOINT = "checkpoint"  # nothing better was found than what had been told before
    NOTHING = "nothing"


class Outcome(StrEnum):
    """What became of a group's offset in a partition of the target."""

    WRITTEN = "written"  # and read back
    TO_WRITE = "to be written"  # were this not a dry run
    THERE = "there already"
    AHEAD = "ahead"  # the group has gone on there, and is not rewound
    IN_USE = "in use"  # the group has members on the target
    UNTRANSLATED = "no place"
    FAILED = "failed"


#: Those that leave nothing to be done.
DONE = frozenset({Outcome.WRITTEN, Outcome.TO_WRITE, Outcome.THERE, Outcome.AHEAD})


@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """One source partition. ``end`` is the source's, now, or when it does not answer as of ``end_ms`` (None: unknown). ``target_offset`` lies behind the last record
    of this flow on the target (and behind the marker of its transaction), which ends at ``target_end``.

    ``unmarked`` records lie on the target behind what the ledger says, and are counted in ``target_offset``. ``untold`` is why a
    source that answers does not say where this one ends; "" also where its topic is gone there.
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
    untold: str = ""

    @property
    def source(self) -> TopicPartition:
        """On the source."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """On the target."""
        return TopicPartition(self.remote_topic, self.partition)

    @property
    def missing(self) -> int | None:
        """Source offsets, up to ``end``, that are not on the target."""
        return None if self.end is None else max(0, self.end - self.copied - self.unmarked)

    @property
    def others(self) -> int | None:
        """Offsets of the target behind the last record of this flow: whoever else has written."""
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
            "source_end_trouble": self.untold,
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
    """A group in one partition. ``source_offset`` is its commit on the source, as told by the source or by its last
    checkpoint (``told_by``). ``before`` and ``after`` are what is committed on the target."""

    group: str
    topic: str
    partition: int
    remote_topic: str
    source_offset: int
    told_by: str
    translated: int | None = None
    found: Found = Found.NOTHING
    before: int | None = None
    after: int | None = None
    outcome: Outcome = Outcome.UNTRANSLATED
    reason: str = ""

    @property
    def target(self) -> TopicPartition:
        """On the target."""
        return TopicPartition(self.remote_topic, self.partition)

    def to_json(self) -> dict[str, Any]:
        return {
            "group": self.group,
            "topic": self.topic,
            "partition": self.partition,
            "remote_topic": self.remote_topic,
            "source_offset": self.source_offset,
            "told_by": self.told_by,
            "translated": self.translated,
            "found_by": str(self.found),
            "offset_before": self.before,
            "offset_after": self.after,
            "outcome": str(self.outcome),
            "reason": self.reason,
        }


@dataclass(frozen=True, slots=True)
class StartEvidence:
    """Where the flow the other way begins with a partition, and what its source offset was before."""

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
class Report:
    """Of one verb on one flow. ``source_trouble`` says why the source did not answer; ``last_sign_ms`` is the newest sign of
    it on the target. ``done``, ``problems`` (what could not be done) and ``advice`` (what is to be done next) are sentences."""

    verb: str
    flow: str
    dry_run: bool
    at_ms: int
    source_trouble: str = ""
    last_sign_ms: int | None = None
    partitions: Sequence[PartitionEvidence] = ()
    groups: Sequence[GroupEvidence] = ()
    starts: Sequence[StartEvidence] = ()
    acls: Sequence[str] = ()
    done: Sequence[str] = ()
    problems: Sequence[str] = ()
    advice: Sequence[str] = ()

    @property
    def is_well(self) -> bool:
        """Everything was done, and seen to be."""
        return not self.problems

    @property
    def missing(self) -> int | None:
        """Source offsets that are known to be on the source only; None while that is not known of every partition."""
        return None if self.unseen else self.missing_at_least

    @property
    def missing_at_least(self) -> int:
        """Of the partitions whose end on the source is known."""
        return sum(one.missing or 0 for one in self.partitions)

    @property
    def unseen(self) -> list[TopicPartition]:
        """Partitions of which nobody knows where they end on the source."""
        return [one.source for one in self.partitions if one.end is None]

    @property
    def silent_s(self) -> float | None:
        """Seconds since the newest sign of a source that does not answer: what it took since then is not known to anybody here."""
        if not self.source_trouble or self.last_sign_ms is None:
            return None
        return max(0.0, (self.at_ms - self.last_sign_ms) / 1000)

    def to_json(self) -> dict[str, Any]:
        return {
            "verb": self.verb,
            "flow": self.flow,
            "dry_run": self.dry_run,
            "at_ms": self.at_ms,
            "source_answers": not self.source_trouble,
            "source_trouble": self.source_trouble,
            "last_sign_of_source_ms": self.last_sign_ms,
            "seconds_at_risk": self.silent_s,
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
