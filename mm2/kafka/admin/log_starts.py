"""DeleteRecords, which moves the log start offset of a partition."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from kafka.protocol.admin import DeleteRecordsRequest

from mm2.kafka.admin.partitions import PartitionCalls
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition


class LogStartCalls(PartitionCalls):
    """Requests to leaders that move the log start offset."""

    def delete_records(
        self, before: Mapping[TopicPartition, int], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, int | KafkaFailure]:
        """Delete the records before an offset of each partition; returns the log start offsets (KIP-107).

        POLICY_VIOLATION where the topic's `cleanup.policy` does not contain delete. Needs DELETE on the topic.
        """

        def request(wanted: list[TopicPartition], request_timeout_s: float) -> Any:
            topics: dict[str, list[Any]] = defaultdict(list)
            row = DeleteRecordsRequest.DeleteRecordsTopic
            for tp in wanted:
                partition = row.DeleteRecordsPartition(partition_index=tp.partition, offset=before[tp])
                topics[tp.topic].append(partition)
            return DeleteRecordsRequest(
                topics=[row(name=name, partitions=partitions) for name, partitions in topics.items()],
                timeout_ms=int(request_timeout_s * 1000),
            )

        return self._ask_leaders(
            before, request, lambda _, partition: int(partition.low_watermark), timeout_s=timeout_s, needed="DELETE"
        )
