"""Remote topics: creation, new partitions and config sync (behaviours 3 to 5, 14, 17, 19, 23 to 25, 29 to 31, 34).

The connector is driven directly, between the two shared brokers; other tests copy records.
"""

from __future__ import annotations

import pytest
from confluent_kafka.admin import NewPartitions

from mm2.connect.api import RetriableError
from mm2.mirror.checkpoint_connector import MirrorCheckpointConnector
from mm2.mirror.common.connector import MirrorConnector
from mm2.mirror.heartbeat import MirrorHeartbeatConnector
from mm2.mirror.source_connector import MirrorSourceConnector
from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import admin, alter, config_of, create, flow_props, partitions_of, running
from tests.integration.test_mm2_behaviours.admins import GhostlyAdmin, NotingAdmin
from tests.support.waiting import wait_until

HERE = "tests.integration.test_mm2_behaviours.admins"
EXCLUDED = "delete.retention.ms"
EXCLUDING = {"config.properties.exclude": r"delete\.retention\..*"}
IDENTITY = {"replication.policy.class": "IdentityReplicationPolicy"}


def source(a: LocalKafka, b: LocalKafka, unique: str, more: dict[str, str] | None = None) -> dict[str, str]:
    own = {"topics": f"{unique}.*, B.{unique}.*", "heartbeats.replication.enabled": "false"}
    return flow_props("MirrorSourceConnector", a, b) | own | (more or {})


def assigned(connector: MirrorSourceConnector) -> str:
    try:
        return ",".join(config["task.assigned.partitions"] for config in connector.task_configs(1))
    except RetriableError:
        return ""


def test_03_remote_topics_and_offset_syncs_are_created_automatically(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_a, unique, 2)
    create(kafka_a, f"B.{unique}")
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique)) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0,{unique}-1", 30, what="the assignment")
        assert partitions_of(kafka_b, f"A.{unique}") == 2
        wait_until(lambda: partitions_of(kafka_a, "mm2-offset-syncs.B.internal") == 1, 30, what="the offset syncs")
        # 17: topics that were copied from the target are not copied back.
        assert partitions_of(kafka_b, f"A.B.{unique}") == 0


def test_04_05_configs_are_set_at_creation_except_excluded_ones(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_a, unique, config={"cleanup.policy": "compact", "retention.bytes": "1000", EXCLUDED: "2000"})
    never = {"sync.topic.configs.enabled": "false"}
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, EXCLUDING | never)):
        wait_until(lambda: partitions_of(kafka_b, f"A.{unique}") == 1, 30, what="the remote topic")
        assert config_of(kafka_b, f"A.{unique}", "cleanup.policy") == "compact"
        assert config_of(kafka_b, f"A.{unique}", "retention.bytes") == "1000"
        assert config_of(kafka_b, f"A.{unique}", EXCLUDED) != "2000"


def test_04_under_identity_an_existing_topic_gets_the_configs_of_its_source(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    once = {"sync.topic.configs.interval.seconds": "600"}
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, IDENTITY | once)) as (_, context):
        assert context.reconfigured.wait(30)
        create(kafka_b, unique)
        create(kafka_a, unique, config={"cleanup.policy": "compact"})
        wait_until(
            lambda: config_of(kafka_b, unique, "cleanup.policy") == "compact", 30, what="the sync of a new topic"
        )


def test_14_30_new_topics_and_partitions_are_created_through_the_custom_admin(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    """Behaviour 31: so are configs."""
    NotingAdmin.noted.clear()
    noting = {"forwarding.admin.class": f"{HERE}.NotingAdmin"}
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, noting)) as (connector, context):
        assert context.reconfigured.wait(30)
        create(kafka_a, unique, 2)
        wait_until(lambda: f"{unique}-1" in assigned(connector), 30, what="discovery")
        for done in admin(kafka_a).create_partitions([NewPartitions(unique, 3)]).values():
            done.result(30)
        wait_until(lambda: f"{unique}-2" in assigned(connector), 30, what="growth")
        assert partitions_of(kafka_b, f"A.{unique}") == 3
        alter(kafka_a, unique, "retention.bytes", "1000")
        wait_until(lambda: config_of(kafka_b, f"A.{unique}", "retention.bytes") == "1000", 30, what="config sync")
    # 29, 31
    for wanted in [
        ("create", "A", "mm2-offset-syncs.B.internal"),
        ("create", "B", f"A.{unique}"),
        ("grow", "B", f"A.{unique}"),
        ("configure", "B", f"A.{unique}"),
    ]:
        assert wanted in NotingAdmin.noted
    assert NotingAdmin.noted.count(("configure", "B", f"A.{unique}")) == 1, "only what differs is written"


def test_23_25_excluded_overrides_on_the_target_are_kept_and_others_follow_the_source(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    remote = f"A.{unique}"
    create(kafka_a, unique, config={"retention.bytes": "1000"})
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, EXCLUDING)):
        wait_until(lambda: partitions_of(kafka_b, remote) == 1, 30, what="the remote topic")
        alter(kafka_b, remote, EXCLUDED, "2000")
        alter(kafka_b, remote, "retention.bytes", "1001")
        wait_until(lambda: config_of(kafka_b, remote, "retention.bytes") == "1000", 30, what="the source's value")
        alter(kafka_a, unique, "retention.bytes", None)
        wait_until(lambda: config_of(kafka_b, remote, "retention.bytes") == "-1", 30, what="the target's default")
        assert config_of(kafka_b, remote, EXCLUDED) == "2000"


