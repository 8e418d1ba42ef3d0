"""The sync of topic configs, when the target does not make all changes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from structlog.testing import capture_logs

from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.structs import AlterOp, ConfigEntry, ConfigSource
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.filters import DefaultConfigPropertyFilter
from mm2.mirror.topics.config_sync import ConfigSync
from mm2.mirror.topics.topic_configs import TopicConfigs

PAIRS = [("t", "t")]  # identity naming
TIERED, RETENTION = "remote.storage.enable", "retention.ms"


@dataclass
class Cluster:
    """A cluster with one topic. ``answers``: why changes of properties fail."""

    configs: dict[str, str]
    answers: Mapping[str, KafkaFailure] = field(default_factory=dict)

    def describe_configs(self, topics: list[str]) -> dict[str, dict[str, ConfigEntry]]:
        source = ConfigSource.DYNAMIC_TOPIC_CONFIG
        entries = {name: ConfigEntry(name, value, source, False, False, False) for name, value in self.configs.items()}
        return dict.fromkeys(topics, entries)

    def incremental_alter_configs(self, changes: Mapping[str, list[AlterOp]]) -> dict[str, KafkaFailure | None]:
        found: dict[str, KafkaFailure | None] = {}
        for topic, operations in changes.items():
            failures = [self.answers[one.name] for one in operations if one.name in self.answers]
            found[topic] = failures[0] if failures else None
            if not failures:
                self.configs |= {one.name: one.value or "" for one in operations}
        return found


def synced(source: Cluster, target: Cluster) -> TopicConfigs:
    properties = DefaultConfigPropertyFilter()
    properties.configure({})
    admins = cast(Any, source), cast(Any, target)
    return TopicConfigs(*admins, ConfigSync(properties), "B", RecurringErrors())


def test_a_property_that_the_target_rejects_is_not_tried_again_before_the_next_interval() -> None:
    """Of thousands of topics it would be sent every 30 s, one request for each."""
    target = Cluster({TIERED: "false", RETENTION: "1"}, {TIERED: BrokerFailure.of(ErrorCode.INVALID_CONFIG)})
    assert synced(Cluster({TIERED: "true", RETENTION: "2"}), target).sync(PAIRS)
    assert target.configs == {TIERED: "false", RETENTION: "2"}, "the others are synced"


def test_a_change_that_may_succeed_is_tried_again_soon() -> None:
    rejected, passing = (BrokerFailure.of(code) for code in (ErrorCode.INVALID_CONFIG, ErrorCode.REQUEST_TIMED_OUT))
    source = {TIERED: "true", RETENTION: "2"}
    assert not synced(Cluster(source), Cluster({RETENTION: "1"}, {RETENTION: passing})).sync(PAIRS)
    for answers in ({TIERED: rejected, RETENTION: passing}, {TIERED: passing, RETENTION: rejected}):
        assert not synced(Cluster(source), Cluster({TIERED: "false", RETENTION: "1"}, answers)).sync(PAIRS)


def test_a_rejected_change_is_reported_once_until_it_is_resolved() -> None:
    target = Cluster({TIERED: "false"}, {TIERED: BrokerFailure.of(ErrorCode.INVALID_CONFIG)})
    configs = synced(Cluster({TIERED: "true"}), target)
    with capture_logs() as logs:
        for _ in range(3):
            configs.sync(PAIRS)
        assert [line["log_level"] for line in logs] == ["warning", "debug", "debug"], logs
        target.configs[TIERED] = "true"  # an administrator does it
        configs.sync(PAIRS)
    assert logs[-1]["event"] == "An earlier error is resolved."
