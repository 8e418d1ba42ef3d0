"""Records of other producers in a topic that has the same name on both clusters, before the offset at which a flow takes it over.

A flow takes such a topic over after the last record that came to its source, so that this is not sent back. Records that applications
wrote to the copy before that one stay on the cluster, and so does what the source has lost since it was copied. The offsets of all others
are in the ledger of the flow that copied them there, or in that of the flow that copies them back, as are those that `mm2 failback`
has kept. What is at the remaining offsets is read.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from mm2.copy.progress.ledger import Ledger
from mm2.copy.progress.session import LedgerEntry
from mm2.copy.progress.target_progress import TargetLookUp
from mm2.copy.progress.translation import Translation, holes
from mm2.evidence import counted
from mm2.failover.evidence import PartitionEvidence
from mm2.failover.sides import OFFSETS_S, Sides
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import EARLIEST, OffsetInfo, TopicInfo, TopicPartition
from mm2.mirror.common.clients import ClientKind, Side
from mm2.mirror.notes.kept_records import ForeignRun, kept_here, kept_records

_SHOWN = 5

ForeignRuns = Mapping[TopicPartition, tuple[ForeignRun, ...]]
"""By partition of the topic, which has the same name on both clusters."""


def foreign_records(
    sides: Sides, partitions: Iterable[PartitionEvidence], side: Side, turned: Collection[TopicPartition] = ()
) -> ForeignRuns:
    """Those on one side: on the target before the last record of the flow, on the source before its position. Raises KafkaFailure.

    ``turned``: source partitions that the opposite flow copies back, so that it has written what is after the flow's last position.
    """
    named = [one for one in partitions if one.source == one.target]
    if not named:
        return {}
    there, back, admin = sides.ledger, sides.reverse_ledger, sides.target
    if side is Side.SOURCE:
        if sides.source is None or back is None:
            return {}
        there, back, admin = back, there, sides.source
    other = sides.source if side is Side.TARGET else sides.target
    topics = {} if other is None else other.describe_topics(sorted({one.topic for one in named}))
    asked: dict[TopicPartition, tuple[LedgerEntry | None, list[tuple[int, int]]]] = {}
    for one in named:
        until = one.target_offset if side is Side.TARGET else one.copied
        entry = there.entry(one.source)
        if one.target_error or one.is_gone or not until or entry is None or entry.target != one.source:
            continue
        is_left = _is_replaced(entry, topics.get(one.topic))
        # The source may have lost the end of its log, or all of it.
        is_cut = side is Side.TARGET and one.is_end_current and one.end is not None and one.end < one.copied
        source_end = 0 if is_left else one.end if is_cut else None
        left = back.entry(one.source) if back is not None and one.source in turned else None
        if ranges := _unknown(there, back, entry, until, source_end, until if left is None else left.mark.source):
            asked[one.source] = entry if source_end is None else None, ranges
    if not asked:
        return {}
    starts = admin.list_offsets(dict.fromkeys(asked, EARLIEST), timeout_s=OFFSETS_S)
    found: dict[TopicPartition, tuple[ForeignRun, ...]] = {}
    with sides.client(side, ClientKind.CONSUMER) as cluster:
        look_up = TargetLookUp(cluster)
        for tp, (entry, ranges) in asked.items():
            start = starts[tp]
            if not isinstance(start, OffsetInfo):
                raise start
            own = set[int]()
            if entry is not None and entry.session is not None:
                own = {entry.session.producer.producer_id, *(one.producer.producer_id for one in entry.ended_sessions)}
            elif entry is not None and entry.written_by >= 0:
                own = {entry.written_by}
            runs: list[ForeignRun] = []
            for first, after in ranges:
                if start.offset < after:
                    # Aborted transactions of the flow have left records, too.
                    is_committed = entry is None or entry.session is None
                    rows = look_up.foreign_runs(tp, max(first, start.offset), after, own, read_committed=is_committed)
                    runs += (ForeignRun(*row) for row in rows)
            if runs:
                found[tp] = tuple(runs)
    return found


def kept_notes(sides: Sides, partitions: Iterable[PartitionEvidence]) -> list[str]:
    """What `mm2 failback` has kept of these partitions before, on either cluster, as messages."""
    wanted = {one.source for one in partitions if one.source == one.target}
    notes: list[str] = []
    if not wanted:
        return notes
    for cluster, ledger in ((sides.pair.source, sides.ledger), (sides.pair.target, sides.reverse_ledger)):
        runs = {} if ledger is None else {tp: found for tp, found in kept_here(ledger).items() if tp in wanted}
        if runs:
            notes.append(f"kept on {cluster} by mm2 failback before, and not counted as missing: {where(runs)}")
    return notes


def _is_replaced(entry: LedgerEntry, topic: TopicInfo | KafkaFailure | None) -> bool:
    """Whether the topic that was copied has been deleted and created again, so that only the copy has its records."""
    return isinstance(topic, TopicInfo) and entry.is_replaced_by(topic.topic_id)


def _unknown(
    there: Ledger, back: Ledger | None, entry: LedgerEntry, until: int, source_end: int | None, since: int
) -> list[tuple[int, int]]:
    """The offsets before ``until`` in a copy that neither ledger has, from where on ``there`` knows the copy, or from ``since`` on.
    ``source_end``: what it has copied from this source offset on is on no other cluster any more; None: all of it is.
    """
    tp = entry.source
    chunks = there.chunks(tp)
    copied = Translation(chunks, entry.mark, entry.end)
    first = copied.first_known
    # Where the ledger does not have the first record of the source, another program may have copied what is before it.
    is_complete = not (entry.mark.source if first is None else first.source)
    begin = 0 if is_complete else until if first is None else first.target
    if chunks and not chunks[0].number:  # the ledger has not dropped older chunks
        begin = min(begin, since)
    known = list(copied.on_target) if source_end is None else copied.on_target_before(source_end)
    if back is not None and (kept := kept_records(back).get(tp)) is not None and kept.is_of(entry.target_id):
        known += [(run.first, run.after) for run in kept.runs]
    if entry.session is None and first is not None and source_end is None and entry.written_by < 0:
        until = min(until, entry.mark.target)  # a transaction may have been committed since
    returned = None if back is None else back.entry(tp)
    if back is not None and returned is not None and _is_of(returned.source_id, entry.target_id):
        known += Translation(back.chunks(tp), returned.mark, returned.end).on_source
    found = holes(known, begin, until)
    if entry.session is None and not entry.foreign and source_end is None:
        # The marker of a transaction follows its last record. To read each of them takes too long, since there are 32,000 and more.
        ends = {after for _, after in copied.on_target}
        found = [(first, after) for first, after in found if after - first > 1 or first not in ends]
    return found


def _is_of(one: str, other: str) -> bool:
    """Whether both topic ids are the same, as far as known."""
    return not one or not other or one == other


def where(runs: ForeignRuns) -> str:
    """``10 records in 1 partition: t-0: offsets 100-109``."""
    rows = [f"{tp}: {run}" for tp, found in sorted(runs.items()) for run in found]
    more = f"; and {counted(len(rows) - _SHOWN, 'more range')}" if len(rows) > _SHOWN else ""
    return f"{_count(runs)} in {counted(len(runs), 'partition')}: {'; '.join(rows[:_SHOWN])}{more}"


def _count(runs: ForeignRuns) -> str:
    """``10 records``."""
    return counted(sum(run.records for found in runs.values() for run in found), "record")
