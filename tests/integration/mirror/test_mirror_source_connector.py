import contextlib
import socket
import threading
from contextlib import closing

import pytest
from confluent_kafka.admin import (
    NewPartitions,
)

from mm2.connect.api import RetriableError
from mm2.copy.progress.ledger import entry_record
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.admin import Admin
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.structs import TopicPartition
from mm2.mirror import source_connector
from mm2.mirror.common.clients import MirrorClients, Side
from mm2.mirror.notes.ledgers import Ledgers
from mm2.mirror.notes.preparation import preparations
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.mirror.topics.topic_limits import over_limit_message
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.mirror_flow import (
    admin,
    alter,
    config_of,
    create,
    flow_props,
    partitions_of,
    running,
    write,
)
from tests.support.waiting import wait_until


def props(a: LocalKafka, b: LocalKafka, unique: str, **more: str) -> dict[str, str]:
    # Other tests write heartbeats to the shared brokers, which are replicated regardless of the filter.
    own = {"topics": f"{unique}.*", "heartbeats.replication.enabled": "false"}
    return flow_props("MirrorSourceConnector", a, b, **own, **more)


def assigned(connector: MirrorSourceConnector, tasks: int = 1) -> list[str]:
    try:
        return [config["task.assigned.partitions"] for config in connector.task_configs(tasks)]
    except RetriableError:
        return ["not loaded"]


def test_topics_are_created_with_their_configs_before_a_task_is_assigned_them(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(
        kafka_a, f"{unique}-1", 3, {"cleanup.policy": "compact", "retention.bytes": "1000", "min.insync.replicas": "1"}
    )
    create(kafka_a, f"{unique}-2", 2)
    with running(MirrorSourceConnector(), props(kafka_a, kafka_b, unique)) as (connector, context):
        assert context.reconfigured.wait(30)
        first, second = assigned(connector, 2)
        assert (first, second) == (
            f"{unique}-1-0,{unique}-1-2,{unique}-2-1",
            f"{unique}-1-1,{unique}-2-0",
        )
        assert partitions_of(kafka_b, f"A.{unique}-1") == 3
        assert partitions_of(kafka_b, f"A.{unique}-2") == 2
        assert config_of(kafka_b, f"A.{unique}-1", "cleanup.policy") == "compact"
        assert config_of(kafka_b, f"A.{unique}-1", "retention.bytes") == "1000"
        wait_until(
            lambda: partitions_of(kafka_a, "mm2-offset-syncs.B.internal") == 1,
            30,
            what="creation of the offset-syncs topic",
        )
        assert config_of(kafka_a, "mm2-offset-syncs.B.internal", "cleanup.policy") == "compact"

        # later: a new topic, a grown one, a deleted one
        context.reconfigured.clear()
        create(kafka_a, f"{unique}-3")
        wait_until(lambda: f"{unique}-3-0" in ",".join(assigned(connector)), 30, what="discovery of a new topic")
        assert partitions_of(kafka_b, f"A.{unique}-3") == 1
        assert context.reconfigured.is_set()
        for done in admin(kafka_a).create_partitions([NewPartitions(f"{unique}-2", 4)]).values():
            done.result(30)
        wait_until(lambda: f"{unique}-2-3" in ",".join(assigned(connector)), 30, what="growth")
        assert partitions_of(kafka_b, f"A.{unique}-2") == 4
        for done in admin(kafka_a).delete_topics([f"{unique}-1"]).values():
            done.result(30)
        wait_until(lambda: f"{unique}-1" not in ",".join(assigned(connector)), 30, what="end of a deleted topic")
        assert partitions_of(kafka_b, f"A.{unique}-1") == 3, "nothing is ever deleted on the target"


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("checkpoints.internal", {}),
        (
            "mm2-configs.{0}.internal",
            {"replication.policy.class": "IdentityReplicationPolicy", "replication.policy.separator": "_"},
        ),
        ("configs", {"replication.policy.separator": "-", "topics.exclude": "nothing"}),
    ],
)
def test_a_client_of_the_source_cannot_write_the_topics_of_the_flow_or_of_its_worker(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, attack: str, settings: dict[str, str]
) -> None:
    """Given a topic on the source whose remote topic is one that the flow or its worker uses; validates that it is neither
    assigned nor configured, and that the flow names it.
    """
    alias, attack, separator = unique, attack.format(unique), settings.get("replication.policy.separator", ".")
    internal = attack if "replication.policy.class" in settings else f"{alias}{separator}{attack}"
    create(kafka_b, internal, 1, {"cleanup.policy": "compact"})
    create(kafka_a, attack, 2, {"cleanup.policy": "delete"})
    own = {"source.cluster.alias": alias, "topics": f"{unique}.*,{attack}", "topics.exclude": "nothing", **settings}
    given = props(kafka_a, kafka_b, unique) | own
    try:
        with running(MirrorSourceConnector(), given, frozenset({f"{alias}-configs"})) as (connector, context):
            for topic in (
                f"{unique}-1",
                f"{unique}-2",
            ):  # the configs of the first are written before the second is found
                create(kafka_a, topic)
                wait_until(lambda topic=topic: f"{topic}-0" in ",".join(assigned(connector)), 60)  # type: ignore[misc]
            assert attack not in ",".join(assigned(connector))
            assert partitions_of(kafka_b, internal) == 1
            assert config_of(kafka_b, internal, "cleanup.policy") == "compact"
            with closing(MirrorClients(given, group=context.group_id).admin(Side.TARGET, "test")[0]) as cluster:
                ledgers = Ledgers(MirrorClients(given, group=context.group_id), Admin(cluster))
                wait_until(lambda: preparations(ledgers.own()), 60, what="a note about the topic")
                noted = preparations(ledgers.own())
        assert {tp.topic for tp in noted} == {attack}
        assert internal in noted[TopicPartition(attack, 1)].reason
    finally:
        admin(kafka_a).delete_topics([attack])[attack].result(30)


