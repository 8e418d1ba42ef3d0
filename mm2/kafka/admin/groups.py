"""Groups and transactional ids: requests to a coordinator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final, TypeVar

from kafka.protocol.admin import DeleteGroupsRequest, DescribeGroupsRequest, ListGroupsRequest
from kafka.protocol.consumer import OffsetCommitRequest, OffsetDeleteRequest, OffsetFetchRequest
from kafka.protocol.producer import InitProducerIdRequest

from mm2.kafka.admin.calls import COORDINATOR_MOVED, AdminCalls, unreachable
from mm2.kafka.client.answer_checks import producer_of
from mm2.kafka.client.cluster import CoordinatorKind
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, ConnectFailure, KafkaFailure, value_of
from mm2.kafka.structs import (
    DescribedMember,
    GroupDescription,
    GroupListing,
    OffsetAndMetadata,
    ProducerIdentity,
    TopicPartition,
)

_Value = TypeVar("_Value")
Offsets = dict[TopicPartition, OffsetAndMetadata]

#: From version 10 on topics are named by id (KIP-848). A group may have offsets of deleted topics, which have no id.
_NAMES_TOPICS: Final = 9
_ABORTING: Final = frozenset({ErrorCode.CONCURRENT_TRANSACTIONS})


class GroupCalls(AdminCalls):
    """List, describe and delete groups; read and change their offsets; fence transactional ids."""

    def list_groups(
        self, types: Collection[str] | None = None, states: Collection[str] | None = None
    ) -> list[GroupListing]:
        """List all groups of all brokers, filtered by type ("classic", "consumer", …) and state ("Stable", "Empty", …).

        Raises KafkaFailure when any broker could not answer: a partial list would look complete. Raises
        UnsupportedVersion when a filter is given and a broker is too old for it (types: 3.8, states: 2.6).
        """
        brokers = self.cluster.metadata(()).brokers
        min_version = 5 if types else 4 if states else 0

        def ask(nodes: list[int], timeout_s: float) -> dict[int, list[GroupListing] | KafkaFailure]:
            return {node: self._list_on(node, types, states, min_version, timeout_s) for node in nodes}

        found: dict[str, GroupListing] = {}
        for answer in self._settle(brokers, ask, again=COORDINATOR_MOVED, repeatable=True).values():
            found.update({listing.group_id: listing for listing in value_of(answer)})
        return list(found.values())

    def describe_groups(self, group_ids: Iterable[str]) -> dict[str, GroupDescription | KafkaFailure]:
        """State and members of groups. A group that does not exist is GROUP_ID_NOT_FOUND (older brokers: state "Dead")."""

        def request(groups: list[str]) -> Any:
            return DescribeGroupsRequest(groups=groups, include_authorized_operations=False)

        def read(answer: Any) -> dict[str, GroupDescription | KafkaFailure]:
            return {
                group.group_id: self._outcome(
                    "Group", group.group_id, group.error_code, group.error_message, needed="DESCRIBE"
                )
                or _description(group)
                for group in answer.groups
            }

        results = self._ask_coordinators(group_ids, request, read, repeatable=True)
        missing = [group for group, outcome in results.items() if _is(outcome, ErrorCode.GROUP_ID_NOT_FOUND)]
        if missing:
            # DescribeGroups finds classic groups only. A group that it reports missing may use the new protocol
            # (KIP-848).
            try:
                listings = {listing.group_id: listing for listing in self.list_groups()}
            except KafkaFailure as failure:
                results.update(dict.fromkeys(missing, failure))
            else:
                results.update({group: _from_listing(listings[group]) for group in missing if group in listings})
        return results

    def list_group_offsets(
        self, groups: Iterable[str], *, require_stable: bool = True, member: tuple[str, int] | None = None
    ) -> dict[str, Offsets | KafkaFailure]:
        """All committed offsets of each group; empty for a group that has none or does not exist.

        A partition whose offset cannot be read makes the whole group a failure. So does a partition with a pending
        transactional offset commit (KIP-447) that does not complete within the request timeout; without
        `require_stable` its previous committed offset is returned.

        `member` is the id and epoch of a member that reads the offsets of its own group (KIP-848): UNKNOWN_MEMBER_ID or
        STALE_MEMBER_EPOCH if the coordinator knows no such member.
        """

        def ask(group_ids: list[str], timeout_s: float) -> dict[str, Offsets | KafkaFailure]:
            results: dict[str, Offsets | KafkaFailure] = {}
            for node, part in self._by_coordinator(group_ids, "group", results, timeout_s).items():
                try:
                    results.update(self._fetch_offsets(node, part, timeout_s, require_stable, member))
                except KafkaFailure as failure:
                    results.update({group: self._unreachable(group, failure) for group in part})
            self._forget_moved(results, "group")
            return results

        again = COORDINATOR_MOVED | {ErrorCode.UNSTABLE_OFFSET_COMMIT}
        return self._settle(groups, ask, again=again, repeatable=True)

    def alter_group_offsets(
        self, group: str, offsets: Mapping[TopicPartition, OffsetAndMetadata]
    ) -> dict[TopicPartition, KafkaFailure | None]:
        """Commit offsets for a group that has no members (otherwise UNKNOWN_MEMBER_ID)."""

        def request(partitions: list[TopicPartition]) -> Any:
            topics: dict[str, list[Any]] = defaultdict(list)
            for key in partitions:
                topics[key.topic].append(
                    OffsetCommitRequest.OffsetCommitRequestTopic.OffsetCommitRequestPartition(
                        partition_index=key.partition,
                        committed_offset=offsets[key].offset,
                        committed_leader_epoch=offsets[key].leader_epoch,
                        committed_metadata=offsets[key].metadata,
                    )
                )
            return OffsetCommitRequest(
                group_id=group,
                generation_id_or_member_epoch=-1,
                member_id="",
                group_instance_id=None,
                topics=[
                    OffsetCommitRequest.OffsetCommitRequestTopic(name=topic, partitions=partitions)
                    for topic, partitions in topics.items()
                ],
                max_version=_NAMES_TOPICS,
            )

        return self._change_offsets(group, offsets, request)

    def delete_group_offsets(
        self, group: str, partitions: Iterable[TopicPartition]
    ) -> dict[TopicPartition, KafkaFailure | None]:
        """Delete committed offsets; a partition without one counts as deleted.

        GROUP_ID_NOT_FOUND when the group does not exist, GROUP_SUBSCRIBED_TO_TOPIC while a member subscribes to the topic.
        """

        def request(wanted: list[TopicPartition]) -> Any:
            topics: dict[str, list[Any]] = defaultdict(list)
            for key in wanted:
                topics[key.topic].append(
                    OffsetDeleteRequest.OffsetDeleteRequestTopic.OffsetDeleteRequestPartition(
                        partition_index=key.partition
                    )
                )
            return OffsetDeleteRequest(
                group_id=group,
                topics=[
                    OffsetDeleteRequest.OffsetDeleteRequestTopic(name=topic, partitions=found)
                    for topic, found in topics.items()
                ],
            )

        return self._change_offsets(group, partitions, request)

    def _change_offsets(
        self,
        group: str,
        partitions: Iterable[TopicPartition],
        request: Callable[[list[TopicPartition]], Any],
        rows: Callable[[Any], Mapping[str, Any]] | None = None,
    ) -> dict[TopicPartition, KafkaFailure | None]:
        """The coordinator's result for each partition; the same failure for all when it rejects the request.

        `rows` extracts the partitions of an answer by topic, where they are not simply `topics`.
        """
        rows = rows or (lambda answer: {topic.name: topic.partitions for topic in answer.topics})

        def ask(wanted: list[TopicPartition], timeout_s: float) -> dict[TopicPartition, KafkaFailure | None]:
            results: dict[TopicPartition, KafkaFailure | None] = {}
            try:
                node = self.cluster.coordinator(group, timeout_s=timeout_s)
                answer = self.cluster.send(node, request(wanted), timeout_s=timeout_s)
            except KafkaFailure as failure:
                results = dict.fromkeys(wanted, self._unreachable(group, failure))
            else:
                for topic, found in rows(answer).items():
                    for partition in found:
                        key = TopicPartition(topic, partition.partition_index)
                        results[key] = self._outcome(
                            f"Group {group}, partition", key, partition.error_code, needed="READ"
                        )
                if refused := getattr(answer, "error_code", 0):
                    results = dict.fromkeys(wanted, self._outcome("Group", group, refused, needed="READ"))
            if any(_moved(outcome) for outcome in results.values()):
                self.cluster.invalidate_coordinator(group)
            return results

        # The change is idempotent, so it is repeated after a lost connection.
        return self._settle((TopicPartition(*key) for key in partitions), ask, again=COORDINATOR_MOVED, repeatable=True)

    def delete_groups(self, group_ids: Iterable[str]) -> dict[str, KafkaFailure | None]:
        """Delete groups without members, with their offsets.

        NON_EMPTY_GROUP for a group with members, GROUP_ID_NOT_FOUND if it does not exist.
        """

        def read(answer: Any) -> dict[str, KafkaFailure | None]:
            return {
                result.group_id: self._outcome("Group", result.group_id, result.error_code, needed="DELETE")
                for result in answer.results
            }

        return self._ask_coordinators(
            group_ids, lambda groups: DeleteGroupsRequest(groups_names=groups), read, repeatable=False
        )

    def fence_producers(self, transactional_ids: Iterable[str]) -> dict[str, ProducerIdentity | KafkaFailure]:
        """Bump the epoch of each transactional id: fences its previous producer and aborts its open transaction."""

        def ask(ids: list[str], timeout_s: float) -> dict[str, ProducerIdentity | KafkaFailure]:
            results: dict[str, ProducerIdentity | KafkaFailure] = {}
            for node, part in self._by_coordinator(ids, "transaction", results, timeout_s).items():
                for transactional_id in part:
                    results[transactional_id] = self._fence(node, transactional_id, timeout_s)
            self._forget_moved(results, "transaction")
            return results

        return self._settle(transactional_ids, ask, again=COORDINATOR_MOVED | _ABORTING, repeatable=True)

    # -- single requests

    def _list_on(
        self,
        node: int,
        types: Collection[str] | None,
        states: Collection[str] | None,
        min_version: int,
        timeout_s: float,
    ) -> list[GroupListing] | KafkaFailure:
        request = ListGroupsRequest(
            states_filter=list(states or ()), types_filter=list(types or ()), min_version=min_version
        )
        try:
            answer = self.cluster.send(node, request, timeout_s=timeout_s)
        except KafkaFailure as failure:
            return failure
        return self._outcome("Groups on broker", node, answer.error_code, needed="DESCRIBE") or [
            GroupListing(group.group_id, group.protocol_type, group.group_state, group.group_type)
            for group in answer.groups
        ]

    def _fetch_offsets(
        self, node: int, groups: list[str], timeout_s: float, require_stable: bool, member: tuple[str, int] | None
    ) -> dict[str, Offsets | KafkaFailure]:
        """All offsets of groups with the same coordinator.

        Sends one request, or one per group to brokers before 3.0 (KIP-709).
        """
        member_id, epoch = member or (None, -1)
        try:
            wanted = [
                OffsetFetchRequest.OffsetFetchRequestGroup(
                    group_id=group, member_id=member_id, member_epoch=epoch, topics=None
                )
                for group in groups
            ]
            request = OffsetFetchRequest(
                groups=wanted, require_stable=require_stable, min_version=8, max_version=_NAMES_TOPICS
            )
            answer = self.cluster.send(node, request, timeout_s=timeout_s)
            return {group.group_id: self._offsets(group.group_id, group) for group in answer.groups}
        except BrokerFailure as failure:
            if failure.code != ErrorCode.UNSUPPORTED_VERSION:
                raise
        results: dict[str, Offsets | KafkaFailure] = {}
        for group in groups:
            request = OffsetFetchRequest(
                group_id=group, topics=None, require_stable=require_stable, min_version=2, max_version=7
            )
            results[group] = self._offsets(group, self.cluster.send(node, request, timeout_s=timeout_s))
        return results

    def _offsets(self, group: str, answer: Any) -> Offsets | KafkaFailure:
        if failure := self._outcome("Group", group, answer.error_code, needed="DESCRIBE"):
            return failure
        offsets: Offsets = {}
        for topic in answer.topics:
            for partition in topic.partitions:
                key = TopicPartition(topic.name, partition.partition_index)
                if failure := self._outcome(f"Group {group}, partition", key, partition.error_code, needed="DESCRIBE"):
                    return failure
                if partition.committed_offset >= 0:
                    offsets[key] = OffsetAndMetadata(
                        partition.committed_offset, partition.metadata or "", partition.committed_leader_epoch
                    )
        return offsets

    def _fence(self, node: int, transactional_id: str, timeout_s: float) -> ProducerIdentity | KafkaFailure:
        request = InitProducerIdRequest(
            transactional_id=transactional_id,
            transaction_timeout_ms=self._timeout_ms,
            producer_id=-1,
            producer_epoch=-1,
            max_version=5,
        )
        try:
            answer = self.cluster.send(node, request, timeout_s=timeout_s)
        except KafkaFailure as failure:
            return self._unreachable(transactional_id, failure, kind="Transactional id")
        return self._outcome("Transactional id", transactional_id, answer.error_code, needed="WRITE") or producer_of(
            answer
        )

    # -- brokers and coordinators

    def _ask_coordinators(
        self,
        keys: Iterable[str],
        request: Callable[[list[str]], Any],
        read: Callable[[Any], Mapping[str, _Value | KafkaFailure]],
        *,
        repeatable: bool,
    ) -> dict[str, _Value | KafkaFailure]:
        def ask(groups: list[str], timeout_s: float) -> dict[str, _Value | KafkaFailure]:
            results: dict[str, _Value | KafkaFailure] = {}
            for node, part in self._by_coordinator(groups, "group", results, timeout_s).items():
                try:
                    results.update(read(self.cluster.send(node, request(part), timeout_s=timeout_s)))
                except KafkaFailure as failure:
                    results.update({group: self._unreachable(group, failure, repeatable=repeatable) for group in part})
            self._forget_moved(results, "group")
            return results

        return self._settle(keys, ask, again=COORDINATOR_MOVED, repeatable=repeatable)

    def _by_coordinator(
        self, keys: list[str], kind: CoordinatorKind, results: dict[str, Any], timeout_s: float
    ) -> dict[int, list[str]]:
        """Group keys by the node id of their coordinator; a key without one gets its failure into `results`."""
        nodes: dict[int, list[str]] = defaultdict(list)
        for key, answer in self.cluster.coordinators(keys, kind, timeout_s=timeout_s).items():
            if isinstance(answer, KafkaFailure):
                results[key] = answer
            else:
                nodes[answer].append(key)
        return nodes

    def _unreachable(
        self, key: str, failure: KafkaFailure, *, kind: str = "Group", repeatable: bool = True
    ) -> KafkaFailure:
        subject = self._subject(kind, key)
        return unreachable(failure, ErrorCode.COORDINATOR_NOT_AVAILABLE, subject, repeatable=repeatable)

    def _forget_moved(self, results: Mapping[str, object], kind: CoordinatorKind) -> None:
        for key, outcome in results.items():
            if _moved(outcome):
                self.cluster.invalidate_coordinator(key, kind)


def _is(outcome: object, code: ErrorCode) -> bool:
    return isinstance(outcome, BrokerFailure) and outcome.code == code


def _moved(outcome: object) -> bool:
    """True when the coordinator has moved or cannot be reached; a failed coordinator has the same symptom."""
    return isinstance(outcome, ConnectFailure) or (
        isinstance(outcome, BrokerFailure) and outcome.code in COORDINATOR_MOVED
    )


def _description(group: Any) -> GroupDescription:
    return GroupDescription(
        group_id=group.group_id,
        protocol_type=group.protocol_type,
        protocol=group.protocol_data,
        state=group.group_state,
        group_type="classic",
        members=tuple(
            DescribedMember(
                member_id=member.member_id,
                group_instance_id=member.group_instance_id,
                client_id=member.client_id,
                client_host=member.client_host,
                metadata=bytes(member.member_metadata),
                assignment=bytes(member.member_assignment),
            )
            for member in group.members
        ),
    )


def _from_listing(listing: GroupListing) -> GroupDescription:
    return GroupDescription(
        group_id=listing.group_id,
        protocol_type=listing.protocol_type,
        protocol="",
        state=listing.state,
        group_type=listing.group_type,
        members=None,
    )
