"""A flow and the commands of mm2 with exactly the rights of docs/reference/rights.md, on brokers with an authorizer.

Given two brokers on which the user mirror has the listed ACLs and no others; a flow that copied two topics with their configurations,
ACLs and a group. Validates that nothing more is needed, and that each right that is missing is named.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka import admin as kafka_admin
from confluent_kafka.admin import AclBinding, AclBindingFilter, AclPermissionType, ResourcePatternType

from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import BrokerFailure
from mm2.kafka.readers.log import KafkaBasedLog
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import AclOperation, ResourceType
from mm2.mirror.common.clients import Side
from mm2.mirror.plan.required_acls import Feature, Names, RequiredAcl, Resource, required_acls
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.asking import asked
from tests.integration.copy_flow import delete_before, end_offset, read
from tests.integration.mirror_flow import admin, alter, commit, committed, create, write
from tests.integration.mirror_process import MirrorProcess, config_of, contents, grow, partitions_of, write_config
from tests.support.passworded import LISTENERS, PASSWORDS, login
from tests.support.waiting import wait_until

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

    def file(self, alias: str = "A", **changes: str) -> Path:
        """The file of the flow from this alias. ``__`` in a key stands for ``.``."""
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
                **{key.replace("__", "."): value for key, value in changes.items()},
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


# -- other modes

#: ALTER on the cluster, which synced ACLs need, includes CLUSTER_ACTION for transaction markers (KIP-1037).
_WITHOUT_ACLS: Final = tuple(feature for feature in JOB if feature is not Feature.ACLS)
_NO_ACLS: Final = {"sync__topic__acls__enabled": "false"}


@dataclass(frozen=True)
class Mode:
    """A mode that needs rights of its own: the alias of its source, the topic that it copies, and its settings."""

    alias: str
    topic: str
    features: tuple[Feature, ...]
    settings: dict[str, str]

    @property
    def remote(self) -> str:
        return f"{self.alias}.{self.topic}"

    def needed(self) -> list[RequiredAcl]:
        """The ACLs of the list, one name each."""
        resources = {
            **names(self.alias).by_resource,
            Resource.SELECTED_TOPICS: {self.topic},
            Resource.REMOTE_TOPICS: {self.remote},
            Resource.GROUPS: set(),
        }
        wanted = required_acls((*_WITHOUT_ACLS, *self.features), f"{self.alias}-mm2", Names(resources))
        return [replace(acl, names=(name,)) for acl in wanted for name in acl.names]

    def without(self, *gone: tuple[AclOperation, str]) -> list[RequiredAcl]:
        """The list without these operations on resources."""
        return [acl for acl in self.needed() if (acl.operation, acl.names[0]) not in gone]


def exactly_once(topic: str) -> Mode:
    return Mode("E", topic, (Feature.TRANSACTIONS,), {"B__exactly__once__source__support": "enabled"})


def preserving(topic: str) -> Mode:
    return Mode("P", topic, (Feature.PRESERVED,), {"preserve__offsets": "true"})


@contextmanager
def running(guarded: Guarded, mode: Mode) -> Iterator[MirrorProcess]:
    file = guarded.file(mode.alias, topics=mode.topic, groups="", **_NO_ACLS, **mode.settings)
    process = MirrorProcess(file, guarded.folder / f"log-{mode.topic}")
    try:
        yield process
    finally:
        process.clean_up()


def transactions(broker: LocalKafka, topic: str, count: int) -> None:
    """Committed transactions of one record each: the offset after each record has none."""
    producer = Producer(
        {"bootstrap.servers": broker.bootstrap, "transactional.id": f"{topic}-producer", "log_level": 0}
    )
    producer.init_transactions(30)
    for number in range(count):
        producer.begin_transaction()
        producer.produce(topic, b"%d" % number, partition=0)
        producer.commit_transaction(30)


def write_trimmed(broker: LocalKafka, topic: str) -> None:
    """A topic whose first records were deleted, and with gaps between the others."""
    create(broker, topic)
    write(broker, topic, [(b"k", b"v")] * 50, 0)
    delete_before(broker, topic, 20)
    transactions(broker, topic, 5)


def is_copied(guarded: Guarded, mode: Mode) -> bool:
    """Whether all records are on the target, at the same offsets with preserved offsets."""
    source, target = guarded.brokers.values()
    if not partitions_of(target, mode.remote):
        return False
    if mode.alias == "P":
        return read(target, mode.remote) == read(source, mode.topic)
    return contents(target, mode.remote) == contents(source, mode.topic)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("mode", [exactly_once("once"), preserving("same")], ids=lambda mode: mode.topic)
def test_other_modes_need_no_other_rights(guarded: Guarded, mode: Mode) -> None:
    """On a cluster where the topics of the flow do not exist."""
    write_trimmed(guarded.brokers[Side.SOURCE], mode.topic)
    guarded.allow(mode.needed())
    with running(guarded, mode) as process:
        process.eventually(lambda: is_copied(guarded, mode), 90)
        assert process.stop()[0] == 0
        denied = [line for line in process.log.read_text().splitlines() if "AUTHORIZATION_FAILED" in line]
        assert denied == []
    markers = end_offset(guarded.brokers[Side.TARGET], mode.remote) - len(
        contents(guarded.brokers[Side.TARGET], mode.remote)[0]
    )
    assert markers > 0, "of transactions, or in the place of those of the source"


_WRITE, _READ = AclOperation.WRITE, AclOperation.READ
_GAPS: Final = "mm2-gaps-*"


@dataclass(frozen=True)
class Lacking:
    """A flow without some rights: what one sentence of its log names, and whether it copies nevertheless."""

    mode: Mode
    gone: tuple[tuple[AclOperation, str], ...]
    named: tuple[str, ...]
    copies: bool = True


LACKING: Final = [
    Lacking(
        exactly_once("once-ids"),
        ((_WRITE, "E-mm2-*"),),
        ("E-mm2-MirrorSourceConnector-0", "the right WRITE is missing"),
        copies=False,
    ),
    Lacking(
        exactly_once("once-leader"),
        ((_WRITE, "connect-cluster-E-mm2"),),
        ("connect-cluster-E-mm2", "the right WRITE is missing"),
        copies=False,
    ),
    Lacking(
        exactly_once("once-ledger"),
        ((_READ, "mm2-ledger.E.internal"),),
        ("mm2-ledger.E.internal", "the right READ is missing"),
    ),
    Lacking(
        preserving("same-ledger"),
        ((_READ, "mm2-ledger.P.internal"),),
        ("mm2-ledger.P.internal", "the right READ is missing"),
        copies=False,
    ),
    Lacking(
        preserving("same-markers"),
        ((AclOperation.CLUSTER_ACTION, "kafka-cluster"),),
        ("CLUSTER_ACTION on the cluster is missing",),
    ),
    Lacking(
        preserving("same-nothing"),
        ((AclOperation.CLUSTER_ACTION, "kafka-cluster"), (_WRITE, _GAPS)),
        ("needs CLUSTER_ACTION on the cluster", "WRITE on the transactional ids with the prefix mm2-gaps-"),
        copies=False,
    ),
    *(
        Lacking(
            preserving(f"same-{operation.name.lower()}"),
            ((operation, f"P.same-{operation.name.lower()}"),),
            (f"P.same-{operation.name.lower()}", f"the right {operation.name} is missing"),
        )
        for operation in (AclOperation.DELETE, AclOperation.ALTER_CONFIGS)
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("lacking", LACKING, ids=lambda lacking: lacking.mode.topic)
def test_other_modes_name_each_missing_right(guarded: Guarded, lacking: Lacking) -> None:
    mode = lacking.mode
    write_trimmed(guarded.brokers[Side.SOURCE], mode.topic)
    guarded.allow(mode.without(*lacking.gone))
    with running(guarded, mode) as process:
        process.eventually(
            lambda: any(all(name in line for name in lacking.named) for line in process.log.read_text().splitlines()),
            50,
        )
        if lacking.copies:
            process.eventually(lambda: is_copied(guarded, mode), 90)


def test_a_log_that_may_not_be_read_fails_at_once(guarded: Guarded) -> None:
    """Also one without records: a reader without the right would otherwise fail at the first record."""
    target = guarded.brokers[Side.TARGET]
    describe = RequiredAcl(Side.TARGET, ResourceType.TOPIC, ("unread",), AclOperation.DESCRIBE, "")
    create(target, "unread")
    settings = ClientSettings.from_props({"bootstrap.servers": target.address("LOGIN"), **login()})

    def is_refused(call: Callable[[float], None]) -> bool:
        """Whether it fails for this reason."""
        try:
            call(600.0)
        except BrokerFailure as failure:
            return "unread" in str(failure) and "the right READ is missing" in str(failure)
        return False

    logs: list[KafkaBasedLog] = []

    def opened() -> KafkaBasedLog:
        logs.append(KafkaBasedLog(cluster, "unread", on_record=lambda _: None))
        return logs[-1]

    def is_refused_later(log: KafkaBasedLog) -> bool:
        write(target, "unread", [(b"k", b"v")], 0)
        return is_refused(log.read_to_end)

    # Brokers apply ACLs a moment after they are created.
    with closing(Cluster(settings, name="B")) as cluster:
        guarded.allow([describe])
        wait_until(lambda: is_refused(opened().start), 30)
        write(target, "unread", [(b"k", b"v")], 0)
        assert is_refused(opened().start)
        guarded.allow([replace(describe, operation=AclOperation.READ)])
        wait_until(lambda: not is_refused(opened().start), 30)
        guarded.allow([describe])
        wait_until(lambda: is_refused_later(logs[-1]), 30)
        logs[-1].stop()
