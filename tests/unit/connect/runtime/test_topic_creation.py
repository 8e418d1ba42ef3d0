"""Topic creation groups, and transaction boundaries of tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import pytest

from mm2.config.configdef import AbstractConfig, ConfigException
from mm2.config.keys.connector_keys import source_connector_config
from mm2.connect.api import ConnectError, IllegalWorkerStateError, RetriableError, SourceRecord
from mm2.connect.runtime.tasks.exactly_once import WorkerTransactionContext
from mm2.connect.runtime.topic_creation import TopicCreation, TopicCreationGroup, topic_creation_groups
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import NewTopic


def groups(**settings: str) -> tuple[TopicCreationGroup, ...]:
    props = {"name": "c", "connector.class": "X", **{f"topic.creation.{key}": value for key, value in settings.items()}}
    return topic_creation_groups(AbstractConfig(source_connector_config(props), props), props)


DEFAULT = {"default.partitions": "3", "default.replication.factor": "1", "default.cleanup.policy": "compact"}


def test_without_any_key_topics_are_created_by_the_broker() -> None:
    assert groups() == ()


def test_the_first_fully_matching_group_applies_and_the_default_to_all_others() -> None:
    found = groups(
        **DEFAULT,
        groups="logs,big",
        **{"logs.include": "log-.*,trace", "logs.exclude": ".*-secret", "logs.partitions": "1", "big.include": ".*ig"},
        **{"logs.retention.ms": "60000"},
    )
    assert [group.name for group in found] == ["logs", "big", "default"]

    def chosen(topic: str) -> str:
        return next(group.name for group in found if group.matches(topic))

    assert [chosen(topic) for topic in ("log-a", "trace", "a-trace", "log-secret", "very big", "x")] == [
        "logs",
        "logs",
        "default",
        "default",
        "big",
        "default",
    ]
    new = found[0].new_topic("log-a")
    assert (new.partitions, new.replication_factor, new.configs) == (1, 1, {"retention.ms": "60000"})
    fallback = found[1].new_topic("big")
    assert (fallback.partitions, fallback.replication_factor, fallback.configs) == (3, 1, {})
    assert found[2].new_topic("x").configs == {"cleanup.policy": "compact"}


def test_a_group_has_its_own_replication_factor() -> None:
    logs, default = groups(**DEFAULT, groups="logs", **{"logs.include": "log-.*", "logs.replication.factor": "2"})
    assert (logs.new_topic("log-a").replication_factor, default.new_topic("x").replication_factor) == (2, 1)


def test_an_invalid_pattern_is_reported_with_key_and_value() -> None:
    with pytest.raises(ConfigException, match=r"Invalid value .* for configuration topic\.creation\.logs\.include"):
        groups(**DEFAULT, groups="logs", **{"logs.include": "("})


class Brokers:
    """The answers of a cluster that permits nothing."""

    def __init__(self, described: ErrorCode, created: ErrorCode) -> None:
        self.described, self.created = described, created

    def describe_topics(self, topics: Sequence[str]) -> dict[str, KafkaFailure]:
        return {topic: BrokerFailure.of(self.described) for topic in topics}

    def create_topics(self, topics: Sequence[NewTopic]) -> dict[str, KafkaFailure]:
        return {topic.name: BrokerFailure.of(self.created) for topic in topics}


DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@pytest.mark.parametrize(
    ("described", "created"),
    [
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, DENIED),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
        (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNSUPPORTED_VERSION),
        (DENIED, DENIED),
    ],
)
def test_a_task_that_may_not_create_its_topic_fails(described: ErrorCode, created: ErrorCode) -> None:
    creation = TopicCreation(cast("Admin", Brokers(described, created)), groups(**DEFAULT))
    with pytest.raises(ConnectError, match="is authorized to create topics or that the topic exists") as raised:
        creation.ensure("x")
    assert not isinstance(raised.value, RetriableError)
    assert not creation.knows("x")


def record(number: int) -> SourceRecord:
    return SourceRecord({"p": 1}, {"o": number}, "t", None, None, number)


def test_a_transaction_ends_once_after_an_equal_record() -> None:
    context = WorkerTransactionContext()
    context.commit_transaction(record(1))
    context.abort_transaction(record(2))
    assert not context.take_commit_on(record(3))
    assert context.take_commit_on(record(1))
    assert not context.take_commit_on(record(1))
    assert context.take_abort_on(record(2))
    context.commit_transaction()
    assert not context.take_abort_batch()
    assert context.take_commit_batch()
    assert not context.take_commit_batch()


def test_committing_and_aborting_the_same_record_is_rejected() -> None:
    context = WorkerTransactionContext()
    context.commit_transaction(record(1))
    context.abort_transaction(record(1))
    with pytest.raises(IllegalWorkerStateError, match="both commit and abort of same record"):
        context.take_abort_on(record(1))
    context.commit_transaction()
    context.abort_transaction()
    with pytest.raises(IllegalWorkerStateError, match="both commit and abort of same transaction"):
        context.take_commit_batch()
