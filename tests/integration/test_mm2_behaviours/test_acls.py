"""ACLs of the source on the target (behaviour 32, and extensions over Java)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    ResourcePatternType,
    ResourceType,
)

from mm2.copy.progress.ledger import note_record
from mm2.kafka.records.record import Record
from mm2.mirror.notes.promotions import Promotion, withdrawn
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.mirror_flow import admin, create, flow_props, running, write
from tests.integration.test_mm2_behaviours.admins import NotingAdmin
from tests.support.waiting import wait_until

ALLOW, DENY = AclPermissionType.ALLOW, AclPermissionType.DENY
LITERAL, PREFIXED = ResourcePatternType.LITERAL, ResourcePatternType.PREFIXED
GUARDED = {
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
ADMIN = {"forwarding.admin.class": "tests.integration.test_mm2_behaviours.admins.NotingAdmin"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    """A and B, both with an authorizer."""
    with start_pair(tmp_path_factory.mktemp("acls"), overrides=GUARDED) as pair:
        yield pair


@pytest.fixture
def a(guarded: tuple[LocalKafka, LocalKafka]) -> LocalKafka:
    return guarded[0]


@pytest.fixture
def b(guarded: tuple[LocalKafka, LocalKafka]) -> LocalKafka:
    return guarded[1]


def acl(
    name: str,
    operation: AclOperation = AclOperation.READ,
    *,
    pattern: ResourcePatternType = LITERAL,
    user: str = "User:dummy",
    permission: AclPermissionType = ALLOW,
    kind: ResourceType = ResourceType.TOPIC,
) -> AclBinding:
    return AclBinding(kind, name, pattern, user, "*", operation, permission)


def put(broker: LocalKafka, *acls: AclBinding) -> None:
    for done in admin(broker).create_acls(list(acls)).values():
        done.result(30)


def take_away(broker: LocalKafka, *acls: AclBinding) -> None:
    filters = [
        AclBindingFilter(
            gone.restype,
            gone.name,
            gone.resource_pattern_type,
            gone.principal,
            gone.host,
            gone.operation,
            gone.permission_type,
        )
        for gone in acls
    ]
    for done in admin(broker).delete_acls(filters).values():
        done.result(30)


def found(broker: LocalKafka, prefix: str, kind: ResourceType = ResourceType.TOPIC) -> set[tuple[str, str, str]]:
    """Name, pattern and operation of all ACLs whose resource name has this prefix."""
    anything: Any = None  # its type stubs require strings
    everything = AclBindingFilter(
        kind, anything, ResourcePatternType.ANY, anything, anything, AclOperation.ANY, AclPermissionType.ANY
    )
    return {
        (acl.name, acl.resource_pattern_type.name, acl.operation.name)
        for acl in admin(broker).describe_acls(everything).result(30)
        if acl.name.startswith(prefix)
    }


def flow(a: LocalKafka, b: LocalKafka, unique: str, more: dict[str, str] | None = None) -> dict[str, str]:
    # The alias is unique to the test, and so are the ledger and all remote topics.
    own = {
        "topics": f"{unique}.*",
        "heartbeats.replication.enabled": "false",
        "source.cluster.alias": f"S{unique}",
        "sync.topic.acls.interval.seconds": "1",
    }
    return flow_props("MirrorSourceConnector", a, b) | own | (more or {})


def test_32_acls_appear_on_the_remote_topic_through_the_custom_admin_and_only_once(
    a: LocalKafka, b: LocalKafka, unique: str
) -> None:
    NotingAdmin.noted.clear()
    create(a, unique)
    denied = acl(unique, AclOperation.DELETE, permission=DENY)
    put(a, acl(unique, AclOperation.DESCRIBE), acl(unique, AclOperation.WRITE), denied)
    remote = f"S{unique}.{unique}"
    first = {(remote, "LITERAL", "DESCRIBE"), (remote, "LITERAL", "DELETE")}
    with running(MirrorSourceConnector(), flow(a, b, unique, ADMIN)):
        wait_until(lambda: found(b, remote) == first, 30, what="the ACLs")
        put(a, acl(unique, AclOperation.ALL))
        wait_until(
            lambda: found(b, remote) == first | {(remote, "LITERAL", "READ")}, 30, what="a later one, without writing"
        )
    assert NotingAdmin.noted.count(("allow", "B", remote)) == 3, "what is there is not created again"


def test_a_prefix_acl_becomes_a_prefix_acl_of_remote_topics(a: LocalKafka, b: LocalKafka, unique: str) -> None:
    create(a, f"{unique}-a")
    put(a, acl(f"{unique}-", pattern=PREFIXED), acl("nothing-", pattern=PREFIXED))
    with running(MirrorSourceConnector(), flow(a, b, unique)):
        wanted = {(f"S{unique}.{unique}-", "PREFIXED", "READ")}
        wait_until(lambda: found(b, f"S{unique}") == wanted, 30, what="the prefix")
    take_away(a, acl(f"{unique}-", pattern=PREFIXED))


def test_only_created_acls_are_deleted_with_their_source_also_after_a_restart(
    a: LocalKafka, b: LocalKafka, unique: str
) -> None:
    create(a, unique)
    remote = f"S{unique}.{unique}"
    by_hand = acl(remote, AclOperation.DELETE)
    on_both_sides = acl(remote, AclOperation.DESCRIBE)  # there before we come, so not ours
    gone, again = acl(unique, AclOperation.READ), acl(unique, AclOperation.ALL)
    put(a, gone, again, acl(unique, AclOperation.DESCRIBE))
    put(b, by_hand, on_both_sides)
    with running(MirrorSourceConnector(), flow(a, b, unique)):
        wait_until(lambda: (remote, "LITERAL", "READ") in found(b, remote), 30, what="the ACL")
        put(a, acl(unique, AclOperation.ALTER))
        wait_until(lambda: (remote, "LITERAL", "ALTER") in found(b, remote), 30, what="another")
        take_away(a, acl(unique, AclOperation.ALTER))
        wait_until(lambda: (remote, "LITERAL", "ALTER") not in found(b, remote), 30, what="its end")
        take_away(a, gone)  # ALL, which makes READ as well, is still there
    with running(MirrorSourceConnector(), flow(a, b, unique)) as (_, context):
        assert context.reconfigured.wait(30)
        put(a, acl(unique, AclOperation.ALTER_CONFIGS))
        wait_until(lambda: (remote, "LITERAL", "ALTER_CONFIGS") in found(b, remote), 30, what="a round")
        assert (remote, "LITERAL", "READ") in found(b, remote)
        take_away(a, again, acl(unique, AclOperation.DESCRIBE))
        left = {(remote, "LITERAL", name) for name in ("DELETE", "DESCRIBE", "ALTER_CONFIGS")}
        wait_until(lambda: found(b, remote) == left, 30, what="the end of the ACL from before the restart")


def test_a_rebuilt_source_deletes_no_acls_on_the_target(a: LocalKafka, b: LocalKafka, unique: str) -> None:
    create(a, unique)
    remote = f"S{unique}.{unique}"
    put(b, acl(remote), acl(remote, AclOperation.ALTER))
    create(b, f"mm2-ledger.S{unique}.internal", config={"cleanup.policy": "compact"})
    of_another = note("READ", unique, "a cluster that is gone"), note("ALTER", unique, "")
    write(b, f"mm2-ledger.S{unique}.internal", [(row.key, row.value) for row in of_another], 0)
    with running(MirrorSourceConnector(), flow(a, b, unique)):
        put(a, acl(unique, AclOperation.DELETE))
        everything = {(remote, "LITERAL", name) for name in ("READ", "ALTER", "DELETE")}
        wait_until(lambda: found(b, remote) == everything, 30, what="a round")
        take_away(a, acl(unique, AclOperation.DELETE))
        left = {(remote, "LITERAL", name) for name in ("READ", "ALTER")}
        wait_until(lambda: found(b, remote) == left, 30, what="the end of what was created for this cluster")


def note(operation: str, topic: str, cluster_id: str) -> Record:
    """The ledger's entry of an ACL that was created."""

    def fields(name: str) -> list[str]:
        return ["TOPIC", name, "LITERAL", "User:dummy", "*", operation, "ALLOW"]

    return note_record("acl", fields(f"S{topic}.{topic}"), {"of": fields(topic), "cluster": cluster_id})


