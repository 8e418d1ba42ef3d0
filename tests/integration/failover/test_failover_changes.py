"""`mm2 failover`, `promote` and `failback` on flows whose transformations drop and change records."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from confluent_kafka import Producer

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import Read, create, producer_of
from tests.integration.kafka.test_kafka_consumer import group_of
from tests.integration.mirror_process import MirrorProcess, ends, partitions_of, records, write_config
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(int(600 * PATIENCE))

GONE = "127.0.0.1:1"
_DROP_TOMBSTONES = {
    "transforms": "drop",
    "transforms.drop.type": "Filter",
    "transforms.drop.predicate": "empty",
    "predicates": "empty",
    "predicates.empty.type": "RecordIsTombstone",
}
_MARK_AND_DROP_LOCAL = {
    "header.converter": "org.apache.kafka.connect.storage.StringConverter",
    "transforms": "mark,drop",
    "transforms.mark.type": "InsertHeader",
    "transforms.mark.header": "from",
    "transforms.mark.value.literal": "b",
    "transforms.drop.type": "Filter",
    "transforms.drop.predicate": "local",
    "predicates": "local",
    "predicates.local.type": "HasHeaderKey",
    "predicates.local.name": "local",
}

Ask = Callable[..., dict[str, Any]]


class Flow(NamedTuple):
    """A flow between the shared brokers under aliases of its own, and what its commands have reported."""

    file: Path
    name: str
    capsys: pytest.CaptureFixture[str]

    def ask(self, code: int, verb: str, *arguments: str) -> dict[str, Any]:
        """The JSON report of a command, which has to end with this exit code."""
        confirmed = ("--yes",) if verb == "failover" else ()
        got, out, err = asked(self.capsys, verb, self.file, self.name, *arguments, *confirmed, "--json")
        assert got == code, f"{verb} {arguments}: {got}: {err}{out}"
        return dict(json.loads(out)) if out else {"sentence": err}

    def preview(self) -> list[dict[str, Any]]:
        """The partitions in a dry run of failover. Missing records are a problem of it."""
        _, out, err = asked(self.capsys, "failover", self.file, self.name, "--dry-run", "--json")
        assert out, err
        return list(json.loads(out)["partitions"])

    def is_caught_up(self, partitions: int) -> bool:
        rows = self.preview()
        return len(rows) == partitions and all(row["copied_up_to"] == row["source_end"] for row in rows)

    def lines(self, *arguments: str) -> list[str]:
        return asked(self.capsys, "failover", self.file, self.name, *arguments)[1].splitlines()


def properties(source: str, target: str, aliases: tuple[str, str], topic: str, **more: str) -> dict[str, str]:
    a, b = aliases
    return {
        "clusters": f"{a},{b}",
        f"{a}.bootstrap.servers": source,
        f"{b}.bootstrap.servers": target,
        f"{a}->{b}.enabled": "true",
        f"{b}->{a}.enabled": "false",
        "topics": topic,
        "groups": f"{topic}-none",
        "emit.heartbeats.enabled": "false",
        "heartbeats.replication.enabled": "false",
        **more,
    }


def chain(flow: str, settings: Mapping[str, str]) -> dict[str, str]:
    return {f"{flow}.{key}": value for key, value in settings.items()}


def write(producer: Producer, topic: str, partition: int, numbers: range) -> None:
    """Numbered records, of which every third is a tombstone."""
    for number in numbers:
        producer.produce(topic, None if number % 3 == 2 else b"%d" % number, b"%d" % number, partition)
    assert producer.flush(60) == 0


def tombstones(producer: Producer, topic: str, partition: int, count: int) -> None:
    for number in range(count):
        producer.produce(topic, None, b"t%d" % number, partition)
    assert producer.flush(60) == 0


@contextmanager
def load(producer: Producer, topic: str) -> Iterator[None]:
    """Write to partition 0 meanwhile."""
    stop = threading.Event()

    def run() -> None:
        at = 1_000
        while not stop.wait(0.01):
            write(producer, topic, 0, range(at, at + 6))
            at += 6

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def rest_of(source: list[Read], target: list[Read]) -> list[Read]:
    """The records of the source after the last one that is on the target."""
    kept = [row for row in source if row.value is not None]
    assert [row.content for row in target] == [row.content for row in kept[: len(target)]]
    after = kept[len(target) - 1].offset if target else -1
    return [row for row in source if row.offset > after]


def killed_with_unmarked_records(
    flow: Flow, process: MirrorProcess, brokers: tuple[LocalKafka, LocalKafka], topic: str, remote: str
) -> None:
    """Kill the process under load, before it has stored the position of its last records of partition 0."""
    number, producer = 0, producer_of(brokers[0])
    while True:
        before = ends(brokers[1], remote)[0]
        with load(producer, topic):
            process.eventually(lambda before=before: ends(brokers[1], remote)[0] > before + 200, 120)  # type: ignore[misc]
            process.kill9(whole_family=True)
        if flow.preview()[0]["unmarked"]:
            return
        number += 1
        process = MirrorProcess(flow.file, flow.file.with_name(f"again-{number}.log"))


@pytest.mark.slow
def test_dropped_records_are_neither_missing_nor_at_risk(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a chain that drops a third; with partition 0 killed while copying, 1 idle after a dropped record, 2 with only
    records to be dropped; validates each figure against the records of both clusters, and each command that uses them.
    """
    topic, alias = "t-" + unique, f"a{unique[-6:]}"
    remote, name = f"{alias}.{topic}", f"{alias}->B"
    props = properties(kafka_a.bootstrap, kafka_b.bootstrap, (alias, "B"), topic, **chain(name, _DROP_TOMBSTONES))
    flow = Flow(write_config(tmp_path / "mm2.properties", props), name, capsys)
    dead_props = {**props, f"{alias}.bootstrap.servers": GONE}
    dead = Flow(write_config(tmp_path / "dead.properties", dead_props), name, capsys)
    producer = producer_of(kafka_a)
    create(kafka_a, topic, 3)
    wait_until(lambda: partitions_of(kafka_a, topic) == 3)
    for partition in range(3):
        write(producer, topic, partition, range(30))
    process = MirrorProcess(flow.file, tmp_path / "process.log")
    try:
        process.eventually(lambda: ends(kafka_b, remote) == [20, 20, 20], 120)
        wait_until(lambda: flow.is_caught_up(3), 60)
        report = flow.ask(0, "failover", "--dry-run")
        assert (report["records_at_risk"], report["records_at_risk_at_most"]) == (0, 0)
        killed_with_unmarked_records(flow, process, (kafka_a, kafka_b), topic, remote)
        write(producer, topic, 0, range(100_000, 100_030))
        tombstones(producer, topic, 2, 12)
        left = check_a_reachable_source(flow, (kafka_a, kafka_b), topic, remote)
        check_an_unreachable_source(dead, left)
        check_commands(flow, left, alias, topic)
        process = MirrorProcess(flow.file, tmp_path / "resumed.log")
        process.eventually(lambda: not rest_of_all(kafka_a, topic, kafka_b, remote), 120)
        assert flow.ask(0, "failover", "--wait", "120")["records_at_risk"] == 0
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    flow.ask(0, "failback")
    tombstones(producer, topic, 1, 3)
    waited = flow.ask(0, "failover", "--wait", "1")
    assert waited["problems"] == [], "no process runs, and nothing is left to be copied"
    assert [(row["missing"], row["to_be_dropped"]) for row in waited["partitions"]] == [(0, 0), (0, 3), (0, 0)]


