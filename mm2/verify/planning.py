"""Plans a verification: derives the ranges to compare from the flow's ledger and both clusters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Final

from mm2.copy.changes import FILTERED, SKIPPED
from mm2.copy.progress.ledger import Ledger, Verified
from mm2.copy.progress.segments import CHUNKS_KEPT, Gap, Segment, SegmentChunk
from mm2.copy.progress.session import CopyOrigin, LedgerEntry, Rules
from mm2.copy.progress.translation import Translation, holes
from mm2.kafka.admin import Admin
from mm2.kafka.errors import BrokerFailure, KafkaFailure, value_of
from mm2.kafka.structs import EARLIEST, LATEST, ConfigEntry, OffsetInfo, TopicInfo, TopicPartition
from mm2.mirror.common.discovery import vanished
from mm2.reasons import OriginCode
from mm2.verify.comparing.findings import Explained
from mm2.verify.comparing.passes import (
    INVISIBLE,
    Bounds,
    Pass,
    Plan,
    Route,
    copied_in_other_passes,
    merge_gaps,
    plan_passes,
    split,
)
from mm2.verify.comparing.spans import Span

_LEAST_SPAN: Final = 20_000
_MOST_SPAN: Final = 2_000_000
_SPANS_PER_TASK: Final = 8
_TOPICS_PER_REQUEST: Final = 500
#: Reasons of gaps that are found by applying the flow's changes again, not taken from the ledger.
_DROPPED: Final = frozenset({FILTERED, SKIPPED})


#: Which program has written the records before the ledger, by `mm2.reasons.OriginCode`.
_BEFORE_LEDGER: Final[Mapping[str, str]] = {
    OriginCode.OTHER_POSITION: "another program has written them, such as Java's MirrorMaker, or the ledger was lost",
    OriginCode.OWN_POSITION: "the ledger was lost; the flow had a position when it began",
    OriginCode.START_FROM: "the flow began at an offset of start.from, when the remote partition ended at offset {end}",
    OriginCode.NO_POSITION: "the flow began without a position, when the remote partition ended at offset {end}",
    OriginCode.LOST_POSITION: "newer positions were lost; the flow began at an older one, when the remote partition ended at offset {end}",
}
#: Why the flow has copied some of them again; "" only where the flow began at the position of another program.
_TWICE: Final[Mapping[str, str]] = {
    OriginCode.OTHER_POSITION: "",
    OriginCode.OWN_POSITION: "copied again after the position at which the flow began without its ledger",
    OriginCode.START_FROM: "copied again after the offset of start.from at which the flow began",
    OriginCode.NO_POSITION: "copied again, as the flow had no position when it began",
    OriginCode.LOST_POSITION: "copied again, as newer positions of the flow were lost",
}
_UNKNOWN_ORIGIN: Final = "on the target before the ledger begins, and copied again"


class NotInFlow(Exception):
    """A requested topic or partition is neither copied by the flow nor in its ledger; the message is for the user."""


class Certainty(StrEnum):
    """The basis for matching records of the target with those of the source."""

    LEDGER = "ledger"
    SYNCS = "offset syncs and content"
    CONTENT = "content"


@dataclass(frozen=True)
class VerifyRequest:
    """The requested part of a flow.

    ``topics`` empty: all. Times in ms. ``offsets``: start and end of single partitions, None for open.
    """

    topics: frozenset[str] = frozenset()
    from_ms: int | None = None
    to_ms: int | None = None
    offsets: Mapping[TopicPartition, tuple[int | None, int | None]] = field(default_factory=dict)

    @property
    def is_everything(self) -> bool:
        """Whether all partitions are included completely."""
        return self.from_ms is None and self.to_ms is None and not self.offsets

    def covers(self, partition: TopicPartition) -> bool:
        """Whether a partition of the source is included."""
        if self.offsets:
            return partition in self.offsets
        return not self.topics or partition.topic in self.topics

    def missing_from(self, partitions: Collection[TopicPartition]) -> list[str]:
        """Requested topics and partitions that are not in ``partitions``, sorted."""
        absent = [str(partition) for partition in self.offsets if partition not in partitions]
        return sorted([*absent, *(self.topics - {partition.topic for partition in partitions})])


@dataclass
class PartitionPlan:
    """One partition: its ranges, or why it cannot be compared.

    ``first`` and ``after`` are the requested source offsets. ``changes`` is the digest of what changes the flow's records
    (`mm2.copy.spec.ChangesSpec`); "": nothing does. ``named`` is that of `mm2.copy.spec.PartitionSpec`.
    """

    topic: str
    partition: int
    remote_topic: str
    first: int = 0
    after: int = 0
    changes: str = ""
    named: str = ""
    certainty: Certainty = Certainty.LEDGER
    source_id: str = ""
    target_id: str = ""
    spans: list[Span] = field(default_factory=list)
    explained: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    error: str = ""
    before: Verified | None = None  # the previous result, if this comparison continues from it
    target_after: int = -1  # the target offset up to which this comparison goes

    @property
    def source(self) -> TopicPartition:
        """The source partition."""
        return TopicPartition(self.topic, self.partition)


@dataclass(frozen=True)
class ClusterOffsets:
    """The state of one cluster: topics by name, offsets of partitions, and which topics are compacted."""

    topics: Mapping[str, TopicInfo | KafkaFailure]
    starts: Mapping[TopicPartition, int | KafkaFailure]
    ends: Mapping[TopicPartition, int | KafkaFailure]
    compacted: Mapping[str, bool]

    @classmethod
    def read(cls, admin: Admin, names: Iterable[str], isolation: str) -> ClusterOffsets:
        """Read the current state.

        Raises KafkaFailure if the cluster does not answer; errors of single topics are in the result.
        """
        wanted = sorted(set(names))
        topics: dict[str, TopicInfo | KafkaFailure] = {}
        compacted: dict[str, bool] = {}
        for at in range(0, len(wanted), _TOPICS_PER_REQUEST):
            some = wanted[at : at + _TOPICS_PER_REQUEST]
            topics.update(admin.describe_topics(some))
            existing = [name for name in some if isinstance(topics[name], TopicInfo)]
            for name, configs in admin.describe_configs(existing).items():
                # Without permission to read the configs, missing offsets count as differences.
                compacted[name] = _has_cleaner(configs)
        partitions = [
            TopicPartition(name, index)
            for name, info in topics.items()
            if isinstance(info, TopicInfo)
            for index in info.partitions
        ]
        return cls(
            topics,
            _offsets(admin.list_offsets(dict.fromkeys(partitions, EARLIEST), isolation)),
            _offsets(admin.list_offsets(dict.fromkeys(partitions, LATEST), isolation)),
            compacted,
        )

    def range(self, partition: TopicPartition) -> tuple[int, int]:
        """Log start and end offset. Raises KafkaFailure."""
        info = value_of(self.topics.get(partition.topic))
        if info is None or partition.partition not in info.partitions:
            raise BrokerFailure.of(3, subject=f"Partition {partition}")
        return value_of(self.starts[partition]), value_of(self.ends[partition])

    def topic_id(self, topic: str) -> str:
        """The id of a topic; "" if unknown."""
        info = self.topics.get(topic)
        return info.topic_id if isinstance(info, TopicInfo) else ""


def is_gone(
    topic: str,
    remote_topic: str,
    copied_to: Mapping[TopicPartition, str],
    source: ClusterOffsets,
    target: ClusterOffsets,
) -> bool:
    """Whether a topic was deleted on both clusters, so that nothing can be compared any more; `copied_to` as below."""
    if not vanished(source.topics.get(topic)):
        return False
    remotes = {remote_topic, *(remote for place, remote in copied_to.items() if place.topic == topic)}
    return all(vanished(target.topics.get(remote)) for remote in remotes)


def partitions_to_compare(
    topic: str,
    remote_topic: str,
    copied_to: Mapping[TopicPartition, str],
    source: ClusterOffsets,
    target: ClusterOffsets,
    merged: Collection[str] = (),
) -> dict[int, str]:
    """The partitions of a topic, in order, each with the reason why it cannot be compared; "" if none is known.

    ``copied_to`` are the remote topics of the partitions in the ledger. A topic that cannot be described has one partition:
    without any, the comparison would be equal. ``merged`` are other topics with the same remote topic.
    """
    info, remote = source.topics.get(topic), target.topics.get(remote_topic)
    found = dict.fromkeys((place.partition for place in copied_to if place.topic == topic), "")
    if isinstance(info, TopicInfo):
        found |= dict.fromkeys(info.partitions, "")
        of_others = {place.partition for place in copied_to if place.topic in merged}
        beyond = remote.partitions.keys() - found.keys() - of_others if isinstance(remote, TopicInfo) else ()
        for index in beyond:
            try:
                start, end = target.range(TopicPartition(remote_topic, index))
            except KafkaFailure as failure:
                found[index] = str(failure)
            else:
                if start < end:
                    found[index] = f"the source has no such partition, and {remote_topic}-{index} has records"
    elif not found and not vanished(info):
        found[0] = str(info)
    return dict(sorted(found.items()))


def why_not_in_log(source: TopicPartition, end: int, first: int | None) -> str:
    """Why a partition has none of the requested offsets, which begin at ``first``; "" if it has some, or had them."""
    if first is None or first < end:
        return ""
    return f"{source} ends before offset {end} on the source, so it has none of the requested offsets"


def plan_partition(
    plan: PartitionPlan,
    ledger: Ledger | None,
    syncs: Sequence[tuple[int, int]],
    sides: tuple[ClusterOffsets, ClusterOffsets],
    wanted: tuple[int | None, int | None],
    *,
    is_undone: bool | None = None,
    merged: Sequence[LedgerEntry] | None = None,
) -> None:
    """Compute a partition's ranges, not yet split.

    ``syncs`` are (source, target) offsets of the flow's offset syncs. ``is_undone``: whether the transaction of the ledger's
    entry was not committed; None: only the end of the target shows it. ``merged`` are the other source partitions with the same target
    partition, by their entries in the ledger: only the ledger shows which records are theirs.
    """
    source, target = sides
    plan.source_id, plan.target_id = source.topic_id(plan.topic), target.topic_id(plan.remote_topic)
    entry = None if ledger is None else ledger.entry(plan.source)
    if entry is not None and is_undone:
        entry = entry.undone()
    try:
        source_start, source_end = source.range(plan.source)
        is_new = merged is not None or vanished(target.topics.get(plan.remote_topic))
        if ledger is not None and entry is None and is_new:
            plan.first = plan.after = source_start
            plan.explained[Explained.PENDING] = source_end - source_start
            plan.notes.append("the flow has not copied this topic yet")
            return
        target_start, target_end = target.range(TopicPartition(plan.remote_topic, plan.partition))
    except KafkaFailure as failure:
        plan.error = str(failure)
        return
    if plan.source_id and plan.source_id == plan.target_id:
        plan.error = f"topic {plan.topic} would be compared with itself: it has the same topic id on both clusters, so they are one cluster"
        return
    if entry is not None and is_undone is None and entry.before is not None and target_end < entry.mark.target:
        entry = entry.undone()  # its transaction is still open
    base = Span(
        plan.topic,
        plan.partition,
        plan.remote_topic,
        Pass(0, 0, 0, 0, Route()),
        source_compacted=source.compacted.get(plan.topic, False),
        target_compacted=target.compacted.get(plan.remote_topic, False),
        named=plan.named,
    )
    if entry is not None and _is_of(entry, plan):
        assert ledger is not None  # noqa: S101  (it has the entry)
        _by_ledger(
            plan, base, ledger, entry, wanted, (source_start, source_end), (target_start, target_end), merged or ()
        )
    elif merged is not None:
        plan.error = f"not compared: {plan.remote_topic} has the records of several topics, and no ledger shows which came from {plan.topic}"
    else:
        if entry is not None and ledger is not None and plan.source_id in {"", entry.source_id}:
            base = _with_copied(base, ledger, entry)
        _by_content(plan, base, syncs, wanted, (source_start, source_end), (target_start, target_end))


def split_spans(plans: Sequence[PartitionPlan], parallel: int) -> None:
    """Split the ranges of all partitions, so that tasks have similar loads and little is read twice."""
    total = sum(span.size for plan in plans for span in plan.spans)
    size = max(_LEAST_SPAN, min(_MOST_SPAN, total // (_SPANS_PER_TASK * max(1, parallel))))
    for plan in plans:
        pieces: list[Span] = []
        for span in plan.spans:
            # An uncertain range is compared in detail from the start, in one piece.
            parts = [span.piece] if span.in_detail else split(span.piece, size)
            for index, part in enumerate(parts):
                excluded = tuple(gap for gap in span.excluded if gap.first < part.after and gap.after > part.first)
                cut_off = tuple(
                    gap for gap in span.cut_off if gap.first < part.target_after and gap.after > part.target_first
                )
                pieces.append(
                    replace(
                        span,
                        piece=part,
                        excluded=excluded,
                        open_start=span.open_start and index == 0,
                        cut_off=cut_off,
                    )
                )
        plan.spans = pieces


def _is_of(entry: LedgerEntry, plan: PartitionPlan) -> bool:
    """Whether the ledger's entry is for these topics, and not for deleted ones with the same names."""
    if entry.remote_topic != plan.remote_topic:
        return True  # it is for a topic with another name
    for side, expected, actual in (
        ("source", entry.source_id, plan.source_id),
        ("remote", entry.target_id, plan.target_id),
    ):
        if expected and actual and expected != actual:
            plan.notes.append(f"the {side} topic was recreated, so the ledger does not apply to it")
            return False
    return True


