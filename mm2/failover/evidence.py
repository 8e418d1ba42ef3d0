"""The report of a command: its findings, its changes and its failures, as plain data. Pure.

Offsets are those of the next record; None is unknown. Times are milliseconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from mm2.codec import stored, written_as
from mm2.evidence import counted
from mm2.kafka.structs import TopicPartition
from mm2.mirror.notes.kept_records import ForeignRun
from mm2.reasons import WayBackCode


@dataclass(frozen=True, slots=True)
class RecordCount:
    """A number of records from ``least`` to ``most``; None: without a known maximum."""

    least: int
    most: int | None

    @property
    def exact(self) -> int | None:
        """The number; None if it is not known exactly."""
        return self.least if self.least == self.most else None

    def __add__(self, other: RecordCount) -> RecordCount:
        most = None if self.most is None or other.most is None else self.most + other.most
        return RecordCount(self.least + other.least, most)

    def __bool__(self) -> bool:
        """Whether there are some, or may be some up to a known maximum."""
        return bool(self.least or self.most)

    def __str__(self) -> str:
        if self.most is None:
            return f"at least {self.least:,}"
        if self.least == self.most:
            return f"{self.least:,}"
        return f"{self.least:,} to {self.most:,}" if self.least else f"at most {self.most:,}"

    def of(self, thing: str) -> str:
        """``1 record``, ``at most 10 records``, ``3 to 10 records``."""
        return f"{self} {thing}{'' if self.exact == 1 else 's'}"


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
class SourceTail:
    """What the source has after the records on the target, counted up to source offset ``read_to``.

    ``first`` is the source offset after the last record that is on the target. ``missing`` records are to be copied,
    ``dropped`` are not, by the transformations of the flow. ``note`` is why it was not counted further.
    """

    first: int
    missing: int
    dropped: int
    read_to: int
    note: str = ""


@dataclass(frozen=True, slots=True)
class OtherLog:
    """The source partition has another log than the one that was copied, which starts at ``start``; ``reason`` is a message.

    ``is_new``: nothing of it was copied, since the topic was deleted and created again. Otherwise it was truncated, or which records of
    it were copied is not known.
    """

    start: int
    is_new: bool
    reason: str


@written_as(
    "topic partition remote_topic copied_up_to=copied source_end=end source_end_known_at_ms=end_ms "
    "source_end_trouble=end_error source_log_trouble=other_log_reason target_trouble=target_error "
    "deleted_on_source=is_gone missing=missing.exact missing_at_least=missing.least missing_at_most=missing.most "
    "to_be_dropped=dropped target_offset target_end others foreign_on_source foreign_on_target unmarked state note"
)
@dataclass(frozen=True, slots=True)
class PartitionEvidence:
    """One source partition.

    - ``end``: the source's log end offset; None: unknown. Unless the source returned it now (``is_end_current``), it is the last known
      one, as of ``end_ms`` (None: a time that is not known).
    - ``target_offset``: the offset on the target after the last record of this flow, and after the marker of its
      transaction.
    - ``target_end``: the target's log end offset.
    - ``unmarked``: records on the target that the ledger does not contain yet; included in ``target_offset``.
    - ``end_error``: why a reachable source did not return the end offset; also "" if the topic no longer exists there.
    - ``target_error``: why the target does not have, or may not have, all records that the ledger counts as copied.
    - ``is_gone``: the source has deleted the partition. ``is_remote_gone``: the target has.
    - ``is_changed``: the flow has transformations or converters, so not each source offset needs a record on the target.
    - ``other_log``: why the positions of the ledger are not those of the source's log.
    - ``tail``: what the source has after the records on the target, if it was counted.
    - ``foreign_on_source``, ``foreign_on_target``: records of other producers before ``copied``, and before ``target_offset``, that no
      flow copies (`mm2.failover.records.foreign`), without those that were kept before.
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
    target_error: str = ""
    is_end_current: bool = True
    is_gone: bool = False
    is_remote_gone: bool = False
    is_changed: bool = False
    other_log: OtherLog | None = None
    tail: SourceTail | None = None
    foreign_on_source: tuple[ForeignRun, ...] = ()
    foreign_on_target: tuple[ForeignRun, ...] = ()

    @property
    def source(self) -> TopicPartition:
        """The partition on the source."""
        return TopicPartition(self.topic, self.partition)

    @property
    def target(self) -> TopicPartition:
        """The partition on the target."""
        return TopicPartition(self.remote_topic, self.partition)

    @property
    def uncopied(self) -> int | None:
        """The maximum number of source offsets before ``end`` that are not on the target; None: unknown."""
        if self.is_gone:
            return 0
        return None if self.end is None else max(0, self.end - self._copied_up_to)

    @property
    def _copied_up_to(self) -> int:
        """The source offset before which all records are certainly on the target, or were deleted."""
        return self.copied + self.unmarked if self.other_log is None else self.other_log.start

    @property
    def is_never_copied(self) -> bool:
        """Whether the flow copies nothing of the topic, since the opposite flow does, and the source has records that came from neither."""
        return self.target_offset is None and bool(self.foreign_on_source)

    @property
    def missing(self) -> RecordCount:
        """The records that are on the source only: `missing_after`, and those of other producers before the position."""
        foreign = sum(run.records for run in self.foreign_on_source)
        return self.missing_after + RecordCount(foreign, foreign)

    @property
    def missing_after(self) -> RecordCount:
        """The records of the source that are not on the target and would be copied.

        Only offsets that were counted on the source are known to have a record for the target. Without transformations, all offsets
        before ``end`` count as records where they were not read. There is no maximum if ``end`` is not the current one, since the
        source may have received more, nor if the target has lost records. What the source has deleted is not missing.
        """
        uncopied, tail = self.uncopied, self.tail
        if self.is_gone:
            return RecordCount(0, None if self.target_error else 0)
        if self.other_log is not None and not self.other_log.is_new:
            after = max(0, (self.end or 0) - max(self.other_log.start, self.copied + self.unmarked))
            return RecordCount(0 if self.is_changed else after, uncopied if self.is_end_current else None)
        if not self.is_end_current or self.target_error:
            return RecordCount(0 if self.is_changed else uncopied or 0, None)
        if not uncopied:
            return RecordCount(0, uncopied)
        if tail is None:
            return RecordCount(0 if self.is_changed else uncopied, uncopied)
        return RecordCount(tail.missing, min(uncopied, tail.missing + (self.end or 0) - tail.read_to))

    @property
    def next_offset(self) -> int:
        """The source offset after the last record that is known to be on the target."""
        return self._copied_up_to if self.tail is None else self.tail.first

    @property
    def tail_note(self) -> str:
        """Why the missing records were not counted completely."""
        return "" if self.tail is None else self.tail.note

    @property
    def missing_note(self) -> str:
        """What to know of the number of missing records."""
        if self.foreign_on_source and not self.missing_after:
            return f"not copied: {self.foreign_on_source[0]}, which came neither from the target nor are copied to it"
        return self.tail_note if self.other_log is None else self.other_log_reason

    @property
    def others(self) -> int | None:
        """The number of target offsets after the last record of this flow, written by other clients."""
        if self.target_end is None or self.target_offset is None:
            return None
        return max(0, self.target_end - self.target_offset)

    @property
    def dropped(self) -> int | None:
        """The records after ``next_offset`` that the flow will not copy; None: not counted."""
        if not self.is_changed or not self.uncopied:
            return 0
        is_counted = self.tail is not None and self.missing_after.exact is not None
        return self.tail.dropped if is_counted and self.tail is not None else None

    @property
    def other_log_reason(self) -> str:
        """Why the positions of the ledger are not those of the source's log; "" if they are."""
        return "" if self.other_log is None else self.other_log.reason


