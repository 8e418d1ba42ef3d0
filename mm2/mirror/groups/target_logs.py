"""Ids of topics and offsets of logs of the target: what a translated group offset may refer to, and whether the target has what was
copied.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from mm2.copy.progress.session import LedgerEntry
from mm2.copy.states import PartitionState
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicInfo, TopicPartition
from mm2.mirror.common.discovery import vanished
from mm2.mirror.groups.group_offsets import of_another_copy
from mm2.mirror.groups.translator import TopicIds
from mm2.reasons import OffsetReason, OffsetReasonCode, TargetLossCode

_METADATA_TIMEOUT_S: Final = 5.0
#: States in which the log of the target may have other records than were copied, however long it is.
_CONTRADICTED: Final = frozenset({PartitionState.INCONSISTENT, PartitionState.DIVERGED, PartitionState.LOST_RANGE})


def topic_ids(admin: Admin, topics: Iterable[str]) -> TopicIds:
    """Topic ids; empty if the cluster does not answer, which is reported elsewhere."""
    wanted = set(topics)
    if not wanted:
        return {}
    try:
        metadata = admin.cluster.metadata(wanted, timeout_s=_METADATA_TIMEOUT_S)
    except KafkaFailure:
        return {}
    found: dict[str, str | None] = {topic: info.topic_id for topic, info in metadata.topics.items()}
    for topic, failure in metadata.errors.items():
        if failure.code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
            found[topic] = None
    return found


class TargetLogs:
    """The logs of the target, whose alias is ``alias``."""

    def __init__(self, admin: Admin, alias: str) -> None:
        self._admin = admin
        self._alias = alias

    def starts(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        """The log start offsets."""
        return self._admin.list_offsets(dict.fromkeys(partitions, EARLIEST)) if partitions else {}

    def ends(self, partitions: Collection[TopicPartition]) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        """The log end offsets."""
        return self._admin.list_offsets(dict.fromkeys(partitions, LATEST)) if partitions else {}

    def rejection(self, partition: TopicPartition, offset: int, end: OffsetInfo | KafkaFailure) -> OffsetReason | None:
        """The reason why no group may be set to ``offset``; None if it is in the log that ends at ``end``."""
        if isinstance(end, KafkaFailure):
            message = f"the end offset of {partition} on {self._alias} is not known: {end}"
            return OffsetReason(OffsetReasonCode.OTHER, message)
        return of_another_copy(partition, offset, end.offset)


@dataclass(frozen=True, slots=True)
class TargetLoss:
    """The target does not have all records that were copied to a partition, or this is not known. The message is a sentence without a full stop."""

    code: TargetLossCode
    message: str

    def __str__(self) -> str:
        return self.message


def target_loss(
    entry: LedgerEntry, topic: TopicInfo | KafkaFailure, end: int | KafkaFailure
) -> TargetLoss | KafkaFailure | None:
    """What the remote topic and its log end offset, requested after the entry was read, show of the records before the entry's position.

    A failure: they show nothing. None: the topic is the one that was copied to, and its log reaches the position; the records in it
    were not compared.
    """
    copied, place = entry.mark.target, entry.target
    has_copied = copied > 0 or (copied < 0 and entry.mark.source > 0)
    if vanished(topic) or vanished(end):
        return TargetLoss(TargetLossCode.DELETED, f"there is no {place}") if has_copied else None
    if isinstance(topic, KafkaFailure):
        return topic
    if isinstance(end, KafkaFailure):
        return end
    if entry.before is not None and end < copied:
        copied = entry.before.mark.target  # its transaction may be open, or was aborted
    if entry.target_id and topic.topic_id and topic.topic_id not in {entry.target_id, *entry.retired}:
        message = f"{place.topic} was deleted and created again"
        if copied > 0:
            message += f": records were copied up to offset {copied} of {place}, and the new log ends at offset {end}"
        return TargetLoss(TargetLossCode.RECREATED, message) if has_copied else None
    if end < copied:
        message = f"{place} ends at offset {end}, and records were copied up to offset {copied}"
        return TargetLoss(TargetLossCode.SHORTER, message)
    if entry.condition is not None and entry.condition.state in _CONTRADICTED:
        message = f"copying has stopped as {entry.condition.state}, so which records {place} has is not known"
        return TargetLoss(TargetLossCode.STOPPED, message)
    return None


def target_losses(
    admin: Admin, entries: Sequence[LedgerEntry]
) -> Mapping[TopicPartition, TargetLoss | KafkaFailure | None]:
    """`target_loss` of these entries by source partition, from the target as it is now. Raises KafkaFailure if it does not answer."""
    topics = admin.describe_topics(sorted({entry.remote_topic for entry in entries}))
    there = {entry.target for entry in entries if isinstance(topics[entry.remote_topic], TopicInfo)}
    answers = admin.list_offsets(dict.fromkeys(sorted(there), LATEST)) if there else {}
    ends = {tp: answer.offset if isinstance(answer, OffsetInfo) else answer for tp, answer in answers.items()}
    return {
        entry.source: target_loss(
            entry,
            (topic := topics[entry.remote_topic]),
            topic if isinstance(topic, KafkaFailure) else ends[entry.target],
        )
        for entry in entries
    }
