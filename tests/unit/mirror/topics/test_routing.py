"""Remote topics that RegexRouter names."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect.api import ConnectError
from mm2.copy.spec import PartitionSpec
from mm2.kafka.records.record import Record
from mm2.kafka.structs import AclBinding, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.source.record_chain import RecordChain
from mm2.mirror.source.record_changes import changes_spec, changing_keys
from mm2.mirror.source_connector import topic_selection
from mm2.mirror.topics.remote_acls import covering, remote_acls
from mm2.mirror.topics.routing import topic_route
from mm2.mirror.topics.selection import TopicSelection

KAFKA = "org.apache.kafka.connect.transforms"
RECORD = Record(b"k", b"v", (), 1_700_000_000_000, 42)


def router(regex: str, replacement: str, alias: str = "r", **more: str) -> dict[str, str]:
    keys = {"type": f"{KAFKA}.RegexRouter", "regex": regex, "replacement": replacement, **more}
    return {"transforms": alias} | {f"transforms.{alias}.{key}": value for key, value in keys.items()}


STRIP = router(r"A\.(.*)", "$1")
LOUD = {"transforms.loud.type": "InsertHeader", "transforms.loud.header": "h", "transforms.loud.value.literal": "x"}


def matches(pattern: str, alias: str = "p") -> dict[str, str]:
    return {
        "predicates": alias,
        f"predicates.{alias}.type": f"{KAFKA}.predicates.TopicNameMatches",
        f"predicates.{alias}.pattern": pattern,
    }


def selection(props: Mapping[str, str]) -> TopicSelection:
    return topic_selection({"source.cluster.alias": "A", "target.cluster.alias": "B", **props})


def none_copied() -> dict[str, str]:
    return {}


@pytest.mark.parametrize(
    ("props", "topic", "wanted"),
    [
        ({}, "A.orders", "A.orders"),
        (STRIP, "A.orders", "orders"),
        (STRIP, "B.orders", "B.orders"),  # the whole name has to match
        (router("A\\.(?<name>.*)", "eu-${name}", type="RegexRouter"), "A.orders", "eu-orders"),
        (router("x", "y") | {"transforms": " "}, "x", "x"),
        ({**STRIP, "transforms.r.predicate": "p", **matches(r"A\.o.*")}, "A.orders", "orders"),
        ({**STRIP, "transforms.r.predicate": "p", **matches(r"A\.o.*")}, "A.people", "A.people"),
        (
            {**STRIP, "transforms.r.predicate": "p", "transforms.r.negate": "true", **matches(r"A\.o.*")},
            "A.people",
            "people",
        ),
        # Each router gets the name that the one before has made; others do not count.
        (
            {**STRIP, **router("o(.*)", "O$1", "s"), **LOUD, "transforms": "r, loud, s", **matches("orders")}
            | {"transforms.s.predicate": "p"},
            "A.orders",
            "Orders",
        ),
    ],
)
def test_the_route_of_a_topic_follows_from_its_name(props: dict[str, str], topic: str, wanted: str) -> None:
    assert topic_route(props).of(topic) == wanted


@pytest.mark.parametrize(
    ("props", "words"),
    [
        (
            {"transforms": "r", "transforms.r.type": f"{KAFKA}.TimestampRouter"},
            ("transforms.r.type", "the remote topic would depend on the timestamp of each record"),
        ),
        (
            {**STRIP, "transforms.r.predicate": "p", "predicates": "p", "predicates.p.type": "RecordIsTombstone"},
            ("predicates.p.type", "the remote topic would depend on each record"),
        ),
        ({**STRIP, "transforms.r.predicate": "p", "predicates": "p"}, ("predicates.p.type",)),
        (router(r"A\.(.*)", "$2"), ("transforms.r.replacement", "No group 2")),
        (router(r"A\.(.*)", "${name}"), ("transforms.r.replacement", "No group with name {name}")),
        (router("(", "x"), ("regex",)),
    ],
)
def test_a_router_that_depends_on_records_or_cannot_work_is_refused(
    props: dict[str, str], words: tuple[str, ...]
) -> None:
    with pytest.raises((ConfigException, ConnectError)) as caught:
        topic_route(props)
    for part in words:
        assert part in str(caught.value)


def test_a_predicate_that_is_not_listed_is_refused() -> None:
    with pytest.raises(ConnectError, match=r"transforms\.r\.predicate names the predicate p"):
        topic_route({**STRIP, "transforms.r.predicate": "p", **matches("x"), "predicates": ""})


def test_a_flow_that_only_renames_topics_copies_bytes() -> None:
    assert changing_keys(STRIP, {}) == []
    assert changes_spec({"source.cluster.alias": "A", **STRIP}, {}, connector="C", task=0) is None
    both = {**STRIP, **LOUD, "transforms": "r, loud"}
    assert changing_keys(both, {}) == ["transforms"]
    assert changes_spec({"source.cluster.alias": "A", **both}, {}, connector="C", task=0) is not None


def test_the_chain_gets_the_name_of_the_policy_and_has_to_return_the_routed_one() -> None:
    """Also while the records of the last session are read past, which were written to another topic."""
    props = {
        **router(r"A\.(.*)", "$1"),
        **router(r"orders", "ORDERS", "s"),
        "transforms": "before, r, after, s",
        "transforms.before.type": "InsertHeader",
        "transforms.before.header": "policy",
        "transforms.before.value.literal": "1",
        "transforms.before.predicate": "policy",
        "transforms.after.type": "InsertHeader",
        "transforms.after.header": "routed",
        "transforms.after.value.literal": "1",
        "transforms.after.predicate": "routed",
        **matches(r"A\.orders", "policy"),
        **matches("orders", "routed"),
        "predicates": "policy, routed",
        "header.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    spec = changes_spec({"source.cluster.alias": "A", **props}, {}, connector="C", task=0)
    assert spec is not None
    with RecordChain(spec.settings) as built:
        for remote in ("ORDERS", "former"):
            changed = built.apply(PartitionSpec("orders", 3, remote, "A.orders"), RECORD)
            assert not isinstance(changed, str)
            assert [name for name, _ in changed.headers] == ["policy", "routed"]


def test_the_digest_of_a_routed_chain_contains_the_policy() -> None:
    """The names that transformations get decide which records they drop."""
    props = {"source.cluster.alias": "A", **STRIP, **LOUD, "transforms": "r, loud"}
    dashes = {"replication.policy.separator": "-"}
    specs = [changes_spec({**props, **more}, {}, connector="C", task=0) for more in ({}, dashes)]
    assert len({spec.digest for spec in specs if spec is not None}) == 2
    unrouted = {**props, "transforms": "loud"}
    specs = [changes_spec({**unrouted, **more}, {}, connector="C", task=0) for more in ({}, dashes)]
    assert len({spec.digest for spec in specs if spec is not None}) == 1


def test_a_flow_names_the_remote_topic_and_what_its_transformations_get() -> None:
    names = selection(STRIP)
    assert (names.remote("orders"), names.named("orders"), names.named_if_routed("orders")) == (
        "orders",
        "A.orders",
        "A.orders",
    )
    assert not names.names_show_origin
    plain = selection({})
    assert (plain.remote("orders"), plain.named_if_routed("orders"), plain.names_show_origin) == ("A.orders", "", True)


def test_a_flow_that_does_not_copy_has_no_route() -> None:
    given = {"enabled": "false", "transforms": "r", "transforms.r.type": "TimestampRouter"}
    assert selection(given).remote("orders") == "A.orders"


def test_topics_with_the_same_remote_topic_are_merged() -> None:
    names = selection(router(r"A\.(orders|people).*", "$1"))
    topics = {"orders-2", "orders", "people", "other"}
    assert names.unroutable(topics, (), none_copied) == {}
    assert names.merges(topics) == {"orders": ("orders", "orders-2")}
    assert names.config_sources(topics) == {"orders", "people", "other"}
    assert selection({}).merges(topics) == {}


@pytest.mark.parametrize(
    ("copied_to", "refused"),
    [
        ({}, {"orders", "orders-2"}),
        ({"orders": "orders"}, {"orders-2"}),
        ({"orders": "orders", "orders-2": "A.orders-2"}, {"orders-2"}),
        ({"orders": "orders", "orders-2": "orders"}, {"orders", "orders-2"}),
        ({"orders": "A.orders"}, {"orders", "orders-2"}),
    ],
)
def test_topics_with_preserved_offsets_are_not_merged(copied_to: dict[str, str], refused: set[str]) -> None:
    """Also if only one of them has its offsets preserved. The one that has been copied there remains."""
    names = selection(router(r"A\.(orders).*", "$1"))
    found = names.unroutable({"orders", "orders-2"}, {"orders"}, lambda: copied_to)
    assert found == {
        topic: f"Topic {topic} of cluster A is not copied: preserve.offsets: orders and orders-2 have the same remote topic orders, "
        "which can have the offsets of one of them only."
        for topic in refused
    }


@pytest.mark.parametrize("internal", ["__consumer_offsets", "mm2-ledger.A.internal", "A.checkpoints.internal"])
def test_internal_topics_are_no_remote_topics(internal: str) -> None:
    found = selection(router(r"A\.orders", internal)).unroutable({"orders", "people"}, (), none_copied)
    assert list(found) == ["orders"]
    assert f"its remote topic would be the internal topic {internal};" in found["orders"]


def test_acls_of_routed_topics_name_each_topic() -> None:
    """A prefix could match topics of the target that do not come from the source."""
    names = selection(router(r"A\.(.*)", "eu-$1"))
    of = AclBinding(
        ResourceType.TOPIC, "or", PatternType.PREFIXED, "User:x", "*", AclOperation.READ, AclPermission.ALLOW
    )
    wanted = remote_acls([of], names, ["orders", "people"])
    assert [(acl.resource_name, acl.pattern_type) for acl in wanted] == [("eu-orders", PatternType.LITERAL)]
    assert all(covering(acl, of, names) is None for acl in wanted)
