"""Requests that create and extend topics."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from mm2.config.configdef import AbstractConfig
from mm2.config.keys.mirror_keys import MIRROR_SOURCE_CONFIG
from mm2.copy.progress.ledger import Ledger
from mm2.kafka.errors import BrokerFailure, KafkaFailure, TimeoutFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import NewTopic, TopicInfo
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.topics.remote_topics import PARTITIONS_PER_REQUEST, RemoteTopics, in_requests
from mm2.mirror.topics.topic_limits import LimitNote, RemoteTopicsLimits, over_limit_message, summary


def test_no_request_exceeds_the_controller_s_partition_limit_unless_one_topic_does() -> None:
    counts = {"a": 2_000, "b": 3_000, "c": 1, "d": PARTITIONS_PER_REQUEST + 1, "e": 4_999, "f": 1}
    assert in_requests(counts, counts.__getitem__) == [["a", "b"], ["c"], ["d"], ["e", "f"]]
    assert in_requests({}, counts.__getitem__) == []


LIMITS = RemoteTopicsLimits(topic_partitions=10, partitions=20)


def test_topics_beyond_the_limits_are_not_admitted() -> None:
    """The others are, by their names, so that the result is the same at each refresh."""
    wanted = {"A.d": 1, "A.c": 9, "A.b": 11, "A.a": 10, "A.e": 1}
    whole = "would exceed the limit of all remote topics of the flow, 20 partitions (remote.partitions.max)"
    assert LIMITS.exceeded(wanted, {}) == {
        "A.b": "is limited to 10 partitions (remote.topic.partitions.max)",
        "A.e": whole,
    }


def test_existing_partitions_count_and_are_kept() -> None:
    """A topic that exists gets no more partitions than are left; a limit that was lowered removes nothing."""
    assert LIMITS.exceeded({"A.a": 8}, {"A.a": 4, "A.b": 12}) == {}
    exceeded = LIMITS.exceeded({"A.a": 9, "A.c": 1}, {"A.a": 4, "A.b": 12})
    assert exceeded == {
        "A.a": "would exceed the limit of all remote topics of the flow, 20 partitions (remote.partitions.max)"
    }
    assert list(LIMITS.exceeded({"A.c": 1}, {"A.a": 30})) == ["A.c"]


def test_the_defaults_are_high() -> None:
    """Ten thousand is what a controller creates with one request, 200,000 what a cluster has at most."""
    settings = AbstractConfig(
        MIRROR_SOURCE_CONFIG,
        {"name": "n", "connector.class": "c", "source.cluster.alias": "A", "target.cluster.alias": "B"},
    )
    limits = RemoteTopicsLimits.of(settings)
    assert limits == RemoteTopicsLimits(10_000, 200_000)
    assert limits.exceeded({f"A.{index}": 1_000 for index in range(200)}, {}) == {}
    assert len(limits.exceeded({f"A.{index}": 1 for index in range(1_000_000)}, {})) == 800_000


class Ledgers:
    """The flow's own ledger; `missing` until it is created."""

    def __init__(self) -> None:
        self.ledger = Ledger()
        self.missing = False
        self.failure: KafkaFailure | None = None
        self.writes = self.losses = 0

    def exists(self) -> bool:
        return not self.missing

    def write(self, records: list[Record]) -> None:
        if self.failure is not None:
            raise self.failure
        self.writes += 1
        for record in records:
            self.ledger.apply(record.key, record.value)


def test_topics_over_a_limit_are_noted_in_the_ledger_while_they_exceed_it() -> None:
    """Every observer of the flow shows the note. It is small, however many topics a source has."""
    ledgers, recurring = Ledgers(), RecurringErrors()
    note = LimitNote(cast(Any, ledgers), recurring)
    over = {f"A.t{index}": "is limited" for index in range(1000)}
    ledgers.missing = True
    assert not note.update(over)
    ledgers.missing = False
    assert all(note.update(over) for _ in range(3))
    assert ledgers.writes == 1
    message = over_limit_message(ledgers.ledger)
    assert message == summary(over)
    assert message.startswith("A.t0 is limited; A.t1 is limited; ")
    assert message.endswith("; and 995 more topics exceed a limit")
    ledgers.failure = TimeoutFailure("no broker")
    note.update({})
    assert over_limit_message(ledgers.ledger) == message
    ledgers.failure = None
    note.update({})
    assert (over_limit_message(ledgers.ledger), ledgers.writes) == ("", 2)


def test_a_note_that_the_ledger_lost_is_written_again() -> None:
    ledgers = Ledgers()
    note = LimitNote(cast(Any, ledgers), RecurringErrors())
    note.update({"A.t": "is limited"})
    ledgers.ledger, ledgers.losses = Ledger(), 1  # deleted, and created again
    assert all(note.update({"A.t": "is limited"}) for _ in range(2))
    assert (over_limit_message(ledgers.ledger), ledgers.writes) == ("A.t is limited", 2)


def test_a_note_of_a_previous_process_is_removed() -> None:
    """The limit was raised, and the process restarted."""
    ledgers = Ledgers()
    LimitNote(cast(Any, ledgers), RecurringErrors()).update({"A.t": "is limited"})
    assert over_limit_message(ledgers.ledger) == "A.t is limited"
    LimitNote(cast(Any, ledgers), RecurringErrors()).update({})
    assert over_limit_message(ledgers.ledger) == ""


