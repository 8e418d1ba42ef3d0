"""A sink task with ``group.protocol=consumer`` (KIP-848) that was stopped for longer than its session timeout."""

from __future__ import annotations

import struct
import time
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic
from tests.integration.mirror_process import partitions_of
from tests.support.waiting import PATIENCE, wait_until
from tests.systems.sink_events import committed, events_of, produce, sink_props
from tests.systems.workers import StandaloneWorker, shorten_session

PARTITIONS = 4
#: Longer than it takes to put some records and to stop the process.
_COMMIT_S = 2.0 + 2.0 * PATIENCE


def member(folder: Path, broker: LocalKafka, topic: str, events: Path) -> StandaloneWorker:
    """A worker with one sink task. Standalone workers know nothing of each other: their tasks share only the sink's group."""
    folder.mkdir()
    connector = folder / "sink.properties"
    config = sink_props(topic, topic, events) | {"consumer.override.group.protocol": "consumer"}
    connector.write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    props = {"bootstrap.servers": broker.bootstrap, "offset.flush.interval.ms": str(int(_COMMIT_S * 1000))}
    return StandaloneWorker(folder, props, [connector])


def held(events: Path) -> dict[int, set[str]]:
    """The open partitions of each process."""
    now: dict[int, set[str]] = defaultdict(set)
    for event in events_of(events, "open", "close"):
        if event["event"] == "open":
            now[event["pid"]].update(event["partitions"])
        else:
            now[event["pid"]].difference_update(event["partitions"])
    return now


def put_by(events: Path, pid: int) -> list[tuple[str, int]]:
    """(partition, offset) of each record that a process has put, in order."""
    return [(f"{e['topic']}-{e['partition']}", e["offset"]) for e in events_of(events, "put") if e["pid"] == pid]


def all_put(events: Path) -> Counter[tuple[str, int]]:
    return Counter((f"{e['topic']}-{e['partition']}", e["offset"]) for e in events_of(events, "put"))


def before_the_loss(events: Path, pid: int, since: float) -> set[tuple[str, int]]:
    """What a process has put after this time and before it gave up its partitions: the records of a Fetch response that was on
    its way when it was stopped.
    """
    found: set[tuple[str, int]] = set()
    for event in events_of(events, "put", "close"):
        if event["pid"] == pid and event["at"] >= since:
            if event["event"] == "close":
                return found
            found.add((f"{event['topic']}-{event['partition']}", event["offset"]))
    raise AssertionError("the process has not given up its partitions")


def write(broker: LocalKafka, topic: str, text: str, each: int) -> None:
    for partition in range(PARTITIONS):
        produce(broker.bootstrap, topic, [f"{text}{number}" for number in range(each)], partition=partition)


def commits_of(broker: LocalKafka, group: str) -> dict[str, list[int]]:
    """Every offset that was ever committed for the group, by partition and in order, from `__consumer_offsets`.

    Keys and values are Kafka's OffsetCommitKey and OffsetCommitValue; later fields of the value are not needed.
    """
    name = "__consumer_offsets"
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "reader", "enable.partition.eof": True})
    count, ended = partitions_of(broker, name), 0
    found: dict[str, list[int]] = defaultdict(list)
    try:
        consumer.assign([TopicPartition(name, partition, 0) for partition in range(count)])
        deadline = time.monotonic() + 60 * PATIENCE
        while ended < count:
            assert time.monotonic() < deadline, "the offsets topic could not be read to its end"
            for message in consumer.consume(500, 0.1):
                error = message.error()
                if error is not None:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended += 1
                elif (where := _committed_for(message.key(), group)) and (value := message.value()):
                    found[where].append(struct.unpack_from(">q", value, 2)[0])
        return found
    finally:
        consumer.close()


