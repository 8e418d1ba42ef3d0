import pytest

from mm2.mirror.filters import DefaultTopicFilter
from mm2.mirror.groups.translator import Translator
from mm2.mirror.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, ReplicationPolicy
from mm2.mirror.source_connector import MirrorSourceConnector, topic_selection
from mm2.mirror.topics.selection import TopicSelection


def selection(
    policy: ReplicationPolicy | None = None,
    *,
    heartbeats_replication: bool = True,
    topics: str = ".*",
    exclude: str | None = None,
) -> TopicSelection:
    policy = policy or DefaultReplicationPolicy()
    policy.configure({"source.cluster.alias": "A"})
    topic_filter = DefaultTopicFilter()
    topic_filter.configure({"topics": topics} if exclude is None else {"topics": topics, "topics.exclude": exclude})
    return TopicSelection(policy, topic_filter, "A", "B", heartbeats_replication)


# Recorded from MirrorSourceConnector of Kafka 4.3.0, flow A->B.
@pytest.mark.parametrize(
    "topic", ["t", "*", "A.t", "C.t", "heartbeats", "C.heartbeats", "x.internal", "connect-offsets", "B", "B."]
)
def test_topics_are_replicated(topic: str) -> None:
    assert selection().should_replicate(topic)


@pytest.mark.parametrize("topic", ["B.t", "C.B.t", "B.heartbeats"])
def test_cycles_are_not_replicated(topic: str) -> None:
    assert selection().is_cycle(topic)
    assert not selection().should_replicate(topic)


def test_aliases_that_contain_the_separator_are_recognized() -> None:
    everything = DefaultTopicFilter()
    everything.configure({})
    chosen = TopicSelection(DefaultReplicationPolicy(), everything, "us.east", "eu.west")
    for topic in ("eu.west.t", "C.eu.west.t", "us.east.eu.west.t", "eu.west.heartbeats"):
        assert chosen.is_cycle(topic), topic
        assert not chosen.should_replicate(topic), topic
    for topic in ("t", "us.east.t", "eu.t", "west.t", "eu.west.", "C.heartbeats"):
        assert not chosen.is_cycle(topic), topic
    assert chosen.is_remote(chosen.remote("t"))
    assert not chosen.is_remote("us.west.t")
    assert not chosen.is_remote("us.east.checkpoints.internal")
    translator = Translator(chosen.policy, "us.east", "eu.west")
    assert translator.home_of("eu.west.t") == "t"
    assert translator.topic_on_target("t") == "us.east.t"


@pytest.mark.parametrize(
    "topic",
    ["C.checkpoints.internal", "mm2-offset-syncs.B.internal", "mm2-offsets.A.internal", "__x", ".x", "t.replica"],
)
def test_internal_topics_and_replicas_are_not_replicated(topic: str) -> None:
    assert not selection().should_replicate(topic)


def test_internal_topics_are_not_replicated_even_when_the_filter_allows_them() -> None:
    assert not selection(exclude="").should_replicate("__consumer_offsets")


def test_heartbeats_pass_a_filter_that_rejects_them_unless_disabled() -> None:
    assert selection(topics="orders").should_replicate("C.heartbeats")
    assert not selection(topics="orders", heartbeats_replication=False).should_replicate("heartbeats")


@pytest.mark.parametrize("topic", ["mm2-ledger.A.internal", "mm2-dead-letters.A.internal"])
def test_our_own_topics_are_internal_to_every_mirrormaker(topic: str) -> None:
    assert DefaultReplicationPolicy().is_mm2_internal_topic(topic), "so Java's default policy leaves them alone"
    default_exclude = DefaultTopicFilter()
    default_exclude.configure({})
    assert not default_exclude.should_replicate_topic(topic), "and its default filter, whatever the separator is"
    underscored = DefaultReplicationPolicy()
    underscored.configure({"replication.policy.separator": "_", "source.cluster.alias": "A"})
    everything = DefaultTopicFilter()
    everything.configure({"topics.exclude": ""})
    assert not TopicSelection(underscored, everything, "A", "B").should_replicate(topic)
    assert not selection(exclude="").should_replicate(topic)


