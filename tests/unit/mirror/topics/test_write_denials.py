"""Leaving WRITE on remote topics to the flow: the ACLs, the notes about them, and what happens between the two."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from mm2.config.configdef import ConfigException
from mm2.connect.api import ConnectError
from mm2.copy.progress.ledger import Ledger, entry_record, note_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.admin import Admin
from mm2.kafka.error_codes import ErrorCode
from mm2.kafka.errors import BrokerFailure, KafkaFailure
from mm2.kafka.records.record import Record
from mm2.kafka.structs import (
    AclBinding,
    AclOperation,
    AclPermission,
    OffsetInfo,
    PartitionInfo,
    PatternType,
    ResourceType,
    TopicInfo,
    TopicPartition,
)
from mm2.mirror.common.clients import MirrorClients
from mm2.mirror.common.recurring_errors import RecurringErrors
from mm2.mirror.filters import DefaultTopicFilter
from mm2.mirror.notes.ledgers import ACL_NOTE, Ledgers
from mm2.mirror.notes.promotions import Promotion
from mm2.mirror.policy import DefaultReplicationPolicy, IdentityReplicationPolicy
from mm2.mirror.topics.selection import TopicSelection
from mm2.mirror.topics.topic_acls import TopicAcls, fields_of
from mm2.mirror.topics.write_denials import WriteDenials, denial_note, flow_principals, noted_denials, wanted_denials

US = frozenset({"User:mirror"})
GRANT = AclBinding(
    ResourceType.TOPIC, "A.t", PatternType.LITERAL, "User:app", "*", AclOperation.WRITE, AclPermission.ALLOW
)
DENIAL = dataclasses.replace(GRANT, permission=AclPermission.DENY)
OURS = dataclasses.replace(GRANT, resource_name="A.", pattern_type=PatternType.PREFIXED, principal="User:mirror")


def grant(**changes: Any) -> AclBinding:
    return dataclasses.replace(GRANT, **changes)


@pytest.mark.parametrize(
    "acl",
    [
        GRANT,
        grant(operation=AclOperation.ALL),
        grant(resource_name="*"),
        grant(resource_name="A.", pattern_type=PatternType.PREFIXED),
    ],
)
def test_each_other_writer_is_denied_on_the_topic_only(acl: AclBinding) -> None:
    assert wanted_denials("A.t", [OURS, acl], US) == (frozenset({DENIAL}), "")


def test_a_grant_for_one_host_is_denied_for_this_host() -> None:
    assert wanted_denials("A.t", [grant(host="10.0.0.1")], US).acls == {dataclasses.replace(DENIAL, host="10.0.0.1")}


def test_readers_denials_other_topics_and_the_flow_itself_are_left_alone() -> None:
    others = [
        OURS,
        grant(operation=AclOperation.READ),
        dataclasses.replace(DENIAL, principal="User:banned"),
        grant(resource_name="A.tt"),
        grant(resource_name="A.tt", pattern_type=PatternType.PREFIXED),
    ]
    assert wanted_denials("A.t", others, US) == (frozenset(), "")


def test_what_all_users_may_do_cannot_be_left_to_one() -> None:
    found = wanted_denials("A.t", [GRANT, grant(principal="User:*", resource_name="*")], US)
    assert found.acls == frozenset()
    assert "ACL User:* from * ALLOW WRITE on TOPIC *" in found.problem


def test_without_any_acl_the_broker_may_allow_everything() -> None:
    found = wanted_denials("A.t", [grant(resource_name="other")], US)
    assert "no ACL applies to topic A.t" in found.problem


class Target:
    """The ACLs of a target and the flow's ledger. ``steps`` are run before each creation, ``failures`` answer the calls."""

    def __init__(self, *acls: AclBinding) -> None:
        self.acls = set(acls)
        self.ledger = Ledger()
        self.losses = 0
        self.created: list[AclBinding] = []
        self.before_creation: Any = lambda: None
        self.failure: BrokerFailure | None = None
        self.creation: KafkaFailure | None = None
        self.principal = "User:mirror"
        self.records = 0  # in the remote topic

    def describe_topics(self, names: Iterable[str]) -> dict[str, TopicInfo]:
        partition = PartitionInfo(1, 0, (1,), (1,))
        return {name: TopicInfo(name, "", internal=False, partitions={0: partition}) for name in names}

    def list_offsets(self, partitions: Iterable[TopicPartition]) -> dict[TopicPartition, OffsetInfo]:
        return dict.fromkeys(partitions, OffsetInfo(self.records, -1, -1))

    def own(self) -> Ledger:
        return self.ledger

    def lose_ledger(self) -> None:
        """It is deleted, and created again."""
        self.ledger = Ledger()
        self.losses += 1

    def write(self, records: Iterable[Record]) -> None:
        for record in records:
            self.ledger.apply(record.key, record.value)

    def describe_acls(self, _filter: object) -> list[AclBinding]:
        if self.failure is not None:
            raise self.failure
        return [*self.acls]

    def create_acls(self, acls: Iterable[AclBinding]) -> dict[AclBinding, KafkaFailure | None]:
        self.before_creation()
        found = list(acls)
        if self.creation is None:
            self.created += found
            self.acls |= set(found)
        return dict.fromkeys(found, self.creation)

    def delete_acls(self, acls: Iterable[AclBinding]) -> dict[AclBinding, None]:
        found = list(acls)
        self.acls -= set(found)
        return dict.fromkeys(found)

    def topic_rights(self, topics: Iterable[str]) -> dict[str, frozenset[AclOperation]]:
        is_denied = any(acl.principal == self.principal and acl.permission is AclPermission.DENY for acl in self.acls)
        return dict.fromkeys(topics, frozenset() if is_denied else frozenset({AclOperation.WRITE}))


