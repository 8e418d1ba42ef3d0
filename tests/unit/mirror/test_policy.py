import pytest

from mm2.mirror.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, ReplicationPolicy


def default(**props: str) -> DefaultReplicationPolicy:
    policy = DefaultReplicationPolicy()
    policy.configure({key.replace("__", "."): value for key, value in props.items()})
    return policy


def separated(separator: str, *, internal: str | None = None) -> DefaultReplicationPolicy:
    policy = DefaultReplicationPolicy()
    props = {"replication.policy.separator": separator}
    if internal is not None:
        props["replication.policy.internal.topic.separator.enabled"] = internal
    policy.configure(props)
    return policy


# Recorded from DefaultReplicationPolicy of Kafka 4.3.0: topic, source, upstream, original, internal?
NAMES = [
    ("t", None, None, "t", False),
    ("A.t", "A", "t", "t", False),
    ("a.", None, None, "a.", False),
    (".b", "", "b", "b", True),
    (".", None, None, ".", True),
    ("A.B.t", "A", "B.t", "t", False),
    ("x.internal", "x", "internal", "internal", False),
    ("x-internal", None, None, "x-internal", False),
    ("mm2-offsets.A.internal", "mm2-offsets", "A.internal", "internal", True),
    ("mm2x.internal", "mm2x", "internal", "internal", True),
    ("A.checkpoints.internal", "A", "checkpoints.internal", "internal", True),
    ("checkpoints.internal", "checkpoints", "internal", "internal", False),
    ("A.mm2-offset-syncs.B.internal", "A", "mm2-offset-syncs.B.internal", "internal", False),
    ("__consumer_offsets", None, None, "__consumer_offsets", True),
]


@pytest.mark.parametrize(("topic", "source", "upstream", "original", "internal"), NAMES)
def test_default_policy_reads_names_as_kafka_does(
    topic: str, source: str | None, upstream: str | None, original: str, internal: bool
) -> None:
    policy = default()
    assert policy.topic_source(topic) == source
    assert policy.upstream_topic(topic) == upstream
    assert policy.original_topic(topic) == original
    assert policy.is_internal_topic(topic) is internal


def test_default_names() -> None:
    policy = default()
    assert policy.format_remote_topic("A", "t") == "A.t"
    assert policy.heartbeats_topic() == "heartbeats"
    assert policy.offset_syncs_topic("B") == "mm2-offset-syncs.B.internal"
    assert policy.checkpoints_topic("A") == "A.checkpoints.internal"


def test_a_custom_separator_applies_to_internal_topics_except_connects() -> None:
    policy = separated("_")
    assert policy.format_remote_topic("A", "t") == "A_t"
    assert policy.offset_syncs_topic("B") == "mm2-offset-syncs_B_internal"
    assert policy.checkpoints_topic("A") == "A_checkpoints_internal"
    assert policy.heartbeats_topic() == "heartbeats"
    assert policy.is_internal_topic("mm2-offset-syncs_B_internal")
    assert policy.is_checkpoints_topic("A_checkpoints_internal")
    assert not policy.is_internal_topic("mm2-configs.A.internal")


def test_internal_names_can_keep_the_dot() -> None:
    policy = separated("_", internal="false")
    assert policy.offset_syncs_topic("B") == "mm2-offset-syncs.B.internal"
    assert policy.checkpoints_topic("A") == "A.checkpoints.internal"
    assert policy.format_remote_topic("A", "t") == "A_t"
    assert policy.is_internal_topic("mm2-configs.A.internal")


def test_the_internal_flag_alone_has_no_effect() -> None:
    policy = DefaultReplicationPolicy()
    policy.configure({"replication.policy.internal.topic.separator.enabled": "false"})
    assert policy.checkpoints_topic("A") == "A.checkpoints.internal"


def test_separator_is_taken_literally() -> None:
    assert separated("||").topic_source("A||t") == "A"
    assert separated("||").upstream_topic("A||t") == "t"


