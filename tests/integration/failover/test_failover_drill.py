"""Failover and failback drill with the verbs of mm2: A is killed under load, applications fail over to B, A restarts, they fail back.

Given 20 groups on A that consume and commit under load, at different offsets: some idle, one that has consumed past its
last commit, one that never commits; both flows, with remote topics named by default or as their sources are (identity naming);
a flow with limited bandwidth, so that A has uncopied records when it is killed with SIGKILL. When `mm2 failover`,
`failback`, `failover` in the opposite direction and `failback` run, as in docs/how-to/failover.md. Validates, by reading both clusters:

- a dry run changes nothing;
- on B each group skips no record: it consumes all records of B that it did not consume on A; and it reads no record again that
  it had committed longer before the kill than a checkpoint takes;
- records that only A has are reported exactly, by partition, and are copied to B later where names allow that;
- after failback each group continues after the last record that it has consumed: 0 skipped, 0 re-read;
- each record is on both clusters once, copied in either direction, and records written after the drill are copied as before.
"""

from __future__ import annotations

import json
import random
import struct
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException

from mm2.copy.progress.ledger import ledger_topic
from mm2.kafka.admin import Admin
from mm2.kafka.client.cluster import Cluster
from mm2.kafka.errors import KafkaFailure
from mm2.kafka.settings.client_settings import ClientSettings
from mm2.mirror.groups.group_offsets import group_state
from mm2.sandbox.kafka import LocalKafka, start_pair
from tests.integration.asking import asked
from tests.integration.copy_flow import create, producer_of, read_all
from tests.integration.mirror_process import MirrorProcess, ends, is_running, partitions_of, table, write_config
from tests.support.waiting import PATIENCE, wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(int(1500 * PATIENCE))]

GROUPS = 20
PARTITIONS = 4
TOPIC = "drill"
PER_SECOND = 400
LOAD_S = 20.0
SIZE = 200
BURST = 40_000
#: A second each for the ledger and the checkpoint, and a margin for a busy machine.
IN_FLIGHT_S = 12.0
MIDWAY, NEVER = 18, 19  # other group types

Numbers = dict[int, list[tuple[int, int]]]
"""(offset, number) of each record, by partition."""


@dataclass
class Group:
    """A consumer; `consumed` has the time of each record, `committed` the time of its commit."""

    name: str
    number: int
    rests_after_s: float
    consumed: dict[int, float] = field(default_factory=dict)
    committed: dict[int, float] = field(default_factory=dict)

    def consume(self, broker: LocalKafka, topics: list[str], stop: threading.Event) -> None:
        """Commit after every few records until the stop, the pause, or the failure of the broker."""
        consumer = self._consumer(broker, 15_000)
        consumer.subscribe(topics)
        until = time.monotonic() + self.rests_after_s
        with suppress(KafkaException):
            while not stop.is_set() and time.monotonic() < until:
                messages = [message for message in consumer.consume(50, 0.3) if message.error() is None]
                if not messages:
                    continue
                now = time.monotonic()
                self.consumed.update((number(message.value()), now) for message in messages)
                half_way = self.number == MIDWAY and len(self.consumed) > 1_000
                if self.number != NEVER and not half_way:
                    consumer.commit(asynchronous=False)
                    self.committed.update((number(message.value()), time.monotonic()) for message in messages)
        if not stop.is_set():
            consumer.close()

    def consume_to(self, broker: LocalKafka, wanted: set[int], topics: list[str]) -> dict[int, int]:
        """Read these topics to their ends, commit, and leave the group; returns how often each record was read."""
        consumer = self._consumer(broker, 60_000)
        consumer.subscribe(topics)
        read: Counter[int] = Counter()
        quiet_since = time.monotonic()
        deadline = quiet_since + 300
        try:
            while time.monotonic() < deadline:
                messages = consumer.consume(500, 0.3)
                found = [number(message.value()) for message in messages if message.error() is None]
                read.update(found)
                if found:
                    commit(consumer)
                    quiet_since = time.monotonic()
                elif (wanted <= self.consumed.keys() | read.keys() and time.monotonic() - quiet_since > 3) or (
                    consumer.assignment() and time.monotonic() - quiet_since > 20
                ):
                    break
        finally:
            consumer.close()
        return dict(read)

    def _consumer(self, broker: LocalKafka, session_ms: int) -> Consumer:
        return Consumer(
            {
                "bootstrap.servers": broker.bootstrap,
                "group.id": self.name,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "session.timeout.ms": session_ms,
                "log_level": 0,
            }
        )