def denials_of(target: Target, own: frozenset[str] | None = US, keeps: tuple[str, ...] = ("t",)) -> WriteDenials:
    topics = DefaultTopicFilter()
    topics.configure({})
    return WriteDenials(
        cast("Admin", target),
        TopicSelection(DefaultReplicationPolicy(), topics, "A", "B"),
        cast("Ledgers", target),
        RecurringErrors(),
        own,
        lambda topic: topic in keeps,
    )


def promote(target: Target) -> None:
    target.write([Promotion("t", "A.t", "failover", 1).record()])


def test_writers_are_denied_and_what_was_created_is_noted() -> None:
    target = Target(OURS, GRANT)
    denials = denials_of(target)
    for _ in range(2):
        assert denials.ensure(["t"]) == {}
    assert target.acls == {OURS, GRANT, DENIAL}
    assert target.created == [DENIAL]
    assert noted_denials(target.ledger) == {DENIAL: "t"}


def test_a_kill_between_the_note_and_the_acl_leaves_nothing_behind_that_is_not_known() -> None:
    target = Target(OURS, GRANT)

    def kill() -> None:
        raise KeyboardInterrupt

    target.before_creation = kill
    with pytest.raises(KeyboardInterrupt):
        denials_of(target).ensure(["t"])
    assert noted_denials(target.ledger) == {DENIAL: "t"}
    target.before_creation = lambda: None
    assert denials_of(target).ensure(["t"]) == {}
    assert DENIAL in target.acls


def test_an_acl_that_somebody_has_removed_is_created_again() -> None:
    target = Target(OURS, GRANT)
    denials = denials_of(target)
    denials.ensure(["t"])
    target.acls.discard(DENIAL)
    assert denials.ensure(["t"]) == {}
    assert DENIAL in target.acls


def test_an_acl_of_a_user_that_is_equal_is_never_deleted() -> None:
    target = Target(OURS, GRANT, DENIAL)
    denials_of(target).ensure(["t"])
    assert noted_denials(target.ledger) == {}
    denials_of(target, own=None, keeps=()).ensure([])
    assert DENIAL in target.acls


def test_a_denial_ends_with_the_right_that_it_takes_away() -> None:
    target = Target(OURS, GRANT)
    denials = denials_of(target)
    denials.ensure(["t"])
    target.acls.discard(GRANT)
    denials.ensure(["t"])
    assert target.acls == {OURS}
    assert noted_denials(target.ledger) == {}


@pytest.mark.parametrize("own", [US, None], ids=["the topic is not preserved any more", "the setting was removed"])
def test_denials_end_with_the_setting(own: frozenset[str] | None) -> None:
    target = Target(OURS, GRANT)
    denials_of(target).ensure(["t"])
    denials_of(target, own, keeps=()).ensure([])
    assert target.acls == {OURS, GRANT}
    assert noted_denials(target.ledger) == {}


def test_a_topic_that_is_gone_from_the_source_keeps_its_denials() -> None:
    target = Target(OURS, GRANT)
    denials = denials_of(target)
    denials.ensure(["t"])
    denials.ensure([])
    assert DENIAL in target.acls


def test_a_topic_that_is_promoted_while_its_acl_is_created_is_not_denied() -> None:
    target = Target(OURS, GRANT)
    target.before_creation = lambda: promote(target)
    assert denials_of(target).ensure(["t"]) == {}
    assert target.acls == {OURS, GRANT}
    assert noted_denials(target.ledger) == {}