def rest_of_all(source: LocalKafka, topic: str, target: LocalKafka, remote: str) -> list[Read]:
    """The records of the source that are to be copied and are not on the target."""
    pairs = zip(records(source, topic), records(target, remote), strict=True)
    return [row for here, there in pairs for row in rest_of(here, there) if row.value is not None]


def check_a_reachable_source(
    flow: Flow, brokers: tuple[LocalKafka, LocalKafka], topic: str, remote: str
) -> list[list[Read]]:
    """Returns the records that have not been copied, by partition."""
    pairs = zip(records(brokers[0], topic), records(brokers[1], remote), strict=True)
    left = [rest_of(here, there) for here, there in pairs]
    missing = [sum(row.value is not None for row in rows) for rows in left]
    dropped = [sum(row.value is None for row in rows) for rows in left]
    assert missing[0] >= 20
    assert missing[1:] == [0, 0]
    assert dropped[2] >= 12
    report = flow.ask(1, "failover", "--dry-run")
    rows = report["partitions"]
    print("reachable", [(row["copied_up_to"], row["unmarked"], row["source_end"], row["missing"]) for row in rows])  # noqa: T201
    assert [row["missing"] for row in rows] == missing
    # The last record before the copied ones' end may have been a dropped one that had been processed.
    assert [row["to_be_dropped"] for row in rows] == [dropped[0], 0, 12]
    assert (report["records_at_risk"], report["records_at_risk_at_most"]) == (missing[0], missing[0])
    refusal = f"answers and has {missing[0]} records that are not on B: without --wait or --leave-behind this would be refused"
    assert report["problems"] == [f"{flow.name[:-3]} {refusal}"]
    first, last = left[0][0].offset, left[0][-1].offset
    lines = flow.lines("--dry-run")
    assert (
        f"  {topic}-0: offsets {first}-{last}, {missing[0]} records to be copied and {dropped[0]} to be dropped"
        in lines
    )
    assert f"  {topic}-2: offsets 30-41, 0 records to be copied and 12 to be dropped" in lines
    assert f"3 partitions, on {flow.name[:-3]} only: {missing[0]} records" in lines
    return left


def check_an_unreachable_source(flow: Flow, left: list[list[Read]]) -> None:
    """Only offsets up to the last contact are known, and not which of them would be dropped: there is no maximum."""
    report = flow.ask(0, "failover", "--dry-run")
    rows = report["partitions"]
    assert [(row["missing"], row["missing_at_least"], row["missing_at_most"]) for row in rows] == [(None, 0, None)] * 3
    known = [row for row in left[0] if row.offset < rows[0]["source_end"] and row.value is not None]
    assert len(known) <= max(0, rows[0]["source_end"] - rows[0]["copied_up_to"] - rows[0]["unmarked"])


