"""The findings of a comparison: differences by kind, and explained offsets. Plain data. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from mm2.codec import stored


class DifferenceKind(StrEnum):
    """The kinds of difference."""

    MISSING = "missing"  # on the source, not on the target
    DOUBLED = "doubled"  # on the target once more than in the ledger
    SWAPPED = "swapped"  # on the target, but not in the order of the source
    EXTRA = "extra"  # on the target only
    ALTERED_KEY = "altered key"
    ALTERED_VALUE = "altered value"
    ALTERED_HEADERS = "altered headers"
    ALTERED_TIMESTAMP = "altered timestamp"
    # At another target offset than in the ledger, so offsets of groups are translated incorrectly.
    DISPLACED = "displaced"


class Explained(StrEnum):
    """Why records need not be on both sides, in addition to the reasons of the ledger's gaps."""

    SOURCE_COMPACTED = "compacted on the source since"
    TARGET_COMPACTED = "compacted on the target"
    # Records that the ledger does not contain: where they were is not known, only that as many offsets are missing.
    PERHAPS_SOURCE_COMPACTED = "perhaps compacted on the source"
    PERHAPS_TARGET_COMPACTED = "perhaps compacted on the target"
    REPEATED = "copied again after another program had stopped"
    SOURCE_DELETED = "deleted on the source since"
    TARGET_DELETED = "deleted on the target"
    SOURCE_TRUNCATED = "of a source log that was cut off"
    BEFORE = "before the copy began"
    PENDING = "not copied yet"
    TARGET_TIMESTAMPS = "timestamps by the target (LogAppendTime)"


#: The number of differences that one comparison lists; all are counted.
LISTED: Final = 1000


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference of ``records`` consecutive records. The first has these offsets; None if it is not on that side."""

    kind: DifferenceKind
    source: int | None = field(metadata=stored("source_offset"))
    target: int | None = field(metadata=stored("target_offset"))
    records: int = 1
    detail: str = ""

    @property
    def sort_key(self) -> int:
        """The source offset if there is one, else the target offset."""
        return self.source if self.source is not None else -1 if self.target is None else self.target

    def is_followed_by(self, following: Difference) -> bool:
        """Whether both are adjacent, on the sides where they have offsets."""
        if self.kind != following.kind or self.detail != following.detail:
            return False
        pairs = ((self.source, following.source), (self.target, following.target))
        return all(
            one is other is None or (one is not None and other is not None and other == one + self.records)
            for one, other in pairs
        )


@dataclass(slots=True)
class Findings:
    """The findings of one range.

    ``records`` of the source were found on the target; ``source_records`` and ``target_records`` were read. ``bytes``
    are those received from both sides, compressed. ``first_mismatch`` is the source offset at which a comparison without
    details has stopped, None if it was completed. ``counts`` are records by kind; ``explained`` are offsets by reason.
    ``first_difference`` is the first source offset with a difference.
    """

    records: int = 0
    source_records: int = 0
    target_records: int = 0
    bytes: int = 0
    first_mismatch: int | None = None
    first_difference: int | None = None
    counts: dict[str, int] = field(default_factory=dict)
    explained: dict[str, int] = field(default_factory=dict)
    differences: list[Difference] = field(default_factory=list)

    @property
    def is_equal(self) -> bool:
        """Whether there are no differences."""
        return self.first_mismatch is None and not self.counts

    def differ(self, difference: Difference, before: int | None = None) -> None:
        """Count a difference and list it, merged with an adjacent one of its kind.

        ``before`` is a source offset nearby.
        """
        self.counts[difference.kind] = self.counts.get(difference.kind, 0) + difference.records
        offset = difference.source if difference.source is not None else before
        if offset is not None:
            self.first_difference = offset if self.first_difference is None else min(self.first_difference, offset)
        last = self.differences[-1] if self.differences else None
        if last is not None and last.is_followed_by(difference):
            self.differences[-1] = replace(last, records=last.records + difference.records)
        elif len(self.differences) < LISTED:
            self.differences.append(difference)

    def explain(self, reason: str, offsets: int = 1) -> None:
        """Count offsets that are explained."""
        if offsets > 0:
            self.explained[reason] = self.explained.get(reason, 0) + offsets

    def add(self, other: Findings) -> None:
        """Add those of another range, which follows this one."""
        self.records += other.records
        self.source_records += other.source_records
        self.target_records += other.target_records
        self.bytes += other.bytes
        self.first_mismatch = other.first_mismatch if self.first_mismatch is None else self.first_mismatch
        if other.first_difference is not None:
            self.first_difference = (
                other.first_difference
                if self.first_difference is None
                else min(self.first_difference, other.first_difference)
            )
        for mine, others in ((self.counts, other.counts), (self.explained, other.explained)):
            for name, count in others.items():
                mine[name] = mine.get(name, 0) + count
        self.differences += other.differences[: LISTED - len(self.differences)]
