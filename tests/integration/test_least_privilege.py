"""A flow and the commands of mm2 with exactly the rights of docs/reference/rights.md, on brokers with an authorizer.

Given two brokers on which the user mirror has the listed ACLs and no others; a flow that copied two topics with their configurations,
ACLs and a group. Validates that nothing more is needed, and that each right that is missing is named.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclPermissionType, ResourcePatternType

from mm2.kafka.structs import AclOperation, ResourceType
from mm2.mirror.clients import Side
from mm2.mirror.required_acls import Feature, Names, RequiredAcl, Resource, required_acls
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.asking import asked
from tests.integration.mirror_flow import admin, alter, commit, committed, create, write
from tests.integration.mirror_process import MirrorProcess, config_of, contents, grow, partitions_of, write_config
from tests.support.passworded import LISTENERS, PASSWORDS, login

FLOW: Final = "A->B"
GUARDED: Final = {
    **PASSWORDS,
    "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users": "User:ANONYMOUS",
}
JOB: Final = (
    Feature.WORKERS,
    Feature.HEARTBEATS,
    Feature.COPYING,
    Feature.CONFIGS,
    Feature.ACLS,
    Feature.SYNCS,
    Feature.CHECKPOINTS,
    Feature.GROUPS,
)
COMMANDS: Final = {
    Feature.STATUS: ("status",),
    Feature.GAPS: ("gaps",),
    Feature.LEDGER_NOTES: ("throttle", "5M"),
    Feature.VERIFY: ("verify", "--record"),
    Feature.FAILOVER: ("failover", "--leave-behind", "--yes"),
    Feature.FAILBACK: ("failback", "--divergent", "keep"),
}
_INCLUDES: Final = {
    AclOperation.DESCRIBE: {AclOperation.READ, AclOperation.WRITE, AclOperation.DELETE, AclOperation.ALTER},
    AclOperation.DESCRIBE_CONFIGS: {AclOperation.ALTER_CONFIGS},
}


def names(alias: str) -> Names:
    """The resources of the flow, named as by the default policy."""
    return Names(
        {
            Resource.SELECTED_TOPICS: {"orders", "quiet"},
            Resource.REMOTE_TOPICS: {f"{alias}.orders", f"{alias}.quiet"},
            Resource.GROUPS: {"billing"},
            Resource.SYNCS_TOPIC: {"mm2-offset-syncs.B.internal"},
            Resource.STORES: {f"mm2-{store}.{alias}.internal" for store in ("configs", "offsets", "status")},
            Resource.LEDGER: {f"mm2-ledger.{alias}.internal"},
            Resource.OPPOSITE_LEDGER: {"mm2-ledger.B.internal"},
            Resource.CHECKPOINTS_TOPIC: {f"{alias}.checkpoints.internal"},
            Resource.HEARTBEATS_TOPIC: {"heartbeats"},
        }
    )


@dataclass(frozen=True)
class Guarded:
    """Both clusters, on which the user mirror has the ACLs that `allow` sets, and the file of the flow."""

    brokers: dict[Side, LocalKafka]
    folder: Path

    def file(self, alias: str = "A") -> Path:
        props: dict[str, str | None] = {"clusters": f"{alias}, B"}
        for side, name in ((Side.SOURCE, alias), (Side.TARGET, "B")):
            props[f"{name}.bootstrap.servers"] = self.brokers[side].address("LOGIN")
            props |= {f"{name}.{key}": value for key, value in login().items()}
        return write_config(
            self.folder / f"{alias}.properties",
            {
                **props,
                f"{alias}->B.enabled": "true",
                f"B->{alias}.emit.heartbeats.enabled": "false",
                "topics": "orders,quiet",
                "groups": "billing",
                "sync.topic.acls.enabled": "true",
                "sync.topic.acls.interval.seconds": "1",
                "sync.topic.configs.interval.seconds": "1",
                "sync.group.offsets.enabled": "true",
                "sync.group.offsets.interval.seconds": "1",
            },
        )

    def needed(self, features: Collection[Feature], alias: str = "A") -> list[RequiredAcl]:
        """The ACLs of the list."""
        return required_acls(features, f"{alias}-mm2", names(alias))

    def allow(self, wanted: Iterable[RequiredAcl]) -> None:
        """Give the user mirror these rights, and no others."""
        anything: Any = None  # the type stubs require strings
        for broker in self.brokers.values():
            everything = AclBindingFilter(
                kafka_admin.ResourceType.ANY,
                anything,
                ResourcePatternType.ANY,
                "User:mirror",
                anything,
                kafka_admin.AclOperation.ANY,
                AclPermissionType.ANY,
            )
            for done in admin(broker).delete_acls([everything]).values():
                done.result(30)
        bindings: dict[Side, list[AclBinding]] = {side: [] for side in self.brokers}
        for acl in dict.fromkeys(wanted):
            bindings[acl.side] += [one for name in acl.names if (one := binding(acl, name)) not in bindings[acl.side]]
        for side, some in bindings.items():
            for done in (admin(self.brokers[side]).create_acls(some) if some else {}).values():
                done.result(30)


def binding(acl: RequiredAcl, name: str) -> AclBinding:
    """The ACL for the user mirror; ``*`` at the end of a name is a prefix."""
    kinds = {ResourceType.CLUSTER: "BROKER", ResourceType.TRANSACTIONAL_ID: "TRANSACTIONAL_ID"}
    is_prefix = name.endswith("*")
    return AclBinding(
        kafka_admin.ResourceType[kinds.get(acl.kind, acl.kind.name)],
        name.removesuffix("*"),
        ResourcePatternType.PREFIXED if is_prefix else ResourcePatternType.LITERAL,
        "User:mirror",
        "*",
        kafka_admin.AclOperation[acl.operation.name],
        AclPermissionType.ALLOW,
    )


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("rights")
    with start_pair(folder, listeners=LISTENERS, overrides=GUARDED, heap="384m") as (a, b):
        yield Guarded({Side.SOURCE: a, Side.TARGET: b}, folder)


@pytest.fixture(scope="module")
def copied(guarded: Guarded) -> Guarded:
    """After a process with the rights of its features has run."""
    a, b = guarded.brokers.values()
    for topic in ("orders", "quiet"):
        create(a, topic)
        write(a, topic, [(b"k", b"v")] * 100, 0)
    commit(a, "billing", {("orders", 0): 40})
    reader = AclBinding(
        kafka_admin.ResourceType.TOPIC,
        "orders",
        ResourcePatternType.LITERAL,
        "User:app",
        "*",
        kafka_admin.AclOperation.READ,
        AclPermissionType.ALLOW,
    )
    for done in admin(a).create_acls([reader]).values():
        done.result(30)
    guarded.allow(guarded.needed(JOB))
    process = MirrorProcess(guarded.file(), guarded.folder / "log")
    try:
        process.eventually(lambda: committed(b, "billing", "A.orders") == 40, 90)
        process.eventually(lambda: synced_acls(b) == {("A.orders", "READ")})
        alter(a, "orders", "retention.ms", "7654321")
        grow(a, "orders", 2)
        write(a, "orders", [(b"k", b"later")] * 10, 1)
        process.eventually(lambda: config_of(b, "A.orders", "retention.ms") == "7654321")
        process.eventually(lambda: partitions_of(b, "A.orders") == 2)
        process.eventually(lambda: [len(rows) for rows in contents(b, "A.orders")] == [100, 10])
        process.eventually(lambda: len(contents(b, "heartbeats")[0]) > 1)
        assert process.stop()[0] == 0
        denied = [line for line in process.log.read_text().splitlines() if "AUTHORIZATION_FAILED" in line]
        assert denied == []
    finally:
        process.clean_up()
    return guarded


def synced_acls(broker: LocalKafka) -> set[tuple[str, str]]:
    """Topic and operation of the ACLs of User:app."""
    anything: Any = None
    of_app = AclBindingFilter(
        kafka_admin.ResourceType.TOPIC,
        anything,
        ResourcePatternType.ANY,
        "User:app",
        anything,
        kafka_admin.AclOperation.ANY,
        AclPermissionType.ANY,
    )
    return {(acl.name, acl.operation.name) for acl in admin(broker).describe_acls(of_app).result(30)}


def is_included(acl: RequiredAcl, others: Iterable[RequiredAcl]) -> bool:
    """Whether another right on the same resource includes it."""
    wider = _INCLUDES.get(acl.operation, set())
    return any(
        (one.side, one.kind) == (acl.side, acl.kind) and set(acl.names) <= set(one.names) and one.operation in wider
        for one in others
    )


def without(wanted: list[RequiredAcl], gone: RequiredAcl) -> list[RequiredAcl]:
    return [acl for acl in wanted if acl != gone]


@pytest.mark.timeout(300)
def test_the_flow_and_the_commands_need_no_other_rights(copied: Guarded, capsys: pytest.CaptureFixture[str]) -> None:
    """Each command has the rights of its own list only."""
    b = copied.brokers[Side.TARGET]
    copied.allow(copied.needed(JOB))
    code, out, err = asked(capsys, "plan", copied.file(), FLOW)
    assert (code, err) == (0, ""), out
    copied.allow(copied.needed([Feature.TRANSLATE]))
    code, out, err = asked(
        capsys, "client", "translate-offsets", copied.file(), "A", "billing", "--cluster", "B", "--csv"
    )
    assert (code, out.split(), err) == (0, ["A.orders,0,40"], "")
    forget(b, "billing")  # a failover has something to commit
    for feature, (verb, *arguments) in COMMANDS.items():
        copied.allow(copied.needed([feature]))
        if verb == "failback":
            write(b, "A.orders", [(b"k", b"new")] * 3, 0)
        code, out, err = asked(capsys, verb, copied.file(), FLOW, *arguments)
        assert (code, err) == (1 if verb == "status" else 0, ""), (verb, out)  # no process is running
        assert "AUTHORIZATION_FAILED" not in out, (verb, out)
    assert committed(b, "billing", "A.orders") == 40


def missing(features: Collection[Feature]) -> list[RequiredAcl]:
    """The rights of the list whose absence has an effect. Topics that exist need no CREATE."""
    wanted = required_acls(features, "A-mm2", names("A"))
    return [acl for acl in wanted if acl.operation is not AclOperation.CREATE and not is_included(acl, wanted)]


def name_of(feature: Feature, acl: RequiredAcl) -> str:
    return f"{feature.name.lower()}-{acl.side.value}-{acl.operation.name}-{acl.names[0]}"


def parameters(cases: Iterable[tuple[Feature, RequiredAcl]], fast: Collection[str]) -> list[Any]:
    """All others than ``fast`` are slow."""
    return [
        pytest.param(
            feature,
            acl,
            id=name_of(feature, acl),
            marks=[] if name_of(feature, acl) in fast else [pytest.mark.slow],
        )
        for feature, acl in cases
    ]


#: `mm2 plan` does not read the ledger of the opposite flow, which does not exist here.
PLANNED: Final = [
    (Feature.COPYING, acl) for acl in missing(JOB) if (acl.side, acl.names) != (Side.SOURCE, ("mm2-ledger.B.internal",))
]
FAST_PLAN: Final = {"copying-target-WRITE-A.orders"}
FAST_COMMANDS: Final = {"status-target-DESCRIBE-A-mm2", "failover-target-READ-billing"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("feature", "gone"), parameters(PLANNED, FAST_PLAN))
def test_the_plan_names_each_missing_right_of_the_flow(
    copied: Guarded, capsys: pytest.CaptureFixture[str], feature: Feature, gone: RequiredAcl
) -> None:
    copied.allow(without(copied.needed(JOB), gone))
    _, out, _ = asked(capsys, "plan", copied.file(), FLOW)
    (line,) = [line for line in out.splitlines() if line.split()[1:3] == [gone.operation.name, gone.kind.name]]
    assert line.split()[0] == ("A" if gone.side is Side.SOURCE else "B"), out
    assert all(name in line for name in gone.names), out
    assert "missing" in line or "unknown" in line, out


def test_the_plan_names_each_missing_right_to_create_a_topic(
    copied: Guarded, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of a flow of which nothing exists yet."""
    wanted = copied.needed(JOB, "N")
    copied.allow([acl for acl in wanted if acl.operation is not AclOperation.CREATE])
    code, out, _ = asked(capsys, "plan", copied.file("N"), "N->B")
    assert code == 1
    created = {name for acl in wanted if acl.operation is AclOperation.CREATE for name in acl.names}
    denied = " ".join(line for line in out.splitlines() if " CREATE " in line and "missing" in line)
    assert {name for name in created if name not in denied} == {"heartbeats", "mm2-offset-syncs.B.internal"}, out
    # Those of A->B exist.


