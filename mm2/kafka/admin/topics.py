"""The cluster itself and its topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kafka.protocol.admin import CreatePartitionsRequest, CreateTopicsRequest, DeleteTopicsRequest

from mm2.kafka.admin.calls import NOT_DONE, AdminCalls
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import Metadata, NewTopic, TopicInfo


class TopicCalls(AdminCalls):
    """Topics: list, describe, create, grow, delete."""

    def describe_cluster(self) -> Metadata:
        """Cluster id, controller and brokers, freshly asked for; no topics. Raises KafkaFailure."""
        return self._metadata(())

    def list_topics(self, *, include_internal: bool = False) -> set[str]:
        """Names of all topics that may be described. Raises KafkaFailure.

        Topics without a leader at this moment are part of it; an internal topic is one the *broker* calls so.
        """
        metadata = self._metadata(None)
        passing = {name for name, failure in metadata.errors.items() if failure.retriable}
        return {name for name, info in metadata.topics.items() if include_internal or not info.internal} | passing

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo | KafkaFailure]:
        """Partitions, leaders and ids of topics. A topic that does not exist is failure 3, one that may not be seen 29."""

        def ask(topics: list[str], timeout_s: float) -> Mapping[str, TopicInfo | KafkaFailure]:
            metadata = self.cluster.metadata(topics, timeout_s=timeout_s)
            return {**metadata.topics, **metadata.errors}

        return self._settle(names, ask, again=frozenset({ErrorCode.LEADER_NOT_AVAILABLE}), repeatable=True)

    def create_topics(self, topics: Iterable[NewTopic]) -> dict[str, KafkaFailure | None]:
        """Creates topics, each for itself: failure 36 for one that exists does not stop the others."""
        wanted = {topic.name: topic for topic in topics}

        def ask(names: list[str], timeout_s: float) -> dict[str, KafkaFailure | None]:
            request = CreateTopicsRequest(
                topics=[_creatable(wanted[name]) for name in names],
                timeout_ms=int(timeout_s * 1000),
                validate_only=False,
            )
            answer = self.cluster.send(None, request, timeout_s=timeout_s)
            return {
                topic.name: self._outcome("Topic", topic.name, topic.error_code, topic.error_message)
                for topic in answer.topics
            }

        results = self._settle(wanted, ask, again=NOT_DONE, repeatable=False)
        self._forget(results)
        return results

    def create_partitions(self, counts: Mapping[str, int]) -> dict[str, KafkaFailure | None]:
        """Raises the number of partitions of each topic *to* the given count."""

        def ask(names: list[str], timeout_s: float) -> dict[str, KafkaFailure | None]:
            topics = [
                CreatePartitionsRequest.CreatePartitionsTopic(name=name, count=counts[name], assignments=None)
                for name in names
            ]
            request = CreatePartitionsRequest(topics=topics, timeout_ms=int(timeout_s * 1000), validate_only=False)
            answer = self.cluster.send(None, request, timeout_s=timeout_s)
            return {
                topic.name: self._outcome("Topic", topic.name, topic.error_code, topic.error_message)
                for topic in answer.results
            }

        results = self._settle(counts, ask, again=NOT_DONE, repeatable=False)
        self._forget(results)
        return results

    def delete_topics(self, names: Iterable[str]) -> dict[str, KafkaFailure | None]:
        """Deletes topics by name."""

        def ask(topics: list[str], timeout_s: float) -> dict[str, KafkaFailure | None]:
            request = DeleteTopicsRequest(
                topics=[DeleteTopicsRequest.DeleteTopicState(name=name) for name in topics],
                topic_names=topics,
                timeout_ms=int(timeout_s * 1000),
            )
            answer = self.cluster.send(None, request, timeout_s=timeout_s)
            return {
                topic.name: self._outcome("Topic", topic.name, topic.error_code, topic.error_message)
                for topic in answer.responses
            }

        results = self._settle(names, ask, again=NOT_DONE, repeatable=False)
        self._forget(results)
        return results

    def _metadata(self, names: tuple[str, ...] | None) -> Metadata:
        answer = self._settle(
            [""], lambda _, timeout_s: {"": self.cluster.metadata(names, timeout_s=timeout_s)}, repeatable=True
        )[""]
        if isinstance(answer, KafkaFailure):
            raise answer
        return answer

    def _forget(self, results: Mapping[str, object]) -> None:
        for name in results:
            self.cluster.invalidate(name)


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