def target_problems(target: str, partitions: Iterable[PartitionEvidence]) -> list[str]:
    """What the target has lost, as problems."""
    lost = [one for one in partitions if one.target_error]
    if not lost:
        return []
    where = f"{counted(len(lost), 'partition')}, first {lost[0].source}: {lost[0].target_error}"
    return [f"{target} does not have all records that were copied to it, in {where}"]


def missing_records(partitions: Iterable[PartitionEvidence]) -> RecordCount:
    """The records of these partitions that are on the source only."""
    return sum((one.missing for one in partitions), RecordCount(0, 0))


@dataclass(frozen=True, slots=True)
class GroupEvidence:
    """A group in one partition.

    ``source_offset`` is its committed offset on the source, from the source or its last checkpoint (``offset_source``), ``metadata`` that
    of the commit.
    ``before`` and ``after`` are the committed offsets on the target.
    """

    group: str
    topic: str
    partition: int
    remote_topic: str
    source_offset: int
    offset_source: str = field(metadata=stored("told_by"))
    translated: int | None = None
    found: FoundBy = field(default=FoundBy.NOTHING, metadata=stored("found_by"))
    before: int | None = field(default=None, metadata=stored("offset_before"))
    after: int | None = field(default=None, metadata=stored("offset_after"))
    outcome: Outcome = Outcome.UNTRANSLATED
    reason: str = ""
    metadata: str = field(default="", metadata=stored(is_left_out=True))

    @property
    def target(self) -> TopicPartition:
        """The partition on the target."""
        return TopicPartition(self.remote_topic, self.partition)