OWN = ("mm2-ledger.{0}.internal", "mm2-dead-letters.{0}.internal")


def test_the_ledger_is_created_and_so_is_the_dead_letter_topic_if_enabled(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    ledger, letters = (name.format(unique) for name in OWN)
    # Their replication factors are not given, and the default does not fit a single broker.
    with running(MirrorSourceConnector(), props(kafka_a, kafka_b, unique, source__cluster__alias=unique)):
        wait_until(lambda: partitions_of(kafka_b, ledger) == 1, 30, what="creation of the ledger")
    assert config_of(kafka_b, ledger, "cleanup.policy") == "compact"
    assert config_of(kafka_b, ledger, "segment.bytes") == "16777216"
    assert partitions_of(kafka_b, letters) == 0
    tolerant = props(kafka_a, kafka_b, unique, source__cluster__alias=unique, errors__tolerance="all")
    with running(MirrorSourceConnector(), tolerant):
        wait_until(lambda: partitions_of(kafka_b, letters) == 1, 30, what="creation of the dead-letter topic")
    assert config_of(kafka_b, letters, "cleanup.policy") == "delete"
    assert config_of(kafka_b, letters, "retention.ms") == "-1"
    assert int(config_of(kafka_b, letters, "max.message.bytes")) == 100 << 20


def test_errors_of_internal_topics_are_reported(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    printed: list[str] = []

    def is_printed(sentence: str) -> bool:
        printed.extend(capfd.readouterr())
        return sentence in "".join(printed)

    ledger = OWN[0].format(unique)
    base = props(kafka_a, kafka_b, unique, source__cluster__alias=unique)
    with running(MirrorSourceConnector(), base | {"ledger.topic.replication.factor": "3"}):
        sentence = f"Topic {ledger} on cluster B cannot be created: ledger.topic.replication.factor is 3"
        wait_until(lambda: is_printed(sentence), 30, what="a word about a factor that somebody wants")
    create(kafka_b, ledger, config={"cleanup.policy": "delete"})
    syncs = f"mm2-offset-syncs.{unique}-B.internal"
    create(kafka_a, syncs)  # as a broker with auto.create.topics.enable does
    with running(MirrorSourceConnector(), base | {"target.cluster.alias": f"{unique}-B"}):
        wait_until(
            lambda: is_printed(f"Topic {ledger} on cluster {unique}-B has cleanup.policy=delete"),
            30,
            what="a word about the cleanup",
        )
        wait_until(
            lambda: is_printed(f"Topic {syncs} on cluster {unique} has cleanup.policy=delete"),
            30,
            what="and about the syncs'",
        )


def test_partitions_move_to_another_task_when_one_task_has_far_more_to_copy(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(source_connector, "LEAST_BETWEEN_DEALS_S", 1.0)
    create(kafka_a, unique, 4)
    two_tasks = props(kafka_a, kafka_b, unique, source__cluster__alias=unique)
    expected = [f"{unique}-0,{unique}-2", f"{unique}-1,{unique}-3"]
    with running(MirrorSourceConnector(), two_tasks) as (connector, context):
        wait_until(lambda: assigned(connector, 2) == expected, 30, what="Java's assignment")
        context.reconfigured.clear()
        write_rates(kafka_b, OWN[0].format(unique), unique, (50_000_000, 1_000, 40_000_000, 1_000))
        assert context.reconfigured.wait(60)
        first, second = (share.split(",") for share in assigned(connector, 2))
        assert len({f"{unique}-0", f"{unique}-2"} & set(first)) == 1
        assert sorted([*first, *second]) == [f"{unique}-{index}" for index in range(4)]
        context.reconfigured.clear()
        assert not context.reconfigured.wait(3), "an even load stays as it is"
        stored = connector.task_configs(2)
    # A new leader continues with this assignment, not with Java's.
    with running(MirrorSourceConnector(), two_tasks) as (connector, context):
        context.stored = stored
        wait_until(lambda: len(assigned(connector, 2)) == 2, 30, what="the assignment of the next leader")
        assert connector.task_configs(2) == stored


def write_rates(broker: LocalKafka, topic: str, name: str, rates: tuple[int, ...]) -> None:
    """Write the rates that a copier would have measured, in bytes per second, to the ledger."""
    entries = [LedgerEntry(name, index, f"A.{name}", Mark(0, 0, 0), rate=rate) for index, rate in enumerate(rates)]
    rows = [entry_record(entry) for entry in entries]
    write(broker, topic, [(row.key, row.value) for row in rows], 0)


def test_a_deleted_remote_topic_is_recreated(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_a, unique)
    with running(MirrorSourceConnector(), props(kafka_a, kafka_b, unique)) as (connector, context):
        assert context.reconfigured.wait(30)
        for done in admin(kafka_b).delete_topics([f"A.{unique}"]).values():
            done.result(30)
        wait_until(lambda: partitions_of(kafka_b, f"A.{unique}") == 1, 30, what="creation after deletion")
        assert assigned(connector) == [f"{unique}-0"]


def test_configs_follow_the_source_and_excluded_ones_do_not(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_a, unique, config={"retention.bytes": "1000"})
    remote = f"A.{unique}"
    excluding = {"config__properties__exclude": r"delete\.retention\..*"}
    with running(MirrorSourceConnector(), props(kafka_a, kafka_b, unique, **excluding)) as (_, context):
        assert context.reconfigured.wait(30)
        alter(kafka_b, remote, "delete.retention.ms", "2000")  # excluded: a manual override stays
        alter(kafka_b, remote, "retention.bytes", "1001")  # set back to the source's value
        alter(kafka_b, remote, "segment.bytes", "2097152")  # default on the source: the override is removed
        wait_until(lambda: config_of(kafka_b, remote, "retention.bytes") == "1000", 30, what="sync of a set property")
        wait_until(lambda: config_of(kafka_b, remote, "segment.bytes") != "2097152", 30, what="removal of an override")
        alter(kafka_a, unique, "retention.bytes", None)
        wait_until(
            lambda: config_of(kafka_b, remote, "retention.bytes") == "-1", 30, what="removal with the source's override"
        )
        assert config_of(kafka_b, remote, "delete.retention.ms") == "2000"


def test_an_invalid_replication_factor_is_reported_and_the_topic_waits(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique)
    too_many = {**props(kafka_a, kafka_b, unique), "replication.factor": "2"}
    with running(MirrorSourceConnector(), too_many) as (connector, context):
        assert context.reconfigured.wait(30)
        assert assigned(connector) == [], "no task may produce into a topic that is not there"
        out, err = capfd.readouterr()
        sentence = f"Topic A.{unique} on cluster B cannot be created: replication.factor is 2"
        assert sentence in out + err
        assert partitions_of(kafka_b, f"A.{unique}") == 0
    with running(MirrorSourceConnector(), too_many | {"replication.factor": "-1"}) as (connector, _):
        wait_until(lambda: assigned(connector) == [f"{unique}-0"], 30, what="a topic with the brokers' own factor")


def relay(port: int, destination: str) -> None:
    """Relay connections on `port` to `destination`, one after the other, until the test process ends."""
    host, _, to_port = destination.rpartition(":")

    def pump(source: socket.socket, sink: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)

    def serve() -> None:
        while True:
            near, _ = listener.accept()
            far = socket.create_connection((host, int(to_port)))
            for ends in ((near, far), (far, near)):
                threading.Thread(target=pump, args=ends, daemon=True).start()

    listener = socket.create_server(("127.0.0.1", port))
    threading.Thread(target=serve, daemon=True).start()


def test_an_unreachable_source_is_reported_soon_and_the_connector_continues_once_reachable(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique)
    (port,) = free_ports(1)
    not_yet = {**props(kafka_a, kafka_b, unique), "source.cluster.bootstrap.servers": f"127.0.0.1:{port}"}
    with running(MirrorSourceConnector(), not_yet) as (connector, context):
        printed: list[str] = []

        def is_printed() -> bool:
            printed.extend(capfd.readouterr())
            return f"127.0.0.1:{port}" in "".join(printed)

        wait_until(is_printed, what="a log message about the source")
        assert not context.reconfigured.is_set()
        assert assigned(connector) == ["not loaded"], "unknown is never empty"
        relay(port, kafka_a.bootstrap)
        assert context.reconfigured.wait(60)
        assert assigned(connector) == [f"{unique}-0"]


def test_a_missing_authorizer_is_logged_once(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique)
    often = {**props(kafka_a, kafka_b, unique), "sync.topic.acls.interval.seconds": "1"}
    with running(MirrorSourceConnector(), often) as (_, context):
        assert context.reconfigured.wait(30)
        printed: list[str] = []

        def hinted() -> bool:
            printed.extend(capfd.readouterr())
            return "sync.topic.acls.enabled=false" in "".join(printed)

        wait_until(hinted, 30, what="the hint")


def test_topics_over_a_limit_are_reported_and_the_others_are_copied(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    for name, partitions in (("1", 2), ("2", 5), ("3", 3), ("4", 1)):
        create(kafka_a, f"{unique}-{name}", partitions)
    own = props(kafka_a, kafka_b, unique, source__cluster__alias=unique)
    clients = MirrorClients(own)
    cluster, target_admin = clients.admin(Side.TARGET, "test")

    def noted() -> str:
        try:
            return over_limit_message(Ledgers(clients, target_admin).own())
        except KafkaFailure as failure:
            return str(failure)

    def found() -> list[int]:
        return [partitions_of(kafka_b, f"{unique}.{unique}-{name}") for name in "1234"]

    limits = {"remote.topic.partitions.max": "4", "remote.partitions.max": "5"}
    with contextlib.closing(cluster):
        with running(MirrorSourceConnector(), own | limits) as (connector, context):
            assert context.reconfigured.wait(30)
            assert assigned(connector) == [",".join(f"{unique}-{tp}" for tp in ("1-0", "1-1", "3-0", "3-1", "3-2"))]
            assert found() == [2, 0, 3, 0]
            printed = "".join(capfd.readouterr())
            over = f"{unique}.{unique}-2 on cluster B is limited to 4 partitions (remote.topic.partitions.max)"
            assert f"Topic {over}" in printed
            wait_until(lambda: "is limited to 4 partitions (remote.topic.partitions.max)" in noted(), 30, detail=noted)
            assert f"{unique}.{unique}-4 would exceed the limit of all remote topics of the flow" in noted()
        with running(MirrorSourceConnector(), own) as (connector, _):
            wait_until(lambda: f"{unique}-4-0" in ",".join(assigned(connector)), 30, what="topics within the defaults")
            assert found() == [2, 5, 3, 1]
            wait_until(lambda: noted() == "", 30, detail=noted)