def _with_copied(base: Span, ledger: Ledger, entry: LedgerEntry) -> Span:
    """What the ledger has as copied to a remote topic that was recreated since: the target has lost it unless it is there again."""
    chunks = ledger.chunks(entry.source)
    first = min((segment.source for chunk in chunks for segment in chunk.segments), default=entry.mark.source)
    gaps = [gap for chunk in chunks for gap in chunk.gaps if gap.reason not in INVISIBLE and gap.after > gap.first]
    return replace(base, copied=(first, entry.mark.source), excluded=tuple(merge_gaps(gaps)))


def _by_ledger(
    plan: PartitionPlan,
    base: Span,
    ledger: Ledger,
    entry: LedgerEntry,
    wanted: tuple[int | None, int | None],
    source: tuple[int, int],
    target: tuple[int, int],
    merged: Sequence[LedgerEntry],
) -> None:
    if entry.remote_topic != plan.remote_topic:
        plan.first = plan.after = entry.mark.source
        plan.notes.append(f"all records so far were copied to topic {entry.remote_topic}")
        return
    chunks = ledger.chunks(plan.source)
    if entry.former is not None:
        # From there on all is in this topic, and what was copied again after a reset is as well.
        first = min([entry.former.until, *(segment.source for chunk in chunks for segment in chunk.segments)])
        if (wanted[0] or 0) < first:
            wanted = first, wanted[1]
            plan.notes.append(
                f"records before source offset {first} were copied to remote topics with other names, most recently to topic "
                f"{entry.former.topic}"
            )
    of_others: list[Gap] = []
    if merged:
        known_from = _known_from(ledger, [entry, *merged])
        if known_from:
            first = _source_from(chunks, known_from, entry.mark.source)
            plan.notes.append(
                f"{plan.remote_topic} has the records of several topics, and the ledger does not contain the oldest of them any more: records "
                f"before source offset {first} were not compared"
            )
            wanted = max(wanted[0] or 0, first), wanted[1]
        of_others = _of_others(ledger, entry, merged, target[1])
    bounds = _ledger_bounds(plan, entry, wanted, source, target)
    plan.target_after = bounds.target_end if bounds.whole else -1
    plan.first, plan.after = max(bounds.first, source[0]), bounds.after
    after = wanted[1]
    if after is not None and min(after, source[1]) > bounds.position:
        plan.explained[Explained.PENDING] = min(after, source[1]) - bounds.position
    gaps = [gap for chunk in chunks for gap in chunk.gaps]
    plan.explained |= _explained(entry, gaps, bounds)
    if plan.changes:
        plan.explained = {reason: count for reason, count in plan.explained.items() if reason not in _DROPPED}
        gaps = [gap for gap in gaps if gap.reason not in _DROPPED]
    if bounds.first >= bounds.after and not bounds.is_incremental:
        return
    found = plan_passes(chunks, bounds, of_others)
    plan.first = min([plan.first, *(one.first for one in found.passes)])
    for reason, offsets in found.explained.items():
        plan.explained[reason] = plan.explained.get(reason, 0) + offsets
    plan.notes += _pass_notes(plan, found, entry)
    if not bounds.is_incremental:
        plan.notes += _notes_before_ledger(found, chunks, entry.origin)
    visible = [gap for gap in gaps if gap.reason not in INVISIBLE and gap.after > gap.first]
    plan.spans += _spans(
        replace(base, twice=_TWICE.get(entry.origin.code, _UNKNOWN_ORIGIN)),
        bounds,
        found,
        visible,
        (source[0], plan.after),
    )