def _committed_for(key: Any, group: str) -> str | None:
    """The partition in an OffsetCommitKey of this group; None for other keys."""
    (version,) = struct.unpack_from(">h", key)
    if version > 1:
        return None
    texts, rest = [], key[2:]
    for _ in range(2):
        (length,) = struct.unpack_from(">h", rest)
        texts.append(rest[2 : 2 + length].decode())
        rest = rest[2 + length :]
    return f"{texts[1]}-{struct.unpack('>i', rest)[0]}" if texts[0] == group else None


@pytest.mark.slow
@pytest.mark.timeout(int(240 * PATIENCE))
def test_a_stopped_task_is_fenced_and_joins_again_without_committing_anything(
    kafka_b: LocalKafka, unique: str, tmp_path: Path
) -> None:
    """Given two tasks in a group, one of them stopped with SIGSTOP after it has put records and before it has committed
    them; when it continues after the other one has taken over its partitions and has committed more; validates that no
    commit of it is accepted, that it joins again, that no record is lost, and that only its uncommitted records, and those
    of a response that was on its way, are put twice.
    """
    topic, group, events = unique, f"connect-{unique}", tmp_path / "events"
    create_topic(kafka_b.bootstrap, topic, PARTITIONS)
    shorten_session(kafka_b.bootstrap, group)
    one, two = (member(tmp_path / name, kafka_b, topic, events) for name in ("one", "two"))
    partitions = {f"{topic}-{partition}" for partition in range(PARTITIONS)}

    def is_committed(offset: int, wanted: set[str] = partitions) -> bool:
        """Whether each partition has this committed offset; one without any has not."""
        return {committed(kafka_b.bootstrap, group).get(partition) for partition in wanted} == {offset}

    with one, two:
        wait_until(lambda: [len(held(events)[worker.pid]) for worker in (one, two)] == [2, 2], 60, detail=one.tail)
        mine = held(events)[one.pid]
        write(kafka_b, topic, "first", 5)
        # Its next commit follows an interval after this one; the other task commits at other times.
        wait_until(lambda: is_committed(5, mine), 60, detail=one.tail)
        write(kafka_b, topic, "uncommitted", 5)
        wait_until(lambda: len(put_by(events, one.pid)) == 20, 60, detail=one.tail)
        one.freeze()
        stopped_at = time.time()
        before = committed(kafka_b.bootstrap, group)
        uncommitted = {record for record in put_by(events, one.pid) if record[1] >= before[record[0]]}
        write(kafka_b, topic, "taken over", 5)
        everything = {(f"{topic}-{partition}", offset) for partition in range(PARTITIONS) for offset in range(15)}
        wait_until(lambda: all_put(events).keys() == everything, 60, detail=two.tail)
        wait_until(lambda: is_committed(15), 60, detail=two.tail)

        one.thaw()
        wait_until(lambda: "the coordinator has removed this member" in one.log.read_text(), 60, detail=one.tail)
        wait_until(lambda: [len(held(events)[worker.pid]) for worker in (one, two)] == [2, 2], 60, detail=one.tail)
        write(kafka_b, topic, "both again", 5)
        everything |= {(f"{topic}-{partition}", offset) for partition in range(PARTITIONS) for offset in range(15, 20)}
        wait_until(lambda: all_put(events).keys() == everything, 60, detail=one.tail)
        wait_until(lambda: is_committed(20), 60, detail=one.tail)
        twice = {record for record, times in all_put(events).items() if times > 1}
        assert twice <= uncommitted | before_the_loss(events, one.pid, stopped_at)
        assert uncommitted, "the task was stopped between a put and the commit"
    log = one.log.read_text()
    removed = next(line for line in log.splitlines() if "the coordinator has removed this member" in line)
    assert "FENCED_MEMBER_EPOCH" in removed or "UNKNOWN_MEMBER_ID" in removed, removed
    lost = next(line for line in log.splitlines() if "partitions lost" in line)
    assert all(partition in lost for partition in mine), lost
    # The other task had committed 15 for each of them: 10 would be a commit of the task that was stopped.
    history = commits_of(kafka_b, group)
    assert history.keys() == partitions
    for partition, offsets in history.items():
        assert offsets == sorted(offsets), f"{partition}: {offsets}"