def test_24_use_defaults_from_source_replaces_overrides_on_the_target(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    remote = f"A.{unique}"
    create(kafka_a, unique)
    from_source = EXCLUDING | {"use.defaults.from": "source"}
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, from_source)):
        wait_until(lambda: partitions_of(kafka_b, remote) == 1, 30, what="the remote topic")
        alter(kafka_b, remote, EXCLUDED, "2000")
        alter(kafka_b, remote, "retention.bytes", "1001")
        wait_until(lambda: config_of(kafka_b, remote, "retention.bytes") == "-1", 30, what="the source's default")
        assert config_of(kafka_b, remote, EXCLUDED) == "2000"


def test_19_offset_syncs_can_be_kept_on_the_target_only(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str) -> None:
    create(kafka_a, unique)
    on_target = {"offset-syncs.topic.location": "target", "source.cluster.alias": f"S{unique}"}
    on_target |= {"target.cluster.alias": f"T{unique}"}
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, on_target)) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
        wait_until(
            lambda: partitions_of(kafka_b, f"mm2-offset-syncs.S{unique}.internal") == 1, 30, what="the offset syncs"
        )
    assert partitions_of(kafka_a, f"mm2-offset-syncs.T{unique}.internal") == 0


def test_29_checkpoints_and_heartbeats_topics_are_created_through_the_custom_admin(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    NotingAdmin.noted.clear()
    noting = {"forwarding.admin.class": f"{HERE}.NotingAdmin", "source.cluster.alias": unique}

    def makes(connector: MirrorConnector, topic: str) -> None:
        with running(connector, flow_props(type(connector).__name__, kafka_a, kafka_b) | noting):
            wait_until(lambda: ("create", "B", topic) in NotingAdmin.noted, 30, what=f"creation of {topic}")
            wait_until(lambda: partitions_of(kafka_b, topic) == 1, 30, what=topic)

    makes(MirrorCheckpointConnector(), f"{unique}.checkpoints.internal")
    makes(MirrorHeartbeatConnector(), "heartbeats")


def test_34_without_offset_syncs_their_topic_is_not_created(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str
) -> None:
    create(kafka_a, unique)
    silent = {"emit.offset-syncs.enabled": "false", "target.cluster.alias": unique}
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, silent)) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
    assert partitions_of(kafka_a, f"mm2-offset-syncs.{unique}.internal") == 0


def test_a_topic_deleted_during_a_refresh_causes_no_error(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GhostlyAdmin, "ghost", f"{unique}-ghost")
    create(kafka_a, unique)
    ghostly = {"forwarding.admin.class": f"{HERE}.GhostlyAdmin"}
    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, ghostly)) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
        create(kafka_a, f"{unique}-later")
        wait_until(lambda: assigned(connector) == f"{unique}-0,{unique}-later-0", 30, what="the next round")


def test_a_target_that_refuses_properties_gets_the_topic_without_them(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique, config={"cleanup.policy": "compact"})
    newer = {"forwarding.admin.class": f"{HERE}.NewerSourceAdmin"}
    printed: list[str] = []

    def is_printed(sentence: str) -> bool:
        printed.extend(capfd.readouterr())
        return sentence in "".join(printed)

    with running(MirrorSourceConnector(), source(kafka_a, kafka_b, unique, newer)) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
        assert config_of(kafka_b, f"A.{unique}", "cleanup.policy") == "compact"
        assert is_printed("Cluster B rejects future.property=1, so remote topics are created without it")
        assert is_printed("Cluster B rejects segment.bytes=5, so remote topics are created without it")
        # The sync skips the unknown one, and a rejected one does not prevent the others.
        wait_until(
            lambda: is_printed("Cluster B does not support the topic property future.property"),
            30,
            what="a word on that, too",
        )
        alter(kafka_a, unique, "retention.bytes", "1000")
        wait_until(
            lambda: config_of(kafka_b, f"A.{unique}", "retention.bytes") == "1000", 30, what="the sync of the others"
        )
        wait_until(
            lambda: is_printed(f"Of topic A.{unique} on cluster B cannot be altered: segment.bytes=5."),
            30,
            what="a word on it",
        )
    assert "future.property" not in "".join(printed).split("cannot be altered", 1)[1].partition("\n")[0]


def test_an_invalid_default_replication_factor_is_replaced_by_the_brokers_default(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, capfd: pytest.CaptureFixture[str]
) -> None:
    create(kafka_a, unique)
    nothing_said = source(kafka_a, kafka_b, unique, {"target.cluster.alias": unique})
    del nothing_said["replication.factor"], nothing_said["offset-syncs.topic.replication.factor"]
    with running(MirrorSourceConnector(), nothing_said) as (connector, _):
        wait_until(lambda: assigned(connector) == f"{unique}-0", 30, what="the assignment")
        wait_until(
            lambda: partitions_of(kafka_a, f"mm2-offset-syncs.{unique}.internal") == 1, 30, what="the offset syncs"
        )
    printed = "".join(capfd.readouterr())
    assert f"replication.factor is 2 by default, more than cluster {unique} has brokers" in printed
    assert "offset-syncs.topic.replication.factor is 3 by default, more than cluster A has brokers" in printed