def _known_from(ledger: Ledger, entries: Iterable[LedgerEntry]) -> int:
    """The target offset from which on the ledger has what was copied of all these partitions; 0: the ledger has all of it."""
    # The number of the first chunk shows nothing: that of a successor follows an entry without chunks.
    full = [chunks for entry in entries if (chunks := ledger.chunks(entry.source)) and chunks[-1].number >= CHUNKS_KEPT]
    return max((chunks[0].segments[0].target for chunks in full if chunks[0].segments), default=0)


def _source_from(chunks: Sequence[SegmentChunk], target: int, position: int) -> int:
    """The source offset of the first record that was copied to this target offset or a later one."""
    after = [
        segment.source + max(0, target - segment.target)
        for chunk in chunks
        for segment in chunk.segments
        if segment.target_end > target
    ]
    return min(after, default=position)


def _of_others(ledger: Ledger, entry: LedgerEntry, merged: Iterable[LedgerEntry], end: int) -> list[Gap]:
    """The target offsets of the other source partitions of a merge, and those that may be theirs, after their marks."""
    ranges: list[tuple[int, int]] = []
    for other in merged:
        # Also those whose source log was cut off since: they are on the target.
        segments = (segment for chunk in ledger.chunks(other.source) for segment in chunk.segments)
        known = [(segment.target, segment.target_end) for segment in segments if segment.records]
        last = max([other.mark.target, *(after for _, after in known)])
        ranges += [*known, (last, max(last, end))]
    own = Translation(ledger.chunks(entry.source), entry.mark, entry.end).on_target
    not_theirs = [*own, *holes(ranges, 0, end)]
    return [Gap(first, after, "copied from another topic") for first, after in holes(not_theirs, 0, end)]


