"""Flows to be verified: configuration files, records on both clusters, and seeded differences."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from mm2.cli.common.flow import CommandError, ConfiguredFlow
from mm2.copy.progress.ledger import LEDGER_CONFIGS, Ledger, chunk_record, entry_record, ledger_topic
from mm2.copy.progress.segments import Segment, SegmentChunk
from mm2.copy.progress.session import LedgerEntry, Mark
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.producer import Producer
from mm2.kafka.records.record import Record
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import LATEST, OffsetInfo, TopicPartition
from mm2.sandbox.kafka import LocalKafka
from mm2.verify.comparing.findings import DifferenceKind
from mm2.verify.report import PartitionReport, VerifyReport
from tests.integration.copy_flow import create
from tests.integration.mirror_process import write_config

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")


def file_of(a: LocalKafka, b: LocalKafka, unique: str, folder: Path, **more: str) -> Path:
    """A flow whose clusters have unique aliases, so that its ledger is not shared; `__` in a key stands for `.`."""
    source, target = f"{unique}-a", f"{unique}-b"
    props = {
        "clusters": f"{source}, {target}",
        f"{source}.bootstrap.servers": a.bootstrap,
        f"{target}.bootstrap.servers": b.bootstrap,
        f"{source}->{target}.enabled": "true",
        f"{source}->{target}.topics": f"{unique}\\\\..*",
        f"{target}->{source}.enabled": "false",
        f"{source}.consumer.isolation.level": "read_committed",
        "heartbeats.replication.enabled": "false",
        **{key.replace("__", "."): value for key, value in more.items()},
    }
    return write_config(folder / "mm2.properties", props)


def flow_of(file: Path, unique: str) -> ConfiguredFlow:
    return ConfiguredFlow.of(file, f"{unique}-a->{unique}-b")


def write(
    broker: LocalKafka, topic: str, records: Sequence[Record], partition: int = 0, *, codec: str = "none"
) -> None:
    """Write the records in batches of twenty."""
    settings = ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}, client_id="writer")
    cluster = Cluster(settings, name="writer")
    try:
        producer = Producer(cluster, codec=codec)
        for at in range(0, len(records), 20):
            producer.send(topic, list(records[at : at + 20]), partition, timeout_s=30)
    finally:
        cluster.close()


def numbered(count: int, size: int = 10) -> list[Record]:
    return [
        Record(b"k%d" % i, (b"%d " % i).ljust(size, b"."), (("n", b"%d" % i),), 1_700_000_000_000 + i)
        for i in range(count)
    ]


def command(file: Path, unique: str, *options: str) -> list[str]:
    flow = f"{unique}-a->{unique}-b"
    return [sys.executable, "-P", "-m", "mm2.cli.mm2", "verify", str(file), flow, "--parallel", "1", *options]


def ledger_of(flow: ConfiguredFlow) -> Ledger | None:
    """The value; None without one."""
    with suppress(CommandError, KafkaFailure):
        return flow.ledger()
    return None


def is_copied(flow: ConfiguredFlow, target: LocalKafka, ends: Mapping[TopicPartition, int]) -> bool:
    """Wait until all records are readable on the target: in exactly-once mode the ledger precedes the end of the transaction."""
    ledger = ledger_of(flow)
    entries = {} if ledger is None else {place: ledger.entry(place) for place in ends}
    marks = {entry.target: entry.mark.target for entry in entries.values() if entry is not None}
    if not all(entry is not None and entry.mark.source >= ends[place] for place, entry in entries.items()) or not marks:
        return False
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": target.bootstrap}), name="target")
    try:
        found = Admin(cluster).list_offsets(dict.fromkeys(marks, LATEST), "read_committed")
    finally:
        cluster.close()
    return all(isinstance(info, OffsetInfo) and info.offset >= marks[place] for place, info in found.items())


def one_of(report: VerifyReport, topic: str, partition: int = 0) -> PartitionReport:
    (found,) = [row for row in report.partitions if row.source == TopicPartition(topic, partition)]
    return found


# -- seeded differences ------------------------------------------------------------------------------------------------

COUNT = 200
CLEAN, MISSING, DOUBLED, SWAPPED, HEADER, STAMP, VALUE, FOREIGN, KEY = range(9)


def seeded(partition: int) -> list[Record]:
    """The target's records with differences from `numbered`."""
    records = numbered(COUNT)
    if partition == MISSING:
        del records[50:53]
    elif partition == DOUBLED:
        records[120:120] = records[30:40]
    elif partition == SWAPPED:
        records[60], records[61] = records[61], records[60]
    elif partition == HEADER:
        records[70] = records[70]._replace(headers=(("n", b"another"),))
    elif partition == STAMP:
        records[80] = records[80]._replace(timestamp=(records[80].timestamp or 0) + 7)
    elif partition == VALUE:
        records[90] = records[90]._replace(value=b"<b>secret</b>")
    elif partition == FOREIGN:
        records.insert(100, Record(b"who", b"knows", (), 5))
    elif partition == KEY:
        records[110] = records[110]._replace(key=None)
    return records


