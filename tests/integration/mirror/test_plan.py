"""What `mm2 plan` prints is what the connectors do, on real brokers before and after.

The jobs of the connectors run here in their order, without a worker, so that all of them have run when the two are compared.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import pytest
from kafka.protocol.consumer import JoinGroupRequest

from mm2.config.files.properties import load_properties
from mm2.config.keys.mirror_keys import CONNECTOR_NAMES
from mm2.config.keys.worker_keys import storage_topics
from mm2.config.mirrormaker import MirrorMakerConfig, SourceAndTarget
from mm2.copy.progress.ledger import entry_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.filler import produce_filler
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import (
    LATEST,
    AclBinding,
    AclFilter,
    AclOperation,
    AclPermission,
    AlterOp,
    AlterOpType,
    ConfigSource,
    NewTopic,
    OffsetAndMetadata,
    OffsetInfo,
    PatternType,
    ResourceType,
    TopicInfo,
    TopicPartition,
)
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.common.plugins import connect_plugins, plugin_props
from mm2.mirror.heartbeat import MirrorHeartbeatConnector
from mm2.mirror.plan.preview import Preview, preview
from mm2.mirror.plan.rehearsal import Step
from mm2.mirror.preserved.leading_gaps import FILLING_RETENTION_MS
from mm2.mirror.process.plans import FlowPlan, plan_flows
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.mirror.topics.topic_acls import sentence
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from tests.integration.mirror_flow import RecordingContext
from tests.integration.mirror_process import write_config
from tests.support.waiting import PATIENCE, wait_until

PLAIN = "org.apache.kafka.common.security.plain.PlainLoginModule"
CLASSES: dict[str, type[MirrorConnector]] = {
    one.__name__: one for one in (MirrorSourceConnector, MirrorCheckpointConnector, MirrorHeartbeatConnector)
}
#: B rejects a longer min.compaction.lag.ms than its own max.compaction.lag.ms.
REJECTED = {"min.compaction.lag.ms": "700000"}
Done = tuple[str, str, str, tuple[tuple[str, str], ...]]
#: Before these offsets, logs of the source are trimmed.
FIRST = 1_000


@dataclass(frozen=True)
class Side:
    """A broker, with a client that may do everything."""

    broker: LocalKafka
    admin: Admin

    def create(self, topic: str, partitions: int = 1, configs: Mapping[str, str] | None = None) -> None:
        answers = self.admin.create_topics([NewTopic(topic, partitions, configs=dict(configs or {}))])
        assert answers == {topic: None}

    def alter(self, topic: str, configs: Mapping[str, str | None]) -> None:
        kinds = {name: AlterOpType.DELETE if value is None else AlterOpType.SET for name, value in configs.items()}
        operations = [AlterOp(name, value, kinds[name]) for name, value in configs.items()]
        assert self.admin.incremental_alter_configs({topic: operations}) == {topic: None}

    def fill(self, topic: str, count: int = FIRST, *, start: int | None = None) -> None:
        """Append fillers to the first partition, and trim the log."""
        tp = TopicPartition(topic, 0)
        at = produce_filler(self.admin.cluster, tp, self.end(tp), count, 60)
        if start is not None:
            assert self.admin.delete_records({tp: start}) == {tp: start}
        assert at >= 0

    def write(self, topic: str, count: int) -> None:
        producer = Producer(self.admin.cluster)
        producer.send(topic, [Record(key=b"k", value=b"v") for _ in range(count)], 0, timeout_s=60)

    def end(self, tp: TopicPartition) -> int:
        found = self.admin.list_offsets({tp: LATEST})[tp]
        assert isinstance(found, OffsetInfo)
        return found.offset

    def grant(self, *acls: AclBinding) -> None:
        assert set(self.admin.create_acls(acls).values()) == {None}
        wait_until(lambda: set(acls) <= self.acls(), 60)

    def remove(self, *acls: AclBinding) -> None:
        assert set(self.admin.delete_acls(acls).values()) == {None}
        wait_until(lambda: not set(acls) & self.acls(), 60)

    def acls(self) -> set[AclBinding]:
        return {acl for kind in ACL_KINDS for acl in self.admin.describe_acls(AclFilter(resource_type=kind))}

    def commit(self, group: str, topic: str) -> None:
        tp = TopicPartition(topic, 0)
        wait_until(lambda: self.admin.alter_group_offsets(group, {tp: OffsetAndMetadata(0)}) == {tp: None}, 60)

    def join(self, group: str, protocol_type: str) -> None:
        """Leave a member of another kind than consumers in a group."""
        offer = JoinGroupRequest.JoinGroupRequestProtocol(name="any", metadata=b"")
        member = ""
        for _ in range(2):  # the first answer only has the member's id (KIP-394)
            request = JoinGroupRequest(
                group_id=group,
                session_timeout_ms=300_000,
                rebalance_timeout_ms=300_000,
                member_id=member,
                group_instance_id=None,
                protocol_type=protocol_type,
                protocols=[offer],
            )
            cluster = self.admin.cluster
            member = cluster.send(cluster.coordinator(group), request, timeout_s=60).member_id

    def topics(self) -> dict[str, TopicInfo]:
        found = self.admin.describe_topics(self.admin.list_topics())
        return {name: one for name, one in found.items() if isinstance(one, TopicInfo)}

    def state(self) -> State:
        """Of each topic the number of partitions and its own configs, all ACLs, and the ends of logs of no internal topic."""
        topics = self.topics()
        own: dict[str, dict[str, str | None]] = {}
        for name, configs in self.admin.describe_configs(topics).items():
            assert not isinstance(configs, KafkaFailure)
            on_topic = [one for one in configs.values() if one.source is ConfigSource.DYNAMIC_TOPIC_CONFIG]
            own[name] = {one.name: one.value for one in on_topic}
        tps = [
            TopicPartition(name, index)
            for name, one in topics.items()
            if not name.endswith(".internal")
            for index in one.partitions
        ]
        ends = {
            tp: one.offset
            for tp, one in self.admin.list_offsets(dict.fromkeys(tps, LATEST)).items()
            if isinstance(one, OffsetInfo)
        }
        counts = {name: (len(one.partitions), own[name]) for name, one in topics.items()}
        return State(counts, frozenset(self.acls()), ends)


ACL_KINDS = (ResourceType.TOPIC, ResourceType.GROUP)


def allowed(
    topic: str, operation: AclOperation, user: str, permission: AclPermission = AclPermission.ALLOW
) -> AclBinding:
    """An ACL of a topic."""
    return AclBinding(ResourceType.TOPIC, topic, PatternType.LITERAL, f"User:{user}", "*", operation, permission)


@dataclass(frozen=True)
class State:
    topics: Mapping[str, tuple[int, Mapping[str, str | None]]]
    acls: frozenset[AclBinding]
    ends: Mapping[TopicPartition, int]

    def steps_to(self, after: State, alias: str) -> set[Done]:
        """What has been done on a cluster with this alias, as a plan prints it."""
        done: set[Done] = set()
        for name, (partitions, configs) in after.topics.items():
            if name not in self.topics:
                shown = {"partitions": str(partitions), **{key: str(value) for key, value in configs.items()}}
                done.add((alias, "create topic", name, tuple(sorted(shown.items()))))
                continue
            count, before = self.topics[name]
            if count != partitions:
                done.add((alias, "add partitions", name, (("partitions", f"{count} -> {partitions}"),)))
            changed = {
                key: "back to the default" if key not in configs else str(configs[key])
                for key in {*before, *configs}
                if before.get(key) != configs.get(key)
            }
            if changed:
                done.add((alias, "alter configs", name, tuple(sorted(changed.items()))))
        for tp, end in after.ends.items():
            if end != (before_end := self.ends.get(tp, 0)):
                done.add((alias, "fill offsets", str(tp), (("offsets", f"{before_end}..{end - 1}"),)))
        done |= {(alias, "create ACL", sentence(acl), ()) for acl in after.acls - self.acls}
        done |= {(alias, "remove ACL", sentence(acl), ()) for acl in self.acls - after.acls}
        return done


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Side, Side]]:
    folder = tmp_path_factory.mktemp("plan")
    overrides = {
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.login.plain.sasl.jaas.config": f'{PLAIN} required user_mirror="secret" user_plain="secret";',
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS;User:mirror",
    }
    listeners = {"OPEN": "PLAINTEXT", "LOGIN": "SASL_PLAINTEXT"}
    rejecting = {"log.cleaner.max.compaction.lag.ms": "600000"}
    brokers = (
        LocalKafka("A", folder / "a", listeners=listeners, overrides=overrides, heap="384m"),
        LocalKafka("B", folder / "b", listeners=listeners, overrides={**overrides, **rejecting}, heap="384m"),
    )
    start_all(brokers, 60.0 * PATIENCE)
    clusters = [
        Cluster(ClientSettings.from_props({"bootstrap.servers": one.bootstrap}), name="test") for one in brokers
    ]
    try:
        a, b = (Side(broker, Admin(cluster)) for broker, cluster in zip(brokers, clusters, strict=True))
        yield a, b
    finally:
        for cluster in clusters:
            cluster.close()
        stop_all(brokers)


@dataclass(frozen=True)
class Flow:
    """A flow from A, under an alias of its own, to B."""

    a: Side
    b: Side
    alias: str
    file: Path

    @classmethod
    def of(cls, sides: tuple[Side, Side], folder: Path, settings: Mapping[str, str] = MappingProxyType({})) -> Flow:
        return cls.named(f"P{secrets.token_hex(3)}", sides, folder, settings)

    @classmethod
    def named(cls, alias: str, sides: tuple[Side, Side], folder: Path, settings: Mapping[str, str]) -> Flow:
        a, b = sides
        props = {
            "clusters": f"{alias}, B",
            f"{alias}.bootstrap.servers": a.broker.address("LOGIN"),
            "B.bootstrap.servers": b.broker.address("LOGIN"),
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.jaas.config": f'{PLAIN} required username="mirror" password="secret";',
            f"{alias}->B.enabled": "true",
            f"{alias}->B.topics": f"{alias}-.*",
            f"{alias}->B.groups": f"({alias}-.*)?",
            "heartbeats.replication.enabled": "false",
            "sync.topic.acls.enabled": "true",
            **settings,
        }
        return cls(a, b, alias, write_config(folder / f"{alias}.properties", props))

    def topic(self, name: object) -> str:
        return f"{self.alias}-{name}"

    def planned(self) -> tuple[FlowPlan, Preview]:
        config = MirrorMakerConfig(load_properties(self.file))
        pair = SourceAndTarget(self.alias, "B")
        plan = plan_flows(config, ["B"], connect_plugins(plugin_props(config, None)))[pair]
        return plan, preview(pair, plan)

    def remote(self, name: object) -> str:
        return f"{self.alias}.{self.topic(name)}"

    def steps(self, found: Preview, *, fails: bool = False) -> list[Step]:
        """Those that are expected to be done, or to fail, without those of a worker."""
        stores = storage_topics(self.planned()[0].worker)
        return [
            step
            for step in found.steps
            if bool(step.error) is fails and step.action != "write connector config" and step.subject not in stores
        ]

    def is_what_is_applied(self, *, fills: bool = True) -> tuple[Preview, Preview]:
        """Plan, apply, and compare; returns what was planned before and is after. ``fills``: wait until offsets are filled."""
        plan, found = self.planned()
        before = self.a.state(), self.b.state()
        with applied(plan, fills=fills):
            after = self.a.state(), self.b.state()
        done = {
            step
            for one, other, alias in zip(before, after, (self.alias, "B"), strict=True)
            for step in one.steps_to(other, alias)
        }
        planned = {shown(step) for step in self.steps(found)}
        assert {step for step in planned if fills or step[1] != "fill offsets"} == done, found.errors
        again = self.planned()[1]
        assert not fills or self.steps(again) == []
        return found, again


def shown(step: Step) -> Done:
    """A step with the details that a cluster shows when it is done. The replication factor is the same for all topics."""
    details = {
        key: value for key, value in step.details.items() if key not in {"replication.factor", "by", "seconds", "bytes"}
    }
    return step.cluster, step.action, step.subject, tuple(sorted(details.items()))


@contextmanager
def applied(plan: FlowPlan, *, fills: bool = True) -> Iterator[dict[str, MirrorConnector]]:
    """Run each job of the connectors until it has succeeded, and again when the offsets are filled that precede records."""
    connectors = {}
    try:
        for name in CONNECTOR_NAMES:
            connector = connectors[name] = CLASSES[name]()
            props = dict(plan.resolved[name])
            connector.initialize(RecordingContext(f"{props['source.cluster.alias']}-mm2", storage_topics(plan.worker)))
            scheduler = connector._prepared(props)
            jobs = [entry.job for entry in sorted(scheduler._entries)] if scheduler is not None else []
            gaps = getattr(connector, "_leading_gaps", None)
            if gaps is not None and not fills:
                gaps.stop(0)
            for job in jobs:
                _until_done(job)
            if gaps is not None and gaps._thread is not None and fills:
                gaps._thread.join()
                for job in jobs:
                    _until_done(job)
        yield connectors
    finally:
        for connector in connectors.values():
            connector.stop()
            connector._close_clusters()
            connector._close_filters()


def _until_done(job: Callable[[], bool | None], attempts: int = 3) -> None:
    """What the target rejects stays undone, so not all jobs succeed."""
    for _ in range(attempts):
        if job() is not False:
            return


def test_groups_that_are_not_followed_need_no_rights(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """Of another kind than consumers, without an id, or without offsets of replicated topics."""
    flow = Flow.of(
        sides, tmp_path, {f"{key}.replication.factor": "1" for key in ("checkpoints.topic", "heartbeats.topic")}
    )
    flow.a.create(flow.topic("t"))
    other = f"other-{flow.alias}"
    flow.a.create(other)
    for group in ("shop", "workers"):
        flow.a.commit(flow.topic(group), flow.topic("t"))
    flow.a.commit("", flow.topic("t"))
    flow.a.commit(flow.topic("elsewhere"), other)
    flow.a.join(flow.topic("workers"), "connect")
    plan, found = flow.planned()
    names = {name for one in found.rights if one.need.kind is ResourceType.GROUP for name in one.need.names}
    with applied(plan) as connectors:
        followed = {
            group
            for config in connectors["MirrorCheckpointConnector"].task_configs(1)
            for group in config["task.assigned.groups"].split(",")
        }
    assert followed == {flow.topic("shop")}
    assert names - {f"{flow.alias}-mm2"} == followed


def test_topics_are_created_and_get_partitions_as_planned(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """Also with fewer brokers than the default of replication.factor, and without a property that the target rejects."""
    flow = Flow.of(sides, tmp_path)
    lines = flow.file.read_text().splitlines(keepends=True)
    flow.file.write_text("".join(line for line in lines if not line.startswith("replication.factor")))
    flow.a.create(flow.topic("new"), 2, {"retention.ms": "123456"})
    flow.a.create(flow.topic("lesser"), 1, {"retention.ms": "123456", **REJECTED})
    flow.a.create(flow.topic("grown"), 3)
    flow.b.create(flow.remote("grown"), 1)
    flow.a.create(flow.topic("wide"), 1)
    flow.b.create(flow.remote("wide"), 2)
    long = flow.topic("x" * 240)  # with the alias of the source it is longer than a topic's name may be
    flow.a.create(long)
    found, again = flow.is_what_is_applied()
    (new,) = (step for step in found.steps if step.subject == flow.remote("new"))
    assert (
        new.details["replication.factor"] == "the brokers' default.replication.factor, since B has fewer brokers than 2"
    )
    assert [(step.action, step.subject) for step in flow.steps(found, fails=True)] == [
        ("create topic", f"{flow.alias}.{long}")
    ]
    assert "INVALID_TOPIC_EXCEPTION" in flow.steps(found, fails=True)[0].error
    assert [error for error in found.errors if "has 2 partitions and its source 1" in error]
    assert [note for note in found.notes if "min.compaction.lag.ms" in note]
    # The sync tries it again.
    failing = {step.subject: dict(step.details) for step in flow.steps(again, fails=True)}
    assert failing.keys() == {f"{flow.alias}.{long}", flow.remote("lesser")}
    assert failing[flow.remote("lesser")] == REJECTED


def test_rejected_partitions_and_configs_are_planned_with_the_broker_s_reason(
    sides: tuple[Side, Side], tmp_path: Path
) -> None:
    flow = Flow.of(sides, tmp_path)
    login = f'{PLAIN} required username="plain" password="secret";'
    flow = Flow.named(flow.alias, sides, tmp_path, {"B.sasl.jaas.config": login, "sync.topic.acls.enabled": "false"})
    operations = (
        AclOperation.DESCRIBE,
        AclOperation.CREATE,
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.DESCRIBE_CONFIGS,
    )
    rights = [allowed("*", operation, "plain") for operation in operations]
    flow.b.grant(*rights)
    flow.a.create(flow.topic("grown"), 2, {"retention.ms": "123456"})
    flow.b.create(flow.remote("grown"), 1)
    try:
        found, again = flow.is_what_is_applied()
    finally:
        flow.b.remove(*rights)
    for one in (found, again):
        failing = {(step.action, step.subject): step.error for step in flow.steps(one, fails=True)}
        assert failing.keys() == {("add partitions", flow.remote("grown")), ("alter configs", flow.remote("grown"))}
        assert all("TOPIC_AUTHORIZATION_FAILED" in error for error in failing.values()), failing


def test_configs_are_altered_as_planned(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """One by one if the target rejects one of them. A topic that is being filled keeps those that it has meanwhile."""
    flow = Flow.of(sides, tmp_path, {"preserve.offsets": "true", "preserve.offsets.topics": ".*filled"})
    flow.a.create(flow.topic("changed"), 1, {"retention.ms": "123456"})
    flow.b.create(flow.remote("changed"), 1, {"retention.ms": "5", "max.message.bytes": "1000"})
    flow.a.create(flow.topic("rejected"), 1, {"retention.ms": "123456", **REJECTED})
    flow.b.create(flow.remote("rejected"))
    flow.a.create(flow.topic("filled"), 1, {"max.message.bytes": "2000"})
    flow.a.fill(flow.topic("filled"), start=FIRST)
    filling = {"cleanup.policy": "delete", "retention.ms": FILLING_RETENTION_MS}
    flow.b.create(flow.remote("filled"), 1, filling)
    flow.b.fill(flow.remote("filled"), FIRST // 2)
    found, again = flow.is_what_is_applied(fills=False)
    altered = {step.subject: dict(step.details) for step in flow.steps(found) if step.action == "alter configs"}
    assert altered == {
        flow.remote("changed"): {"retention.ms": "123456", "max.message.bytes": "back to the default"},
        flow.remote("rejected"): {"retention.ms": "123456"},
    }
    for one in (found, again):
        (step,) = flow.steps(one, fails=True)
        assert (step.subject, dict(step.details)) == (flow.remote("rejected"), REJECTED)
        assert "INVALID_CONFIG" in step.error
        (filled,) = (step for step in one.steps if step.action == "fill offsets")
        assert (filled.subject, filled.details["offsets"]) == (
            f"{flow.remote('filled')}-0",
            f"{FIRST // 2}..{FIRST - 1}",
        )
        assert filled.details["by"] == "filler records, which are deleted"


def test_acls_are_created_and_removed_as_planned(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """An ACL that was removed on the target before is not removed."""
    flow = Flow.of(sides, tmp_path)
    flow.a.create(flow.topic("t"))
    ann, bob, eve = (allowed(flow.topic("t"), AclOperation.READ, user) for user in ("ann", "bob", "eve"))
    try:
        flow.a.grant(ann, bob)
        assert {step.action for step in flow.steps(flow.is_what_is_applied()[0])} >= {"create ACL"}
        flow.a.remove(ann, bob)
        flow.a.grant(eve)
        flow.b.remove(allowed(flow.remote("t"), AclOperation.READ, "ann"))
        found, _ = flow.is_what_is_applied()
        assert sorted(step.action for step in flow.steps(found)) == ["create ACL", "remove ACL"]
    finally:
        flow.a.remove(eve)


def test_writes_are_denied_and_allowed_again_as_planned(sides: tuple[Side, Side], tmp_path: Path) -> None:
    settings = {"preserve.offsets": "true", "sync.topic.acls.enabled": "false"}
    denying = Flow.of(sides, tmp_path, {**settings, "preserve.offsets.deny.writes": "true"})
    denying.a.create(denying.topic("t"))
    denying.a.create(denying.topic("open"))
    denying.a.create(denying.topic("foreign"))
    denying.b.create(denying.remote("foreign"))
    denying.b.write(denying.remote("foreign"), 1)
    writing = [allowed(denying.remote(name), AclOperation.WRITE, "ann") for name in ("t", "foreign")]
    try:
        denying.b.grant(*writing)
        found, _ = denying.is_what_is_applied()
        assert [step.subject for step in denying.steps(found) if step.action == "create ACL"] == [
            sentence(allowed(denying.remote("t"), AclOperation.WRITE, "ann", AclPermission.DENY))
        ]
        assert [error for error in found.errors if f"{denying.topic('open')} is not copied" in error]
        open_again = Flow.named(denying.alias, sides, tmp_path, settings)
        found, _ = open_again.is_what_is_applied()
        assert [step.action for step in open_again.steps(found)] == ["remove ACL"]
    finally:
        denying.b.remove(*writing)


def test_offsets_are_filled_as_planned(sides: tuple[Side, Side], tmp_path: Path) -> None:
    """A topic that was filled gets its configuration back. One that was filled too far waits for a user."""
    flow = Flow.of(sides, tmp_path, {"preserve.offsets": "true"})
    for name in ("new", "begun", "over", "restored", "behind", "ahead"):
        flow.a.create(flow.topic(name))
        flow.a.fill(flow.topic(name), start=FIRST)
    flow.b.create(flow.remote("over"))
    flow.b.fill(flow.remote("over"), FIRST + 7)
    flow.b.create(flow.remote("restored"), 1, {"cleanup.policy": "delete", "retention.ms": FILLING_RETENTION_MS})
    flow.b.fill(flow.remote("restored"), start=FIRST)
    flow.b.create(flow.remote("behind"))
    flow.b.write(flow.remote("behind"), 10)
    flow.b.create(flow.remote("ahead"))
    flow.b.write(flow.remote("ahead"), FIRST + 1)
    flow.b.create(flow.remote("begun"))
    topics = flow.b.admin.describe_topics([flow.remote("begun")])
    ledger = f"mm2-ledger.{flow.alias}.internal"
    flow.b.create(ledger, 1, {"cleanup.policy": "compact"})
    (begun,) = topics.values()
    assert isinstance(begun, TopicInfo)
    entry = LedgerEntry(flow.topic("begun"), 0, begun.name, Mark(0, 0, 0), target_id=begun.topic_id)
    Producer(flow.b.admin.cluster).send(ledger, [entry_record(entry)], 0, timeout_s=60)
    plan, found = flow.planned()
    gaps = {
        step.subject: (step.details["offsets"], step.details["by"].split()[0])
        for step in found.steps
        if step.action == "fill offsets"
    }
    copied = {f"{flow.remote('behind')}-0", f"{flow.remote('begun')}-0"}
    assert gaps == {
        f"{flow.remote('new')}-0": (f"0..{FIRST - 1}", "filler"),
        f"{flow.remote('behind')}-0": (f"10..{FIRST - 1}", "transaction"),
        f"{flow.remote('begun')}-0": (f"0..{FIRST - 1}", "transaction"),
    }
    assert [error for error in found.errors if f"{flow.remote('over')}-0 was filled up to offset {FIRST + 7}" in error]
    assert [
        error
        for error in found.errors
        if f"{flow.remote('ahead')}-0" in error and f"ends at offset {FIRST + 1}" in error
    ]
    before = flow.b.state()
    with applied(plan):
        done = before.steps_to(flow.b.state(), "B")
    # Markers are written by tasks, which do not run here.
    planned = {shown(step) for step in flow.steps(found) if step.subject not in copied and step.cluster == "B"}
    assert planned == done
    again = flow.planned()[1]
    assert {step.subject for step in flow.steps(again)} == copied
