"""Rates of the means that take up offsets without a record (docs/how-to/preserved-offsets.md), on two brokers: what fills a leading gap, gaps inside.

    python -m bench.preserved [--runs 3] [--rows leading markers transactions alternating-1 alternating-16]

Each row copies one topic from its beginning with ``preserve.offsets=true`` and watches the end offsets of the remote topic: offsets
a second are counted from the first change to the last. ``alternating`` is a log in which every second offset is a marker, as in a
compacted log of which every second record is gone; its figure is gaps a second. The flow logs in to the target, so that the right
CLUSTER_ACTION can be withheld from it.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from bench import memory, report
from bench.arrivals import Arrivals
from bench.contenders import OURS, Flow
from bench.errors import BenchFailed
from bench.race import create_topic, log_tail, still_running
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.producer.filler import FILLER_RECORDS, produce_filler
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.kafka.structs import TopicPartition
from mm2.sandbox.errors import SandboxError
from mm2.sandbox.kafka import LocalKafka, start_all, stop_all
from mm2.sandbox.process import end
from tests.support.passworded import LISTENERS, PASSWORDS, RIGHTS, login

_REPOSITORY = Path(__file__).resolve().parents[1]
_PATIENCE_S = 600.0
_JVM_OPTIONS = ("-server", "-XX:+UseG1GC", "-XX:MaxGCPauseMillis=20")
#: A right that another user has, too, is withheld from all who have no ACL.
_WITHHELD = (
    ResourceType.BROKER,
    "kafka-cluster",
    ResourcePatternType.LITERAL,
    "User:other",
    "*",
    AclOperation.CLUSTER_ACTION,
    AclPermissionType.ALLOW,
)


@dataclass(frozen=True)
class Row:
    """One kind of gap. ``offsets`` is the end of all partitions together, ``per_unit`` offsets are one of ``unit``."""

    name: str
    title: str
    prepare: Callable[[LocalKafka, Cluster, str], None]
    offsets: int
    goal: str
    partitions: int = 1
    withheld: bool = False
    unit: str = "offsets"
    per_unit: int = 1


_LEADING, _INSIDE, _ALTERNATING = 50_000_000, 200_000, 10_000


def _leading(_: LocalKafka, cluster: Cluster, topic: str) -> None:
    partition = TopicPartition(topic, 0)
    for at in range(0, _LEADING, FILLER_RECORDS):
        produce_filler(cluster, partition, at, FILLER_RECORDS, 60.0)
    failed = Admin(cluster).delete_records({partition: _LEADING})[partition]
    if isinstance(failed, KafkaFailure):
        raise failed


def _inside(source: LocalKafka, _: Cluster, topic: str) -> None:
    """A record, an aborted transaction, a record: with both markers three offsets more."""
    producer = _transactional(source, topic)
    for records, is_committed in ((1, True), (_INSIDE, False), (1, True)):
        producer.begin_transaction()
        for number in range(records):
            while True:
                try:
                    producer.produce(topic, b"%d" % number, partition=0)
                    break
                except BufferError:
                    producer.poll(0.05)
        if is_committed:
            producer.commit_transaction(60)
        else:
            producer.flush(60)
            producer.abort_transaction(60)


def _alternating(partitions: int) -> Callable[[LocalKafka, Cluster, str], None]:
    def prepare(source: LocalKafka, _: Cluster, topic: str) -> None:
        producer = _transactional(source, topic)
        for number in range(_ALTERNATING // partitions):
            producer.begin_transaction()
            for partition in range(partitions):
                producer.produce(topic, b"%d" % number, partition=partition)
            producer.commit_transaction(60)

    return prepare


ROWS = (
    Row("leading", "filler records before the first record, 1 partition", _leading, _LEADING, "10,000,000"),
    Row("markers", "markers in one gap inside, 1 partition", _inside, _INSIDE + 5, "10,000"),
    Row("transactions", "empty transactions in one gap inside, 1 partition", _inside, 10_000, "500", withheld=True),
    Row(
        "alternating-1",
        "every second offset a gap, 1 partition",
        _alternating(1),
        2 * _ALTERNATING,
        "",
        unit="gaps",
        per_unit=2,
    ),
    Row(
        "alternating-16",
        "every second offset a gap, 16 partitions",
        _alternating(16),
        2 * (_ALTERNATING // 16) * 16,
        "",
        partitions=16,
        unit="gaps",
        per_unit=2,
    ),
)


def _transactional(source: LocalKafka, topic: str) -> Producer:
    producer = Producer({"bootstrap.servers": source.bootstrap, "transactional.id": f"{topic}-writer", "linger.ms": 5})
    producer.init_transactions(60)
    return producer


def rate(row: Row, pair: Sequence[LocalKafka], clusters: Sequence[Cluster], number: int, folder: Path) -> float:
    """Units a second of one run. Raises BenchFailed, with the end of the log, when the process ends or does not copy."""
    source, target = pair
    alias = f"A{number}", f"B{number}"
    of_target = {"bootstrap.servers": target.address("LOGIN"), **login()}
    more = {
        f"{alias[0]}->{alias[1]}.preserve.offsets": "true",
        f"{alias[0]}.consumer.isolation.level": "read_committed",
        **{f"{alias[1]}.{key}": value for key, value in of_target.items()},
    }
    flow = Flow(*alias, source.bootstrap, target.address("LOGIN"), row.name, more=more)
    arrivals = Arrivals(clusters[1], flow.remote_topic, row.partitions)
    process = OURS.launch(flow, folder)
    try:
        first = arrivals.wait(row.partitions + 1, _PATIENCE_S, still_running(process))
        last = arrivals.wait(row.offsets, _PATIENCE_S, still_running(process))
    except BenchFailed as failure:
        raise BenchFailed(f"{row.name}: {failure}\n{log_tail(folder)}") from failure
    finally:
        end(process, patience_s=30.0)
    return (last.records - first.records) / (last.at_s - first.at_s) / row.per_unit


def main() -> int:
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--rows", nargs="+", choices=[row.name for row in ROWS], default=[row.name for row in ROWS])
    parser.add_argument(
        "--results", type=Path, default=_REPOSITORY / "bench" / "RESULTS.md", help="the page of results"
    )
    options = parser.parse_args()
    rows = [row for row in ROWS if row.name in options.rows]
    found: dict[str, list[float]] = {row.name: [] for row in rows}
    try:
        _measure(rows, options.runs, found)
    except (BenchFailed, KafkaFailure, SandboxError) as failure:
        sys.stderr.write(f"bench.preserved: {failure}\n")
        return 1
    lines = _lines(rows, found)
    report.put(options.results, "preserved offsets", *lines)
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


def _measure(rows: Sequence[Row], runs: int, found: dict[str, list[float]]) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mm2-bench-", dir=memory.folder())))
        source = LocalKafka(
            "A", folder / "a", heap="1g", jvm_options=_JVM_OPTIONS, overrides={"log.retention.ms": "-1"}
        )
        target = LocalKafka(
            "B",
            folder / "b",
            heap="1g",
            jvm_options=_JVM_OPTIONS,
            listeners=LISTENERS,
            overrides={**PASSWORDS, **RIGHTS},
        )
        pair = source, target
        start_all(pair)
        stack.callback(stop_all, pair)
        clusters = tuple(
            Cluster(ClientSettings.from_props({"bootstrap.servers": one.bootstrap}, client_id="bench"), name=one.name)
            for one in pair
        )
        for cluster in clusters:
            stack.callback(cluster.close)
        for row in rows:
            create_topic(clusters[0], row.name, row.partitions)
            row.prepare(source, clusters[0], row.name)
        admin = AdminClient({"bootstrap.servers": target.bootstrap})
        number = 0
        for run in range(-1, runs):  # the first one warms the brokers up and is discarded
            for row in rows:
                number += 1
                if row.withheld:
                    _result(admin.create_acls([AclBinding(*_WITHHELD)]))
                value = rate(row, pair, clusters, number, folder / f"run-{number}")
                if row.withheld:
                    _result(admin.delete_acls([AclBindingFilter(*_WITHHELD)]))
                sys.stderr.write(f"{row.name}: {value:,.0f} {row.unit}/s{' (warm-up)' if run < 0 else ''}\n")
                if run >= 0:
                    found[row.name].append(value)


def _result(futures: Mapping[Any, Future[Any]]) -> None:
    for done in futures.values():
        done.result(30)


def _lines(rows: Sequence[Row], found: dict[str, list[float]]) -> list[str]:
    return [
        (
            f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, commit {report.commit(_REPOSITORY)}. "
            f"Offsets without a record on the target. {report.machine()}"
        ),
        "",
        "| means | median per second | goal | runs |",
        "| --- | ---: | ---: | --- |",
        *(
            f"| {row.title} | {statistics.median(found[row.name]):,.0f} {row.unit} | {row.goal} | "
            f"{', '.join(f'{value:,.0f}' for value in found[row.name])} |"
            for row in rows
        ),
    ]


if __name__ == "__main__":
    sys.exit(main())