#: Commands that print what is read for a feature, in the order in which they are tried.
ASKED: Final = {Feature.STATUS: (("status",), ("groups",), ("lag",), ("topics",))}
_PREVIEW: Final = {Feature.FAILOVER: ("failover", "--dry-run"), Feature.FAILBACK: ("failback", "--dry-run")}
#: Cases that no output of this flow names, and why.
KNOWN: Final = {
    "status-target-READ-heartbeats": "brokers do not list a topic that may not be described",
    "verify-source-DESCRIBE_CONFIGS-orders": "an effect only on differences of compacted topics",
    "verify-target-DESCRIBE_CONFIGS-A.orders": "an effect only on differences of compacted topics",
    "failover-source-READ-mm2-ledger.B.internal": "no flow B->A has run, so nothing is translated by its ledger",
    "failover-target-READ-mm2-configs.A.internal": "not read while no process of the flow is running",
    "failover-target-READ-heartbeats": "not needed while the source answers",
    "failback-source-READ-mm2-ledger.B.internal": "no flow B->A has run, so nothing was promoted by it",
    "failback-target-READ-mm2-configs.A.internal": "not read while no process of the flow is running",
    "failback-target-DESCRIBE-A-mm2": "named where tasks do not resume copying in time; here nothing had been stopped",
    "failback-source-READ-orders": "records are compared only where B->A copies topics of equal names",
    "failback-source-WRITE-mm2-ledger.B.internal": "written only where B->A copies topics of equal names",
}
#: These show only when the command is executed; the others are previewed.
EXECUTED: Final = {"billing", "A-mm2"}