@pytest.mark.slow
def test_more_acls_than_a_controller_accepts_at_once_are_created_and_deleted(
    a: LocalKafka, b: LocalKafka, unique: str
) -> None:
    create(a, unique)
    many = [acl(unique, user=f"User:{number}") for number in range(10_050)]
    remote = f"S{unique}.{unique}"

    def users() -> int:
        anything: Any = None
        of_topic = AclBindingFilter(
            ResourceType.TOPIC, remote, LITERAL, anything, anything, AclOperation.ANY, AclPermissionType.ANY
        )
        return len(admin(b).describe_acls(of_topic).result(60))

    for begin in range(0, len(many), 1_000):
        put(a, *many[begin : begin + 1_000])
    with running(MirrorSourceConnector(), flow(a, b, unique)):
        wait_until(lambda: users() == len(many), 120, what="all of them")
        put(a, acl(unique, AclOperation.ALTER))
        wait_until(lambda: users() == len(many) + 1, 60, what="another round, so that they are noted")
        for begin in range(0, len(many), 1_000):
            take_away(a, *many[begin : begin + 1_000])
        wait_until(lambda: users() == 1, 120, what="the end of all")


def test_group_acls_are_synchronized_when_enabled(a: LocalKafka, b: LocalKafka, unique: str) -> None:
    create(a, unique)
    group = acl(unique, kind=ResourceType.GROUP)
    refused = acl(f"connect-{unique}", kind=ResourceType.GROUP)
    put(a, group, refused, acl(unique))
    with running(MirrorSourceConnector(), flow(a, b, unique)):
        wait_until(lambda: len(found(b, f"S{unique}")) == 1, 30, what="a round")
        assert not found(b, unique, ResourceType.GROUP), "off unless asked for"
    with running(MirrorSourceConnector(), flow(a, b, unique, {"sync.group.acls.enabled": "true"})):
        wait_until(
            lambda: found(b, unique, ResourceType.GROUP) == {(unique, "LITERAL", "READ")}, 30, what="the group's ACL"
        )
        assert not found(b, "connect-", ResourceType.GROUP)
        take_away(a, group)
        wait_until(lambda: not found(b, unique, ResourceType.GROUP), 30, what="its end")