NAMED: Mapping[int, tuple[str, int | None, int | None, int]] = {
    MISSING: ("missing", 50, None, 3),
    DOUBLED: ("doubled", 30, 120, 10),
    SWAPPED: ("swapped", 60, 61, 1),
    HEADER: ("altered headers", 70, 70, 1),
    STAMP: ("altered timestamp", 80, 80, 1),
    VALUE: ("altered value", 90, 90, 1),
    FOREIGN: ("extra", None, 100, 1),
    KEY: ("altered key", 110, 110, 1),
}


def seed(kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, partitions: Sequence[int], size: int = 10) -> str:
    """Create both topics and a ledger by which all records were copied without gaps."""
    topic, remote = f"{unique}.t", f"X.{unique}"
    create(kafka_a, topic, len(partitions), retention__ms="-1")
    create(kafka_b, remote, len(partitions), retention__ms="-1")
    configs: dict[str, Any] = {key.replace(".", "__"): value for key, value in LEDGER_CONFIGS.items()}
    create(kafka_b, ledger_topic(f"{unique}-a"), **configs)
    rows: list[Record] = []
    for partition in partitions:
        source = numbered(COUNT, size)
        target = seeded(partition) if size == 10 else source
        write(kafka_a, topic, source, partition, codec=CODECS[partition % 5] if size == 10 else "none")
        # Other batch boundaries on the target: alternately the same and different ones.
        write(kafka_b, remote, target, partition, codec=CODECS[partition % 2] if size == 10 else "none")
        entry = LedgerEntry(topic, partition, remote, Mark(COUNT, max(COUNT, len(target)), COUNT), COUNT)
        rows += [chunk_record(entry.source, SegmentChunk(0, [Segment(0, 0, COUNT)])), entry_record(entry)]
    write(kafka_b, ledger_topic(f"{unique}-a"), rows)
    return topic


def check_named(report: dict[str, Any], topic: str) -> None:
    """Assert that each difference is reported in its partition, and no other except the records it displaces."""
    rows = {row["partition"]: row for row in report["partitions"] if row["topic"] == topic}
    for partition, (kind, source, target, records) in NAMED.items():
        listed = [one for one in rows[partition]["listed"] if one["kind"] != DifferenceKind.DISPLACED]
        (found,) = listed
        assert found["kind"] == kind, (partition, listed)
        if kind == "swapped":
            assert (found["source_offset"], found["target_offset"]) in {(60, 61), (61, 60)}
        else:
            assert (found["source_offset"], found["target_offset"], found["records"]) == (source, target, records)
        displaced = sum(one["records"] for one in rows[partition]["listed"] if one["kind"] == DifferenceKind.DISPLACED)
        assert displaced == {MISSING: COUNT - 53, DOUBLED: COUNT - 120, FOREIGN: COUNT - 100}.get(partition, 0)
    assert rows[MISSING]["differences"]["missing"] == 3
