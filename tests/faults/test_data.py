"""Topics and records are created, deleted, or written by another producer (rows D of docs/RELIABILITY.md)."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer

from tests.faults.oracle import Judgment, Ledger, Place, Reader, Rows, Snapshot, compare
from tests.faults.stage import HELD_UP, NOTED, Addressed, Mirror, Play, Stage, Topics, kill, members
from tests.faults.stage import mirror as running_mirror
from tests.integration.asking import asked
from tests.support.waiting import wait_until

_NOTICED_S = 30.0


@pytest.fixture(scope="module")
def mirror(shared_stage: Stage) -> Iterator[Mirror]:
    stage = shared_stage
    through = (stage.network_a.address, stage.network_b.address)
    with running_mirror(stage.folder / "D", "D", source=stage.a, target=stage.b, through=through, topics=12) as flow:
        yield flow


@pytest.fixture
def other(stage: Stage, mirror: Mirror) -> Play:
    """A topic that nothing is done to."""
    return Play(stage.a, stage.b, mirror, mirror.unused.pop(0), 2)


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


def one_topic_after_another(before: Snapshot, play: Play, stage: Stage) -> Judgment:
    """The remote topic of a recreated topic: all records of the first one, then all of the second."""
    judgment = Judgment()
    after = Snapshot.of(Place(stage.a.bootstrap, play.topic))
    reader = Reader(stage.b.bootstrap, "read_committed")
    try:
        for partition in range(play.partitions):
            wanted = before.partitions[partition][0] + after.partitions[partition][0]
            got = Rows.of(reader.messages(play.remote, partition))
            compare(judgment, partition, wanted, got, {})
    finally:
        reader.close()
    return judgment


def lost_ranges(stage: Stage, mirror: Mirror, play: Play, partition: int) -> list[tuple[int, int, str]]:
    entry = Ledger.read(stage.b.bootstrap, mirror.alias).entries.get((play.topic, partition), {"lost": []})
    return [(first, after, reason) for first, after, reason, _ in entry["lost"]]


def test_d1_a_deleted_source_topic_is_reported_once_and_its_remote_topic_is_kept(
    play: Play, other: Play, mirror: Mirror, stage: Stage
) -> None:
    with play.load(), other.load():
        play.await_flow()
    play.judge().assert_exactly_once()
    copied = play.arrived()
    told = len(mirror.lines(HELD_UP))
    with other.load():
        Topics(stage.a).delete(play.topic)
        wait_until(
            lambda: mirror.lines("Topics have disappeared", topics=[play.topic]),
            _NOTICED_S,
            what="telling",
            why=mirror.tail,
        )
        other.await_flow()
        time.sleep(3)
    other.judge().assert_exactly_once()
    assert play.arrived() == copied
    assert len(mirror.lines(HELD_UP)) - told <= 2 * play.partitions, mirror.lines(HELD_UP)[told:]


def test_d2_a_topic_that_is_deleted_and_recreated_is_copied_from_its_start(
    play: Play, mirror: Mirror, stage: Stage
) -> None:
    with play.load(1000):
        play.await_flow(records=1000)
    play.judge().assert_exactly_once()
    before = Snapshot.of(Place(stage.a.bootstrap, play.topic))
    topics = Topics(stage.a)
    topics.delete(play.topic)
    topics.create(play.topic, partitions=play.partitions)
    for partition in range(play.partitions):
        write(stage.a, play.topic, partition, numbered("anew", 50))
    judged = Judgment(lost=["nothing looked at yet"])

    def whole() -> bool:
        nonlocal judged
        judged = one_topic_after_another(before, play, stage)
        return not judged.lost

    wait_until(whole, 45, what="copying of the new topic", why=mirror.tail)
    judged.assert_exactly_once()
    assert mirror.lines("source topic recreated", partition=play.topic)


def test_d3_d5_changes_while_no_process_copied_are_detected_at_the_start(
    play: Play, other: Play, mirror: Mirror, stage: Stage
) -> None:
    """Two topics, one restart: `play` is deleted and recreated, `other` loses records before they were copied."""
    with play.load(1000), other.load(1000):
        play.await_flow(records=500)
    for each in (play, other):
        each.judge().assert_exactly_once()
    before = Snapshot.of(Place(stage.a.bootstrap, play.topic))
    mirror.stop()
    topics = Topics(stage.a)
    topics.delete(play.topic)
    topics.create(play.topic, partitions=play.partitions)
    copied = other.ends()
    for partition in range(2):
        write(stage.a, play.topic, partition, numbered("anew", 50))
        write(stage.a, other.topic, partition, numbered("late", 200))
    everything = Snapshot.of(Place(stage.a.bootstrap, other.topic))
    topics.delete_before(other.topic, {partition: copied[partition] + 150 for partition in range(2)})
    mirror.start()
    judged = Judgment(lost=["nothing looked at yet"])

    def whole() -> bool:
        nonlocal judged
        judged = one_topic_after_another(before, play, stage)
        return not judged.lost

    wait_until(whole, 60, what="copying of the new topic", why=mirror.tail)
    judged.assert_exactly_once()
    judgment = other.judge(ledger=True, source=everything)
    judgment.assert_exactly_once()
    judgment.assert_explained()
    assert judgment.gaps == Counter(retention=300)
    assert lost_ranges(stage, mirror, other, 0) == [(copied[0], copied[0] + 150, "retention")]
    lines = mirror.lines("records lost to retention", partition=other.topic)
    assert {(line["partition"], line["first"], line["last"]) for line in lines} == {
        (f"{other.topic}-{partition}", copied[partition], copied[partition] + 149) for partition in range(2)
    }


def test_d4_records_deleted_by_retention_before_they_were_copied_are_reported_and_recorded(
    play: Play, mirror: Mirror, stage: Stage, capsys: pytest.CaptureFixture[str]
) -> None:
    with play.load():
        play.await_flow()
    play.judge().assert_exactly_once()
    copied = play.ends()
    stage.network_a.freeze()
    for partition in range(2):
        write(stage.a, play.topic, partition, numbered("late", 2000))
    everything = Snapshot.of(Place(stage.a.bootstrap, play.topic))
    # What the broker had answered already when the network froze is on its way.
    Topics(stage.a).delete_before(play.topic, {partition: copied[partition] + 1500 for partition in range(2)})
    stage.network_a.reset()
    stage.network_a.heal()
    judgment = play.judge(ledger=True, source=everything)
    judgment.assert_exactly_once()
    judgment.assert_explained()
    assert 0 < judgment.gaps["retention"] <= 3000
    for partition in range(2):
        ((first, after, reason),) = lost_ranges(stage, mirror, play, partition)
        assert first >= copied[partition]
        assert (after, reason) == (copied[partition] + 1500, "retention")
    assert mirror.lines("records lost to retention", partition=play.topic)
    # Copying continues, so the first sentence and the exit code must report it.
    code, status, _ = asked(capsys, "status", mirror.file, "--timeout", "60")
    said = re.search(r"D->B  [A-Z_]+  .* Permanently lost within the last day: (.*); see mm2 gaps\.\n", status)
    assert code == 1
    assert said, status
    newest = [
        f"to {copied[partition] + 1499} of {play.topic}-{partition}, deleted on D before" for partition in range(2)
    ]
    assert any(words in said[1] for words in newest), status
    assert asked(capsys, "gaps", mirror.file, "D->B")[0] == 1


def test_d6_new_partitions_are_copied_from_their_first_record_within_30_s(
    play: Play, mirror: Mirror, stage: Stage
) -> None:
    with play.load():
        play.await_flow()
        Topics(stage.a).grow(play.topic, 4)
        began_s = time.monotonic()
        for partition in (2, 3):
            write(stage.a, play.topic, partition, numbered("first", 100))
        wait_until(
            lambda: Topics(stage.b).partitions(play.remote) == 4, _NOTICED_S, what="new partitions", why=mirror.tail
        )
        wait_until(
            lambda: len(values(stage.b, play.remote, 3)) == 100,
            _NOTICED_S,
            what="copying of the new ones",
            why=mirror.tail,
        )
        took_s = time.monotonic() - began_s
    assert took_s < _NOTICED_S
    play.judge().assert_exactly_once()


def test_d7_partitions_added_on_the_target_only_do_not_move_keys(play: Play, mirror: Mirror, stage: Stage) -> None:
    with play.load():
        play.await_flow()
        Topics(stage.b).grow(play.remote, 4)
        time.sleep(4)  # two refreshes
        play.await_flow()
    play.judge().assert_exactly_once()
    assert [len(values(stage.b, play.remote, partition)) for partition in (2, 3)] == [0, 0]
    assert mirror.lines(f"Topic {play.remote} on cluster B has 4 partitions and its source 2", level="warning")


def test_d8_a_deleted_remote_topic_is_not_recreated_silently(
    play: Play, other: Play, mirror: Mirror, stage: Stage
) -> None:
    with play.load(), other.load():
        play.await_flow()
        Topics(stage.b).delete(play.remote)
        wait_until(lambda: mirror.lines(HELD_UP, reason=play.remote), _NOTICED_S, what="telling", why=mirror.tail)
        stopped = {f"{play.topic}-{partition}" for partition in range(2)}
        wait_until(
            lambda: stopped <= {line["partition"] for line in mirror.lines("partition stopped")},
            _NOTICED_S,
            what="stopping",
            why=mirror.tail,
        )
        ends = play.ends()
        time.sleep(3)
        other.await_flow()
        assert play.ends() == ends, "something is written though nobody knows what is missing"
    other.judge().assert_exactly_once()


def test_d9_records_of_another_producer_on_the_remote_topic_are_reported_and_harmless(
    play: Play, mirror: Mirror, stage: Stage
) -> None:
    with play.load():
        play.await_flow()
        for number in range(3):
            write(stage.b, play.remote, 0, numbered(f"foreign {number}", 5))
            play.await_flow()
        mirror.stop()
        write(stage.b, play.remote, 0, numbered("foreign while away", 5))
        mirror.start()
        play.await_flow()
    judgment = play.judge()
    assert len(judgment.altered) == 20, str(judgment)
    judgment.altered.clear()
    judgment.assert_exactly_once()
    assert mirror.lines("another producer writes to a remote topic", partition=f"{play.remote}-0")
    wait_until(lambda: _foreign(stage, mirror, play) == 20, 10, what="counting", why=mirror.tail)


def _foreign(stage: Stage, mirror: Mirror, play: Play) -> int:
    return int(Ledger.read(stage.b.bootstrap, mirror.alias).entries[play.topic, 0]["foreign"])


def test_d8_a_deleted_ledger_loses_no_record_but_exactness_at_the_next_crash(
    play: Play, mirror: Mirror, stage: Stage
) -> None:
    ledger = f"mm2-ledger.{mirror.alias}.internal"
    with play.load():
        play.await_flow()
        Topics(stage.b).delete(ledger)
        wait_until(lambda: mirror.lines(NOTED, reason="at least once"), _NOTICED_S, what="telling", why=mirror.tail)
        play.await_flow()
        assert kill(members(mirror.process, "worker"))
        wait_until(lambda: mirror.lines("The ledger was deleted"), 60, what="telling", why=mirror.tail)
        play.await_flow(60)
    play.judge().assert_at_least_once()
    # It is there again, and what is copied from now on is so exactly.
    with play.load():
        wait_until(
            lambda: (play.topic, 0) in Ledger.read(stage.b.bootstrap, mirror.alias).entries,
            90,
            what="an entry",
            why=mirror.tail,
        )