def test_promoted_topics_keep_their_acls_when_those_of_the_source_change(
    a: LocalKafka, b: LocalKafka, unique: str
) -> None:
    moved, other, ledger = f"{unique}-a", f"{unique}-b", f"mm2-ledger.S{unique}.internal"
    create(a, moved)
    create(a, other)
    group = acl(unique, kind=ResourceType.GROUP)
    given = (acl(moved), acl(f"{unique}-", pattern=PREFIXED, user="User:team"), acl(other), group)
    put(a, *given)
    asked = {"sync.group.acls.enabled": "true"}
    kept = {(f"S{unique}.{moved}", "LITERAL", "READ"), (f"S{unique}.{unique}-", "PREFIXED", "READ")}
    every = kept | {(f"S{unique}.{other}", "LITERAL", "READ")}
    with running(MirrorSourceConnector(), flow(a, b, unique, asked)):
        wait_until(
            lambda: found(b, f"S{unique}") == every and found(b, unique, ResourceType.GROUP), 30, what="the ACLs"
        )
        # Recorded as ours shortly afterwards, which the changes of the next round show.
        put(a, acl(other, AclOperation.ALTER))
        wait_until(
            lambda: (f"S{unique}.{other}", "LITERAL", "ALTER") in found(b, f"S{unique}"), 30, what="another round"
        )
    handed_over = Promotion(moved, f"S{unique}.{moved}", "failover", 1).record()
    write(b, ledger, [(handed_over.key, handed_over.value)], 0)
    with running(MirrorSourceConnector(), flow(a, b, unique, asked)) as (_, context):
        assert context.reconfigured.wait(30)
        take_away(a, *given)  # so that no permission on A remains
        wait_until(
            lambda: (f"S{unique}.{other}", "LITERAL", "READ") not in found(b, f"S{unique}"),
            30,
            what="the end of the other's",
        )
        assert kept <= found(b, f"S{unique}")
        assert found(b, unique, ResourceType.GROUP), "the ACL of the group was removed"
        back = withdrawn(moved)
        write(b, ledger, [(back.key, back.value)], 0)
        wait_until(lambda: not kept & found(b, f"S{unique}"), 30, what="the end of what was taken back")
        wait_until(lambda: not found(b, unique, ResourceType.GROUP), 30, what="the end of the group's")


def test_flows_in_both_directions_delete_each_others_obsolete_acls(a: LocalKafka, b: LocalKafka, unique: str) -> None:
    group = acl(unique, kind=ResourceType.GROUP)
    create(a, unique)
    put(a, group)
    asked = {"sync.group.acls.enabled": "true", "replication.policy.class": "IdentityReplicationPolicy"}
    returning = {"source.cluster.alias": f"T{unique}", "target.cluster.alias": f"S{unique}"}
    there, back = flow(a, b, unique, asked), flow(b, a, unique, asked | returning)
    with running(MirrorSourceConnector(), there):
        wait_until(lambda: found(b, unique, ResourceType.GROUP), 30, what="the group's ACL")
        put(a, acl(unique))
        wait_until(lambda: found(b, unique), 30, what="another round, so that the one before is over")
    with running(MirrorSourceConnector(), back) as (_, context):
        assert context.reconfigured.wait(30)
        take_away(a, group)
        put(b, acl(f"{unique}-2", kind=ResourceType.GROUP))
        wait_until(
            lambda: (f"{unique}-2", "LITERAL", "READ") in found(a, unique, ResourceType.GROUP), 30, what="a round"
        )
        assert (unique, "LITERAL", "READ") not in found(a, unique, ResourceType.GROUP), "it is none of B's"
    with running(MirrorSourceConnector(), there):
        wait_until(lambda: (unique, "LITERAL", "READ") not in found(b, unique, ResourceType.GROUP), 30, what="its end")