@pytest.mark.parametrize(
    ("topic", "policy", "alias"),
    [
        ("checkpoints.internal", {}, "A"),
        ("mm2-configs.A.internal", {"replication.policy.class": "IdentityReplicationPolicy"}, "A"),
        (
            "mm2-configs.A.internal",
            {"replication.policy.class": "IdentityReplicationPolicy", "replication.policy.separator": "_"},
            "A",
        ),
        (
            "mm2-offset-syncs.A.internal",
            {"replication.policy.class": "IdentityReplicationPolicy", "replication.policy.separator": "_"},
            "A",
        ),
        ("ledger.A.internal", {"replication.policy.separator": "-"}, "mm2"),
        ("configs.C.internal", {"replication.policy.separator": "-"}, "mm2"),
        ("configs", {"replication.policy.separator": "-"}, "connect"),
        (
            "my-offsets",
            {"replication.policy.class": "IdentityReplicationPolicy", "replication.policy.separator": "_"},
            "A",
        ),
        ("my-letters", {"replication.policy.class": "IdentityReplicationPolicy"}, "A"),
        ("own-offsets", {"replication.policy.class": "IdentityReplicationPolicy"}, "A"),
        ("kept", {"replication.policy.class": "IdentityReplicationPolicy"}, "A"),
        ("_consumer_offsets", {"replication.policy.separator": "_"}, ""),
        (
            "orders",
            {
                "transforms": "r",
                "transforms.r.type": "RegexRouter",
                "transforms.r.regex": r"A\.orders",
                "transforms.r.replacement": "A.heartbeats",
            },
            "A",
        ),
    ],
)
def test_no_topic_is_copied_into_one_that_the_flow_or_its_worker_uses(
    topic: str, policy: dict[str, str], alias: str
) -> None:
    """A client that may create topics on the source chooses their names."""
    props = {
        "source.cluster.alias": alias,
        "target.cluster.alias": "B",
        "topics.exclude": "nothing",
        "dead.letter.topic": "my-letters",
        "offsets.storage.topic": "own-offsets",
        "target.cluster.status.storage.topic": "kept",
        **policy,
    }
    chosen = topic_selection(props, frozenset({"connect-configs", "my-offsets"}))
    assert not chosen.should_replicate(topic)
    if chosen.is_selected(topic):
        (message,) = chosen.unroutable({topic, "people"}, (), dict).values()
        assert f"its remote topic would be the internal topic {chosen.remote(topic)};" in message
    assert chosen.should_replicate("people")
    assert chosen.should_replicate("heartbeats")


def test_the_connector_refuses_the_name_of_such_a_topic() -> None:
    props = {
        "name": "m",
        "connector.class": "MirrorSourceConnector",
        "source.cluster.alias": "A",
        "source.cluster.bootstrap.servers": "127.0.0.1:1",
        "target.cluster.bootstrap.servers": "127.0.0.1:1",
    }
    connector = MirrorSourceConnector()
    assert connector.validate({**props, "topics": "orders, check.*"}) == []
    ((key, message),) = connector.validate({**props, "topics": "orders, checkpoints.internal"})
    assert key == "topics"
    assert "A.checkpoints.internal" in message


def test_identity_detects_only_cycles_of_heartbeats() -> None:
    chosen = selection(IdentityReplicationPolicy())
    assert chosen.should_replicate("B.t")
    assert chosen.should_replicate("heartbeats")
    assert not chosen.should_replicate("B.heartbeats")
    assert not chosen.should_replicate("C.B.heartbeats")


def test_remote_topics_are_those_that_came_from_the_source() -> None:
    chosen = selection()
    assert chosen.remote("A.t") == "A.A.t"
    assert chosen.is_remote("A.t")
    assert not chosen.is_remote("t")
    assert not chosen.is_remote("C.t")
    assert not chosen.is_remote("A.checkpoints.internal")
