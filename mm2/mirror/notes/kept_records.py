"""Records that are on one cluster only and that `mm2 failback --divergent keep` has left there, under identity naming. Pure.

Applications wrote them where the flow in the opposite direction was copying, or the source accepted them before it failed. The flow that
reads from their cluster starts after them, and has them as notes in its ledger, one for each partition. So they are reported as kept, not
found again as new by each command.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from mm2.codec import written_as
from mm2.copy.progress.ledger import Ledger, note_record
from mm2.copy.progress.translation import holes
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition

KEPT_NOTE: Final = "kept-records"


@written_as("first last records")
class ForeignRun(NamedTuple):
    """Records at offsets ``first .. after-1`` of a partition, which no flow copies."""

    first: int
    after: int
    records: int

    def __str__(self) -> str:
        return f"offset {self.first}" if self.first == self.last else f"offsets {self.first}-{self.last}"

    @property
    def last(self) -> int:
        """The last of the offsets."""
        return self.after - 1


@dataclass(frozen=True, slots=True)
class KeptRecords:
    """Those of one partition, and the id of its topic ("": not known); the runs are in order."""

    topic_id: str
    runs: tuple[ForeignRun, ...]

    def is_of(self, topic_id: str) -> bool:
        """Whether they are in the topic with this id, as far as known."""
        return not self.topic_id or not topic_id or self.topic_id == topic_id

    def at(self, offset: int) -> ForeignRun | None:
        """The run that has this offset."""
        return next((run for run in self.runs if run.first <= offset < run.after), None)


def kept_records(ledger: Ledger) -> dict[TopicPartition, KeptRecords]:
    """By source partition, from the ledger of the flow that does not copy them."""
    found = {}
    for name, value in ledger.notes(KEPT_NOTE).items():
        try:
            topic, partition = name
            runs = tuple(ForeignRun(*map(int, run)) for run in value["runs"])
            found[TopicPartition(topic, int(partition))] = KeptRecords(str(value["topic_id"]), runs)
        except (KeyError, TypeError, ValueError):
            continue  # written by another client: it is not known what was kept
    return found


def kept_here(ledger: Ledger) -> dict[TopicPartition, tuple[ForeignRun, ...]]:
    """Those that are in the topics which the ledger knows."""
    found = {}
    for tp, one in kept_records(ledger).items():
        entry = ledger.entry(tp)
        if one.is_of("" if entry is None else entry.source_id):
            found[tp] = one.runs
    return found


def kept_count(ledger: Ledger) -> int:
    """The number of those records."""
    return sum(run.records for runs in kept_here(ledger).values() for run in runs)


def kept_note_records(
    ledger: Ledger, topic_ids: Mapping[TopicPartition, str], new: Mapping[TopicPartition, Sequence[ForeignRun]]
) -> list[Record]:
    """The records for the ledger: what it has of these partitions, and more. ``topic_ids``: those of the topics now."""
    known = kept_records(ledger)
    records = []
    for tp, runs in sorted(new.items()):
        before, topic_id = known.get(tp), topic_ids.get(tp, "")
        earlier = () if before is None or not before.is_of(topic_id) else before.runs
        rows = [list(run) for run in _joined(earlier, runs)]
        records.append(note_record(KEPT_NOTE, [tp.topic, str(tp.partition)], {"topic_id": topic_id, "runs": rows}))
    return records


def _joined(earlier: Iterable[ForeignRun], new: Iterable[ForeignRun]) -> list[ForeignRun]:
    """All of them, without those of ``new`` that are there already."""
    runs = list(earlier)
    for run in new:
        if holes([(one.first, one.after) for one in runs], run.first, run.after) == [(run.first, run.after)]:
            runs.append(run)
    return sorted(runs)