@dataclass(frozen=True, slots=True)
class StartEvidence:
    """The offset at which the opposite flow starts in a partition, and its previous source offset."""

    topic: str
    partition: int
    offset: int
    before: int | None = field(metadata=stored("offset_before"))
    verified: bool


@written_as(
    "verb flow dry_run at_ms source_answers source_trouble=source_error last_sign_of_source_ms=last_contact_ms "
    "seconds_at_risk records_at_risk=missing.exact records_at_risk_at_least=missing.least "
    "records_at_risk_at_most=missing.most partitions groups starts acls divergent notes done problems advice way_back "
    "well=is_well"
)
@dataclass(frozen=True)
class FailoverReport:
    """The report of one command on one flow.

    ``source_error`` is why the source did not answer; ``last_contact_ms`` is the time of the newest data from it on the
    target. ``divergent``: ranges of offsets at which the clusters have other records although offsets are preserved
    (`mm2.failover.records.divergence`). ``notes`` (what to know of the figures), ``done``, ``problems`` (what failed) and ``advice`` (next
    steps) are messages. ``way_back``: by topic, whether the flow in the opposite direction copies it.
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
    divergent: Sequence[Mapping[str, Any]] = ()
    notes: Sequence[str] = ()
    done: Sequence[str] = ()
    problems: Sequence[str] = ()
    advice: Sequence[str] = ()
    way_back: Mapping[str, WayBackCode] = field(default_factory=dict)

    @property
    def source_answers(self) -> bool:
        """Whether the source has answered."""
        return not self.source_error

    @property
    def is_well(self) -> bool:
        """Whether everything was done and verified."""
        return not self.problems

    @property
    def missing(self) -> RecordCount:
        """Records that are on the source only. No maximum if a current end offset of the source is unknown."""
        return missing_records(self.partitions)

    @property
    def unknown_ends(self) -> list[TopicPartition]:
        """Partitions whose end on the source is unknown."""
        return [one.source for one in self.partitions if one.end is None and not one.is_gone]

    @property
    def seconds_at_risk(self) -> float | None:
        """Seconds since the newest data of an unreachable source; records that it accepted later are unknown."""
        if not self.source_error or self.last_contact_ms is None:
            return None
        return max(0.0, (self.at_ms - self.last_contact_ms) / 1000)
