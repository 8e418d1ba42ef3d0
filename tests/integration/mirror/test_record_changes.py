"""Transformations and converters of copied records, compared with Java's MirrorMaker 2 record by record."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from confluent_kafka import KafkaException
from prometheus_client.parser import text_string_to_metric_families as parse

from mm2.cli.mm2 import main
from mm2.kafka.records.record import Record
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy.test_copy_engine import write
from tests.integration.copy_flow import Read, Traffic, batches, create
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import MirrorProcess, contents, ends, partitions_of, records, write_config
from tests.integration.record_chains import CHAINS, write_random
from tests.support.waiting import PATIENCE, wait_until

PARTITIONS = 2
_STEADY_S = 5.0
_AT_ONCE = 6  # flows in one process
_RECORDS = 10_000
_KILLS = 10


def file_of(
    folder: Path, source: LocalKafka, target: LocalKafka, topic: str, chains: Mapping[str, Mapping[str, str]]
) -> Path:
    """A file with one flow for each chain, all of them from the same cluster, which has an alias for each chain."""
    aliases = list(chains)
    props = {"clusters": ", ".join((*aliases, "T")), "T.bootstrap.servers": target.bootstrap, "tasks.max": "1"}
    props |= {"emit.heartbeats.enabled": "false", "emit.checkpoints.enabled": "false"}
    props["heartbeats.replication.enabled"] = "false"
    for alias, chain in chains.items():
        flow = {"enabled": "true", "topics": topic, "errors.tolerance": "all", **chain}
        props[f"{alias}.bootstrap.servers"] = source.bootstrap
        props |= {f"{alias}->T.{key}": value for key, value in flow.items()}
        props[f"T->{alias}.enabled"] = "false"
    folder.mkdir()
    return write_config(folder / "mm2.properties", props)


def totals(broker: LocalKafka, topics: list[str]) -> list[int]:
    """The number of records in each topic; all of them are 0 while the brokers' metadata are incomplete."""
    try:
        return [sum(ends(broker, topic)) for topic in topics]
    except KafkaException:
        return [0] * len(topics)


@pytest.mark.slow
@pytest.mark.timeout(int(600 * PATIENCE))
@pytest.mark.parametrize("first", range(0, len(CHAINS), _AT_ONCE))
def test_chains_write_what_java_writes(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str, first: int
) -> None:
    """Given random records, and flows that differ in their chains; when both implementations copy them, each to its own
    cluster; validates that the topics are equal: order, key, value, headers, timestamp and partition.
    """
    topic = f"{unique}-changed"
    chains = {f"s{unique[-6:]}x{index}": CHAINS[index] for index in range(first, first + _AT_ONCE)}
    create(kafka_a, topic, PARTITIONS, retention__ms="-1")  # the records have old timestamps
    wait_until(lambda: partitions_of(kafka_a, topic) == PARTITIONS)
    write_random(kafka_a, topic, PARTITIONS, _RECORDS, seed=first)
    topics = [f"{alias}.{topic}" for alias in chains]
    java = JavaMirrorProcess(file_of(tmp_path / "java", kafka_a, kafka_b, topic, chains), tmp_path / "java.log", "T")
    try:
        ours = MirrorProcess(file_of(tmp_path / "ours", kafka_a, kafka_a, topic, chains), tmp_path / "ours.log", "T")
        try:
            await_equal(java, kafka_b, ours, kafka_a, topics)
            found = [(contents(kafka_b, one), contents(kafka_a, one)) for one in topics]
        finally:
            ours.clean_up()
    finally:
        java.clean_up()
    for chain, (wanted, got) in zip(chains.values(), found, strict=True):
        assert_same(chain, wanted, got)
    copied = [sum(map(len, got)) for _, got in found]
    print(f"{_RECORDS} records, copied by each chain: {copied}")  # noqa: T201
    assert 0 < copied[0] <= _RECORDS
    assert copied.count(0) <= 1, "only one chain drops every record"


def await_equal(
    java: MirrorProcess, there: LocalKafka, ours: MirrorProcess, here: LocalKafka, topics: list[str]
) -> None:
    """Wait until both have written the same number of records to each topic, and no more for a while."""
    seen: tuple[list[int], list[int]] = [], []
    since_s = 0.0

    def steady() -> bool:
        nonlocal seen, since_s
        assert java.is_running, java.tail()
        assert ours.is_running, ours.tail()
        found = totals(there, topics), totals(here, topics)
        if found[0] != found[1] or not found[0][0] or not found[0][1] or found != seen:
            seen, since_s = found, time.monotonic()
            return False
        return time.monotonic() - since_s > _STEADY_S

    wait_until(steady, 240, detail=lambda: f"{seen}\n{java.tail(5)}\n{ours.tail(5)}")


def assert_same(chain: Mapping[str, str], wanted: list[list[Any]], got: list[list[Any]]) -> None:
    assert len(wanted) == len(got) == PARTITIONS
    for partition, (theirs, own) in enumerate(zip(wanted, got, strict=True)):
        different = next((pair for pair in zip(theirs, own, strict=False) if pair[0] != pair[1]), None)
        assert different is None, f"partition {partition} of {chain}: Java and we have {different}"
        assert len(theirs) == len(own), f"partition {partition} of {chain}"


class DroppedTraffic(Traffic):
    """Every third record has the header by which the flow drops it."""

    def _headers(self, number: int) -> list[tuple[str, str | bytes | None]]:
        return [("drop", b"")] if number // self._partitions % 3 == 0 else []


def survivors_before(rows: list[Read], offset: int) -> int:
    """The target offset of the first record at or after a source offset that is not dropped."""
    return sum(not row.headers for row in rows if row.offset < offset)