def _ledger_bounds(
    plan: PartitionPlan,
    entry: LedgerEntry,
    wanted: tuple[int | None, int | None],
    source: tuple[int, int],
    target: tuple[int, int],
) -> Bounds:
    first, after = wanted
    position = entry.mark.source
    return Bounds(
        first or 0,
        position if after is None else min(after, position),
        source[0],
        position,
        target[0],
        target[1] if entry.mark.target < 0 else entry.mark.target,
        whole=after is None,
        target_first=-1 if plan.before is None else plan.before.target,
    )


def _pass_notes(plan: PartitionPlan, found: Plan, entry: LedgerEntry) -> list[str]:
    notes = []
    if plan.before is not None and any(one.first < plan.before.checked for one in found.passes):
        notes.append(
            f"the flow was reset to an offset below {plan.before.checked}; the records copied since then are compared"
        )
    elif (passes := sum(not one.is_before_ledger for one in found.passes)) > 1:
        notes.append(f"copied in {passes} passes; each of them is compared")
    return [*notes, *filter(None, (_other_changes(plan, entry), entry.note))]


def _notes_before_ledger(found: Plan, chunks: Sequence[SegmentChunk], origin: CopyOrigin) -> list[str]:
    """A note if the target has records before the ledger's first segment."""
    one = found.passes[0] if found.passes else None
    if one is None or one.route.segments or one.target_first == one.target_after:
        return []
    cut_off = [(gap.first, gap.after) for gap in found.cut_off]
    # Between the records of a source log that was cut off are only the markers of their transactions.
    if cut_off and all(after - first <= 1 for first, after in holes(cut_off, one.target_first, one.target_after)):
        return []
    which = f"before source offset {one.joint} (target offset {one.target_after}) " if one.is_before_ledger else ""
    why = (
        "the ledger does not contain them any more"
        if chunks and chunks[0].number
        else _BEFORE_LEDGER.get(origin.code, "it is not known which program has written them").format(end=origin.target)
    )
    return [f"records {which}were compared by content, which is less certain: {why}"]


