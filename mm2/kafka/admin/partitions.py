"""Questions that only the leader of a partition can answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from mm2.kafka.admin.calls import LEADER_MOVED, AdminCalls, unreachable
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import EpochEnd, OffsetInfo, ProducerState, TopicPartition

_Value = TypeVar("_Value")
_ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}
#: ListOffsets version that knows a special timestamp (KIP-734 for -3); all others are as old as the brokers we support.
_MIN_LIST_OFFSETS: Final = {-3: 7, -4: 8, -5: 9}
_CONSUMER: Final = -1
_DEBUGGING_REPLICA: Final = -2


class PartitionCalls(AdminCalls):
    """Offsets of logs and the producers that wrote them."""

    def list_offsets(
        self,
        timestamps: Mapping[TopicPartition, int],
        isolation: str = "read_uncommitted",
        *,
        in_current_epoch: bool = False,
        leader_epochs: Mapping[TopicPartition, int] | None = None,
        log_end: bool = False,
        timeout_s: float | None = None,
    ) -> dict[TopicPartition, OffsetInfo | KafkaFailure]:
        """Offset of each partition at EARLIEST, LATEST, or of the first record at or after a time in ms.

        LATEST is the high watermark, with `read_committed` the last stable offset, and with `log_end` the leader's log end
        offset, as brokers answer it to the debugging replica id -2 (`ListOffsetsRequest.DEBUGGING_REPLICA_ID`). Offset -1: no
        record is that young. With `in_current_epoch` the request carries the leader epoch of the newest metadata, so that only
        the leader of that epoch answers (KIP-320); `leader_epochs` names the epochs instead. `timeout_s` bounds all tries, the default is the request timeout.
        """
        min_version = max((_MIN_LIST_OFFSETS.get(timestamp, 2) for timestamp in timestamps.values()), default=2)

        def request(partitions: list[TopicPartition], request_timeout_s: float) -> Any:
            epochs: Mapping[TopicPartition, int] = leader_epochs or {}
            if in_current_epoch:
                epochs = self._leader_epochs(partitions, request_timeout_s)
            topics = [
                ListOffsetsRequest.ListOffsetsTopic(
                    name=topic,
                    partitions=[
                        ListOffsetsRequest.ListOffsetsTopic.ListOffsetsPartition(
                            partition_index=partition,
                            current_leader_epoch=epochs.get(TopicPartition(topic, partition), -1),
                            timestamp=timestamps[TopicPartition(topic, partition)],
                        )
                        for partition in indexes
                    ],
                )
                for topic, indexes in _by_topic(partitions).items()
            ]
            return ListOffsetsRequest(
                replica_id=_DEBUGGING_REPLICA if log_end else _CONSUMER,
                isolation_level=_ISOLATION[isolation],
                topics=topics,
                timeout_ms=int(request_timeout_s * 1000),
                min_version=min_version,
            )

        def value(partition: Any) -> OffsetInfo:
            return OffsetInfo(partition.offset, partition.timestamp, partition.leader_epoch)

        return self._ask_leaders(timestamps, request, value, timeout_s=timeout_s, leader_epochs=leader_epochs)

    def _leader_epochs(self, partitions: Iterable[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Of the metadata by which the leaders were found."""
        wanted = list(partitions)
        max_age_s = self.cluster.settings.metadata_max_age_ms / 1000
        metadata = self.cluster.metadata({key.topic for key in wanted}, max_age_s=max_age_s, timeout_s=timeout_s)
        return {
            key: info.leader_epoch
            for key in wanted
            if key.topic in metadata.topics
            and (info := metadata.topics[key.topic].partitions.get(key.partition)) is not None
        }

    def epoch_ends(
        self, epochs: Mapping[TopicPartition, int], *, leader_epochs: Mapping[TopicPartition, int] | None = None
    ) -> dict[TopicPartition, EpochEnd | KafkaFailure]:
        """Where each partition's log ends for a leader epoch (OffsetForLeaderEpoch, KIP-101).

        With `leader_epochs` only the leader of that epoch answers: a deposed one answers UNKNOWN_LEADER_EPOCH, a later one
        FENCED_LEADER_EPOCH (KIP-320). Needs DESCRIBE on the topic; brokers older than 2.3 want CLUSTER_ACTION.
        """
        current = leader_epochs or {}

        def request(wanted: list[TopicPartition], _timeout_s: float) -> Any:
            row = OffsetForLeaderEpochRequest.OffsetForLeaderTopic
            topics = [
                row(
                    topic=topic,
                    partitions=[
                        row.OffsetForLeaderPartition(
                            partition=partition,
                            current_leader_epoch=current.get(TopicPartition(topic, partition), -1),
                            leader_epoch=epochs[TopicPartition(topic, partition)],
                        )
                        for partition in indexes
                    ],
                )
                for topic, indexes in _by_topic(wanted).items()
            ]
            return OffsetForLeaderEpochRequest(replica_id=-1, topics=topics)

        def value(partition: Any) -> EpochEnd:
            return EpochEnd(partition.leader_epoch, partition.end_offset)

        return self._ask_leaders(
            epochs,
            request,
            value,
            key=lambda topic, row: (topic.topic, row.partition),
            leader_epochs=leader_epochs,
        )

    def describe_producers(
        self, partitions: Iterable[TopicPartition], *, timeout_s: float | None = None
    ) -> dict[TopicPartition, dict[int, ProducerState] | KafkaFailure]:
        """What each partition's leader remembers of its producers, by producer id (KIP-664). Needs READ on the topic."""

        def request(wanted: list[TopicPartition], _timeout_s: float) -> Any:
            topics = [
                DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
                for topic, indexes in _by_topic(wanted).items()
            ]
            return DescribeProducersRequest(topics=topics)

        def value(partition: Any) -> dict[int, ProducerState]:
            return {
                producer.producer_id: ProducerState(
                    producer_id=producer.producer_id,
                    producer_epoch=producer.producer_epoch,
                    last_sequence=producer.last_sequence,
                    last_timestamp=producer.last_timestamp,
                    coordinator_epoch=producer.coordinator_epoch,
                    current_transaction_start_offset=producer.current_txn_start_offset,
                )
                for producer in partition.active_producers
            }

        return self._ask_leaders(partitions, request, value, timeout_s=timeout_s)

    def _ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        request: Callable[[list[TopicPartition], float], Any],
        value: Callable[[Any], _Value],
        *,
        timeout_s: float | None = None,
        key: Callable[[Any, Any], tuple[str, int]] = lambda topic, row: (topic.name, row.partition_index),
        leader_epochs: Mapping[TopicPartition, int] | None = None,
    ) -> dict[TopicPartition, _Value | KafkaFailure]:
        """One request per leader. Leaders come from the cache first; those that moved are asked for again.

        Not those of a partition in `leader_epochs`: a later leader is another question.
        """

        def ask(wanted: list[TopicPartition], timeout_s: float) -> dict[TopicPartition, _Value | KafkaFailure]:
            results: dict[TopicPartition, _Value | KafkaFailure] = {}
            for node_id, group in self._by_leader(wanted, results, timeout_s, leader_epochs or {}).items():
                try:
                    answer = self.cluster.send(node_id, request(group, timeout_s), timeout_s=timeout_s)
                except KafkaFailure as failure:
                    results.update(
                        {
                            tp: unreachable(
                                failure, ErrorCode.LEADER_NOT_AVAILABLE, self._subject("Partition", tp), repeatable=True
                            )
                            for tp in group
                        }
                    )
                    continue
                for topic in answer.topics:
                    for partition in topic.partitions:
                        tp = TopicPartition(*key(topic, partition))
                        message = getattr(partition, "error_message", None)
                        failure_or_none = self._outcome("Partition", tp, partition.error_code, message)
                        results[tp] = value(partition) if failure_or_none is None else failure_or_none
            for tp, outcome in results.items():
                if isinstance(outcome, KafkaFailure):
                    self.cluster.invalidate(tp.topic)
            return results

        return self._settle(
            (TopicPartition(*tp) for tp in partitions),
            ask,
            again=LEADER_MOVED if leader_epochs is None else LEADER_MOVED - {ErrorCode.FENCED_LEADER_EPOCH},
            repeatable=True,
            timeout_s=timeout_s,
        )

    def _by_leader(
        self,
        wanted: list[TopicPartition],
        results: dict[TopicPartition, Any],
        timeout_s: float,
        leader_epochs: Mapping[TopicPartition, int],
    ) -> dict[int, list[TopicPartition]]:
        """Partitions by the node id of their leader; those without one get their failure into `results`.

        Metadata with another leader epoch than the one asked for name another leader.
        """
        max_age_s = self.cluster.settings.metadata_max_age_ms / 1000
        metadata = self.cluster.metadata({key.topic for key in wanted}, max_age_s=max_age_s, timeout_s=timeout_s)
        if any(
            key.topic in metadata.topics and key.partition not in metadata.topics[key.topic].partitions
            for key in wanted
        ):
            # The topic has grown since the cache was filled, or the caller is wrong: only the cluster knows.
            metadata = self.cluster.metadata({key.topic for key in wanted}, timeout_s=timeout_s)
        leaders: dict[int, list[TopicPartition]] = defaultdict(list)
        for key in wanted:
            if key.topic in metadata.errors:
                results[key] = metadata.errors[key.topic]
                continue
            info = metadata.topics[key.topic].partitions.get(key.partition) if key.topic in metadata.topics else None
            if info is None:
                results[key] = BrokerFailure.of(
                    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, subject=self._subject("Partition", key)
                )
            elif info.leader < 0:
                results[key] = BrokerFailure.of(ErrorCode.LEADER_NOT_AVAILABLE, subject=self._subject("Partition", key))
            elif leader_epochs.get(key, -1) in (-1, info.leader_epoch):
                leaders[info.leader].append(key)
            else:
                is_older = info.leader_epoch < leader_epochs[key]
                code = ErrorCode.UNKNOWN_LEADER_EPOCH if is_older else ErrorCode.FENCED_LEADER_EPOCH
                results[key] = BrokerFailure.of(code, subject=self._subject("Partition", key))
        return leaders


def _by_topic(partitions: Iterable[TopicPartition]) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = defaultdict(list)
    for topic, partition in partitions:
        topics[topic].append(partition)
    return topics