def commit(consumer: Consumer) -> None:
    """Retry an operation that is delayed by a loading coordinator or a busy machine."""
    deadline = time.monotonic() + 60
    while True:
        try:
            consumer.commit(asynchronous=False)
            return
        except KafkaException as failure:
            if time.monotonic() > deadline or failure.args[0].fatal():
                raise
            time.sleep(0.2)


class Load:
    """Write numbered records to all partitions of A's topic, then a burst that a slow flow cannot copy in a second."""

    def __init__(self, broker: LocalKafka) -> None:
        self._producer = producer_of(broker, log_level=0, acks="all")
        self.count = 0

    def run(self, stop: threading.Event) -> None:
        while not stop.is_set():
            self.write(PER_SECOND // 10)
            self._producer.poll(0)
            time.sleep(0.1)

    def write(self, count: int) -> None:
        for _ in range(count):
            self._producer.produce(TOPIC, value_of(self.count), partition=self.count % PARTITIONS)
            self.count += 1
            if not self.count % 5_000:
                self._producer.flush(60)

    def flush(self) -> None:
        assert self._producer.flush(60) == 0


def value_of(count: int) -> bytes:
    return struct.pack(">q", count) + bytes(SIZE - 8)


def number(value: object) -> int:
    assert isinstance(value, bytes)
    return int(struct.unpack_from(">q", value)[0])


def numbers(broker: LocalKafka, topic: str) -> Numbers:
    found = read_all(broker, topic, range(PARTITIONS))
    return {partition: [(record.offset, number(record.value)) for record in rows] for partition, rows in found.items()}


def all_of(found: Numbers) -> Counter[int]:
    return Counter(what for rows in found.values() for _, what in rows)


def write_numbers(broker: LocalKafka, topic: str, wanted: range) -> None:
    producer = producer_of(broker, acks="all")
    for count in wanted:
        producer.produce(topic, value_of(count), partition=count % PARTITIONS)
    assert producer.flush(60) == 0


def offsets_of(broker: LocalKafka, names: list[str], topic: str) -> dict[str, dict[int, int]]:
    """Committed offsets by group and partition."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="asked")
    answers = Admin(cluster).list_group_offsets(names)
    cluster.close()
    found = {}
    for name, offsets in answers.items():
        assert not isinstance(offsets, KafkaFailure), offsets
        found[name] = {
            place.partition: committed.offset for place, committed in offsets.items() if place.topic == topic
        }
    return found


def in_use(broker: LocalKafka, names: list[str]) -> list[str]:
    """The groups that have members."""
    cluster = Cluster(ClientSettings.from_props({"bootstrap.servers": broker.bootstrap}), name="asked")
    described = Admin(cluster).describe_groups(names)
    cluster.close()
    return [name for name, group in described.items() if group_state(group) not in {"empty", "dead"}]


def changeable(broker: LocalKafka, names: list[str], remote: str) -> tuple[Any, ...]:
    """The state of a cluster that the verbs could change, without what running tasks write continuously."""
    words = {
        key: value
        for key, (value, _) in table(broker, ledger_topic("A")).items()
        if key.startswith((b'{"note"', b'{"pause"', b'{"throttle"'))
        and key != b'{"note":["provenance"]}'  # the expiry of the claims, which is written repeatedly
    }
    positions = {
        key: value
        for key, value in table(broker, "mm2-offsets.A.internal").items()
        if not key.startswith(b'["MirrorHeartbeatConnector"')  # committed a minute after the start
    }
    return (
        words,
        table(broker, "mm2-configs.A.internal"),
        positions,
        offsets_of(broker, names, remote),
        ends(broker, remote),
    )


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[LocalKafka, LocalKafka]]:
    with start_pair(tmp_path / "kafka", heap="384m") as found:
        yield found


@pytest.mark.parametrize("identity", [False, True], ids=["default", "identity"])
def test_twenty_groups_fail_over_and_fail_back(
    pair: tuple[LocalKafka, LocalKafka], identity: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    a, b = pair
    create(a, TOPIC, PARTITIONS)
    remote = TOPIC if identity else f"A.{TOPIC}"
    props = {
        "clusters": "A,B",
        "A.bootstrap.servers": a.bootstrap,
        "B.bootstrap.servers": b.bootstrap,
        "A->B.enabled": "true",
        "B->A.enabled": "true",
        "topics": TOPIC,
        "groups": "drill-.*",
        "A->B.copy.throttle.bytes.per.sec": "400000",
        # Once with the group sync, which then has committed some of the offsets, and once without.
        "sync.group.offsets.enabled": str(identity).lower(),
        "sync.group.offsets.interval.seconds": "1",
        "listeners": "",
    }
    if identity:
        props["replication.policy.class"] = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"
    file = write_config(tmp_path / "mm2.properties", props)
    dice = random.Random(8)
    groups = [
        Group(f"drill-{n}", n, 600 if n >= MIDWAY else 3.0 if n % 5 == 0 else dice.uniform(LOAD_S / 2, 600))
        for n in range(GROUPS)
    ]
    movers = [group for group in groups if group.number != NEVER]
    names = [group.name for group in movers]
    process = MirrorProcess(file, tmp_path / "process.log")

    def run_verb(code: int, *arguments: str) -> dict[str, Any]:
        verb, flow, *rest = arguments
        rest += ["--yes"] if "--wait" in rest else []
        got, out, err = asked(capsys, verb, file, flow, *rest, "--json")
        assert got == code, f"{arguments}: {got} instead of {code}: {err}{out}\n{process.tail()}"
        return dict(json.loads(out)) if out else {"sentence": err}

    def figures(text: str) -> None:
        with capsys.disabled():
            print(text)  # noqa: T201

    try:
        process.eventually(lambda: is_running(b, "A") and is_running(a, "B"), 240)
        process.eventually(lambda: partitions_of(b, remote) == PARTITIONS, 120)
        stop, load = threading.Event(), Load(a)
        threads = [threading.Thread(target=group.consume, args=(a, [TOPIC], stop), daemon=True) for group in groups]
        threads.append(threading.Thread(target=load.run, args=(stop,), daemon=True))
        for thread in threads:
            thread.start()
        process.eventually(lambda: sum(ends(b, remote)) > PER_SECOND, 300)
        time.sleep(LOAD_S)
        wait_until(lambda: all(group.consumed for group in groups), 120)
        stop.set()
        threads[-1].join()
        load.write(BURST)  # 8 MB: one fetch may return half of it, the rest waits for ten seconds
        load.flush()
        killed = time.monotonic()
        a.kill9()
        time.sleep(5)  # outstanding checkpoints; consumers that wait for a response of A never get one

        # -- failover from an unreachable source
        before = changeable(b, names, remote)
        dry = run_verb(0, "failover", "A->B", "--dry-run")
        assert changeable(b, names, remote) == before, "a dry run changes nothing"
        assert not dry["source_answers"]
        began = time.monotonic()
        done = run_verb(0, "failover", "A->B")
        took_s = time.monotonic() - began
        assert all(row["state"] == "PAUSED" for row in done["partitions"]), done["partitions"]
        assert all(row["source_end"] is not None for row in done["partitions"]), (
            "where A ended when it was last heard of"
        )
        on_b = numbers(b, remote)
        everywhere = set(all_of(on_b))
        assert max(all_of(on_b).values()) == 1
        assert len(everywhere) > LOAD_S * PER_SECOND / 4
        placed = offsets_of(b, names, remote)
        assert {row["group"] for row in done["groups"]} == set(names), (
            "one never committed, so it has no place to go to"
        )
        for row in done["groups"]:
            assert placed[row["group"]][row["partition"]] == row["offset_after"], row
        twice: dict[str, float] = {}  # seconds between the oldest commit whose record is read again and the kill
        for group in movers:
            offsets = placed[group.name]
            reads = {what for partition, rows in on_b.items() for at, what in rows if at >= offsets.get(partition, 0)}
            skipped = everywhere - group.consumed.keys() - reads
            assert not skipped, f"{group.name} continues at {offsets} and skips {len(skipped)}, such as {min(skipped)}"
            again = [group.committed[what] for what in reads & group.committed.keys()]
            assert all(killed - at < IN_FLIGHT_S for at in again), f"{group.name} reads {len(again)} records again"
            if again:
                twice[f"{group.name} ({len(again)})"] = round(killed - min(again), 2)
        figures(
            f"{len(everywhere)} records on B, {len(names)} groups moved in {took_s:.1f} s, 0 skipped; read again, and committed so "
            f"many seconds before the kill: {twice or 'nothing'}"
        )

        # -- applications are on B
        new_on_b = range(1_000_000, 1_000_400)
        if not identity:
            create(b, TOPIC, PARTITIONS)
        write_numbers(b, TOPIC, new_on_b)
        topics_on_b = [remote] if identity else [remote, TOPIC]
        consumed_on_b = consume_all(movers, b, everywhere | set(new_on_b), topics_on_b)
        for group in movers:
            read = consumed_on_b[group.name]
            assert max(read.values()) == 1
            assert everywhere | set(new_on_b) <= group.consumed.keys() | read.keys(), f"{group.name} skips on B"

        # -- A is reachable again, with uncopied records
        a.start()
        on_a = numbers(a, TOPIC)
        tail = {
            partition: [(at, what) for at, what in rows if what not in everywhere] for partition, rows in on_a.items()
        }
        assert sum(map(len, tail.values())) > 1_000, "no uncopied records, so the test proves nothing"
        figures(f"{sum(map(len, tail.values()))} records on A only")
        document = run_verb(1, "failback", "A->B")
        assert document["problems"]
        for row in document["partitions"]:
            mine = tail[row["partition"]]
            assert (row["copied_up_to"], row["source_end"], row["missing"]) == (mine[0][0], mine[-1][0] + 1, len(mine))
        kept = run_verb(0, "failback", "A->B", "--divergent", "keep")
        if identity:
            assert all(start["verified"] for start in kept["starts"])
            process.eventually(lambda: all_of(numbers(a, TOPIC)).keys() >= set(new_on_b), 120)
            assert all_of(numbers(a, TOPIC)) == all_of(on_a) + Counter(new_on_b), (
                "each record once, wherever it came from"
            )
            assert all_of(numbers(b, TOPIC)) == Counter(everywhere) + Counter(new_on_b)
        else:
            process.eventually(lambda: all_of(numbers(b, remote)) == all_of(on_a), 240)
            process.eventually(lambda: partitions_of(a, f"B.{TOPIC}") == PARTITIONS, 120)
            late = {what for rows in tail.values() for _, what in rows}
            consumed_late = consume_all(movers, b, late, topics_on_b)
            for group in movers:
                once = dict.fromkeys(late - group.consumed.keys(), 1)
                got = consumed_late[group.name]
                assert {what: count for what, count in got.items() if what in once} == once, (
                    "the tail comes to all who lack it"
                )
                assert got.keys() <= late

        # -- failback
        wait_until(lambda: not in_use(a, names), 120)  # members of the groups from before A was killed
        home = run_verb(0, "failover", "B->A", "--wait", "120")
        assert {row["group"] for row in home["groups"]} == set(names)
        for topic in [TOPIC] if identity else [TOPIC, f"B.{TOPIC}"]:
            end, at_home = dict(enumerate(ends(a, topic))), offsets_of(a, names, topic)
            for group in movers:
                assert at_home[group.name] == end, f"{group.name} comes home to another place of {topic} than its end"
        figures(f"{len(home['groups'])} offsets of {len(names)} groups at home, each behind its last record")
        run_verb(0, "failback", "B->A")
        write_numbers(a, TOPIC, range(2_000_000, 2_000_100))
        after = set(range(2_000_000, 2_000_100))
        process.eventually(lambda: all_of(numbers(b, remote)).keys() >= after, 120)
        assert max(all_of(numbers(b, remote)).values()) == 1
        if identity:
            assert max(all_of(numbers(a, TOPIC)).values()) == 1
        assert process.is_running
    finally:
        process.clean_up()


def consume_all(
    groups: list[Group], broker: LocalKafka, wanted: set[int], topics: list[str]
) -> dict[str, dict[int, int]]:
    """Consume there with all groups concurrently; the records count as consumed afterwards."""
    read: dict[str, dict[int, int]] = {}

    def run(group: Group) -> None:
        read[group.name] = group.consume_to(broker, wanted, topics)

    threads = [threading.Thread(target=run, args=(group,)) for group in groups]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for group in groups:
        now = time.monotonic()
        group.consumed.update(dict.fromkeys(read[group.name], now))
        group.committed.update(dict.fromkeys(read[group.name], now))
    return read