def test_topics_that_the_target_refuses_are_known_until_it_creates_them() -> None:
    """The leader notes them in the ledger: a failover has to know what is not copied."""
    answers: dict[str, KafkaFailure | None] = {"A.new": BrokerFailure.of(29), "A.wide": BrokerFailure.of(29)}
    target: Any = SimpleNamespace(
        create_topics=lambda topics, **_: {topic.name: answers["A.new"] for topic in topics},
        create_partitions=lambda wanted: dict.fromkeys(wanted, answers["A.wide"]),
        describe_topics=lambda names: {name: BrokerFailure.of(3) for name in names},
    )
    source: Any = SimpleNamespace(describe_configs=lambda topics: {topic: {} for topic in topics})
    selection: Any = SimpleNamespace(remote=lambda topic: f"A.{topic}", target_alias="B")
    configs: Any = SimpleNamespace(for_creation=lambda _: {})
    topics = RemoteTopics(source, target, selection, configs, 1, lambda _: False)
    assert topics.ensure({"new": 1, "wide": 3}, {"A.wide": 2}) == {"A.wide": 2}
    assert list(topics.refused) == ["A.new", "A.wide"]
    assert topics.refused["A.new"].startswith("topic A.new cannot be created: TOPIC_AUTHORIZATION_FAILED")
    assert topics.refused["A.wide"].startswith("topic A.wide cannot get 3 partitions: ")
    topics.ensure({"wide": 2}, {"A.wide": 2})
    assert topics.refused == {}


@pytest.mark.parametrize("source", [{"wide": 6, "narrow": 3}, {"narrow": 3, "wide": 6}])
def test_a_topic_with_several_sources_has_the_partitions_of_all_of_them(source: dict[str, int]) -> None:
    """A policy may merge topics. Partitions 3 to 5 would never be copied, and nothing would report it."""
    admin: Any = SimpleNamespace(describe_configs=lambda topics: {topic: {} for topic in topics})
    selection: Any = SimpleNamespace(remote=lambda _: "merged", target_alias="B")
    configs: Any = SimpleNamespace(for_creation=lambda _: {})
    topics = RemoteTopics(admin, admin, selection, configs, 1, lambda _: False)
    assert [(one.name, one.partitions) for one in topics.plan(source, {}).create] == [("merged", 6)]
    assert topics.plan(source, {"merged": 3}).grow == {"merged": 6}
    assert topics.plan(source, {"merged": 6}).wide == {}


@pytest.mark.parametrize("source", [{"one": 6, "two": 3}, {"two": 6, "one": 3}])
def test_a_topic_with_several_sources_has_the_configs_of_the_first_one_by_name(source: dict[str, int]) -> None:
    admin: Any = SimpleNamespace(describe_configs=lambda topics: {topic: {"of": topic} for topic in topics})
    selection: Any = SimpleNamespace(remote=lambda _: "merged", target_alias="B")
    configs: Any = SimpleNamespace(for_creation=dict)
    topics = RemoteTopics(admin, admin, selection, configs, 1, lambda _: False)
    assert [one.configs for one in topics.plan(source, {}).create] == [{"of": "one"}]


def test_the_default_of_the_brokers_is_used_only_while_there_are_too_few_of_them() -> None:
    """A topic that is created while brokers are down must not decide the replicas of all later ones."""
    brokers, requested = 1, list[tuple[str, int]]()

    def create(topics: Iterable[NewTopic], **_: bool) -> dict[str, KafkaFailure | None]:
        found: dict[str, KafkaFailure | None] = {}
        for topic in topics:
            requested.append((topic.name, topic.replication_factor))
            found[topic.name] = BrokerFailure.of(38) if topic.replication_factor > brokers else None
        return found

    led: Any = {0: SimpleNamespace(leader=1)}
    target: Any = SimpleNamespace(
        create_topics=create,
        describe_topics=lambda names: {name: TopicInfo(name, "", internal=False, partitions=led) for name in names},
    )
    source: Any = SimpleNamespace(describe_configs=lambda topics: {topic: {} for topic in topics})
    selection: Any = SimpleNamespace(remote=lambda topic: f"A.{topic}", target_alias="B")
    configs: Any = SimpleNamespace(for_creation=lambda _: {})
    topics = RemoteTopics(source, target, selection, configs, 2, lambda _: False, or_broker_default=True)
    with capture_logs() as logs:
        topics.ensure({"one": 1}, {})
        topics.ensure({"two": 1}, {"A.one": 1})
        brokers = 3
        topics.ensure({"three": 1}, {"A.one": 1})
    assert requested == [("A.one", 2), ("A.one", -1), ("A.two", 2), ("A.two", -1), ("A.three", 2)]
    assert [line["log_level"] for line in logs].count("warning") == 1


def test_a_default_of_the_brokers_that_is_too_high_as_well_is_reported() -> None:
    target: Any = SimpleNamespace(
        create_topics=lambda topics, **_: {topic.name: BrokerFailure.of(38) for topic in topics}
    )
    source: Any = SimpleNamespace(describe_configs=lambda topics: {topic: {} for topic in topics})
    selection: Any = SimpleNamespace(remote=lambda topic: f"A.{topic}", target_alias="B")
    configs: Any = SimpleNamespace(for_creation=lambda _: {})
    topics = RemoteTopics(source, target, selection, configs, 2, lambda _: False, or_broker_default=True)
    topics.ensure({"one": 1}, {})
    assert list(topics.refused) == ["A.one"]