# As NAMES, with an empty separator.
JOINED = [
    ("", None, None, "", False),
    ("a", None, None, "a", False),
    ("ab", "a", "b", "b", False),
    ("Aorders", "A", "orders", "s", False),
    ("euorders", "e", "uorders", "s", False),
    ("Aheartbeats", "A", "heartbeats", "s", False),
    ("mm2-offset-syncsAinternal", "m", "m2-offset-syncsAinternal", "l", True),
    ("Acheckpointsinternal", "A", "checkpointsinternal", "l", True),
    ("mm2x.internal", "m", "m2x.internal", "l", True),
    ("__x", "_", "_x", "x", True),
]


@pytest.mark.parametrize(("topic", "source", "upstream", "original", "is_internal"), JOINED)
def test_names_with_an_empty_separator_are_java_s(
    topic: str, source: str | None, upstream: str | None, original: str, is_internal: bool
) -> None:
    policy = separated("")
    assert policy.format_remote_topic("A", topic) == f"A{topic}"
    assert (policy.topic_source(topic), policy.upstream_topic(topic)) == (source, upstream)
    assert policy.original_topic(topic) == original
    assert policy.is_internal_topic(topic) == is_internal
    assert not policy.is_heartbeats_topic(topic)
    assert policy.offset_syncs_topic("A") == "mm2-offset-syncsAinternal"
    assert policy.checkpoints_topic("eu") == "eucheckpointsinternal"


def test_remote_topics_of_a_long_alias_are_recognized_without_a_separator() -> None:
    """Kafka takes the first letter as the alias, so it would copy them back."""
    assert separated("").came_from("eu", "euorders")
    assert separated("").upstream_from("eu", "euorders") == "orders"


@pytest.mark.parametrize("topic", ["heartbeats", "s1.heartbeats", "s2.s1.heartbeats"])
def test_heartbeats_topic_names_are_recognized(topic: str) -> None:
    assert default().is_heartbeats_topic(topic)


@pytest.mark.parametrize("topic", ["heartbeats!", "!heartbeats", "s1heartbeats", "s1-heartbeats"])
def test_other_topic_names_are_not_heartbeats_topics(topic: str) -> None:
    assert not default().is_heartbeats_topic(topic)


def test_checkpoints_topic_names_are_recognized() -> None:
    assert default().is_checkpoints_topic("s1.checkpoints.internal")
    assert not default().is_checkpoints_topic("checkpoints.internal")
    assert not default().is_checkpoints_topic("checkpoints-internal")


def identity(alias: str | None = "A") -> ReplicationPolicy:
    policy = IdentityReplicationPolicy()
    policy.configure({} if alias is None else {"source.cluster.alias": alias})
    return policy


def test_identity_keeps_names() -> None:
    policy = identity()
    assert policy.format_remote_topic("A", "t") == "t"
    assert policy.topic_source("t") == "A"
    assert policy.topic_source("B.t") == "A"
    assert policy.upstream_topic("B.t") == "B.t"
    assert policy.original_topic("B.t") == "B.t"
    assert identity(None).topic_source("t") is None


def test_identity_still_renames_heartbeats_topics() -> None:
    policy = identity()
    assert policy.format_remote_topic("A", "heartbeats") == "A.heartbeats"
    assert policy.format_remote_topic("A", "myheartbeats") == "A.myheartbeats"
    assert policy.topic_source("heartbeats") is None
    assert policy.topic_source("A.heartbeats") == "A"
    assert policy.upstream_topic("A.heartbeats") == "heartbeats"


def test_interface_defaults_use_a_dot() -> None:
    class Suffix(ReplicationPolicy):
        def format_remote_topic(self, source_alias: str, topic: str) -> str:
            return f"{topic}@{source_alias}"

        def topic_source(self, topic: str) -> str | None:
            return topic.rpartition("@")[2] if "@" in topic else None

        def upstream_topic(self, topic: str) -> str | None:
            return topic.rpartition("@")[0] if "@" in topic else None

    policy = Suffix()
    assert policy.original_topic("t@A@B") == "t"
    assert policy.is_heartbeats_topic("heartbeats@A")
    assert policy.offset_syncs_topic("B") == "mm2-offset-syncs.B.internal"
    assert policy.is_internal_topic("A.checkpoints.internal")
