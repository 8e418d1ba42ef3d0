"""Requests that change the offsets of a partition without a record: transaction markers and DeleteRecords."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from kafka.protocol.admin import DeleteRecordsRequest
from kafka.protocol.producer import WriteTxnMarkersRequest

from mm2.kafka.admin.partitions import PartitionCalls
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import TopicPartition

#: Version 2 has the transaction version, with which a broker compares epochs differently (KIP-1228).
_MARKERS_VERSION: Final = 1


class OffsetCalls(PartitionCalls):
    """Requests to leaders that move the log start or log end offset."""

    def write_abort_markers(
        self, markers: Mapping[TopicPartition, Sequence[tuple[int, int, int]]], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, KafkaFailure | None]:
        """Append abort markers in order, each (producer id, producer epoch, coordinator epoch), to each partition
        (WriteTxnMarkers, KIP-98).

        Sent once: after a failure any number of them may have been appended. A broker reports one result for all
        markers of a producer, that of the last one. Needs CLUSTER_ACTION, or ALTER since Kafka 3.7, on the cluster.
        """
        results: dict[TopicPartition, Any] = {}
        timeout = self._timeout_ms / 1000 if timeout_s is None else timeout_s
        for node_id, group in self._by_leader([*markers], results, timeout, {}).items():
            rows = [_marker(tp, fields) for tp in group for fields in markers[tp]]
            request = WriteTxnMarkersRequest(markers=rows, min_version=_MARKERS_VERSION, max_version=_MARKERS_VERSION)
            try:
                answer = self.cluster.send(node_id, request, timeout_s=timeout)
            except KafkaFailure as failure:
                results.update(dict.fromkeys(group, failure))
                continue
            codes = _codes(answer)
            for tp in group:
                code = codes.get(tp, ErrorCode.UNKNOWN_SERVER_ERROR)
                results[tp] = self._outcome("Partition", tp, code)
        for tp, outcome in results.items():
            if isinstance(outcome, BrokerFailure) and outcome.stale_metadata:
                self.cluster.invalidate(tp.topic)
        return results

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

        return self._ask_leaders(before, request, lambda partition: int(partition.low_watermark), timeout_s=timeout_s)


def _marker(tp: TopicPartition, fields: tuple[int, int, int]) -> Any:
    producer_id, producer_epoch, coordinator_epoch = fields
    row = WriteTxnMarkersRequest.WritableTxnMarker
    return row(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        transaction_result=False,
        topics=[row.WritableTxnMarkerTopic(name=tp.topic, partition_indexes=[tp.partition])],
        coordinator_epoch=coordinator_epoch,
    )


def _codes(answer: Any) -> dict[TopicPartition, int]:
    """The first error of each partition, 0 for none."""
    codes: dict[TopicPartition, int] = {}
    for marker in answer.markers:
        for topic in marker.topics:
            for partition in topic.partitions:
                tp = TopicPartition(topic.name, partition.partition_index)
                codes[tp] = codes.get(tp) or partition.error_code
    return codes
