"""Requests that only the leader of a partition can answer."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, TypeVar

from kafka.protocol.admin import DescribeProducersRequest
from kafka.protocol.consumer import ListOffsetsRequest, OffsetForLeaderEpochRequest

from mm2.kafka.admin.calls import LEADER_MOVED, AdminCalls, unreachable
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure, Right, UnreadableAnswer
from mm2.kafka.structs import EARLIEST, LATEST, EpochEnd, OffsetInfo, ProducerState, TopicPartition

_Value = TypeVar("_Value")
_ISOLATION: Final = {"read_uncommitted": 0, "read_committed": 1}
#: ListOffsets version that introduced a special timestamp (KIP-734 for -3). All supported brokers know the others.
_MIN_LIST_OFFSETS: Final = {-3: 7, -4: 8, -5: 9}
_CONSUMER: Final = -1
_DEBUGGING_REPLICA: Final = -2


class PartitionCalls(AdminCalls):
    """Offsets of partitions and the state of their producers."""

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
        """The offset of each partition at EARLIEST or LATEST, or of the first record at or after a time in ms.

        LATEST is the high watermark; with `read_committed` the last stable offset; with `log_end` the leader's log end
        offset, which brokers return to the replica id -2 (`ListOffsetsRequest.DEBUGGING_REPLICA_ID`). Offset -1: no
        record is that recent. With `in_current_epoch` the request carries the leader epoch of the newest metadata, so
        that only the leader of that epoch answers (KIP-320); `leader_epochs` gives the epochs instead. `log_end` includes
        it: without an epoch, followers answer requests of replica -2. `timeout_s` bounds all attempts (default: request
        timeout).
        """
        min_version = max((_MIN_LIST_OFFSETS.get(timestamp, 2) for timestamp in timestamps.values()), default=2)

        def request(partitions: list[TopicPartition], request_timeout_s: float) -> Any:
            epochs: Mapping[TopicPartition, int] = leader_epochs or {}
            if in_current_epoch or (log_end and leader_epochs is None):
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

        def value(tp: TopicPartition, partition: Any) -> OffsetInfo | KafkaFailure:
            if partition.offset < 0 and timestamps.get(tp) in {EARLIEST, LATEST}:
                return UnreadableAnswer(f"{self._subject('Partition', tp)}: the broker knows no end of its log.")
            return OffsetInfo(partition.offset, partition.timestamp, partition.leader_epoch)

        return self._ask_leaders(timestamps, request, value, timeout_s=timeout_s, leader_epochs=leader_epochs)

    def _leader_epochs(self, partitions: Iterable[TopicPartition], timeout_s: float) -> dict[TopicPartition, int]:
        """Leader epochs from the metadata that named the leaders."""
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
        """The end offset of a leader epoch in each partition (OffsetForLeaderEpoch, KIP-101).

        With `leader_epochs` only the leader of that epoch answers: an earlier leader returns UNKNOWN_LEADER_EPOCH, a
        later one FENCED_LEADER_EPOCH (KIP-320). Needs DESCRIBE on the topic; brokers older than 2.3 require
        CLUSTER_ACTION.
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

        def value(_tp: TopicPartition, partition: Any) -> EpochEnd:
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
        """The producer state of each partition's leader, by producer id (DescribeProducers, KIP-664).

        Needs READ on the topic.
        """

        def request(wanted: list[TopicPartition], _timeout_s: float) -> Any:
            topics = [
                DescribeProducersRequest.TopicRequest(name=topic, partition_indexes=indexes)
                for topic, indexes in _by_topic(wanted).items()
            ]
            return DescribeProducersRequest(topics=topics)

        def value(_tp: TopicPartition, partition: Any) -> dict[int, ProducerState]:
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

        return self._ask_leaders(partitions, request, value, timeout_s=timeout_s, needed="READ")

    def _ask_leaders(
        self,
        partitions: Iterable[TopicPartition],
        request: Callable[[list[TopicPartition], float], Any],
        value: Callable[[TopicPartition, Any], _Value | KafkaFailure],
        *,
        timeout_s: float | None = None,
        key: Callable[[Any, Any], tuple[str, int]] = lambda topic, row: (topic.name, row.partition_index),
        leader_epochs: Mapping[TopicPartition, int] | None = None,
        needed: Right = "DESCRIBE",
    ) -> dict[TopicPartition, _Value | KafkaFailure]:
        """Send one request per leader. Leaders come from the cache first and are looked up again if they moved.

        Leaders of partitions in `leader_epochs` are not looked up again: the request is for the leader of that epoch
        only.
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
                        if partition.error_code:
                            message = getattr(partition, "error_message", None)
                            subject = self._subject("Partition", tp)
                            results[tp] = BrokerFailure.of(
                                partition.error_code, message, subject=subject, needed=needed
                            )
                        else:
                            results[tp] = value(tp, partition)
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
        """Partitions by the node id of their leader; a partition without one gets its failure into `results`.

        A partition whose leader epoch in the metadata is older than the one in `leader_epochs` gets
        UNKNOWN_LEADER_EPOCH, one with a newer epoch FENCED_LEADER_EPOCH.
        """
        max_age_s = self.cluster.settings.metadata_max_age_ms / 1000
        metadata = self.cluster.metadata({key.topic for key in wanted}, max_age_s=max_age_s, timeout_s=timeout_s)
        if any(
            key.topic in metadata.topics and key.partition not in metadata.topics[key.topic].partitions
            for key in wanted
        ):
            # The topic was expanded after the cache was filled, or the partition does not exist: ask the cluster.
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