def test_a_prefix_acl_does_not_cover_promoted_topics(a: LocalKafka, b: LocalKafka, unique: str) -> None:
    moved, other, ledger = f"{unique}-a", f"{unique}-b", f"mm2-ledger.S{unique}.internal"
    create(a, moved)
    create(a, other)
    create(b, ledger, config={"cleanup.policy": "compact"})
    handed_over = Promotion(moved, f"S{unique}.{moved}", "failover", 1).record()
    write(b, ledger, [(handed_over.key, handed_over.value)], 0)
    put(a, acl(f"{unique}-", pattern=PREFIXED, user="User:team"), acl(moved))
    with running(MirrorSourceConnector(), flow(a, b, unique)):
        wanted = {(f"S{unique}.{other}", "LITERAL", "READ")}
        wait_until(lambda: found(b, f"S{unique}") == wanted, 30, what="the ACL of the topic that is still copied")
        put(a, acl(other, AclOperation.ALTER))
        wanted |= {(f"S{unique}.{other}", "LITERAL", "ALTER")}
        wait_until(lambda: found(b, f"S{unique}") == wanted, 30, what="another round")
    take_away(a, acl(f"{unique}-", pattern=PREFIXED, user="User:team"))


def test_denying_all_producers_on_the_source_does_not_deny_the_replication(
    a: LocalKafka, b: LocalKafka, unique: str
) -> None:
    create(a, unique)
    stopped = acl(unique, AclOperation.WRITE, user="User:*", permission=DENY)
    closed = acl(unique, AclOperation.ALL, user="User:mirror", permission=DENY)
    mallory = acl(unique, AclOperation.WRITE, user="User:mallory", permission=DENY)
    put(a, stopped, mallory, acl(unique, AclOperation.ALTER))
    remote = f"S{unique}.{unique}"
    with running(MirrorSourceConnector(), flow(a, b, unique)):
        wait_until(lambda: len(found(b, remote)) == 2, 30, what="those of others")
        put(a, closed)
        wait_until(
            lambda: (remote, "LITERAL", "ALL") in found(b, remote),
            30,
            what="what is denied to one who is not known to be ours",
        )
    anything: Any = None
    denied = admin(b).describe_acls(
        AclBindingFilter(ResourceType.TOPIC, remote, LITERAL, anything, anything, AclOperation.ANY, DENY)
    )
    assert {(one.principal, one.operation.name) for one in denied.result(30)} == {
        ("User:mallory", "WRITE"),
        ("User:mirror", "ALL"),
    }


@pytest.mark.slow
def test_flows_from_two_sources_do_not_delete_each_others_group_acls(
    a: LocalKafka, b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    group = acl(unique, kind=ResourceType.GROUP)
    asked = {"sync.group.acls.enabled": "true"}
    with LocalKafka("C", tmp_path / "c", overrides=GUARDED) as c:
        for broker in (a, c):
            create(broker, unique)
            put(broker, group)
        one, other = flow(a, b, unique, asked), flow(c, b, unique, asked | {"source.cluster.alias": f"U{unique}"})
        with running(MirrorSourceConnector(), one):
            wait_until(lambda: found(b, unique, ResourceType.GROUP), 30, what="the group's ACL")
            put(a, acl(unique))
            wait_until(lambda: found(b, f"S{unique}."), 30, what="another round, so that it is noted")
            with running(MirrorSourceConnector(), other):
                put(c, acl(unique))
                wait_until(lambda: found(b, f"U{unique}."), 30, what="a round of the other flow")
                put(c, acl(unique, AclOperation.ALTER))
                wait_until(lambda: len(found(b, f"U{unique}.")) == 2, 30, what="another one, so that it is noted, too")
                take_away(a, group)
                for operation in (AclOperation.ALTER, AclOperation.DELETE):
                    put(a, acl(unique, operation))
                    row = (f"S{unique}.{unique}", "LITERAL", operation.name)
                    wait_until(lambda row=row: row in found(b, f"S{unique}."), 30, what="a round of the first flow")  # type: ignore[misc]
                    assert found(b, unique, ResourceType.GROUP), "the other source still has it"
                take_away(c, group)
                wait_until(lambda: not found(b, unique, ResourceType.GROUP), 30, what="its end")