def test_a_promoted_topic_is_not_denied_again() -> None:
    target = Target(OURS, GRANT)
    denials = denials_of(target)
    denials.ensure(["t"])
    promote(target)
    denials.ensure(["t"])
    denials.ensure(["t"])
    assert target.acls == {OURS, GRANT}
    assert target.created == [DENIAL]


def test_a_denial_that_hits_the_flow_is_taken_back_and_not_repeated() -> None:
    """The broker may map the user name to another principal."""
    target = Target(GRANT)
    target.principal = "User:app"
    denials = denials_of(target)
    for _ in range(2):
        assert "the flow would lose it" in denials.ensure(["t"])["t"]
    assert target.acls == {GRANT}
    assert target.created == [DENIAL]
    assert noted_denials(target.ledger) == {}


def test_a_denial_that_hit_the_flow_of_a_predecessor_is_taken_back() -> None:
    """It was killed after it had created the ACL, and before it checked the rights of the flow."""
    target = Target(GRANT, DENIAL)
    target.principal = "User:app"
    target.write([denial_note(DENIAL, "t")])
    denials = denials_of(target)
    for _ in range(2):
        assert "the flow would lose it" in denials.ensure(["t"])["t"]
    assert target.acls == {GRANT}
    assert target.created == []
    assert noted_denials(target.ledger) == {}


def test_a_flow_that_may_not_write_for_another_reason_keeps_its_denials() -> None:
    target = Target(OURS, GRANT, DENIAL, dataclasses.replace(DENIAL, principal="User:mirror"))
    target.write([denial_note(DENIAL, "t")])
    denials = denials_of(target)
    for _ in range(2):
        assert denials.ensure(["t"]) == {}
    assert DENIAL in target.acls
    assert noted_denials(target.ledger) == {DENIAL: "t"}


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (ErrorCode.SECURITY_DISABLED, "needs an authorizer on cluster B"),
        (ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "needs the rights DESCRIBE and ALTER on cluster B"),
    ],
)
def test_a_target_that_cannot_deny_is_refused_in_one_sentence(code: int, words: str) -> None:
    target = Target(OURS, GRANT)
    target.failure = BrokerFailure.of(code)
    with pytest.raises(ConnectError, match=words):
        denials_of(target).ensure(["t"])
    target.failure, target.creation = None, BrokerFailure.of(code)
    with pytest.raises(ConnectError, match=words):
        denials_of(target).ensure(["t"])


def test_without_the_setting_a_target_without_authorizer_is_not_asked() -> None:
    target = Target()
    target.failure = BrokerFailure.of(ErrorCode.SECURITY_DISABLED)
    assert denials_of(target, None).ensure([]) == {}


def clients(**props: str) -> MirrorClients:
    base = {"source.cluster.alias": "A", "target.cluster.alias": "B", "target.cluster.bootstrap.servers": "b:9092"}
    return MirrorClients(base | {f"target.cluster.{key.replace('__', '.')}": value for key, value in props.items()})


def login(module: str, options: str) -> dict[str, str]:
    return {"security__protocol": "SASL_PLAINTEXT", "sasl__jaas__config": f"{module} required {options};"}


SCRAM = "org.apache.kafka.common.security.scram.ScramLoginModule"


def test_the_principal_is_that_of_the_user_name() -> None:
    named = login(SCRAM, 'username="mirror" password="p"')
    assert flow_principals(clients(**named, sasl__mechanism="SCRAM-SHA-256")) == US


def test_an_unknown_principal_is_refused() -> None:
    token = login(SCRAM, 'username="id" password="p" tokenauth="true"')
    for one in (clients(), clients(**token, sasl__mechanism="SCRAM-SHA-256")):
        with pytest.raises(ConfigException, match=r"preserve\.offsets\.deny\.writes"):
            flow_principals(one)


class Source:
    """The ACLs of a source, and the ledger of the flow into it."""

    def __init__(self, *acls: AclBinding) -> None:
        self.acls = set(acls)

    def describe_acls(self, _filter: object) -> list[AclBinding]:
        return [*self.acls]

    def describe_cluster(self) -> SimpleNamespace:
        return SimpleNamespace(cluster_id="a")


def acl_sync(source: Source, target: Target, denials: WriteDenials) -> TopicAcls:
    return TopicAcls(
        cast("Admin", source),
        cast("Admin", target),
        denials.selection,
        None,
        cast("Ledgers", target),
        RecurringErrors(),
        US,
        lambda: denials.noted,
    )


