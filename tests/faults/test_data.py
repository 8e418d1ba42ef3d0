"""Topics and records are created, deleted, or written by another producer (rows D of docs/reference/reliability.md)."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.faults.environment import (
    COPYING_BLOCKED,
    COPYING_CONTINUES_WITH_NOTE,
    Addressed,
    Environment,
    MirrorMaker,
    ReplicatedTopic,
    Topics,
    kill,
    members,
    running_mirror_maker,
)
from tests.faults.oracle import ClusterTopic, Judgment, Ledger, Reader, Rows, Snapshot, compare
from tests.integration.asking import asked
from tests.support.waiting import wait_until

_NOTICED_S = 30.0


@pytest.fixture(scope="module")
def mirror_maker(shared_environment: Environment) -> Iterator[MirrorMaker]:
    environment = shared_environment
    through = (environment.network_a.address, environment.network_b.address)
    with running_mirror_maker(
        environment.folder / "D", "D", source=environment.a, target=environment.b, through=through, topics=12
    ) as flow:
        yield flow


@pytest.fixture
def other(environment: Environment, mirror_maker: MirrorMaker) -> ReplicatedTopic:
    """A topic that the test does not change."""
    return ReplicatedTopic(environment.a, environment.b, mirror_maker, mirror_maker.unused.pop(0), 2)


def write(broker: Addressed, topic: str, partition: int, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "enable.idempotence": True, "log_level": 0})
    for value in values:
        producer.produce(topic, value, b"k", partition)
    assert producer.flush(30) == 0


def numbered(what: str, count: int) -> list[bytes]:
    return [f"{what} {index}".encode() for index in range(count)]


def values(broker: Addressed, topic: str, partition: int = 0) -> list[bytes | None]:
    reader = Reader(broker.bootstrap, "read_committed")
    try:
        return [message.value() for message in reader.messages(topic, partition)]
    finally:
        reader.close()


def one_topic_after_another(before: Snapshot, replicated: ReplicatedTopic, environment: Environment) -> Judgment:
    """The remote topic of a recreated topic has all records of the first topic, then all of the second."""
    judgment = Judgment()
    after = Snapshot.of(ClusterTopic(environment.a.bootstrap, replicated.topic))
    reader = Reader(environment.b.bootstrap, "read_committed")
    try:
        for partition in range(replicated.partitions):
            wanted = before.partitions[partition][0] + after.partitions[partition][0]
            got = Rows.of(reader.messages(replicated.remote, partition))
            compare(judgment, partition, wanted, got, {})
    finally:
        reader.close()
    return judgment


def lost_ranges(
    environment: Environment, mirror_maker: MirrorMaker, replicated: ReplicatedTopic, partition: int
) -> list[tuple[int, int, str]]:
    entry = Ledger.read(environment.b.bootstrap, mirror_maker.alias).entries.get(
        (replicated.topic, partition), {"lost": []}
    )
    return [(first, after, reason) for first, after, reason, _ in entry["lost"]]


def test_d1_a_deleted_source_topic_is_reported_once_and_its_remote_topic_is_kept(
    replicated: ReplicatedTopic, other: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load(), other.load():
        replicated.await_copied()
    replicated.judge().assert_exactly_once()
    copied = replicated.arrived()
    reported = len(mirror_maker.lines(COPYING_BLOCKED))
    with other.load():
        Topics(environment.a).delete(replicated.topic)
        wait_until(
            lambda: mirror_maker.lines("Topics have disappeared", topics=[replicated.topic]),
            _NOTICED_S,
            what="the log message",
            detail=mirror_maker.tail,
        )
        other.await_copied()
        time.sleep(3)
    other.judge().assert_exactly_once()
    assert replicated.arrived() == copied
    assert len(mirror_maker.lines(COPYING_BLOCKED)) - reported <= 2 * replicated.partitions, mirror_maker.lines(
        COPYING_BLOCKED
    )[reported:]


def test_d2_a_topic_that_is_deleted_and_recreated_is_copied_from_its_start(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load(1000):
        replicated.await_copied(records=1000)
    replicated.judge().assert_exactly_once()
    before = Snapshot.of(ClusterTopic(environment.a.bootstrap, replicated.topic))
    topics = Topics(environment.a)
    topics.delete(replicated.topic)
    topics.create(replicated.topic, partitions=replicated.partitions)
    for partition in range(replicated.partitions):
        write(environment.a, replicated.topic, partition, numbered("second", 50))
    judged = Judgment(lost=["not compared yet"])

    def whole() -> bool:
        nonlocal judged
        judged = one_topic_after_another(before, replicated, environment)
        return not judged.lost

    wait_until(whole, 45, what="copying of the new topic", detail=mirror_maker.tail)
    judged.assert_exactly_once()
    assert mirror_maker.lines("source topic recreated", partition=replicated.topic)


def test_d3_d5_changes_while_no_process_copied_are_detected_at_the_start(
    replicated: ReplicatedTopic, other: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    """Two topics, one restart: `replicated` is deleted and recreated, `other` loses records before they were copied."""
    with replicated.load(1000), other.load(1000):
        replicated.await_copied(records=500)
    for each in (replicated, other):
        each.judge().assert_exactly_once()
    before = Snapshot.of(ClusterTopic(environment.a.bootstrap, replicated.topic))
    mirror_maker.stop()
    topics = Topics(environment.a)
    topics.delete(replicated.topic)
    topics.create(replicated.topic, partitions=replicated.partitions)
    copied = other.ends()
    for partition in range(2):
        write(environment.a, replicated.topic, partition, numbered("second", 50))
        write(environment.a, other.topic, partition, numbered("late", 200))
    everything = Snapshot.of(ClusterTopic(environment.a.bootstrap, other.topic))
    topics.delete_before(other.topic, {partition: copied[partition] + 150 for partition in range(2)})
    mirror_maker.start()
    judged = Judgment(lost=["not compared yet"])

    def whole() -> bool:
        nonlocal judged
        judged = one_topic_after_another(before, replicated, environment)
        return not judged.lost

    wait_until(whole, 60, what="copying of the new topic", detail=mirror_maker.tail)
    judged.assert_exactly_once()
    judgment = other.judge(ledger=True, source=everything)
    judgment.assert_exactly_once()
    judgment.assert_explained()
    assert judgment.gaps == Counter(retention=300)
    assert lost_ranges(environment, mirror_maker, other, 0) == [(copied[0], copied[0] + 150, "retention")]
    lines = mirror_maker.lines("records lost to retention", partition=other.topic)
    assert {(line["partition"], line["first"], line["last"]) for line in lines} == {
        (f"{other.topic}-{partition}", copied[partition], copied[partition] + 149) for partition in range(2)
    }


def test_d4_records_deleted_by_retention_before_they_were_copied_are_reported_and_recorded(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    with replicated.load():
        replicated.await_copied()
    replicated.judge().assert_exactly_once()
    copied = replicated.ends()
    environment.network_a.freeze()
    for partition in range(2):
        write(environment.a, replicated.topic, partition, numbered("late", 2000))
    everything = Snapshot.of(ClusterTopic(environment.a.bootstrap, replicated.topic))
    # The responses that the broker sent before the network froze are still in flight.
    Topics(environment.a).delete_before(
        replicated.topic, {partition: copied[partition] + 1500 for partition in range(2)}
    )
    environment.network_a.reset()
    environment.network_a.heal()
    judgment = replicated.judge(ledger=True, source=everything)
    judgment.assert_exactly_once()
    judgment.assert_explained()
    assert 0 < judgment.gaps["retention"] <= 3000
    for partition in range(2):
        ((first, after, reason),) = lost_ranges(environment, mirror_maker, replicated, partition)
        assert first >= copied[partition]
        assert (after, reason) == (copied[partition] + 1500, "retention")
    assert mirror_maker.lines("records lost to retention", partition=replicated.topic)
    # Copying continues, so the first line and the exit code must report the loss.
    code, status, _ = asked(capsys, "status", mirror_maker.file, "--timeout", "60")
    line = re.search(r"D->B  [A-Z_]+  .* Permanently lost within the last day: (.*); see mm2 gaps\.\n", status)
    assert code == 1
    assert line, status
    newest = [
        f"to {copied[partition] + 1499} of {replicated.topic}-{partition}, deleted on D before"
        for partition in range(2)
    ]
    assert any(words in line[1] for words in newest), status
    assert asked(capsys, "gaps", mirror_maker.file, "D->B")[0] == 1


def test_d6_new_partitions_are_copied_from_their_first_record_within_30_s(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load():
        replicated.await_copied()
        Topics(environment.a).grow(replicated.topic, 4)
        began_s = time.monotonic()
        for partition in (2, 3):
            write(environment.a, replicated.topic, partition, numbered("first", 100))
        wait_until(
            lambda: Topics(environment.b).partitions(replicated.remote) == 4,
            _NOTICED_S,
            what="new partitions",
            detail=mirror_maker.tail,
        )
        wait_until(
            lambda: len(values(environment.b, replicated.remote, 3)) == 100,
            _NOTICED_S,
            what="copying of the new ones",
            detail=mirror_maker.tail,
        )
        took_s = time.monotonic() - began_s
    assert took_s < _NOTICED_S
    replicated.judge().assert_exactly_once()


def test_d7_partitions_added_on_the_target_only_do_not_move_keys(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load():
        replicated.await_copied()
        Topics(environment.b).grow(replicated.remote, 4)
        time.sleep(4)  # two refreshes
        replicated.await_copied()
    replicated.judge().assert_exactly_once()
    assert [len(values(environment.b, replicated.remote, partition)) for partition in (2, 3)] == [0, 0]
    assert mirror_maker.lines(
        f"Topic {replicated.remote} on cluster B has 4 partitions and its source 2", level="warning"
    )


def test_d8_a_deleted_remote_topic_is_not_recreated_silently(
    replicated: ReplicatedTopic, other: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load(), other.load():
        replicated.await_copied()
        Topics(environment.b).delete(replicated.remote)
        wait_until(
            lambda: mirror_maker.lines(COPYING_BLOCKED, reason=replicated.remote),
            _NOTICED_S,
            what="the log message",
            detail=mirror_maker.tail,
        )
        stopped = {f"{replicated.topic}-{partition}" for partition in range(2)}
        wait_until(
            lambda: stopped <= {line["partition"] for line in mirror_maker.lines("partition stopped")},
            _NOTICED_S,
            what="stopping",
            detail=mirror_maker.tail,
        )
        ends = replicated.ends()
        time.sleep(3)
        other.await_copied()
        assert replicated.ends() == ends, "records are written although the missing records are unknown"
    other.judge().assert_exactly_once()


def test_d8_a_remote_topic_that_is_deleted_at_rest_is_reported_at_once(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    """Nothing is written that would show it. At its next start the flow creates the topic again."""
    with replicated.load():
        replicated.await_copied()
    replicated.judge().assert_exactly_once()
    Topics(environment.b).delete(replicated.remote)
    wait_until(
        lambda: mirror_maker.lines(COPYING_BLOCKED, reason=replicated.remote),
        _NOTICED_S,
        what="the log message",
        detail=mirror_maker.tail,
    )
    mirror_maker.stop()
    mirror_maker.start()
    wait_until(
        lambda: mirror_maker.lines("Remote topics were deleted and are created again, empty."),
        _NOTICED_S,
        what="the log message",
        detail=mirror_maker.tail,
    )
    stopped = {f"{replicated.topic}-{partition}" for partition in range(2)}
    wait_until(
        lambda: stopped <= {line["partition"] for line in mirror_maker.lines("partition stopped", state="RECREATED")},
        _NOTICED_S,
        what="stopping",
        detail=mirror_maker.tail,
    )


@pytest.mark.slow
def test_d9_records_of_another_producer_on_the_remote_topic_are_reported_and_harmless(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    with replicated.load():
        replicated.await_copied()
        for number in range(3):
            write(environment.b, replicated.remote, 0, numbered(f"foreign {number}", 5))
            replicated.await_copied()
        mirror_maker.stop()
        write(environment.b, replicated.remote, 0, numbered("foreign while stopped", 5))
        mirror_maker.start()
        replicated.await_copied()
    judgment = replicated.judge()
    assert len(judgment.altered) == 20, str(judgment)
    judgment.altered.clear()
    judgment.assert_exactly_once()
    assert mirror_maker.lines("another producer writes to a remote topic", partition=f"{replicated.remote}-0")
    wait_until(
        lambda: _foreign(environment, mirror_maker, replicated) == 20, 10, what="counting", detail=mirror_maker.tail
    )


def _foreign(environment: Environment, mirror_maker: MirrorMaker, replicated: ReplicatedTopic) -> int:
    return int(Ledger.read(environment.b.bootstrap, mirror_maker.alias).entries[replicated.topic, 0]["foreign"])


@pytest.mark.slow
def test_d8_a_deleted_ledger_loses_no_record_but_exactness_at_the_next_crash(
    replicated: ReplicatedTopic, mirror_maker: MirrorMaker, environment: Environment
) -> None:
    ledger = f"mm2-ledger.{mirror_maker.alias}.internal"
    with replicated.load():
        replicated.await_copied()
        Topics(environment.b).delete(ledger)
        wait_until(
            lambda: mirror_maker.lines(COPYING_CONTINUES_WITH_NOTE, reason="at least once"),
            _NOTICED_S,
            what="the log message",
            detail=mirror_maker.tail,
        )
        replicated.await_copied()
        assert kill(members(mirror_maker.process, "worker"))
        wait_until(
            lambda: mirror_maker.lines("The ledger was deleted"), 60, what="the log message", detail=mirror_maker.tail
        )
        replicated.await_copied(60)
    replicated.judge().assert_at_least_once()
    # The ledger exists again, so records are copied exactly once from now on.
    with replicated.load():
        wait_until(
            lambda: (replicated.topic, 0) in Ledger.read(environment.b.bootstrap, mirror_maker.alias).entries,
            90,
            what="an entry",
            detail=mirror_maker.tail,
        )
