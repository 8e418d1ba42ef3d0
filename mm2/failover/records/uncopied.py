"""Partitions of the source that the flow selects, and of which nothing was copied yet. The ledger does not have them.

These are new topics and partitions, which the flow finds at its next refresh, and those that it cannot create on the target.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Final

from mm2.failover.evidence import PartitionEvidence
from mm2.failover.groups import Choice
from mm2.failover.records.foreign import foreign_records
from mm2.failover.sides import OFFSETS_S, Sides
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition
from mm2.mirror.common.clients import Side
from mm2.mirror.common.discovery import see_topics, vanished
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.notes.preparation import preparations
from mm2.mirror.notes.promotions import promoted
from mm2.mirror.topics.provenance import Provenance
from mm2.mirror.topics.topic_limits import over_limit_message

_NOTHING: Final = "nothing was copied yet"


@dataclass(frozen=True)
class Uncopied:
    """``error``: why not all of them are known. ``notes``: what the flow reports of them. Empty partitions are left out."""

    partitions: Sequence[PartitionEvidence] = ()
    error: str = ""
    notes: Sequence[str] = ()


def uncopied(sides: Sides, choice: Choice) -> Uncopied:
    """The chosen ones, by the source; by the notes of the flow if it does not answer."""
    if sides.source is None:
        return _noted(sides, choice)
    try:
        selected, refused = _selected(sides, sides.source, choice)
        return Uncopied([*_with_records(sides, sides.source, selected), *_never_copied(sides, sides.source, refused)])
    except KafkaFailure as failure:
        source = sides.pair.source
        return Uncopied(error=f"Cluster {source} answers but does not list all its topics: {str(failure).rstrip('.')}")


def _noted(sides: Sides, choice: Choice) -> Uncopied:
    """Those that the leader of the flow has noted, because it cannot copy them."""
    known = set(sides.ledger.partitions())
    partitions = [
        PartitionEvidence(
            tp.topic, tp.partition, one.remote_topic, 0, None, state=one.state, note=one.reason, is_end_current=False
        )
        for tp, one in sorted(preparations(sides.ledger).items())
        if tp not in known and choice.has_topic(tp.topic) and sides.selection.should_replicate(tp.topic)
    ]
    over_limit = over_limit_message(sides.ledger)
    return Uncopied(partitions, notes=[f"not copied: {over_limit}"] if over_limit else [])


def _selected(sides: Sides, source: Admin, choice: Choice) -> tuple[list[TopicPartition], list[TopicPartition]]:
    """The partitions that the flow would copy with regard to its filters, and those that it does not copy because of replication loops.

    Raises KafkaFailure.
    """
    selection, policy = sides.selection, sides.policy

    def is_chosen(topic: str) -> bool:
        return choice.has_topic(topic) and selection.should_replicate(topic) and not policy.is_heartbeats_topic(topic)

    seen = see_topics(source, is_chosen, {})
    if seen.unknown:
        raise next(iter(seen.unknown.values()))
    known = set(sides.ledger.partitions())
    new = unknown = seen.partitions.keys() - {tp.topic for tp in known}
    if new:
        ledgers = Ledgers(sides.clients, sides.target)
        provenance = Provenance(source, sides.target, selection, ledgers, RecurringErrors(), lambda _: False)
        new = provenance.foreseen(new)
    # The opposite flow copies these here.
    turned = {topic for topic, one in promoted(sides.ledger).items() if one.turned}
    copied = {tp.topic for tp in known} & seen.partitions.keys() - turned

    def partitions_of(topics: Collection[str]) -> list[TopicPartition]:
        return [TopicPartition(topic, number) for topic in sorted(topics) for number in range(seen.partitions[topic])]

    return [tp for tp in partitions_of(new | copied) if tp not in known], partitions_of(unknown - new)


def _never_copied(sides: Sides, source: Admin, partitions: Sequence[TopicPartition]) -> list[PartitionEvidence]:
    """Those with records that did not come from the target, of topics that the opposite flow copies to the source. Raises KafkaFailure."""
    found = []
    for tp, end in source.list_offsets(dict.fromkeys(partitions, LATEST), timeout_s=OFFSETS_S).items():
        if isinstance(end, OffsetInfo):
            remote = sides.selection.remote(tp.topic)
            found.append(PartitionEvidence(*tp, remote, end.offset, None, end.offset, note=_NOTHING))
        elif not vanished(end):
            raise end
    runs = foreign_records(sides, found, Side.SOURCE)
    return [replace(one, foreign_on_source=runs[one.source]) for one in found if one.source in runs]


def _with_records(sides: Sides, source: Admin, partitions: Sequence[TopicPartition]) -> list[PartitionEvidence]:
    """Those that have records, or of which this is not known."""
    starts = source.list_offsets(dict.fromkeys(partitions, EARLIEST), timeout_s=OFFSETS_S)
    ends = source.list_offsets(dict.fromkeys(partitions, LATEST), timeout_s=OFFSETS_S)
    found = []
    for tp in partitions:
        start, end, remote = starts[tp], ends[tp], sides.selection.remote(tp.topic)
        if isinstance(start, OffsetInfo) and isinstance(end, OffsetInfo):
            if end.offset > start.offset:
                found.append(PartitionEvidence(*tp, remote, start.offset, None, end.offset, note=_NOTHING))
            continue
        failure = start if isinstance(start, KafkaFailure) else end
        if not vanished(failure):
            found.append(
                PartitionEvidence(*tp, remote, 0, None, note=_NOTHING, end_error=str(failure), is_end_current=False)
            )
    return found