def _other_changes(plan: PartitionPlan, entry: LedgerEntry) -> str:
    """A note if the flow has copied with other transformations than those with which it is compared."""
    session = entry.session
    rules = None if session is None or not entry.mark.records else Rules.parse(session.rules)
    if session is None or rules is None or rules.changes == plan.changes:
        return ""
    return (
        f"the records from source offset {session.start.source} on were copied with other transformations or converters than "
        "those of the configuration, or with other versions of their classes"
    )


def _spans(base: Span, bounds: Bounds, found: Plan, gaps: Sequence[Gap], whole: tuple[int, int]) -> list[Span]:
    """A span for each pass. ``gaps`` are visible on the source, ``whole`` is the range to search for originals."""
    spans = []
    for one in found.passes:
        excluded = [
            gap for gap in [*gaps, *_not_expected(one, found)] if gap.first < one.after and gap.after > one.first
        ]
        if one.is_before_ledger:
            excluded = [gap._replace(after=min(gap.after, one.joint)) for gap in excluded if gap.first < one.joint]
        known = one.route.segments
        spans.append(
            replace(
                base,
                piece=one,
                excluded=tuple(merge_gaps(excluded)),
                cut_off=tuple(
                    gap
                    for gap in merge_gaps(found.cut_off)
                    if gap.first < one.target_after and gap.after > one.target_first
                ),
                open_start=not bounds.is_incremental and not known,
                in_detail=not known,
                by_content=not bounds.is_incremental and not known,
                whole=(whole[0], max(whole[1], one.after)),
            )
        )
    return spans


