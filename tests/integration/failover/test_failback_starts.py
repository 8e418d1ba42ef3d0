"""Where the opposite flow begins after `mm2 failback` under identity naming, when the promoted flow has run meanwhile.

Given flows A->B and B->A as a process, two topics that were failed over, and a third one that is still copied; applications write to the
remote topics. When the process is started again with another configuration, after a SIGKILL, or a topic has got a partition. Validates that
B->A begins after the last record of A, and all records of B are on A.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from mm2.copy.progress.ledger import ledger_topic, parse_key
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.mirror_flow import create, write
from tests.integration.mirror_process import MirrorProcess, ends, grow, records, table, write_config
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.timeout(int(240 * PATIENCE))

COPIED = 100
WRITTEN_ON_B = 50


class Pair:
    """Both flows between the shared brokers, under aliases of their own."""

    def __init__(
        self, a: LocalKafka, b: LocalKafka, unique: str, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        self.a, self.b, self._folder, self._capsys = a, b, folder, capsys
        self.alias_a, self.alias_b = f"{unique}-a", f"{unique}-b"
        self.there = f"{self.alias_a}->{self.alias_b}"
        self.full, self.empty, self.kept = (f"{unique}-{name}" for name in ("full", "empty", "kept"))
        self.file = folder / "mm2.properties"
        self._starts = 0
        for topic in (self.full, self.empty, self.kept):
            create(a, topic)
        self.produce(a, self.full, COPIED)

    def configure(self, **more: str) -> None:
        """The properties of the next start. ``A`` and ``B`` are replaced by the aliases, ``__`` by a dot."""
        a, b = self.alias_a, self.alias_b
        props = {
            "clusters": f"{a},{b}",
            f"{a}.bootstrap.servers": self.a.bootstrap,
            f"{b}.bootstrap.servers": self.b.bootstrap,
            f"{a}->{b}.enabled": "true",
            f"{b}->{a}.enabled": "true",
            "topics": f"{self.full},{self.empty},{self.kept}",
            "groups": "none",
            "tasks.max": "1",
            "emit.heartbeats.enabled": "false",
            "heartbeats.replication.enabled": "false",
            "replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy",
        }
        renamed = {key.replace("__", ".").replace("A.", f"{a}.", 1): value for key, value in more.items()}
        write_config(self.file, {**props, **renamed})

    def produce(self, broker: LocalKafka, topic: str, count: int, partition: int = 0) -> None:
        write(broker, topic, [(None, b"%s %d" % (broker.name.encode(), n)) for n in range(count)], partition)

    @contextmanager
    def started(self, *clusters: str) -> Iterator[MirrorProcess]:
        self._starts += 1
        process = MirrorProcess(self.file, self._folder / f"{self._starts}.log", *clusters)
        try:
            yield process
        finally:
            process.clean_up()

    def await_copying(self, process: MirrorProcess) -> None:
        """The lane of A->B, which has all its topics, copies what is written now."""
        process.eventually(lambda: bool(ends(self.b, self.kept)), 90)
        before = sum(ends(self.b, self.kept))
        self.produce(self.a, self.kept, 1)
        process.eventually(lambda: sum(ends(self.b, self.kept)) > before, 90)

    def ask(self, verb: str, *arguments: str, code: int = 0) -> dict[str, Any]:
        chosen = ("--topic", f"{self.full},{self.empty}")
        confirmed = ("--yes",) if verb == "failover" else ()
        got, out, err = asked(self._capsys, verb, self.file, self.there, *chosen, *arguments, *confirmed, "--json")
        assert got == code, f"{verb}: {got} instead of {code}: {err}{out}"
        return dict(json.loads(out))

    def entries(self) -> Mapping[str, dict[str, Any]]:
        """The ledger's entries of A->B by topic, of partition 0."""
        rows = {}
        for key, (value, _) in table(self.b, ledger_topic(self.alias_a)).items():
            named, entry = parse_key(key), json.loads(value or b"{}")
            if named is not None and named.chunk is None and named.source.partition == 0:
                rows[named.source.topic] = entry
        return rows

    def trouble(self, topic: str) -> str:
        return str((self.entries()[topic].get("trouble") or [""])[0])

    def values(self, broker: LocalKafka, topic: str, partition: int = 0) -> list[bytes | None]:
        found = records(broker, topic)[partition : partition + 1]  # none before the topic exists
        return [row.value for rows in found for row in rows]

    def is_equal(self, topic: str, partition: int = 0) -> bool:
        return self.values(self.a, topic, partition) == self.values(self.b, topic, partition)


