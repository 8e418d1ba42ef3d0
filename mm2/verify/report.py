"""The result of a verification by partition: plain data, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Self

from mm2.codec import written_as
from mm2.copy.progress.ledger import Verified
from mm2.evidence import utc_time
from mm2.kafka.structs import TopicPartition
from mm2.verify.comparing.findings import Difference, Findings
from mm2.verify.planning import Certainty, PartitionPlan


class Verdict(StrEnum):
    """The verdict of a comparison, best first."""

    EQUAL = "equal"  # all records that are on one side only are explained
    DIFFERENT = "different"
    INCOMPLETE = "trouble"  # could not be compared completely


@written_as(
    "topic partition remote_topic verdict first_offset=first last_offset=last certainty records source_records "
    "target_records bytes_read=bytes explained differences=sorted_counts listed=differences notes trouble=error"
)
@dataclass(frozen=True, slots=True)
class PartitionReport:
    """The report of one partition.

    ``first``..``after - 1`` are the compared source offsets, ``records`` those found on both sides. ``explained`` are
    offsets by reason, ``counts`` records by kind of difference; ``differences`` lists the first ones. ``before`` is the
    earlier result from which this comparison has continued.
    """

    topic: str
    partition: int
    remote_topic: str
    verdict: Verdict
    first: int
    after: int
    certainty: Certainty
    records: int = 0
    source_records: int = 0
    target_records: int = 0
    bytes: int = 0
    explained: Mapping[str, int] = field(default_factory=dict)
    counts: Mapping[str, int] = field(default_factory=dict)
    differences: tuple[Difference, ...] = ()
    notes: tuple[str, ...] = ()
    error: str = ""
    first_difference: int | None = None
    source_id: str = ""
    target_id: str = ""
    target_after: int = -1
    before: Verified | None = None

    @classmethod
    def of(cls, plan: PartitionPlan, findings: Findings) -> Self:
        """Combine plan and findings."""
        explained = dict(plan.explained)
        for reason, count in findings.explained.items():
            explained[reason] = explained.get(reason, 0) + count
        verdict = Verdict.DIFFERENT if findings.counts else Verdict.INCOMPLETE if plan.error else Verdict.EQUAL
        return cls(
            plan.topic,
            plan.partition,
            plan.remote_topic,
            verdict,
            plan.first,
            plan.after,
            plan.certainty,
            findings.records,
            findings.source_records,
            findings.target_records,
            findings.bytes,
            dict(sorted(explained.items())),
            dict(findings.counts),
            tuple(findings.differences),
            tuple(plan.notes),
            plan.error,
            findings.first_difference,
            plan.source_id,
            plan.target_id,
            plan.target_after,
            plan.before,
        )

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)

    @property
    def is_uncertain(self) -> bool:
        """Whether records were compared although the ledger does not contain the partition."""
        return self.certainty is not Certainty.LEDGER and self.records > 0

    def verified(self, at_ms: int) -> Verified | None:
        """The result to store in the ledger, including the one ``before`` if this has continued from there.

        If the flow's position was reset, the verified offset decreases too. None if there is nothing new or certain: a
        comparison by content alone has no certain end.
        """
        before = self.before
        if self.error or self.certainty is not Certainty.LEDGER:
            return None
        if before is not None and (before.checked, before.target) == (self.after, self.target_after):
            return None
        reached = self.after if self.first_difference is None else min(self.after, self.first_difference)
        first, records, counts = self.first, self.records, dict(self.counts)
        if before is not None:
            if before.differences or before.offset < before.checked:
                reached = min(reached, before.offset)
            first, records = min(first, before.first), records + before.records
            counts = {
                kind: before.differences.get(kind, 0) + counts.get(kind, 0) for kind in {*before.differences, *counts}
            }
        return Verified(
            first, reached, self.after, at_ms, records, counts, self.source_id, self.target_id, self.target_after
        )

    @property
    def sorted_counts(self) -> dict[str, int]:
        """Records by kind of difference, in the order of the kinds."""
        return dict(sorted(self.counts.items()))

    @property
    def last(self) -> int | None:
        """The last compared source offset; None: none was."""
        return self.after - 1 if self.after > self.first else None


@written_as(
    "flow verdict began seconds=tenths everything=is_everything ranges changed_by not_repeatable records bytes_read=bytes "
    "explained differences=counts partitions"
)
@dataclass(frozen=True, slots=True)
class VerifyReport:
    """The report of a flow ``A->B``. ``ranges`` is the number of pieces compared, times are ms since the epoch.

    ``changed_by`` are the keys that change the flow's records: each record of the target was compared with what these make
    of the source's. ``not_repeatable`` names what may decide differently each time; "": nothing.
    ``deleted`` are the topics left out because both clusters have deleted them.
    """

    flow: str
    began_ms: int
    ended_ms: int
    ranges: int
    partitions: tuple[PartitionReport, ...]
    is_everything: bool = True
    changed_by: tuple[str, ...] = ()
    not_repeatable: str = ""
    deleted: frozenset[str] = frozenset()

    @property
    def verdict(self) -> Verdict:
        """The worst of all partitions: a known difference has priority over an incomplete comparison."""
        verdicts = {partition.verdict for partition in self.partitions}
        return next((worst for worst in (Verdict.DIFFERENT, Verdict.INCOMPLETE) if worst in verdicts), Verdict.EQUAL)

    @property
    def has_compared(self) -> bool:
        """Whether the verdict is that of records: without any, equality would show nothing."""
        return self.verdict is not Verdict.EQUAL or self.records > 0

    @property
    def seconds(self) -> float:
        """The duration."""
        return (self.ended_ms - self.began_ms) / 1000

    @property
    def tenths(self) -> float:
        """The duration in seconds, to a tenth."""
        return round(self.seconds, 1)

    @property
    def records(self) -> int:
        """Records found on both sides."""
        return sum(partition.records for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """Bytes read from both sides."""
        return sum(partition.bytes for partition in self.partitions)

    @property
    def explained(self) -> dict[str, int]:
        """Explained offsets by reason."""
        return _sum(partition.explained for partition in self.partitions)

    @property
    def counts(self) -> dict[str, int]:
        """Records by kind of difference."""
        return _sum(partition.counts for partition in self.partitions)

    @property
    def began(self) -> str:
        """When it began, as text."""
        return utc_time(self.began_ms)


def _sum(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
