"""`mm2 verify` of a flow that Java's MirrorMaker 2 began and ours continues with the same file.

Given a topic that Java was killed with, one with gaps from before its copy, one whose first records were deleted since, and one that
was compacted since. Validates that all of them are equal, before and after the migration, and that the report names what was compared by
content only.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path

import pytest
from confluent_kafka.admin import ResourceType

from mm2.codec import encode
from mm2.kafka.records.record import Record
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.kafka import LocalKafka
from mm2.verify.comparing.findings import Explained
from mm2.verify.driver import Verifier
from mm2.verify.planning import Certainty, VerifyRequest
from mm2.verify.report import PartitionReport, Verdict
from mm2.verify.verification import Verification
from tests.integration.copy_flow import alter, batches, create, delete_before
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror_process import MirrorProcess, ends
from tests.integration.verified_flow import file_of, flow_of, is_copied, write
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(600 * PATIENCE))]

COMPACT = {
    "cleanup__policy": "compact",
    "segment__ms": "200",
    "min__cleanable__dirty__ratio": "0.001",
    "delete__retention__ms": "0",
}
KEPT = {"retention__ms": "-1"}
LATE = {**COMPACT, "min__compaction__lag__ms": "600000"}


#: Java commits its positions when it is stopped, and not while the test runs.
KEPT_CONFIGS = {"sync__topic__configs__enabled": "false", "offset__flush__interval__ms": "600000"}


def keyed(first: int, count: int, keys: int) -> list[Record]:
    """Records of now: min.compaction.lag.ms counts from their timestamps."""
    now_ms = time.time_ns() // 1_000_000
    return [Record(b"k%d" % (i % keys), b"%d" % i, (), now_ms + i) for i in range(first, first + count)]


def compacted(broker: LocalKafka, topic: str) -> None:
    """Wait until the log cleaner has removed records of the topic."""

    def has_holes() -> bool:
        if all(header.is_dense for header, _ in batches(broker, topic)):
            write(broker, topic, [Record(b"last", b"1")])  # rolls the segment: the active one is never cleaned
            return False
        return True

    wait_until(has_holes, 60)


def test_what_java_has_copied_is_equal_and_named_as_less_certain(
    verifier: Verifier, kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    plain, holes, aged, later = topics = [f"{unique}.{name}" for name in ("plain", "holes", "aged", "later")]
    remote = {topic: f"{unique}-a.{topic}" for topic in topics}
    alter(kafka_a, ResourceType.BROKER, "1", "log.cleaner.backoff.ms", "100")
    for topic, configs in ((plain, KEPT), (aged, KEPT), (holes, COMPACT), (later, LATE)):
        create(kafka_a, topic, 1, **configs)
        write(kafka_a, topic, keyed(0, 200, 150 if topic == holes else 50))
    compacted(kafka_a, holes)
    file = file_of(kafka_a, kafka_b, unique, tmp_path, **KEPT_CONFIGS)
    flow = flow_of(file, unique)
    copied_by_java(file, flow.pair.target, kafka_a, kafka_b, remote)
    write(kafka_a, plain, keyed(200, 50, 50))
    killed_java(file, flow.pair.target, kafka_b, remote[plain], 250)
    delete_before(kafka_a, aged, 100)
    alter(kafka_a, ResourceType.TOPIC, later, "min.compaction.lag.ms", "0")
    compacted(kafka_a, later)
    verification = Verification(flow.props, verifier, patience_s=120)

    def rows() -> dict[str, PartitionReport]:
        report = verification.run(VerifyRequest())
        assert report.verdict is Verdict.EQUAL, json.dumps(encode(report))
        return {row.topic: row for row in report.partitions}

    by_java = rows()
    assert {row.certainty for row in by_java.values()} == {Certainty.SYNCS}
    assert by_java[later].explained[Explained.PERHAPS_SOURCE_COMPACTED] >= 100

    ours = MirrorProcess(file, tmp_path / "ours.log", f"{unique}-b")
    try:
        for topic in topics:
            write(kafka_a, topic, keyed(1000, 20, 20))
        last = {TopicPartition(topic, 0): ends(kafka_a, topic)[0] for topic in topics}
        ours.eventually(lambda: is_copied(flow, kafka_b, last), 240)
        ours.stop()
    finally:
        ours.clean_up()
    found = rows()
    assert {row.certainty for row in found.values()} == {Certainty.LEDGER}
    (note,) = found[plain].notes
    assert note.startswith("records before source offset 200 (target offset 250) were compared by content")
    assert note.endswith("another program has written them, such as Java's MirrorMaker, or the ledger was lost")
    assert (found[plain].records, found[plain].explained) == (270, {Explained.REPEATED: 50})
    assert found[aged].explained == {Explained.SOURCE_DELETED: 100}
    assert found[later].explained[Explained.PERHAPS_SOURCE_COMPACTED] >= 100
    assert all(len(row.notes) == 1 for row in found.values())
    part = verification.run(VerifyRequest(offsets={TopicPartition(plain, 0): (10, 100)}))
    assert [row.records for row in part.partitions] == [200], "what Java has copied is compared, too"


def copied_by_java(file: Path, cluster: str, source: LocalKafka, target: LocalKafka, remote: Mapping[str, str]) -> None:
    """Java copies everything, and commits its positions when it is stopped."""
    java = JavaMirrorProcess(file, file.with_name("java-1.log"), cluster)
    try:
        for topic, copy in remote.items():
            visible = sum(header.records_count for header, _ in batches(source, topic))
            java.eventually(lambda copy=copy, end=visible: has(target, copy, end), 240)  # type: ignore[misc]
        java.stop()
    finally:
        java.clean_up()


def killed_java(file: Path, cluster: str, target: LocalKafka, copy: str, end: int) -> None:
    """Java copies more records, and is killed before it has committed its position."""
    java = JavaMirrorProcess(file, file.with_name("java-2.log"), cluster)
    try:
        java.eventually(lambda: has(target, copy, end), 240)
        java.kill9(whole_family=True)
    finally:
        java.clean_up()


def has(broker: LocalKafka, topic: str, end: int) -> bool:
    return any(found >= end for found in ends(broker, topic))