@pytest.fixture
def pair(
    kafka_a: LocalKafka, kafka_b: LocalKafka, unique: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Pair:
    return Pair(kafka_a, kafka_b, unique, tmp_path, capsys)


def starts_of(report: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {(row["topic"], row["partition"]): row["offset"] for row in report["starts"]}


@pytest.mark.parametrize("mode", ["isolation", "exactly once"])
def test_a_configuration_that_changes_while_a_topic_is_promoted_moves_no_start(pair: Pair, mode: str) -> None:
    """A session opened meanwhile would name the end of the remote topic, which has records of applications by then.

    In exactly-once mode nothing is known of the target of the empty topic. It does not block the other one.
    """
    exactly_once = {} if mode == "isolation" else {"exactly__once__source__support": "enabled"}
    pair.configure(**exactly_once)
    with pair.started() as process:
        process.eventually(lambda: {pair.full, pair.empty} <= pair.entries().keys(), 90)
        process.eventually(lambda: len(pair.values(pair.b, pair.full)) == COPIED, 60)
        pair.await_copying(process)
        pair.ask("failover", "--wait", "60")
        end = ends(pair.b, pair.full)[0]
        assert starts_of(pair.ask("failback", "--dry-run")) == {(pair.full, 0): end, (pair.empty, 0): 0}
        process.stop()
    for topic in (pair.full, pair.empty):
        pair.produce(pair.b, topic, WRITTEN_ON_B)
    for broker in (pair.b, pair.a):
        grow(broker, pair.full, 2)
    pair.produce(pair.b, pair.full, WRITTEN_ON_B, 1)
    pair.configure(**({f"{pair.there}.consumer.isolation.level": "read_committed"} if mode == "isolation" else {}))
    with pair.started() as process:
        pair.await_copying(process)
        report = pair.ask("failback")
        assert starts_of(report) == {(pair.full, 0): end, (pair.empty, 0): 0}
        assert [row["others"] for row in report["partitions"]] == [WRITTEN_ON_B, WRITTEN_ON_B]
        for topic, partition in ((pair.full, 0), (pair.full, 1), (pair.empty, 0)):
            process.eventually(lambda t=topic, p=partition: pair.is_equal(t, p), 90)  # type: ignore[misc]


def test_records_of_a_killed_process_are_not_taken_for_those_of_others(pair: Pair) -> None:
    """The ledger knows only where copying began, and the process that pauses the topic does not look past it: the topic is promoted."""
    pair.configure(copy__commit__interval__ms="3600000", copy__batch__duration__ms="3600000")
    with pair.started() as process:
        process.eventually(lambda: len(pair.values(pair.b, pair.full)) == COPIED, 90)
        process.eventually(lambda: {pair.full, pair.empty} <= pair.entries().keys(), 60)
        process.kill9(whole_family=True)
    assert pair.entries()[pair.full]["mark"][0] < COPIED
    pair.configure()
    report = pair.ask("failover", "--leave-behind")
    rows = {row["topic"]: (row["target_offset"], row["others"]) for row in report["partitions"]}
    assert rows == {pair.full: (COPIED, 0), pair.empty: (0, 0)}
    for topic in (pair.full, pair.empty):
        pair.produce(pair.b, topic, WRITTEN_ON_B)
    with pair.started() as process:
        pair.await_copying(process)
        process.eventually(lambda: {pair.trouble(pair.full), pair.trouble(pair.empty)} == {"PAUSED"}, 60)
        report = pair.ask("failback")
        assert starts_of(report) == {(pair.full, 0): COPIED, (pair.empty, 0): 0}
        for topic in (pair.full, pair.empty):
            process.eventually(lambda t=topic: pair.is_equal(t), 90)  # type: ignore[misc]
