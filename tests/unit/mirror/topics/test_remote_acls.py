import dataclasses

import pytest

from mm2.copy.progress.ledger import Ledger
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import AclBinding, AclOperation, AclPermission, PatternType, ResourceType
from mm2.mirror.filters import DefaultGroupFilter, DefaultTopicFilter
from mm2.mirror.policy import DefaultReplicationPolicy, IdentityReplicationPolicy, ReplicationPolicy
from mm2.mirror.topics.remote_acls import covering, is_copy, may_hold_for, remote_acls, remote_operation
from mm2.mirror.topics.selection import TopicSelection
from mm2.mirror.topics.topic_acls import acl_of, fields_of, writing_principals
from mm2.mirror.topics.write_denials import denial_note, noted_denials

READ = AclBinding(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:u", "*", AclOperation.READ, AclPermission.ALLOW)


TOPICS = ("t", "team-a", "team-b", "other")


def selection_of(policy: ReplicationPolicy) -> TopicSelection:
    topic_filter = DefaultTopicFilter()
    topic_filter.configure({})
    return TopicSelection(policy, topic_filter, "A", "B")


SELECTION = selection_of(DefaultReplicationPolicy())


class Suffix(DefaultReplicationPolicy):
    """A policy that does not preserve prefixes."""

    def format_remote_topic(self, source_alias: str, topic: str) -> str:
        return f"{topic}@{source_alias}"


def remote(*acls: AclBinding, policy: ReplicationPolicy | None = None, groups: str | None = None) -> list[AclBinding]:
    topic_filter, group_filter = DefaultTopicFilter(), DefaultGroupFilter()
    topic_filter.configure({})
    group_filter.configure({"groups": groups or ""})
    selection = TopicSelection(policy or DefaultReplicationPolicy(), topic_filter, "A", "B")
    return list(remote_acls(acls, selection, TOPICS, None if groups is None else group_filter))


def literal(name: str) -> AclBinding:
    return dataclasses.replace(READ, resource_name=name)


def prefixed(name: str) -> AclBinding:
    return dataclasses.replace(READ, resource_name=name, pattern_type=PatternType.PREFIXED)


def test_an_acl_is_copied_to_the_remote_topic() -> None:
    assert remote(READ) == [dataclasses.replace(READ, resource_name="A.t")]


def test_no_other_principal_may_write_remote_topics() -> None:
    assert remote(dataclasses.replace(READ, operation=AclOperation.WRITE)) == []
    (acl,) = remote(dataclasses.replace(READ, operation=AclOperation.ALL))
    assert acl.operation is AclOperation.READ


def test_denials_and_other_operations_are_copied_unchanged() -> None:
    for operation in (AclOperation.WRITE, AclOperation.ALL):
        denied = dataclasses.replace(READ, operation=operation, permission=AclPermission.DENY)
        assert remote(denied) == [dataclasses.replace(denied, resource_name="A.t")]
    altering = dataclasses.replace(READ, operation=AclOperation.ALTER_CONFIGS)
    assert remote(altering) == [dataclasses.replace(altering, resource_name="A.t")]


def test_a_write_denial_for_all_principals_is_not_copied() -> None:
    frozen = dataclasses.replace(
        literal("*"), principal="User:*", operation=AclOperation.WRITE, permission=AclPermission.DENY
    )
    closed = dataclasses.replace(frozen, operation=AclOperation.ALL)
    assert remote(frozen) == []
    assert remote(closed) == [
        dataclasses.replace(closed, resource_name="A.", pattern_type=PatternType.PREFIXED, operation=AclOperation.READ)
    ]
    mallory = dataclasses.replace(frozen, principal="User:mallory")
    assert remote_operation(mallory, {"User:*", "User:mirror"}) is AclOperation.WRITE
    assert remote_operation(mallory, {"User:*", "User:mallory"}) is None


def test_the_writing_principal_is_known_for_logins_by_name() -> None:
    def principals(mechanism: str, jaas: str) -> frozenset[str]:
        props = {"bootstrap.servers": "h:1", "security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": mechanism}
        return writing_principals(ClientSettings.from_props({**props, "sasl.jaas.config": jaas}))

    module = "org.apache.kafka.common.security.plain.PlainLoginModule"
    assert principals("PLAIN", f'{module} required username="mirror" password="p";') == {"User:*", "User:mirror"}
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule"
    assert principals("SCRAM-SHA-256", f'{scram} required username="m" password="p";') == {"User:*", "User:m"}
    assert writing_principals(ClientSettings.from_props({"bootstrap.servers": "h:1"})) == {"User:*"}


def test_a_prefix_acl_does_not_include_promoted_topics() -> None:
    topic_filter = DefaultTopicFilter()
    topic_filter.configure({})
    selection = TopicSelection(DefaultReplicationPolicy(), topic_filter, "A", "B")
    topics = ["team-a", "team-b", "other"]
    assert list(remote_acls([prefixed("team-")], selection, topics, refused=["team-c"])) == [
        literal("A.team-a"),
        literal("A.team-b"),
    ]
    assert list(remote_acls([literal("*")], selection, topics, refused=["x"])) == [
        literal(f"A.{one}") for one in topics
    ]
    assert list(remote_acls([prefixed("team-")], selection, topics, refused=["x"])) == [prefixed("A.team-")]


def test_a_remote_acl_is_covered_by_the_copy_of_a_prefix_acl() -> None:
    topic_filter = DefaultTopicFilter()
    topic_filter.configure({})
    selection = TopicSelection(DefaultReplicationPolicy(), topic_filter, "A", "B")
    assert covering(literal("A.team-a"), prefixed("team-"), selection) == prefixed("A.team-")
    assert covering(literal("A.t"), literal("*"), selection) == prefixed("A.")
    assert covering(literal("A.t"), literal("t"), selection) is None, "an ACL of its own"
    identity = dataclasses.replace(selection, policy=IdentityReplicationPolicy())
    assert covering(literal("t"), literal("*"), identity) is None


def test_other_resources_and_unreplicated_topics_are_skipped() -> None:
    assert remote(dataclasses.replace(READ, resource_type=ResourceType.GROUP)) == []
    assert remote(dataclasses.replace(READ, resource_type=ResourceType.CLUSTER)) == []
    assert remote(literal("B.t")) == []


def test_a_prefix_becomes_a_prefix_of_remote_names_when_it_covers_something_replicated() -> None:
    assert remote(prefixed("team-")) == [prefixed("A.team-")]
    assert remote(prefixed("nobody-")) == []
    assert remote(prefixed("*")) == [], "a prefix like any other, and no topic begins with it"
    assert remote(dataclasses.replace(prefixed("team-"), operation=AclOperation.WRITE)) == []


def test_acls_of_topics_rejected_as_loops_are_not_copied() -> None:
    topic_filter = DefaultTopicFilter()
    topic_filter.configure({})
    selection = TopicSelection(IdentityReplicationPolicy(), topic_filter, "A", "B")
    assert list(remote_acls([READ, literal("u"), literal("*")], selection, ["u"], refused=["t"])) == [literal("u")]


def test_an_acl_of_all_topics_holds_for_those_of_this_source_only() -> None:
    assert remote(literal("*")) == [prefixed("A.")]
    everything = remote(literal("*"), policy=IdentityReplicationPolicy())
    assert everything == [literal(topic) for topic in TOPICS]


def test_without_prefixed_names_each_topic_gets_its_own_acl() -> None:
    assert remote(prefixed("team-"), policy=Suffix()) == [literal("team-a@A"), literal("team-b@A")]
    each = remote(prefixed("team-"), policy=IdentityReplicationPolicy())
    assert each == [literal("team-a"), literal("team-b")], "the target has topics of its own with the prefix"


def test_a_prefix_that_includes_topics_of_the_flow_itself_gives_only_reading_rights() -> None:
    def copies(acl: AclBinding, operation: AclOperation) -> list[AclBinding]:
        selection = dataclasses.replace(SELECTION, reserved=frozenset({"A.team-checkpoints"}))
        return list(remote_acls([dataclasses.replace(acl, operation=operation)], selection, TOPICS))

    for acl in (prefixed("team-"), literal("*")):
        assert [one.pattern_type for one in copies(acl, AclOperation.READ)] == [PatternType.PREFIXED]
        for operation in (AclOperation.DELETE, AclOperation.ALTER_CONFIGS, AclOperation.CREATE):
            found = copies(acl, operation)
            assert {one.pattern_type for one in found} == {PatternType.LITERAL}
            assert len(found) == (2 if acl.pattern_type is PatternType.PREFIXED else len(TOPICS))


@pytest.mark.parametrize(
    ("acl", "of", "under_identity"),
    [
        (literal("A.t"), literal("t"), None),
        (literal("t"), literal("t"), literal("t")),
        (literal("secret"), literal("t"), None),
        (prefixed("secret"), prefixed("t"), None),
        (prefixed("A.t"), prefixed("t"), None),
        (literal("A.team"), prefixed("t"), None),
        (literal("*"), literal("*"), None),
        (literal("mm2-configs.A.internal"), literal("*"), None),
        (dataclasses.replace(literal("A.t"), principal="User:other"), literal("t"), None),
        (dataclasses.replace(literal("A.t"), permission=AclPermission.DENY), literal("t"), None),
        (dataclasses.replace(literal("A.t"), operation=AclOperation.ALTER), literal("t"), None),
        (dataclasses.replace(literal("A.t"), resource_type=ResourceType.CLUSTER), literal("t"), None),
        (dataclasses.replace(READ, resource_type=ResourceType.GROUP), literal("t"), None),
    ],
)
def test_a_note_cannot_make_an_acl_of_somebody_else_the_flow_s_own(
    acl: AclBinding, of: AclBinding, under_identity: AclBinding | None
) -> None:
    """Whoever may write to the ledger chooses both, and an ACL without its source is deleted."""
    assert is_copy(acl, of, SELECTION) == (
        acl in set(remote_acls([of], SELECTION, [*TOPICS, "team"])) or acl == literal("A.team")
    )
    identity = dataclasses.replace(SELECTION, policy=IdentityReplicationPolicy())
    assert is_copy(acl, of, identity) == (acl == under_identity)


def test_a_note_with_a_filter_names_no_acl() -> None:
    fields = fields_of(literal("orders"))
    assert acl_of(fields) == literal("orders")
    for place, wide in ((0, "ANY"), (2, "MATCH"), (2, "ANY"), (5, "ANY"), (6, "ANY"), (0, "UNKNOWN")):
        assert acl_of([*fields[:place], wide, *fields[place + 1 :]]) is None
    assert acl_of(fields[:-1]) is None


def test_a_note_of_a_denial_names_a_denial() -> None:
    denial = dataclasses.replace(literal("t"), operation=AclOperation.WRITE, permission=AclPermission.DENY)
    ledger = Ledger()
    for acl in (
        denial,
        literal("t"),
        prefixed("t"),
        dataclasses.replace(denial, operation=AclOperation.READ),
        dataclasses.replace(denial, pattern_type=PatternType.PREFIXED),
        dataclasses.replace(denial, permission=AclPermission.ALLOW),
        dataclasses.replace(denial, resource_type=ResourceType.CLUSTER),
    ):
        note = denial_note(acl, "t")
        ledger.apply(note.key, note.value)
    assert noted_denials(ledger) == {denial: "t"}


def test_group_acls_are_copied_unchanged_when_enabled_and_allowed_by_the_filter() -> None:
    group = dataclasses.replace(READ, resource_type=ResourceType.GROUP, resource_name="g1")
    team = dataclasses.replace(group, resource_name="team-", pattern_type=PatternType.PREFIXED)
    other = dataclasses.replace(group, resource_name="connect-x")
    assert remote(group, team, other) == []
    assert remote(group, team, other, groups=".*") == [group, team]
    assert remote(group, team, groups="team-.*") == [team]


def test_two_acls_with_the_same_copy_are_created_once() -> None:
    assert len(remote(READ, dataclasses.replace(READ, operation=AclOperation.ALL))) == 1


def test_topic_acls_apply_to_matching_topics_and_group_acls_to_any() -> None:
    group = dataclasses.replace(READ, resource_type=ResourceType.GROUP, resource_name="g")
    assert may_hold_for(literal("A.t"), ["A.t"])
    assert not may_hold_for(literal("A.t"), ["A.team-a"])
    assert may_hold_for(prefixed("A."), ["A.team-a"])
    assert not may_hold_for(prefixed("A.team-b"), ["A.team-a"])
    assert may_hold_for(group, ["A.t"])
    assert not may_hold_for(group, [])
