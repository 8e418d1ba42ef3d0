"""Whether the source still has the logs that were copied: by its topic ids, its offsets, and the states of partitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from mm2.copy.progress.session import LedgerEntry
from mm2.copy.states import OTHER_LOG
from mm2.failover.evidence import OtherLog, PartitionEvidence
from mm2.failover.sides import OFFSETS_S, Sides
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import EARLIEST, OffsetInfo, TopicInfo, TopicPartition
from mm2.mirror.common.discovery import vanished


def compared_with_source(
    sides: Sides, partitions: Sequence[PartitionEvidence], entries: Sequence[LedgerEntry]
) -> list[PartitionEvidence]:
    """The partitions, with `PartitionEvidence.other_log` and `PartitionEvidence.is_gone`."""
    source = sides.source
    topics = {} if source is None else source.describe_topics(sorted({one.topic for one in partitions}))
    logs: dict[TopicPartition, OtherLog] = {}
    for one, entry in zip(partitions, entries, strict=True):
        if (log := _other_log(sides, one, entry, topics.get(one.topic))) is not None:
            logs[one.source] = log
    if source is not None:
        for tp, start in source.list_offsets(dict.fromkeys(logs, EARLIEST), timeout_s=OFFSETS_S).items():
            if isinstance(start, OffsetInfo):
                logs[tp] = dataclasses.replace(logs[tp], start=start.offset)
    return [
        dataclasses.replace(one, other_log=logs.get(one.source), is_gone=_is_gone(one, topics.get(one.topic)))
        for one in partitions
    ]


def _other_log(
    sides: Sides, one: PartitionEvidence, entry: LedgerEntry, topic: TopicInfo | KafkaFailure | None
) -> OtherLog | None:
    topic_id = topic.topic_id if isinstance(topic, TopicInfo) else ""
    if entry.is_replaced_by(topic_id):
        return OtherLog(0, True, f"{one.topic} was deleted and created again on {sides.pair.source}")
    if one.state in OTHER_LOG:
        return OtherLog(0, False, one.note)
    if one.is_end_current and one.end is not None and one.end < one.copied:
        return OtherLog(0, False, f"the log on {sides.pair.source} was truncated")
    return None


def _is_gone(one: PartitionEvidence, topic: TopicInfo | KafkaFailure | None) -> bool:
    """Whether the source has the partition no longer: it returns no end offset and does not describe it either."""
    if topic is None or one.is_end_current or one.end_error:
        return False
    return vanished(topic) or (isinstance(topic, TopicInfo) and one.partition not in topic.partitions)
