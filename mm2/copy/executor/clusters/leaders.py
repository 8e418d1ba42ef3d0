"""Decides which of several metadata responses names the newest leader of a partition. Pure.

A broker without a connection to the controller keeps returning the leaders that it knew, including itself. Of two
responses the one with the higher leader epoch is newer (KIP-320, `Metadata.updateLatestMetadata` of the Java client).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping

from mm2.kafka.structs import Metadata, PartitionInfo, TopicPartition


def partition_of(metadata: Metadata, tp: TopicPartition) -> PartitionInfo | None:
    """A partition in a metadata response; None if it is missing."""
    info = metadata.topics.get(tp.topic)
    return None if info is None else info.partitions.get(tp.partition)


def newest_leaders(metadata: Metadata, others: Iterable[Metadata]) -> Metadata:
    """The same metadata with the leaders of the response with the highest leader epoch, for topics with the same id."""
    topics = dict(metadata.topics)
    for other in others:
        for name, info in other.topics.items():
            known = topics.get(name)
            if known is None or known.topic_id != info.topic_id:
                continue
            newer = {
                index: partition
                for index, partition in info.partitions.items()
                if index not in known.partitions or partition.leader_epoch > known.partitions[index].leader_epoch
            }
            if newer:
                topics[name] = dataclasses.replace(known, partitions={**known.partitions, **newer})
    return dataclasses.replace(metadata, topics=topics)


def are_complete(answers: Mapping[int, Metadata]) -> bool:
    """Whether every broker that a response lists has responded itself."""
    return bool(answers) and all(node in answers for answer in answers.values() for node in answer.brokers)


def agreed_leader(answers: Collection[Metadata], tp: TopicPartition) -> PartitionInfo | None:
    """The leader of a partition when all responses name the same leader and leader epoch."""
    found = [partition_of(answer, tp) for answer in answers]
    first = found[0] if found else None
    if first is None:
        return None
    is_same = all(
        one is not None and (one.leader, one.leader_epoch) == (first.leader, first.leader_epoch) for one in found
    )
    return first if is_same else None
