"""Flows whose replication policy changes between two starts: copying continues at its position, in a topic with another name.

Records of a test are numbered, so each of them is known in both topics.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import Traffic, create, producer_of
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import (
    ROOT,
    MirrorProcess,
    checkpoints,
    delete,
    ends,
    grow,
    partitions_of,
    records,
    topics_of,
    write_config,
)
from tests.support.waiting import PATIENCE, wait_until

PARTITIONS = 2
IDENTITY = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
DASHES = {"replication.policy.separator": "-"}
#: `exactly.once.source.support` of consecutive starts.
_KILLS = 15
MODES = {
    "disabled": ("disabled",),
    "enabled": ("enabled",),
    "alternating": ("disabled", "enabled", "enabled", "disabled"),
}

pytestmark = pytest.mark.timeout(int(600 * PATIENCE))


class FlowFiles:
    """Files of one flow with different policies."""

    def __init__(self, folder: Path, alias: str, clusters: tuple[LocalKafka, LocalKafka], **flow: str) -> None:
        self._folder = folder
        self.alias = alias
        source, target = clusters
        keys = {"enabled": "true", "heartbeats.replication.enabled": "false", **flow}
        self._props = {f"{alias}->B.{key.replace('__', '.')}": value for key, value in keys.items()}
        self._props |= {"clusters": f"{alias}, B", f"B->{alias}.enabled": "false", "emit.heartbeats.enabled": "false"}
        self._props |= {f"{alias}.bootstrap.servers": source.bootstrap, "B.bootstrap.servers": target.bootstrap}
        self._count = 0

    @property
    def flow(self) -> str:
        return f"{self.alias}->B"

    def write(self, policy: Mapping[str, str], **more: str) -> Path:
        self._count += 1
        props = self._props | dict(policy) | {key.replace("__", "."): value for key, value in more.items()}
        return write_config(self._folder / f"{self._count}.properties", props)

    def log(self, number: int) -> Path:
        return self._folder / f"{number}.log"


def create_here(broker: LocalKafka, topic: str) -> None:
    create(broker, topic, PARTITIONS)
    wait_until(lambda: partitions_of(broker, topic) == PARTITIONS)


def numbers(broker: LocalKafka, topic: str) -> list[list[int]]:
    """The numbered records of a topic, by partition; no records while it does not exist."""
    found = [[int(row.value or b"") for row in rows] for rows in records(broker, topic)]
    return found or [[] for _ in range(PARTITIONS)]


def has_changed_topics(process: MirrorProcess) -> bool:
    """Whether all partitions have left the topic with the old name; once more after each micro-batch that is lost before."""
    changes = process.lines(event="the remote topic has another name")
    return len({line["partition"] for line in changes}) == PARTITIONS


def forget_configs(target: LocalKafka, alias: str) -> None:
    """Delete the stored configurations of a flow that does not run. Otherwise tasks start with the old policy, and copy
    until the leader has written the new one.
    """
    delete(target, f"mm2-configs.{alias}.internal")


def has_records(broker: LocalKafka, topic: str, count: int) -> bool:
    return sum(ends(broker, topic)) >= count


def has_more_everywhere(broker: LocalKafka, topic: str, before: list[int], more: int) -> bool:
    """Whether each partition has so many more offsets than before, outside open transactions."""
    now = ends(broker, topic, stable=True)
    return len(now) == PARTITIONS and all(end >= known + more for end, known in zip(now, before, strict=True))


def write(broker: LocalKafka, topic: str, first: int, after: int) -> None:
    producer = producer_of(broker)
    for number in range(first, after):
        producer.produce(topic, b"%d" % number, b"k", number % PARTITIONS)
    assert producer.flush(60) == 0


def assert_complete(source: list[list[int]], *topics: list[list[int]], is_exact: bool = False) -> None:
    """No record is missing, or twice in a topic, and each topic has the order of the source. Records that a killed process
    had not committed may be in several topics, except in exactly-once mode.
    """
    for index, wanted in enumerate(source):
        found = [number for topic in topics for number in topic[index]]
        assert {*found} == {*wanted}, f"partition {index}: {len(wanted)} records, {len(found)} found"
        assert not is_exact or len(found) == len(wanted)
    for topic in topics:
        assert topic == [sorted({*rows}) for rows in topic]


@pytest.mark.slow
@pytest.mark.parametrize("mode", MODES)
def test_no_record_is_lost_where_the_policy_changes_after_each_kill(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    tmp_path: Path,
    unique: str,
    mode: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Given a flow that is killed after a commit, and started with another policy, two times out of three; validates that no
    record is missing and, in exactly-once mode, that each is in one topic; that no group offset is past a record,
    and that nothing is reported lost.
    """
    alias, topic, group = f"k{unique[-6:]}", f"{unique}-killed", f"{unique}-group"
    create_here(kafka_a, topic)
    settings = {"sync__group__offsets__enabled": "true", "sync__group__offsets__interval__seconds": "1"}
    settings["replication__policy__internal__topic__separator__enabled"] = "false"
    files = FlowFiles(tmp_path, alias, (kafka_a, kafka_b), topics=topic, groups=f"{group}.*", **settings)
    separators = [".", *("-" * (1 + number * 2 // 3) for number in range(_KILLS))]
    remotes = [f"{alias}{separator}{topic}" for separator in separators]
    process: MirrorProcess | None = None
    try:
        with Traffic(kafka_a, topic, PARTITIONS, per_second=1_000) as traffic:
            for number, (separator, remote) in enumerate(zip(separators, remotes, strict=True)):
                modes = MODES[mode]
                policy = {"replication.policy.separator": separator}
                file = files.write(policy, **{"B.exactly.once.source.support": modes[number % len(modes)]})
                before = ends(kafka_b, remote) or [0] * PARTITIONS
                commits = sum(ends(kafka_b, f"mm2-offsets.{alias}.internal"))
                process = MirrorProcess(file, files.log(number), "B")
                process.eventually(functools.partial(has_more_everywhere, kafka_b, remote, before, 1_500), 120)
                process.eventually(
                    functools.partial(has_records, kafka_b, f"mm2-offsets.{alias}.internal", commits + PARTITIONS), 120
                )
                if number in {1, 3}:
                    process.eventually(functools.partial(has_changed_topics, process))
                if number < _KILLS:
                    process.kill9(whole_family=True)
                    forget_configs(kafka_b, alias)
            traffic.finish()
        assert process is not None
        source, remote = numbers(kafka_a, topic), remotes[-1]
        last = [rows[-1:] for rows in source]
        process.eventually(lambda: [rows[-1:] for rows in numbers(kafka_b, remote)] == last, 120)
        found = [numbers(kafka_b, name) for name in dict.fromkeys(remotes)]
        assert_complete(source, *found, is_exact=mode == "enabled")
        check_groups(process, kafka_a, kafka_b, topic, alias, remote, group)
        assert process.stop()[0] == 0
    finally:
        if process is not None:
            process.clean_up()
    code, out, err = asked(capsys, "gaps", file, files.flow, "--json")
    assert code == 0, err
    assert json.loads(out)["totals"] == {}
    assert_verified(file, files.flow, next(name for name in reversed(remotes) if name != remotes[-1]))
    print(f"{mode}: {_KILLS} kills, {traffic.sent} records")  # noqa: T201


def plan_notes(file: Path, flow: str, capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What `mm2 plan` reports about the names of remote topics."""
    (document,) = json.loads(asked(capsys, "plan", file, flow, "--json")[1])["flows"]
    return [note for note in document["notes"] if " names" in note]


def assert_verified(file: Path, flow: str, former: str) -> None:
    """`mm2 verify` finds no difference, and names the topic that has the other records."""
    command = [sys.executable, "-P", "-m", "mm2.cli.mm2", "verify", str(file), flow, "--parallel", "1"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"to remote topics with other names, most recently to topic {former}" in done.stdout


def check_groups(
    process: MirrorProcess, source: LocalKafka, target: LocalKafka, topic: str, alias: str, remote: str, group: str
) -> None:
    """A group in the newest part continues at its record; one in a part that is in the other topic skips nothing."""
    here, there = records(source, topic)[0], records(target, remote)[0]
    offset_of = {row.value: row.offset for row in there}
    newest, old = here[-50], here[len(here) // 3]
    commit(source, f"{group}-late", {(topic, 0): old.offset})
    commit(source, f"{group}-new", {(topic, 0): newest.offset})
    process.eventually(lambda: committed(target, f"{group}-new", remote) == offset_of[newest.value], 60)
    unread = [offset_of[row.value] for row in here if row.offset >= old.offset and row.value in offset_of]
    translated = [
        downstream for (name, _, _), (_, downstream, _) in _checkpoints(target, alias, remote) if "-late" in name
    ]
    assert all(offset <= min(unread) for offset in translated)
    assert (committed(target, f"{group}-late", remote) or 0) <= min(unread)


def _checkpoints(
    target: LocalKafka, alias: str, remote: str
) -> list[tuple[tuple[str, str, int], tuple[int, int, str]]]:
    return [row for row in checkpoints(target, f"{alias}.checkpoints.internal").items() if row[0][1] == remote]


def test_a_running_process_applies_the_change(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given a flow under load; when its file changes; validates that no record is missing, or twice in a topic."""
    alias, topic = f"k{unique[-6:]}", f"{unique}-live"
    create_here(kafka_a, topic)
    files = FlowFiles(tmp_path, alias, (kafka_a, kafka_b), topics=topic)
    file, changed = files.write({}), files.write(IDENTITY)
    process = MirrorProcess(file, files.log(0), "B")
    try:
        with Traffic(kafka_a, topic, PARTITIONS, per_second=1_000) as traffic:
            process.eventually(functools.partial(has_records, kafka_b, f"{alias}.{topic}", 1_000), 120)
            file.write_text(changed.read_text())
            process.eventually(functools.partial(has_records, kafka_b, topic, 1_000), 120)
            traffic.finish()
        source = numbers(kafka_a, topic)
        last = [rows[-1:] for rows in source]
        process.eventually(lambda: [rows[-1:] for rows in numbers(kafka_b, topic)] == last, 120)
        assert_complete(source, numbers(kafka_b, f"{alias}.{topic}"), numbers(kafka_b, topic))
        assert process.stop()[0] == 0
    finally:
        process.clean_up()


@pytest.mark.slow
def test_groups_do_not_skip_records_of_the_new_topic(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given groups that have consumed a part of the records before the policy changes; validates that offset syncs of the
    old topic, which are higher than all offsets of the new one, move none of them in the new one, and that `mm2 plan`
    announces the names.
    """
    alias, topic, group = f"k{unique[-6:]}", f"{unique}-groups", f"{unique}-group"
    create_here(kafka_a, topic)
    write(kafka_a, topic, 0, 4_000)
    groups = {"groups": f"{group}.*", "sync__group__offsets__enabled": "true"}
    groups["sync__group__offsets__interval__seconds"] = "1"
    files = FlowFiles(tmp_path, alias, (kafka_a, kafka_b), topics=topic, offset__lag__max="10", **groups)
    old, new = f"{alias}.{topic}", f"{alias}-{topic}"
    process = MirrorProcess(files.write({}), files.log(0), "B")
    try:
        commit(kafka_a, f"{group}-1", {(topic, 0): 1_000})
        process.eventually(lambda: committed(kafka_b, f"{group}-1", old) == 1_000)
        assert process.stop()[0] == 0
        changed = files.write(DASHES)
        (note,) = plan_notes(changed, files.flow, capsys)
        assert f"names: {old} -> {new}. Copying continues at the current positions" in note
        process = MirrorProcess(changed, files.log(1), "B")
        process.eventually(functools.partial(has_changed_topics, process))
        write(kafka_a, topic, 4_000, 4_400)
        process.eventually(lambda: sum(ends(kafka_b, new)) == 400)
        for name, offset in (
            (f"{group}-1", 1_500),
            (f"{group}-2", 2_000),
            (f"{group}-3", 2_150),
            (f"{group}-4", 2_200),
        ):
            commit(kafka_a, name, {(topic, 0): offset})
        process.eventually(lambda: committed(kafka_b, f"{group}-4", new) == 200)
        process.eventually(lambda: committed(kafka_b, f"{group}-3", new) == 150)
        process.eventually(lambda: committed(kafka_b, f"{group}-2", new) == 0)
        process.eventually(lambda: committed(kafka_b, f"{group}-1", new) == 0)
        assert committed(kafka_b, f"{group}-1", old) == 1_000, "as at the last start with the old policy"
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    assert numbers(kafka_b, old) == [list(range(index, 4_000, 2)) for index in range(PARTITIONS)]


@pytest.mark.slow
def test_records_in_flight_to_a_topic_that_is_deleted_are_copied_again(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Given a flow that is killed with uncommitted records, whose remote topic is then deleted, and a topic with the new
    name that has other records; validates that nothing is skipped, and nothing is twice in the new topic.
    """
    alias, topic = f"k{unique[-6:]}", f"{unique}-deleted"
    old, new = f"{alias}.{topic}", f"{alias}-{topic}"
    create_here(kafka_a, topic)
    create_here(kafka_b, new)
    write(kafka_b, new, -10, 0)
    files = FlowFiles(tmp_path, alias, (kafka_a, kafka_b), topics=topic, copy__commit__interval__ms="10000")
    process = MirrorProcess(files.write({}), files.log(0), "B")
    try:
        with Traffic(kafka_a, topic, PARTITIONS, per_second=1_000) as traffic:
            process.eventually(lambda: sum(ends(kafka_b, old)) > 3_000, 120)
            process.kill9(whole_family=True)
            first = numbers(kafka_b, old)
            delete(kafka_b, old)
            forget_configs(kafka_b, alias)
            changed = files.write(DASHES)
            renamed, existing = plan_notes(changed, files.flow, capsys)
            assert f"{old} -> {new}" in renamed
            assert existing == f"Topics with the new names exist already, records are appended: {new}."
            process = MirrorProcess(changed, files.log(1), "B")
            process.eventually(lambda: sum(ends(kafka_b, new)) > 500, 120)
            traffic.finish()
        source = numbers(kafka_a, topic)
        process.eventually(lambda: [rows[-1:] for rows in numbers(kafka_b, new)] == [rows[-1:] for rows in source], 120)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    for index, rows in enumerate(numbers(kafka_b, new)):
        foreign, copied = rows[:5], rows[5:]
        assert foreign == list(range(-10, 0))[index::2]
        assert copied == source[index][-len(copied) :], "every record from the first on, once"
        assert {*first[index], *copied} == {*source[index]}
    assert old not in topics_of(kafka_b)


@pytest.mark.slow
def test_a_topic_may_get_the_name_that_another_remote_topic_had(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given topics `x` and `k.x` of the source cluster k, whose copies are `k.x` and `k.k.x`; when the policy changes to
    identity naming after a kill, so the copy of `k.x` gets the name that the copy of `x` had; validates that no record is
    missing, or twice in a topic.
    """
    alias, plain = f"k{unique[-6:]}", f"{unique}-x"
    dotted = f"{alias}.{plain}"
    for name in (plain, dotted):
        create_here(kafka_a, name)
    files = FlowFiles(
        tmp_path,
        alias,
        (kafka_a, kafka_b),
        topics=rf"{plain},{alias}\.{plain}",
        copy__commit__interval__ms="10000",
    )
    process = MirrorProcess(files.write({}), files.log(0), "B")
    try:
        write(kafka_a, plain, 0, 2_000)
        write(kafka_a, dotted, 100_000, 102_000)
        process.eventually(lambda: sum(ends(kafka_b, dotted)) == sum(ends(kafka_b, f"{alias}.{dotted}")) == 2_000)
        process.kill9(whole_family=True)
        forget_configs(kafka_b, alias)
        write(kafka_a, plain, 2_000, 2_500)
        write(kafka_a, dotted, 102_000, 102_500)
        process = MirrorProcess(files.write(IDENTITY), files.log(1), "B")
        process.eventually(lambda: sum(ends(kafka_b, plain)) >= 500 and sum(ends(kafka_b, dotted)) >= 2_500, 120)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    both = numbers(kafka_b, dotted)
    of_plain = [[number for number in rows if number < 100_000] for rows in both]
    of_dotted = [[number for number in rows if number >= 100_000] for rows in both]
    assert_complete(numbers(kafka_a, plain), of_plain, numbers(kafka_b, plain))
    assert_complete(numbers(kafka_a, dotted), numbers(kafka_b, f"{alias}.{dotted}"), of_dotted)


@pytest.mark.slow
def test_the_policy_changes_together_with_all_that_may_change(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given a flow that is killed with uncommitted records; when its policy, isolation level and topics change, the source
    topic gets a partition, and topics with the new names exist with fewer partitions and other records; validates that no
    record is missing, or twice in a topic.
    """
    alias, topic, added = f"k{unique[-6:]}", f"{unique}-all", f"{unique}-added"
    old, new = f"{alias}.{topic}", f"{alias}-{topic}"
    create_here(kafka_a, topic)
    create_here(kafka_a, added)
    create(kafka_b, new, 1)
    write(kafka_a, added, 0, 1_000)
    files = FlowFiles(tmp_path, alias, (kafka_a, kafka_b), copy__commit__interval__ms="10000")
    process = MirrorProcess(files.write({}, **{f"{files.flow}.topics": topic}), files.log(0), "B")
    try:
        with Traffic(kafka_a, topic, PARTITIONS, per_second=1_000) as traffic:
            # A partition whose lane has not begun has no name to change.
            process.eventually(functools.partial(has_more_everywhere, kafka_b, old, [0] * PARTITIONS, 1_000), 120)
            process.kill9(whole_family=True)
            foreign = producer_of(kafka_b)
            foreign.produce(new, b"-1", b"k", 0)
            assert foreign.flush(60) == 0
            forget_configs(kafka_b, alias)
            grow(kafka_a, topic, PARTITIONS + 1)
            producer = producer_of(kafka_a)
            for number in range(10_000_000, 10_000_500):
                producer.produce(topic, b"%d" % number, b"k", PARTITIONS)
            assert producer.flush(60) == 0
            more = {f"{files.flow}.topics": f"{topic},{added}", f"{alias}.consumer.isolation.level": "read_committed"}
            process = MirrorProcess(files.write(DASHES, **more), files.log(1), "B")
            process.eventually(functools.partial(has_changed_topics, process))
            process.eventually(functools.partial(has_records, kafka_b, new, 1_000), 120)
            traffic.finish()
        source, remote = numbers(kafka_a, topic), f"{alias}-{added}"
        last = [rows[-1:] for rows in source]
        process.eventually(lambda: [rows[-1:] for rows in numbers(kafka_b, new)] == last, 120)
        process.eventually(lambda: numbers(kafka_b, remote) == numbers(kafka_a, added), 120)
        assert process.stop()[0] == 0
    finally:
        process.clean_up()
    copied = numbers(kafka_b, new)
    assert copied[0][0] == -1
    assert_complete(source, [*numbers(kafka_b, old), []], [copied[0][1:], *copied[1:]])


@pytest.mark.slow
def test_java_continues_in_the_same_way_and_each_can_take_over(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """Given flows of Java's MirrorMaker 2 and of ours under load; when their separator changes, twice, with ours in Java's
    place at the second time; validates that each topic continues where the one before it ends.
    """
    topic, separators = f"{unique}-java", (".", "-", "-from-")
    aliases = {"java": f"j{unique[-6:]}", "ours": f"k{unique[-6:]}"}
    create_here(kafka_a, topic)
    folders = {name: tmp_path / name for name in aliases}
    for folder in folders.values():
        folder.mkdir()
    files = {name: FlowFiles(folders[name], alias, (kafka_a, kafka_b), topics=topic) for name, alias in aliases.items()}
    with Traffic(kafka_a, topic, PARTITIONS, per_second=200):
        for number, separator in enumerate(separators):
            for name, alias in aliases.items():
                remote = f"{alias}{separator}{topic}"
                create_here(kafka_b, remote)  # the broker would create it for Java with one partition
                file = files[name].write({"replication.policy.separator": separator})
                kind = JavaMirrorProcess if name == "java" and number < 2 else MirrorProcess
                process = kind(file, files[name].log(number), "B")
                try:
                    process.eventually(
                        functools.partial(has_more_everywhere, kafka_b, remote, [0] * PARTITIONS, 100), 120
                    )
                    assert process.stop()[0] in {0, 143}
                finally:
                    process.clean_up()
    source = numbers(kafka_a, topic)
    for alias in aliases.values():
        parts = [numbers(kafka_b, f"{alias}{separator}{topic}") for separator in separators]
        for index in range(PARTITIONS):
            copied = [number for part in parts for number in part[index]]
            assert copied == source[index][: len(copied)], f"{alias}, partition {index}"
            assert all(part[index] for part in parts)
