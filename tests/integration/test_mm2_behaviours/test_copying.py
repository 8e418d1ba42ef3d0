"""Which topics a whole process copies, and that it copies them once: default policy in both directions, and identity naming
between the same two clusters (behaviours 1, 6, 7, 14, 15)."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.mirror_flow import create, write
from tests.integration.mirror_process import MirrorProcess, ends, is_running, topics_of, write_config

pytestmark = pytest.mark.timeout(240)

PARTITIONS = 10
PER_PARTITION = 10
HERE, THERE = "copying-here", "copying-there"


@dataclass
class Copying:
    """`a` is `primary` and `one`, `b` is `backup` and `two`: the same clusters in two files, one per policy."""

    a: LocalKafka
    b: LocalKafka
    default: MirrorProcess
    identity: MirrorProcess


def fill(broker: LocalKafka, topic: str, partitions: int = PARTITIONS) -> None:
    for partition in range(partitions):
        write(
            broker, topic, [(b"%d" % index, b"%d-%d" % (partition, index)) for index in range(PER_PARTITION)], partition
        )


@pytest.fixture(scope="module")
def copying(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Copying]:
    a, b = kafka_pair
    folder = tmp_path_factory.mktemp("copying")
    for broker, topic in ((a, HERE), (b, THERE), (a, "identity-here"), (b, "identity-there")):
        create(broker, topic, PARTITIONS)
        fill(broker, topic)
    create(a, "copying-empty")

    def process(source: str, target: str, topics: str, **props: str) -> MirrorProcess:
        both = {
            "clusters": f"{source}, {target}",
            f"{source}.bootstrap.servers": a.bootstrap,
            f"{target}.bootstrap.servers": b.bootstrap,
            f"{source}->{target}.enabled": "true",
            f"{target}->{source}.enabled": "true",
            "heartbeats.replication.enabled": "false",
            "topics": topics,
            "groups": "copying-.*",
        }
        named = {key.replace("__", "."): value for key, value in props.items()}
        file = write_config(folder / f"{source}.properties", both | named)
        return MirrorProcess(file, folder / f"{source}.log")

    default = process("primary", "backup", "copying-.*, primary.copying-.*, backup.copying-.*")
    identity = process("one", "two", "identity-.*", replication__policy__class="IdentityReplicationPolicy")
    yield Copying(a, b, default, identity)
    for started in (default, identity):
        started.clean_up()


def full(broker: LocalKafka, topic: str, partitions: int = PARTITIONS) -> bool:
    return ends(broker, topic) == [PER_PARTITION] * partitions


def test_01_02_connects_internal_topics_are_on_each_target_and_all_connectors_run(copying: Copying) -> None:
    copying.default.eventually(lambda: is_running(copying.b, "primary") and is_running(copying.a, "backup"), 120)
    for broker, source in ((copying.a, "backup"), (copying.b, "primary")):
        wanted = {f"mm2-{kind}.{source}.internal" for kind in ("status", "offsets", "configs")}
        assert wanted <= topics_of(broker)


def test_06_07_each_cluster_has_exactly_its_own_and_remote_records(copying: Copying) -> None:
    copying.default.eventually(lambda: full(copying.b, f"primary.{HERE}") and full(copying.a, f"backup.{THERE}"), 120)
    time.sleep(3)  # replication loops would be visible by now: topics are refreshed every two seconds
    for broker, own, copy in ((copying.a, HERE, f"backup.{THERE}"), (copying.b, THERE, f"primary.{HERE}")):
        assert full(broker, own)
        assert full(broker, copy)
    seen = {
        topic for broker in (copying.a, copying.b) for topic in topics_of(broker) if topic.endswith(("-here", "-there"))
    }
    assert {topic for topic in seen if "copying" in topic} == {HERE, THERE, f"primary.{HERE}", f"backup.{THERE}"}


def test_14_a_new_topic_with_records_in_one_of_ten_partitions_is_copied(copying: Copying) -> None:
    create(copying.a, "copying-later", PARTITIONS)
    write(copying.a, "copying-later", [(b"k", b"v")] * PER_PARTITION, 3)
    wanted = [PER_PARTITION if partition == 3 else 0 for partition in range(PARTITIONS)]
    copying.default.eventually(lambda: ends(copying.b, "primary.copying-later") == wanted, 60)


def test_15_an_empty_partition_exists_and_stays_empty(copying: Copying) -> None:
    copying.default.eventually(lambda: ends(copying.b, "primary.copying-empty") == [0], 60)


def test_06_07_identity_in_both_directions_copies_each_topic_one_way_and_once(copying: Copying) -> None:
    copying.identity.eventually(lambda: full(copying.b, "identity-here") and full(copying.a, "identity-there"), 120)
    copying.identity.await_log("Topic identity-here of cluster two has come from cluster one")
    copying.identity.await_log("Topic identity-there of cluster one has come from cluster two")
    # The same for records written from now on, and for topics found later.
    create(copying.a, "identity-later", PARTITIONS)
    fill(copying.a, "identity-later")
    copying.identity.eventually(lambda: full(copying.b, "identity-later"), 60)
    time.sleep(3)
    for broker in (copying.a, copying.b):
        for topic in ("identity-here", "identity-there", "identity-later"):
            assert full(broker, topic), f"{topic} went round"
