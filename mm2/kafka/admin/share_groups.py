"""Share groups (KIP-932). They have a start offset per partition instead of a committed offset.

All records before the start offset are acknowledged or archived.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, Final

from kafka.protocol.api_message import ApiMessage

from mm2.kafka.admin.groups import GroupCalls, Offsets
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import OffsetAndMetadata, TopicPartition

_SCHEMAS: Final = "mm2.kafka.schemas"


class DescribeShareGroupOffsetsRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """DescribeShareGroupOffsets request of Kafka."""


class DescribeShareGroupOffsetsResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """DescribeShareGroupOffsets response of Kafka."""


class AlterShareGroupOffsetsRequest(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """AlterShareGroupOffsets request of Kafka."""


class AlterShareGroupOffsetsResponse(ApiMessage, load_json=_SCHEMAS):  # type: ignore[call-arg, misc]
    """AlterShareGroupOffsets response of Kafka."""


class ShareGroupCalls(GroupCalls):
    """Start offsets of share groups. Other calls are those of all groups."""

    def list_share_group_offsets(self, groups: Iterable[str]) -> dict[str, Offsets | KafkaFailure]:
        """Start offsets of each group, without metadata, for the partitions that it has begun to read.

        Empty for a group that does not exist or has another type. A partition whose offset cannot be read makes the
        whole group a failure.
        """

        def request(wanted: list[str]) -> Any:
            group = DescribeShareGroupOffsetsRequest.DescribeShareGroupOffsetsRequestGroup
            return DescribeShareGroupOffsetsRequest(groups=[group(group_id=name, topics=None) for name in wanted])

        def read(answer: Any) -> dict[str, Offsets | KafkaFailure]:
            return {group.group_id: self._start_offsets(group) for group in answer.groups}

        return self._ask_coordinators(groups, request, read, repeatable=True)

    def alter_share_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, int]
    ) -> dict[TopicPartition, KafkaFailure | None]:
        """Set start offsets of a group without members (otherwise NON_EMPTY_GROUP).

        Creates the group if needed.

        GROUP_ID_NOT_FOUND when a group of another type has this name.
        """

        def request(wanted: list[TopicPartition]) -> Any:
            api = AlterShareGroupOffsetsRequest
            topics: dict[str, list[Any]] = defaultdict(list)
            for key in wanted:
                partition = api.AlterShareGroupOffsetsRequestTopic.AlterShareGroupOffsetsRequestPartition
                topics[key.topic].append(partition(partition_index=key.partition, start_offset=offsets[key]))
            return api(
                group_id=group,
                topics=[
                    api.AlterShareGroupOffsetsRequestTopic(topic_name=topic, partitions=partitions)
                    for topic, partitions in topics.items()
                ],
            )

        def rows(answer: Any) -> dict[str, Any]:
            return {topic.topic_name: topic.partitions for topic in answer.responses}

        return self._change_offsets(group, offsets, request, rows)

    def _start_offsets(self, group: Any) -> Offsets | KafkaFailure:
        if failure := self._outcome(
            "Share group", group.group_id, group.error_code, group.error_message, needed="DESCRIBE"
        ):
            return failure
        offsets: Offsets = {}
        for topic in group.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.topic_name, partition.partition_index)
                if failure := self._outcome(
                    f"Share group {group.group_id}, partition",
                    key,
                    partition.error_code,
                    partition.error_message,
                    needed="DESCRIBE",
                ):
                    return failure
                if partition.start_offset >= 0:
                    offsets[key] = OffsetAndMetadata(partition.start_offset, "", -1)
        return offsets
