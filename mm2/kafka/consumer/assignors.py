"""Assignment of partitions to the members of a consumer group (Java's ConsumerPartitionAssignor).

The algorithms are kafka-python's. This module encodes subscriptions and assignments in the newest version of the
consumer protocol, so that Java members and ours can be in one group with either as leader.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, ClassVar, Final

from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor as KafkaCooperativeSticky
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from kafka.coordinator.assignors.sticky.user_data import StickyAssignorUserData
from kafka.protocol.consumer.metadata import ConsumerProtocolAssignment, ConsumerProtocolSubscription

from mm2.kafka.structs import TopicPartition
from mm2.kafka.wire.primitives import INT32

PROTOCOL_TYPE: Final = "consumer"
_VERSION: Final = 3


@dataclass(frozen=True)
class Subscription:
    """Subscription that a member sends to the leader, with its owned partitions and their generation."""

    topics: frozenset[str]
    #: Partitions that the member keeps while it joins.
    owned: frozenset[TopicPartition] = frozenset()
    #: Partitions that it had before, also if it has given them up.
    previous: frozenset[TopicPartition] = frozenset()
    generation: int = -1


@dataclass(frozen=True)
class Member:
    """A member as the leader sees it; ``metadata`` is its encoded subscription."""

    id: str
    instance_id: str | None
    metadata: bytes


class Assignor(ABC):
    """Assignment strategy. Stateless: the previous assignment is part of the subscription."""

    name: ClassVar[str]
    #: Whether members keep their partitions while they join.
    is_cooperative: ClassVar[bool] = False
    _algorithm: ClassVar[Any]

    @classmethod
    def metadata(cls, subscription: Subscription) -> bytes:
        """The metadata for JoinGroup."""
        encoded = ConsumerProtocolSubscription(
            version=_VERSION,
            topics=sorted(subscription.topics),
            user_data=cls._user_data(subscription),
            owned_partitions=[
                ConsumerProtocolSubscription.TopicPartition(topic=topic, partitions=partitions)
                for topic, partitions in _by_topic(subscription.owned)
            ],
            generation_id=subscription.generation,
            rack_id=None,
        ).encode()
        return bytes(encoded)

    @classmethod
    def assign(cls, members: Iterable[Member], partition_counts: Mapping[str, int]) -> dict[str, bytes]:
        """As leader, the encoded assignment of each member; ``partition_counts`` lacks topics that do not exist."""
        decoded = [
            SimpleNamespace(
                member_id=member.id,
                group_instance_id=member.instance_id,
                metadata=ConsumerProtocolSubscription.decode(member.metadata),
            )
            for member in members
        ]
        assigned = cls._algorithm().assign(_Topics(partition_counts), decoded)
        return {member: bytes(assignment.encode()) for member, assignment in assigned.items()}

    @classmethod
    def _user_data(cls, subscription: Subscription) -> bytes | None:
        return None


class RangeAssignor(Assignor):
    """Assign consecutive partitions of each topic to the same member."""

    name = "range"
    _algorithm = RangePartitionAssignor


class RoundRobin(Assignor):
    """Assign all partitions in turn."""

    name = "roundrobin"
    _algorithm = RoundRobinPartitionAssignor


class Sticky(Assignor):
    """Balance partitions and move as few as possible."""

    name = "sticky"
    _algorithm = StickyPartitionAssignor

    @classmethod
    def _user_data(cls, subscription: Subscription) -> bytes | None:
        if not subscription.previous:
            return b""
        return bytes(StickyAssignorUserData(_by_topic(subscription.previous), subscription.generation).encode())


class CooperativeSticky(Assignor):
    """As Sticky; a partition that moves is revoked in one rebalance and assigned in the next (KIP-429)."""

    name = "cooperative-sticky"
    is_cooperative = True
    _algorithm = KafkaCooperativeSticky

    @classmethod
    def _user_data(cls, subscription: Subscription) -> bytes | None:
        return bytes(INT32.pack(subscription.generation))


#: By the simple names of Java's classes.
BUILT_IN: Final[Mapping[str, type[Assignor]]] = {
    "RangeAssignor": RangeAssignor,
    "RoundRobinAssignor": RoundRobin,
    "StickyAssignor": Sticky,
    "CooperativeStickyAssignor": CooperativeSticky,
}


def topics_of(metadata: bytes) -> set[str]:
    """The topics in an encoded subscription."""
    return set(ConsumerProtocolSubscription.decode(metadata).topics)


def partitions_of(assignment: bytes) -> frozenset[TopicPartition]:
    """The partitions in an encoded assignment; none if it is empty."""
    if not assignment:
        return frozenset()
    decoded = ConsumerProtocolAssignment.decode(assignment)
    return frozenset(TopicPartition(topic, partition) for topic, partition in decoded.partitions())


class _Topics:
    """The part of kafka-python's ClusterMetadata that its assignors use."""

    def __init__(self, counts: Mapping[str, int]) -> None:
        self._counts = counts

    def topics(self) -> set[str]:
        return set(self._counts)

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        count = self._counts.get(topic)
        return None if count is None else set(range(count))


def _by_topic(partitions: Collection[TopicPartition]) -> list[tuple[str, list[int]]]:
    by_topic: dict[str, list[int]] = {}
    for tp in sorted(partitions):
        by_topic.setdefault(tp.topic, []).append(tp.partition)
    return sorted(by_topic.items())