COMMAND_CASES: Final = [(feature, acl) for feature in COMMANDS for acl in missing([feature])]


def test_the_known_cases_exist() -> None:
    assert not KNOWN.keys() - {name_of(*case) for case in COMMAND_CASES}


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("feature", "gone"), parameters((case for case in COMMAND_CASES if name_of(*case) not in KNOWN), FAST_COMMANDS)
)
def test_each_command_names_the_missing_right(
    copied: Guarded, capsys: pytest.CaptureFixture[str], feature: Feature, gone: RequiredAcl
) -> None:
    """A broker that denies an operation because DESCRIBE is missing, which it includes, denies DESCRIBE."""
    everything = [*copied.needed(JOB), *copied.needed(COMMANDS)]
    is_executed = gone.operation is AclOperation.WRITE or gone.names[0] in EXECUTED
    commands: Iterable[tuple[str, ...]] = ASKED.get(feature, (COMMANDS[feature],))
    if feature in _PREVIEW and not is_executed:
        commands = (_PREVIEW[feature],)
    forget(copied.brokers[Side.TARGET], "billing")  # a failover has something to commit
    if feature is Feature.FAILBACK:
        copied.allow(everything)
        assert asked(capsys, "failover", copied.file(), FLOW, "--leave-behind", "--yes")[0] == 0
    try:
        copied.allow(without(copied.needed([feature]), gone))
        printed = ""
        for verb, *arguments in commands:
            _, out, err = asked(capsys, verb, copied.file(), FLOW, *arguments)
            printed += out + err
            if is_named(gone, printed):
                break
        assert is_named(gone, printed), printed
    finally:
        if feature in _PREVIEW:
            copied.allow(everything)
            asked(capsys, "failback", copied.file(), FLOW, "--divergent", "keep")


def is_named(gone: RequiredAcl, printed: str) -> bool:
    """Whether one sentence names the missing right, or the included one that is missing with it, and a resource."""
    operations = [gone.operation, *(one for one, wider in _INCLUDES.items() if gone.operation in wider)]
    wanted = [f"the right {one.name} is missing" for one in operations]
    return any(
        name in line and any(right in line for right in wanted) for line in printed.splitlines() for name in gone.names
    )


def forget(broker: LocalKafka, group: str) -> None:
    """Delete the group, if it exists."""
    for done in admin(broker).delete_consumer_groups([group]).values():
        with suppress(KafkaException):
            done.result(30)