def test_an_acl_of_the_source_that_denies_the_same_outlasts_the_denial() -> None:
    """It was denied before the source denied it, so the sync would not create it."""
    target, source = Target(OURS, GRANT), Source(dataclasses.replace(DENIAL, resource_name="t"))
    denials = denials_of(target)
    denials.ensure(["t"])
    sync = acl_sync(source, target, denials)
    assert [*sync.plan(["t"]).create] == [DENIAL]
    assert sync.sync(["t"])
    assert [*sync.plan(["t"]).create] == []
    promote(target)
    denials.ensure(["t"])
    assert DENIAL in target.acls
    assert noted_denials(target.ledger) == {}


def test_a_denial_outlasts_an_equal_acl_of_the_source() -> None:
    target, source = Target(OURS, GRANT), Source(dataclasses.replace(DENIAL, resource_name="t"))
    denials = denials_of(target)
    denials.ensure(["t"])
    sync = acl_sync(source, target, denials)
    sync.sync(["t"])
    source.acls.clear()
    sync.sync(["t"])
    assert DENIAL in target.acls
    promote(target)
    denials.ensure(["t"])
    assert DENIAL not in target.acls


def test_applications_keep_the_right_to_write_to_a_topic_that_the_flow_has_not_written() -> None:
    """A client of the source may create a topic with the name that one of the target's own topics has."""
    target = Target(OURS, GRANT)
    target.records = 1
    denials = denials_of(target)
    assert denials.ensure(["t"]) == {}
    assert target.created == []
    target.write([entry_record(LedgerEntry("t", 0, "A.t", Mark(-1, -1, 0), is_unbegun=True))])
    denials.ensure(["t"])
    assert target.created == [], "the flow has stopped, since the topic is not its own"
    target.write([entry_record(LedgerEntry("t", 0, "A.t", Mark(1, 1, 1)))])
    denials.ensure(["t"])
    assert target.created == [DENIAL], "the flow has copied to it"


def test_a_flow_back_does_not_copy_denials_to_topics_of_the_same_name() -> None:
    """Otherwise the applications could not write to the source of the flow any more."""
    here = dataclasses.replace(DENIAL, resource_name="t")
    source, target = Source(here), Target(dataclasses.replace(OURS, resource_name="t"))
    into_source = Ledger()
    note = denial_note(here, "t")
    into_source.apply(note.key, note.value)
    denials = denials_of(target)
    denials.selection = dataclasses.replace(denials.selection, policy=IdentityReplicationPolicy())
    target.notes_of_source = lambda kind, _admin, *, proven=False: iter([into_source.notes(kind)])  # type: ignore[attr-defined]
    target.notes_of_others = lambda _kind: iter(())  # type: ignore[attr-defined]
    assert [*acl_sync(source, target, denials).plan(["t"]).create] == []


def test_a_note_in_a_forged_ledger_on_the_source_deletes_no_acl() -> None:
    """Any client of the source may create the ledger of a flow into it, and note an ACL of the source there."""
    here = dataclasses.replace(grant(operation=AclOperation.READ), resource_name="t")
    source, target = Source(here), Target(OURS)
    denials = denials_of(target)
    denials.selection = dataclasses.replace(denials.selection, policy=IdentityReplicationPolicy())
    note = note_record(ACL_NOTE, fields_of(here), {"of": fields_of(here)})
    forged = Ledger()
    target.notes_of_source = lambda kind, _admin, *, proven=False: iter([] if proven else [forged.notes(kind)])  # type: ignore[attr-defined]
    target.notes_of_others = lambda _kind: iter(())  # type: ignore[attr-defined]
    sync = acl_sync(source, target, denials)
    sync.sync(["t"])
    assert here in target.acls
    forged.apply(note.key, note.value)
    sync.sync(["t"])
    assert here in target.acls


def test_denials_that_the_ledger_lost_are_noted_again() -> None:
    """Otherwise a failover would leave them, and no application could write."""
    target = Target(OURS, GRANT)
    denials = denials_of(target)
    denials.ensure(["t"])
    target.lose_ledger()
    denials.ensure(["t"])
    assert noted_denials(target.ledger) == {DENIAL: "t"}
    promote(target)
    denials.ensure(["t"])
    assert DENIAL not in target.acls


def test_acls_that_the_ledger_lost_are_noted_again() -> None:
    """Otherwise the next process would not delete them when they are deleted on the source."""
    read = grant(operation=AclOperation.READ)
    target, source = Target(OURS), Source(dataclasses.replace(read, resource_name="t"))
    first = acl_sync(source, target, denials_of(target))
    first.sync(["t"])
    target.lose_ledger()
    first.sync(["t"])
    source.acls.clear()
    acl_sync(source, target, denials_of(target)).sync(["t"])
    assert read not in target.acls