def _not_expected(one: Pass, found: Plan) -> list[Gap]:
    """What other passes have copied; another program has copied the records before the ledger as well."""
    if one.is_before_ledger and one.target_first < one.target_after:
        return []
    return copied_in_other_passes(one, found)


def _by_content(
    plan: PartitionPlan,
    base: Span,
    syncs: Sequence[tuple[int, int]],
    wanted: tuple[int | None, int | None],
    source: tuple[int, int],
    target: tuple[int, int],
) -> None:
    known: list[Segment] = []
    for upstream, downstream in sorted(set(syncs)):
        inside = source[0] <= upstream < source[1] and target[0] <= downstream < target[1]
        if inside and (not known or downstream > known[-1].target):
            known.append(Segment(upstream, downstream, 1))
    plan.certainty = Certainty.SYNCS if known else Certainty.CONTENT
    first, after = wanted
    begin = [segment for segment in known if first is not None and segment.source <= first]
    end = [segment for segment in known if after is not None and segment.source >= after]
    low = (begin[-1].source, begin[-1].target) if begin else (source[0], target[0])
    high = (end[0].source, end[0].target) if end else (source[1], target[1])
    plan.first, plan.after = low[0], high[0]
    if low[0] >= high[0] and low[1] >= high[1]:
        return
    route = Route(tuple(known)).part(low[0], high[0])
    plan.spans.append(
        replace(
            base,
            piece=Pass(low[0], high[0], low[1], high[1], route),
            open_start=not begin,
            open_end=not end,
            in_detail=True,
            by_content=True,
            whole=source,
        )
    )


def _explained(entry: LedgerEntry, gaps: Sequence[Gap], bounds: Bounds) -> dict[str, int]:
    """Source offsets of the range that are not on the target, by reason."""
    if bounds.whole and bounds.first == 0:
        return dict(entry.gaps)  # the ledger counts all gaps, and lists the newest
    found: dict[str, int] = {}
    by_reason: dict[str, list[Gap]] = {}
    for gap in gaps:
        low, high = max(gap.first, bounds.first), min(gap.after, bounds.after)
        if low < high:
            by_reason.setdefault(gap.reason, []).append(Gap(low, high, gap.reason))
    for reason, ranges in by_reason.items():
        found[reason] = sum(gap.after - gap.first for gap in merge_gaps(ranges))
    return found


def _has_cleaner(configs: Mapping[str, ConfigEntry] | KafkaFailure) -> bool:
    policy = None if isinstance(configs, KafkaFailure) else configs.get("cleanup.policy")
    return policy is not None and "compact" in (policy.value or "")


def _offsets(
    answers: Mapping[TopicPartition, OffsetInfo | KafkaFailure],
) -> dict[TopicPartition, int | KafkaFailure]:
    return {tp: answer.offset if isinstance(answer, OffsetInfo) else answer for tp, answer in answers.items()}
