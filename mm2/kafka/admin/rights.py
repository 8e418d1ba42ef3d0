"""Authorized operations of the client, as brokers report them (KIP-430). Read-only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.admin import DescribeClusterRequest, DescribeGroupsRequest
from kafka.protocol.metadata import MetadataRequest

from mm2.kafka.admin.groups import GroupCalls
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import AclOperation

Rights = frozenset[AclOperation]
"""Allowed operations on one resource; all operations on a cluster without an authorizer."""


class RightsCalls(GroupCalls):
    """Authorized operations of topics, groups and the cluster. Brokers report them only to clients with DESCRIBE."""

    def topic_rights(self, names: Iterable[str]) -> dict[str, Rights | KafkaFailure]:
        """Operations on topics.

        Needs brokers 2.3.
        """

        def ask(topics: list[str], timeout_s: float) -> Mapping[str, Rights | KafkaFailure]:
            request = MetadataRequest(
                topics=[MetadataRequest.MetadataRequestTopic(name=name) for name in topics],
                allow_auto_topic_creation=False,
                include_topic_authorized_operations=True,
                min_version=8,
            )
            answer = self.cluster.send(None, request, timeout_s=timeout_s)
            return {
                topic.name: self._outcome("Topic", topic.name, topic.error_code, needed="DESCRIBE")
                or _rights(topic.authorized_operations)
                for topic in answer.topics
            }

        return self._settle(names, ask, repeatable=True)

    def cluster_rights(self) -> Rights:
        """Operations on the cluster resource; also empty without DESCRIBE on it.

        Raises KafkaFailure; needs brokers 2.8.
        """
        answer = self._ask_any(lambda: DescribeClusterRequest(include_cluster_authorized_operations=True))
        if answer.error_code:
            raise BrokerFailure.of(answer.error_code, answer.error_message, subject=f"Cluster {self.cluster.name}")
        return _rights(answer.authorized_operations)

    def group_rights(self, groups: Iterable[str]) -> dict[str, Rights | KafkaFailure]:
        """Operations on consumer groups, existing or not. Without DESCRIBE: GROUP_AUTHORIZATION_FAILED."""

        def request(some: list[str]) -> Any:
            # From version 6 on a group that does not exist is an error without authorized operations.
            return DescribeGroupsRequest(groups=some, include_authorized_operations=True, min_version=3, max_version=5)

        def read(answer: Any) -> dict[str, Rights | KafkaFailure]:
            return {
                group.group_id: self._outcome("Group", group.group_id, group.error_code, needed="DESCRIBE")
                or _rights(group.authorized_operations)
                for group in answer.groups
            }

        return self._ask_coordinators(groups, request, read, repeatable=True)


def _rights(numbers: Iterable[int] | None) -> Rights:
    """The known operations among the numbers; empty for None, which means that the broker did not report them."""
    return frozenset(AclOperation(number) for number in numbers or () if number in AclOperation.__members__.values())
