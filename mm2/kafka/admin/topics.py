"""Cluster metadata and topics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest

from mm2.kafka.admin.calls import NOT_DONE, AdminCalls
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import KafkaFailure, value_of
from mm2.kafka.structs import Metadata, NewTopic, TopicInfo

_COURTESY_S: Final = 5.0
_LOOK_EVERY_S: Final = 0.01


class TopicCalls(AdminCalls):
    """List, describe, create, expand and delete topics; describe the cluster."""

    def describe_cluster(self) -> Metadata:
        """Cluster id, controller and brokers, without topics, freshly requested. Raises KafkaFailure."""
        return self._metadata(())

    def list_topics(self, *, include_internal: bool = False) -> set[str]:
        """Names of all topics that may be described. Raises KafkaFailure.

        Topics that have no leader at the moment are included. Internal topics are those that the *broker* marks as
        internal.
        """
        metadata = self._metadata(None)
        passing = {name for name, failure in metadata.errors.items() if failure.retriable}
        return {name for name, info in metadata.topics.items() if include_internal or not info.internal} | passing

    def describe_topics(self, names: Iterable[str], *, max_age_s: float = 0) -> dict[str, TopicInfo | KafkaFailure]:
        """Partitions, leaders and ids of topics, from metadata at most `max_age_s` seconds old; 0 sends a request.

        UNKNOWN_TOPIC_OR_PARTITION for a topic that does not exist, TOPIC_AUTHORIZATION_FAILED without DESCRIBE.
        """

        def ask(topics: list[str], timeout_s: float) -> Mapping[str, TopicInfo | KafkaFailure]:
            metadata = self.cluster.metadata(topics, max_age_s=max_age_s, timeout_s=timeout_s)
            return {**metadata.topics, **metadata.errors}

        return self._settle(names, ask, again=frozenset({ErrorCode.LEADER_NOT_AVAILABLE}), repeatable=True)

    def create_topics(
        self, topics: Iterable[NewTopic], *, validate_only: bool = False
    ) -> dict[str, KafkaFailure | None]:
        """Create topics independently: TOPIC_ALREADY_EXISTS for one topic does not affect the others.

        The controller answers before the brokers know the topics, so this returns when the topics are visible and have
        leaders, or after 5 s. `validate_only`: create nothing and return the results that creation would have.
        """
        wanted = {topic.name: topic for topic in topics}

        def ask(names: list[str], timeout_s: float) -> dict[str, KafkaFailure | None]:
            request = CreateTopicsRequest(
                topics=[_creatable(wanted[name]) for name in names],
                timeout_ms=int(timeout_s * 1000),
                validate_only=validate_only,
            )
            answer = self.cluster.send_to_controller(request, timeout_s=timeout_s)
            return {
                topic.name: self._outcome("Topic", topic.name, topic.error_code, topic.error_message, needed="CREATE")
                for topic in answer.topics
            }

        results = self._settle(wanted, ask, again=NOT_DONE, repeatable=validate_only)
        if not validate_only:
            self._until_seen(results, lambda metadata, name: _has_leaders(metadata, name, 1))
        return results

    def create_partitions(
        self, counts: Mapping[str, int], *, validate_only: bool = False
    ) -> dict[str, KafkaFailure | None]:
        """Increase the number of partitions of each topic *to* the given count; waits as `create_topics` does."""

        def ask(names: list[str], timeout_s: float) -> dict[str, KafkaFailure | None]:
            topics = [
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=counts[name], assignments=None)
                for name in names
            ]
            request = CreatePartitionsRequest(
                topics=topics, timeout_ms=int(timeout_s * 1000), validate_only=validate_only
            )
            answer = self.cluster.send_to_controller(request, timeout_s=timeout_s)
            return {
                topic.name: self._outcome("Topic", topic.name, topic.error_code, topic.error_message, needed="ALTER")
                for topic in answer.results
            }

        results = self._settle(counts, ask, again=NOT_DONE, repeatable=validate_only)
        if not validate_only:
            self._until_seen(results, lambda metadata, name: _has_leaders(metadata, name, counts[name]))
        return results

    def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaFailure | None]:
        """Delete topics by name; returns when they are no longer visible, or after 5 s."""

        def ask(topics: list[str], timeout_s: float) -> dict[str, KafkaFailure | None]:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in topics],
                topic_names=topics,
                timeout_ms=int(timeout_s * 1000),
            )
            answer = self.cluster.send_to_controller(request, timeout_s=timeout_s)
            return {
                topic.name: self._outcome("Topic", topic.name, topic.error_code, topic.error_message, needed="DELETE")
                for topic in answer.responses
            }

        results = self._settle(names, ask, again=NOT_DONE, repeatable=False)
        self._until_seen(results, lambda metadata, name: name not in metadata.topics)
        return results

    def _metadata(self, names: tuple[str, ...] | None) -> Metadata:
        answers = self._settle(
            [""], lambda _, timeout_s: {"": self.cluster.metadata(names, timeout_s=timeout_s)}, repeatable=True
        )
        return value_of(answers[""])

    def _until_seen(self, results: Mapping[str, KafkaFailure | None], seen: Callable[[Metadata, str], bool]) -> None:
        """Wait until metadata shows the change for the topics that succeeded.

        Best effort: no failure at the timeout.
        """
        for name in results:
            self.cluster.invalidate(name)
        waiting = [name for name, failure in results.items() if failure is None]
        deadline = time.monotonic() + min(_COURTESY_S, self._timeout_ms / 1000)
        while waiting and (left_s := deadline - time.monotonic()) > 0:
            try:
                metadata = self.cluster.metadata(waiting, timeout_s=left_s)
            except KafkaFailure:
                return
            waiting = [
                name
                for name in waiting
                if not seen(metadata, name)
                # A client that may create a topic may lack the right to describe it.
                and getattr(metadata.errors.get(name), "code", 0) != ErrorCode.TOPIC_AUTHORIZATION_FAILED
            ]
            if waiting:
                time.sleep(_LOOK_EVERY_S)


def _has_leaders(metadata: Metadata, name: str, count: int) -> bool:
    info = metadata.topics.get(name)
    if info is None or len(info.partitions) < count:
        return False
    return all(partition.leader >= 0 for partition in info.partitions.values())


def _creatable(topic: NewTopic) -> Any:
    return CreateTopicsRequest.CreatableTopic(
        name=topic.name,
        num_partitions=topic.partitions,
        replication_factor=topic.replication_factor,
        assignments=[],
        configs=[
            CreateTopicsRequest.CreatableTopic.CreatableTopicConfig(name=name, value=value)
            for name, value in topic.configs.items()
        ],
    )
