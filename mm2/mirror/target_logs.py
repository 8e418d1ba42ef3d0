"""Ids of topics and offsets of logs, which decide what a translated group offset may refer to."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import EARLIEST, LATEST, OffsetInfo, TopicPartition
from mm2.mirror.group_offsets import of_another_copy
from mm2.mirror.translator import TopicIds
from mm2.reasons import OffsetReason, OffsetReasonCode

_METADATA_TIMEOUT_S: Final = 5.0


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
