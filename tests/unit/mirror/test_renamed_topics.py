"""Remote topics that transformations rename: names, records, clashes."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.config.configdef import ConfigException
from mm2.copy.executor.changes import ChangeFailed
from mm2.copy.spec import PartitionSpec
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.mirror.filters import DefaultTopicFilter
from mm2.mirror.plugins import replication_policy
from mm2.mirror.policy import DefaultReplicationPolicy
from mm2.mirror.record_chain import RecordChain
from mm2.mirror.record_changes import changes_spec
from mm2.mirror.renamed_topics import RenamedTopics
from mm2.mirror.selection import TopicSelection
from mm2.mirror.source_task import _partition_spec

FLOW = {"source.cluster.alias": "A", "target.cluster.alias": "B"}
STRIP = {
    "transforms": "x",
    "transforms.x.type": "org.apache.kafka.connect.transforms.RegexRouter",
    "transforms.x.regex": r"A\.(.*)",
    "transforms.x.replacement": "$1",
}
SOME = STRIP | {
    "transforms.x.predicate": "p",
    "predicates": "p",
    "predicates.p.type": "TopicNameMatches",
    "predicates.p.pattern": r"A\.or.*",
}


def names(props: dict[str, str], *topics: str) -> list[str]:
    policy = replication_policy(FLOW | props)
    return [policy.format_remote_topic("A", topic) for topic in topics]


def test_topics_get_the_names_that_their_records_get() -> None:
    assert names({}, "orders", "users") == ["A.orders", "A.users"]
    assert names(STRIP, "orders", "users") == ["orders", "users"]
    assert names(SOME, "orders", "users") == ["orders", "A.users"]
    assert names(SOME | {"transforms.x.negate": "true"}, "orders", "users") == ["A.orders", "users"]
    assert names(STRIP | {"replication.policy.separator": "_"}, "orders") == ["A_orders"], "the pattern does not match"


def test_routers_apply_in_order_and_other_transformations_do_not_count() -> None:
    props = STRIP | {"transforms": "x, drop, y", "transforms.drop.type": "Filter", "transforms.y.type": "RegexRouter"}
    props |= {"transforms.y.regex": "(or)(.*)", "transforms.y.replacement": "$2-$1"}
    assert names(props, "orders", "users") == ["ders-or", "users"]


def test_a_renamed_topic_counts_as_replicated_from_the_source() -> None:
    policy = replication_policy(FLOW | STRIP)
    assert policy.came_from("A", "orders")
    assert policy.came_from("B", "B.orders"), "it would be copied back"
    assert policy.upstream_topic("orders") == "orders"
    assert policy.original_topic("A.C.orders") == "orders"
    assert policy.is_heartbeats_topic("C.heartbeats")
    assert policy.checkpoints_topic("A") == "A.checkpoints.internal"
    assert policy.format_remote_topic("B", "orders") == "B.orders", "the opposite flow has transformations of its own"


def test_only_a_flow_with_routers_renames() -> None:
    without = {"transforms": "drop", "transforms.drop.type": "Filter"}
    assert isinstance(replication_policy(FLOW | without), DefaultReplicationPolicy)
    own = STRIP | {"transforms.x.type": "example.RegexRouter"}
    assert isinstance(replication_policy(FLOW | own), DefaultReplicationPolicy)


def test_a_router_without_its_settings_is_refused() -> None:
    with pytest.raises(ConfigException, match="regex"):
        replication_policy(FLOW | {"transforms": "x", "transforms.x.type": "RegexRouter"})


def test_records_enter_the_chain_under_the_name_of_the_policy() -> None:
    policy = replication_policy(FLOW | SOME)
    spec = changes_spec(FLOW | SOME, {}, connector="C", task=0)
    assert spec is not None
    record = Record(b"k", b"v", (), 5, 7)
    with RecordChain(spec.settings) as chain:
        for topic, remote in (("orders", "orders"), ("users", "A.users")):
            part = _partition_spec(policy, "A", TopicPartition(topic, 3))
            assert part == PartitionSpec(topic, 3, remote, f"A.{topic}")
            assert chain.apply(part, record) == replace(record, offset=-1)
        with pytest.raises(ChangeFailed, match=r"partition 3 of orders; only A\.orders-3"):
            chain.apply(PartitionSpec("orders", 3, "A.orders"), record)


def test_topics_with_one_remote_topic_clash() -> None:
    merge = STRIP | {"transforms.x.regex": r"A\..*-(.*)"}
    policy = replication_policy(FLOW | merge)
    selection = TopicSelection(policy, cast(Any, SimpleNamespace()), "A", "B")
    assert selection.clashes(["eu-orders", "us-orders", "users"]) == {"orders": ["eu-orders", "us-orders"]}
    assert TopicSelection(DefaultReplicationPolicy(), DefaultTopicFilter(), "A", "B").clashes(["a", "b"]) == {}
    assert isinstance(policy, RenamedTopics)
