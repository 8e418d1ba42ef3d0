"""What came of a verification, partition by partition: plain data, and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Self

from mm2.copy.ledger import Verified
from mm2.kafka.structs import TopicPartition
from mm2.verify.findings import Difference, Findings
from mm2.verify.planning import Certainty, PartitionPlan


class Verdict(StrEnum):
    """The best first."""

    EQUAL = "equal"  # all that is not on both sides is explained
    DIFFERENT = "different"
    TROUBLE = "trouble"  # it could not be compared, or not to the end


@dataclass(frozen=True, slots=True)
class PartitionReport:
    """One partition. ``first``..``after - 1`` are the source offsets that were compared, ``records`` those found on both sides;
    ``explained`` are offsets by reason, ``counts`` records by kind of difference, of which ``differences`` lists the first. ``before``
    is what was known already, where this has gone on from there."""

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
    trouble: str = ""
    spoiled: int | None = None
    source_id: str = ""
    target_id: str = ""
    target_after: int = -1
    before: Verified | None = None

    @classmethod
    def of(cls, plan: PartitionPlan, findings: Findings) -> Self:
        """Plan and findings together."""
        explained = dict(plan.explained)
        for reason, count in findings.explained.items():
            explained[reason] = explained.get(reason, 0) + count
        verdict = Verdict.DIFFERENT if findings.counts else Verdict.TROUBLE if plan.trouble else Verdict.EQUAL
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
            explained,
            dict(findings.counts),
            tuple(findings.differences),
            tuple(plan.notes),
            plan.trouble,
            findings.spoiled,
            plan.source_id,
            plan.target_id,
            plan.target_after,
            plan.before,
        )

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)

    def verified(self, at_ms: int) -> Verified | None:
        """What the ledger is to say of it, together with what was found ``before``, if this has gone on from there. A flow that was
        sent back takes the number with it. None: nothing new, or nothing that holds: what is told by content alone has no
        certain end."""
        before = self.before
        if self.trouble or self.certainty is not Certainty.LEDGER:
            return None
        if before is not None and (before.checked, before.target) == (self.after, self.target_after):
            return None
        reached = self.after if self.spoiled is None else min(self.after, self.spoiled)
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

    def to_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "topic": self.topic,
            "partition": self.partition,
            "remote_topic": self.remote_topic,
            "verdict": str(self.verdict),
            "first_offset": self.first,
            "last_offset": self.after - 1 if self.after > self.first else None,
            "certainty": str(self.certainty),
            "records": self.records,
            "source_records": self.source_records,
            "target_records": self.target_records,
            "bytes_read": self.bytes,
            "explained": dict(sorted(self.explained.items())),
            "differences": dict(sorted(self.counts.items())),
            "listed": [difference.to_json() for difference in self.differences],
            "notes": list(self.notes),
            "trouble": self.trouble,
        }


@dataclass(frozen=True, slots=True)
class Report:
    """Of a flow ``A->B``. ``ranges`` is how many pieces the work was cut into, times are milliseconds since the epoch."""

    flow: str
    began_ms: int
    ended_ms: int
    ranges: int
    partitions: tuple[PartitionReport, ...]
    is_everything: bool = True

    @property
    def verdict(self) -> Verdict:
        """The worst: a difference that is known weighs more than a question that could not be answered."""
        verdicts = {partition.verdict for partition in self.partitions}
        return next((worst for worst in (Verdict.DIFFERENT, Verdict.TROUBLE) if worst in verdicts), Verdict.EQUAL)

    @property
    def seconds(self) -> float:
        """How long it took."""
        return (self.ended_ms - self.began_ms) / 1000

    @property
    def records(self) -> int:
        """Found on both sides."""
        return sum(partition.records for partition in self.partitions)

    @property
    def bytes(self) -> int:
        """Read from both sides together."""
        return sum(partition.bytes for partition in self.partitions)

    @property
    def explained(self) -> dict[str, int]:
        """Offsets by reason."""
        return _sum(partition.explained for partition in self.partitions)

    @property
    def counts(self) -> dict[str, int]:
        """Records by kind of difference."""
        return _sum(partition.counts for partition in self.partitions)

    def to_json(self) -> dict[str, Any]:
        """For programs; the shape is in docs/VERIFY.md."""
        return {
            "flow": self.flow,
            "verdict": str(self.verdict),
            "began": moment(self.began_ms),
            "seconds": round(self.seconds, 1),
            "everything": self.is_everything,
            "ranges": self.ranges,
            "records": self.records,
            "bytes_read": self.bytes,
            "explained": self.explained,
            "differences": self.counts,
            "partitions": [partition.to_json() for partition in self.partitions],
        }


def moment(at_ms: int) -> str:
    """A time for people."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _sum(counts: Any) -> dict[str, int]:
    total: dict[str, int] = {}
    for one in counts:
        for name, count in one.items():
            total[name] = total.get(name, 0) + count
    return dict(sorted(total.items()))
