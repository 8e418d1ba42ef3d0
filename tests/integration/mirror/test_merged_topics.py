"""Two source topics that a policy or a router merges into one remote topic: a whole process, and what the commands report."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from mm2.kafka.records.record import Record
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy.test_copy_engine import write
from tests.integration.copy.test_merges import records_of
from tests.integration.copy_flow import create, read
from tests.integration.mirror.test_policy_changes import FlowFiles
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import MirrorProcess, config_of, ends, partitions_of, refused
from tests.integration.record_chains import chain
from tests.support.waiting import PATIENCE, wait_until

COUNT = 30_000  # records of a partition


class Merge:
    """A flow with two source topics of two and three partitions and one remote topic, which a policy or a router names."""

    def __init__(self, kafka_a: LocalKafka, kafka_b: LocalKafka, folder: Path, unique: str, way: str) -> None:
        self.a, self.b, self.way = kafka_a, kafka_b, way
        self.alias, self.topics = f"m{unique[-6:]}", (f"{unique}-merge-a", f"{unique}-merge-b")
        self.remote = f"{self.alias}.{unique}-all"
        self.group = f"{unique}-group"
        for topic, partitions, retention in zip(self.topics, (2, 3), ("-1", "9000000000000"), strict=True):
            create(kafka_a, topic, partitions, retention__ms=retention)
            wait_until(lambda topic=topic, partitions=partitions: partitions_of(kafka_a, topic) == partitions)  # type: ignore[misc]
        self.files = FlowFiles(
            folder,
            self.alias,
            (kafka_a, kafka_b),
            topics=f"{unique}-merge-.*",
            groups=self.group,
            sync__group__offsets__enabled="true",
            sync__group__offsets__interval__seconds="1",
            emit__checkpoints__interval__seconds="1",
            refresh__topics__interval__seconds="1",
            copy__commit__interval__ms="2000",
        )

    def naming(self) -> Mapping[str, str]:
        if self.way == "policy":
            return {"replication.policy.class": "tests.integration.test_mm2_behaviours.policies.MergingPolicy"}
        router = ("RegexRouter", {"regex": "(.*)-merge-.*", "replacement": "$1-all"})
        return {f"{self.files.flow}.{key}": value for key, value in chain(router).items()}

    def file(self, **more: str) -> Path:
        return self.files.write(self.naming(), **more)

    def write(self, count: int, start: int = 0) -> None:
        for topic in self.topics:
            for partition in range(2):
                groups = [
                    records_of(f"{topic}-{partition}", first, 1000) for first in range(start, start + count, 1000)
                ]
                write(self.a, topic, *groups, partition=partition)

    def contents(self, *, isolation: str = "read_committed") -> dict[tuple[str, int], list[bytes | None]]:
        """The values in the remote topic by source topic and partition, in order."""
        found: dict[tuple[str, int], list[bytes | None]] = {}
        for partition in range(2):
            for one in read(self.b, self.remote, partition, isolation=isolation):
                topic, _, number = (one.key or b"").decode().rpartition("-")
                assert int(number) == partition
                found.setdefault((topic, partition), []).append(one.value)
        return found


@pytest.mark.slow
@pytest.mark.timeout(int(600 * PATIENCE))
@pytest.mark.parametrize("mode", ["disabled", "enabled"])
@pytest.mark.parametrize("way", ["policy", "router"])
def test_two_topics_are_merged_by_a_flow_that_is_killed(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    tmp_path: Path,
    unique: str,
    way: str,
    mode: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given 2 topics with 60,000 records each; when the process is killed twice; validates that each record is there once and in
    order, the configuration of the remote topic, a group's position, and what `plan`, `status`, `gaps`, `lag`, `groups` and
    `verify` report.
    """
    merge = Merge(kafka_a, kafka_b, tmp_path, unique, way)
    one, two = merge.topics
    file = merge.file(**{"B.exactly.once.source.support": mode})
    (document,) = json.loads(asked(capsys, "plan", file, merge.files.flow, "--json")[1])["flows"]
    wanted = f"Topics {one}, {two} of cluster {merge.alias} are copied to the same topic {merge.remote} on B: it gets 3 partitions"
    assert [note for note in document["notes"] if wanted in note and f"the configs of {one}" in note], document
    process: MirrorProcess | None = None
    try:
        for number in range(3):
            process = MirrorProcess(file, merge.files.log(number), "B")
            if number == 0:
                process.eventually(lambda: partitions_of(kafka_b, merge.remote) == 3, 120)
                merge.write(COUNT)
            if number < 2:
                process.eventually(functools.partial(_has, merge, (number + 1) * COUNT // 2), 120)
                process.kill9(whole_family=True)
        assert process is not None
        process.eventually(lambda: sum(map(len, merge.contents().values())) >= 4 * COUNT, 120)
        values = [one.value for one in records_of("", 0, COUNT)]
        assert merge.contents() == {(topic, index): values for topic in merge.topics for index in range(2)}
        assert config_of(kafka_b, merge.remote, "retention.ms") == "-1"
        _check_group(merge, process)
        _check_reports(merge, file, capsys)
        _check_differences(merge, process, file, capsys)
        assert process.stop()[0] == 0
    finally:
        if process is not None:
            process.clean_up()


def _has(merge: Merge, count: int) -> bool:
    return sum(ends(merge.b, merge.remote)) >= count


def _check_group(merge: Merge, process: MirrorProcess) -> None:
    """The group skips no record of either topic, at the smaller one of its positions."""
    at = {(merge.topics[0], 0): COUNT // 2, (merge.topics[1], 0): COUNT // 3}
    commit(merge.a, merge.group, at)
    left = {topic: COUNT - offset for (topic, _), offset in at.items()}
    copied = read(merge.b, merge.remote, 0, isolation="read_committed")

    def unread() -> dict[str, int]:
        """The number of records of each topic that the group has still to read; {} if it has no position."""
        reached = committed(merge.b, merge.group, merge.remote)
        names = [(one.key or b"").decode().rpartition("-")[0] for one in copied if one.offset >= reached >= 0]
        return {topic: names.count(topic) for topic in merge.topics if names}

    process.eventually(unread, 60)
    found = unread()
    assert all(found[topic] >= left[topic] for topic in merge.topics), (found, left)
    # The first position may be one of less evidence.
    process.eventually(lambda: any(found == left[topic] for topic, found in unread().items()), 60)
    found = unread()
    assert all(found[topic] >= left[topic] for topic in merge.topics), (found, left)


def _check_reports(merge: Merge, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flow = merge.files.flow
    assert json.loads(asked(capsys, "gaps", file, flow, "--json")[1])["totals"] == {}
    (status,) = json.loads(asked(capsys, "status", file, flow, "--json")[1])["flows"]
    assert (status["lost_ranges"], status["foreign_records"]) == (0, 0), status
    code, out, err = asked(capsys, "groups", file, flow, "--json")
    assert "offsets are read again" in out, (code, out, err)
    assert _verified(merge, file, capsys) == (
        0,
        {(topic, index): COUNT for topic in merge.topics for index in range(2)},
        {},
    )


def _verified(
    merge: Merge, file: Path, capsys: pytest.CaptureFixture[str]
) -> tuple[int, dict[tuple[str, int], int], dict[str, int]]:
    """The exit code, the number of compared records of each partition that has some, and the differences."""
    code, out, err = asked(capsys, "verify", file, merge.files.flow, "--parallel", "1", "--json")
    document = json.loads(out)
    rows = {(row["topic"], row["partition"]): row["records"] for row in document["partitions"] if row["records"]}
    assert not [row for row in document["partitions"] if row["trouble"]], out + err
    return code, rows, document["differences"]


def _check_differences(merge: Merge, process: MirrorProcess, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record of another producer in the remote topic is not taken for one of the other source topic."""
    write(merge.b, merge.remote, [Record(b"foreign-0", b"of an application")], partition=0)
    before = sum(ends(merge.b, merge.remote))
    for topic in merge.topics:
        write(merge.a, topic, records_of(f"{topic}-0", COUNT, 1), partition=0)
    process.eventually(lambda: sum(map(len, merge.contents().values())) >= 4 * COUNT + 3, 60)
    assert sum(ends(merge.b, merge.remote)) >= before + 2
    process.eventually(lambda: _verified(merge, file, capsys)[0] == 1, 60)  # the ledger follows
    code, rows, counts = _verified(merge, file, capsys)
    assert (code, set(counts)) == (1, {"extra"}), counts
    assert rows[merge.topics[0], 0] == COUNT + 1


@pytest.mark.parametrize("way", ["policy", "router"])
def test_topics_with_preserved_offsets_are_not_merged(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str, way: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """By the names in the file, and by a pattern: validates that both topics are named at start, in `plan` and in the log."""
    merge = Merge(kafka_a, kafka_b, tmp_path, unique, way)
    one, two = merge.topics
    message = (
        f"{one} and {two} have the same remote topic {merge.remote}, which can have the offsets of one of them only"
    )
    flow = merge.files.flow
    named = merge.file(**{f"{flow}.preserve.offsets": "true", f"{flow}.topics": f"{one},{two}"})
    ((code, output),) = refused([[str(named), "--clusters", "B"]])
    assert code == 2
    assert message in output
    file = merge.file(**{f"{flow}.preserve.offsets": "true"})
    (document,) = json.loads(asked(capsys, "plan", file, flow, "--json")[1])["flows"]
    assert [error for error in document["troubles"] if message in error], document
    process = MirrorProcess(file, merge.files.log(0), "B")
    try:
        process.eventually(lambda: message in process.log.read_text(), 120)
    finally:
        process.clean_up()