@pytest.mark.slow
@pytest.mark.timeout(int(600 * PATIENCE))
@pytest.mark.parametrize("prefix", ["", "eu-"])
def test_no_kill_loses_or_doubles_what_a_chain_lets_through(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    tmp_path: Path,
    unique: str,
    prefix: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a chain that drops a third of the records, and may have a router that names the remote topic; when the process
    and its executors are killed again and again; validates that each other record is on the target once, in order, that
    groups skip none and repeat none, and that `mm2 gaps` counts those that were dropped.
    """
    alias, topic, group = f"k{unique[-6:]}", f"{unique}-killed", f"{unique}-group"
    remote = f"{prefix}{topic}" if prefix else f"{alias}.{topic}"
    create(kafka_a, topic, PARTITIONS)
    wait_until(lambda: partitions_of(kafka_a, topic) == PARTITIONS)
    flow = {
        "enabled": "true",
        "topics": topic,
        "groups": group,
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        "transforms": "drop, route" if prefix else "drop",
        "transforms.route.type": "RegexRouter",
        "transforms.route.regex": f"{alias}[.](.*-killed)",
        "transforms.route.replacement": f"{prefix}$1",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "marked",
        "predicates": "marked",
        "predicates.marked.type": "HasHeaderKey",
        "predicates.marked.name": "drop",
    }
    props = {f"{alias}->B.{key}": value for key, value in flow.items()}
    props |= {"clusters": f"{alias}, B", f"B->{alias}.enabled": "false", "emit.heartbeats.enabled": "false"}
    props["heartbeats.replication.enabled"] = "false"  # other tests write heartbeats to the source
    props |= {f"{alias}.bootstrap.servers": kafka_a.bootstrap, "B.bootstrap.servers": kafka_b.bootstrap}
    file = write_config(tmp_path / "mm2.properties", props)
    process = MirrorProcess(file, tmp_path / "0.log", "B")
    try:
        # The ledger keeps 32,000 segments and gaps of a partition; offsets before them are not translated.
        with DroppedTraffic(kafka_a, topic, PARTITIONS, per_second=200) as traffic:
            for number in range(1, _KILLS + 1):
                before = sum(ends(kafka_b, remote))
                process.eventually(lambda before=before: sum(ends(kafka_b, remote)) > before + 200)  # type: ignore[misc]
                process.kill9(whole_family=True)
                process = MirrorProcess(file, tmp_path / f"{number}.log", "B")
            traffic.finish()
        source = records(kafka_a, topic)
        wanted = [[row.content for row in rows if not row.headers] for rows in source]
        process.eventually(lambda: ends(kafka_b, remote) == [len(rows) for rows in wanted], 120)
        assert contents(kafka_b, remote) == wanted
        check_groups(process, kafka_a, kafka_b, (topic, remote, group), source)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    assert not [row for number in range(_KILLS + 1) for row in at_least_once(tmp_path / f"{number}.log")]
    dropped = sum(bool(row.headers) for rows in source for row in rows)
    assert main(["gaps", str(file), f"{alias}->B", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["totals"] == {"filtered": dropped}
    print(f"{_KILLS} kills, {traffic.sent} records, {dropped} dropped")  # noqa: T201


def paths(url: str) -> dict[str, float]:
    """The number of record batches by path, without those with none."""
    answer = httpx.get(f"{url}/metrics", timeout=60)
    assert answer.status_code == 200, answer.text
    rows = [row for family in parse(answer.text) for row in family.samples if row.name == "mm2_record_batches_total"]
    return {row.labels["path"]: row.value for row in rows if row.value}


def test_batches_that_a_chain_leaves_as_they_are_count_as_passthrough(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given a batch of which a Filter keeps every record, one of which it drops one, and one of which it drops all."""
    alias, (port,) = f"p{unique[-6:]}", free_ports(1)
    create(kafka_a, unique)
    wait_until(lambda: partitions_of(kafka_a, unique) == 1)
    chain = {
        "transforms": "drop",
        "transforms.drop.type": "Filter",
        "transforms.drop.predicate": "empty",
        "predicates": "empty",
        "predicates.empty.type": "RecordIsTombstone",
    }
    file = file_of(tmp_path / "flow", kafka_a, kafka_b, unique, {alias: chain})
    with file.open("a") as more:
        more.write(f"listeners = http://127.0.0.1:{port}\n")
    groups = ([b"1", b"2", b"3"], [b"4", None, b"6"], [None, None, None])
    write(kafka_a, unique, *([Record(value=value) for value in values] for values in groups))  # a batch each
    assert [header.records_count for header, _ in batches(kafka_a, unique)] == [3, 3, 3]
    process = MirrorProcess(file, tmp_path / "process.log", "T")
    try:
        process.eventually(lambda: ends(kafka_b, f"{alias}.{unique}") == [5], 120)
        wanted = {"passthrough": 1.0, "transformed": 1.0}
        process.eventually(lambda: paths(f"http://127.0.0.1:{port}") == wanted)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()


def at_least_once(log: Path) -> list[str]:
    return [line for line in log.read_text().splitlines() if "at least once" in line]


def check_groups(
    process: MirrorProcess,
    source: LocalKafka,
    target: LocalKafka,
    names: tuple[str, str, str],
    rows: list[list[Read]],
) -> None:
    """A group at each of several source offsets continues at the first record that is not dropped."""
    topic, remote, group = names
    for offset in (1, 2, 3, len(rows[0]) // 2, len(rows[0]) - 1, len(rows[0])):
        commit(source, group, {(topic, 0): offset})
        wanted = survivors_before(rows[0], offset)
        process.eventually(lambda wanted=wanted: committed(target, group, remote) == wanted, 60)  # type: ignore[misc]