def check_commands(flow: Flow, left: list[list[Read]], alias: str, topic: str) -> None:
    """Commands refuse to leave records behind, and none because of records that are to be dropped."""
    missing = sum(row.value is not None for row in left[0])
    refusal = (
        f"mm2: Cluster {alias} answers and has {missing} records that are not on B yet ({topic}-0: {left[0][0].offset} of "
        f"{left[0][-1].offset + 1}). Stop its producers and use --wait SECONDS, or use --leave-behind to leave these "
        "records behind.\n"
    )
    for verb in ("failover", "promote"):
        assert flow.ask(2, verb)["sentence"] == refusal
    timed_out = flow.ask(2, "failover", "--wait", "1")["sentence"]
    assert f"{missing} records are left to copy. Nothing was changed." in timed_out
    assert flow.ask(0, "failover", "--leave-behind")["records_at_risk"] == missing
    tail = flow.ask(1, "failback")
    assert tail["problems"][0].startswith(f"on {alias} only: {missing} records in 1 partition, and nothing was changed")
    flow.ask(0, "failback", "--divergent", "keep")


@pytest.mark.slow
def test_a_failback_with_a_chain_in_either_direction(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given identity naming, a chain that drops towards B, and another one that changes and drops towards A; validates the
    figures of each command, and that each record is on the other side once, as the chain of that direction makes it.
    """
    topic, a, b = "t-" + unique, f"a{unique[-6:]}", f"b{unique[-6:]}"
    there, back = f"{a}->{b}", f"{b}->{a}"
    more = {
        f"{back}.enabled": "true",
        "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        **chain(there, _DROP_TOMBSTONES),
        **chain(back, _MARK_AND_DROP_LOCAL),
    }
    props = properties(kafka_a.bootstrap, kafka_b.bootstrap, (a, b), topic, **more)
    file = write_config(tmp_path / "mm2.properties", props)
    forth, home = Flow(file, there, capsys), Flow(file, back, capsys)
    on_a, on_b = producer_of(kafka_a), producer_of(kafka_b)
    create(kafka_a, topic)
    wait_until(lambda: partitions_of(kafka_a, topic) == 1)
    write(on_a, topic, 0, range(9))
    process = MirrorProcess(file, tmp_path / "0.log")
    try:
        process.eventually(lambda: ends(kafka_b, topic) == [6], 120)
        wait_until(lambda: forth.is_caught_up(1), 60)
        process.kill9(whole_family=True)
        # Until its session ends, failover waits for the worker to confirm that it has stopped.
        wait_until(lambda: not group_of(kafka_b, f"{a}-mm2").members, 60)
        write(on_a, topic, 0, range(9, 12))
        tombstones(on_a, topic, 0, 2)
        report = forth.ask(0, "failover", "--leave-behind")
        assert [(row["missing"], row["to_be_dropped"]) for row in report["partitions"]] == [(2, 3)]

        write_local(on_b, topic, 9)  # applications are on B
        report = forth.ask(1, "failback")
        assert [(start["topic"], start["offset"]) for start in report["starts"]] == [(topic, 6)]
        assert report["problems"][0].startswith(f"on {a} only: 2 records in 1 partition")
        report = forth.ask(0, "failback", "--divergent", "keep")
        for sentence in (
            f"{there} changes or drops records by transforms: the records on {a} and those copied to {b} are not compared",
            f"{back} changes or drops records by transforms, header.converter: {a} gets the records written on {b} as it ",
        ):
            assert any(advice.startswith(sentence) for advice in report["advice"]), report["advice"]
        process = MirrorProcess(file, tmp_path / "1.log")
        process.eventually(lambda: ends(kafka_a, topic) == [14 + 6], 120)
        came_back = records(kafka_a, topic)[0][14:]
        assert [row.value for row in came_back] == [b"%d" % number for number in range(9) if number % 3 != 2]
        assert {row.headers for row in came_back} == {(("from", b"b"),)}
        wait_until(lambda: home.is_caught_up(1), 60)

        process.kill9(whole_family=True)
        write_local(on_b, topic, 3)
        report = home.ask(1, "failover", "--dry-run")
        assert [(row["missing"], row["to_be_dropped"]) for row in report["partitions"]] == [(2, 1)]
        process = MirrorProcess(file, tmp_path / "2.log")
        report = home.ask(0, "failover", "--wait", "120")
        assert (report["records_at_risk"], ends(kafka_a, topic)) == (0, [22])
        report = home.ask(0, "failback")
        assert [(start["topic"], start["offset"]) for start in report["starts"]] == [(topic, 22)]
        write(on_a, topic, 0, range(3))
        process.eventually(lambda: ends(kafka_b, topic) == [6 + 9 + 3 + 2], 120)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()


def write_local(producer: Producer, topic: str, count: int) -> None:
    """Numbered records, of which every third has the header by which the flow towards A drops it."""
    for number in range(count):
        producer.produce(topic, b"%d" % number, partition=0, headers=[("local", b"")] if number % 3 == 2 else [])
    assert producer.flush(60) == 0
