"""Sink tasks end to end: rebalances of two workers, redelivery, rewind, pause, dead letters."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.systems.sink_events import committed, events_of, produce, put, sink_props
from tests.systems.workers import DistributedWorker, distributed_props, shorten_session

INTEGER = "org.apache.kafka.connect.converters.IntegerConverter"
COOPERATIVE = "org.apache.kafka.clients.consumer.CooperativeStickyAssignor"
EAGER = "org.apache.kafka.clients.consumer.RoundRobinAssignor"
STRATEGY = "consumer.override.partition.assignment.strategy"
#: The coordinator assigns the partitions (KIP-848).
BY_COORDINATOR = {"consumer.override.group.protocol": "consumer"}
ERRORS = "__connect.errors."


@pytest.fixture
def topic(broker: LocalKafka, unique: str) -> str:
    create_topic(broker.bootstrap, unique, 4)
    return unique


def held(events: Path) -> dict[int, set[str]]:
    """The open partitions of each task, from its events."""
    now: dict[int, set[str]] = {}
    for event in events_of(events, "start", "open", "close"):
        mine = now.setdefault(event["task"], set())
        if event["event"] == "start":
            mine.clear()
        elif event["event"] == "open":
            mine.update(event["partitions"])
        else:
            mine.difference_update(event["partitions"])
    return now


def never_shared(events: Path) -> None:
    """Assert that no partition is opened before its previous owner has closed it."""
    owner: dict[str, int] = {}
    for event in events_of(events, "open", "close"):
        for partition in event["partitions"]:
            if event["event"] == "open":
                assert partition not in owner, f"{partition} opened by {event['task']} while {owner[partition]} had it"
                owner[partition] = event["task"]
            else:
                assert owner.pop(partition) == event["task"]


@pytest.mark.parametrize(
    "overrides",
    [pytest.param({STRATEGY: COOPERATIVE}, marks=pytest.mark.slow), {STRATEGY: EAGER}, BY_COORDINATOR],
    ids=["cooperative", "eager", "by the coordinator"],
)
@pytest.mark.timeout(240)
def test_partitions_move_between_two_workers_without_loss_or_duplicate(
    broker: LocalKafka, topic: str, folder: Path, overrides: dict[str, str]
) -> None:
    events, b = folder / "events", broker.bootstrap
    props = distributed_props(b, f"{topic}-workers", by_coordinator=overrides is BY_COORDINATOR)
    config = sink_props(topic, topic, events, tasks__max="2")
    config |= overrides
    with DistributedWorker(folder / "one", props) as one:
        one.rest.create(topic, config)
        one.rest.await_running(topic, 2)
        for number in range(40):
            produce(b, topic, [f"a{number}"], partition=number % 4)
        wait_until(lambda: len(put(events)) == 40, detail=one.tail)
        with DistributedWorker(folder / "two", props) as two:
            wait_until(
                lambda: (
                    {task["worker_id"] for task in one.rest.status(topic)["tasks"]} == {one.worker_id, two.worker_id}
                ),
                60,
                detail=lambda: str(one.rest.status(topic)),
            )
            wait_until(lambda: [len(held(events).get(task, ())) for task in (0, 1)] == [2, 2], 60, detail=one.tail)
            for number in range(40):
                produce(b, topic, [f"b{number}"], partition=number % 4)
            wait_until(lambda: len(put(events)) == 80, detail=one.tail)
            two.stop()
        one.rest.await_running(topic, 2)
        wait_until(lambda: [len(held(events).get(task, ())) for task in (0, 1)] == [2, 2], 60, detail=one.tail)
        for number in range(40):
            produce(b, topic, [f"c{number}"], partition=number % 4)
        wait_until(lambda: len(put(events)) >= 120, detail=one.tail)
        # A new partition causes a rebalance, in which only that one moves with the cooperative protocol.
        opened = Counter(p for event in events_of(events, "open") for p in event["partitions"])
        one.rest.delete(topic)
        wait_until(lambda: all(not mine for mine in held(events).values()), detail=one.tail)
    never_shared(events)
    assert Counter(put(events)) == Counter(repr(f"{x}{n}") for x in "abc" for n in range(40))
    assert committed(b, f"connect-{topic}") == {f"{topic}-{p}": 30 for p in range(4)}
    assert len(opened) == 4


def test_created_and_deleted_topics_change_what_a_pattern_reads(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    from confluent_kafka.admin import AdminClient  # noqa: PLC0415

    events = folder / "events"
    config = sink_props(topic, topic, events) | {
        "topics.regex": rf"{topic}(-\w+)?",
        "consumer.override.metadata.max.age.ms": "500",
        "consumer.override.partition.assignment.strategy": COOPERATIVE,
    }
    del config["topics"]
    worker.rest.create(topic, config)
    worker.rest.await_running(topic, 1)
    produce(broker.bootstrap, topic, ["old"], partition=0)
    wait_until(lambda: put(events) == ["'old'"], detail=worker.tail)
    create_topic(broker.bootstrap, f"{topic}-new")
    produce(broker.bootstrap, f"{topic}-new", ["new"])
    wait_until(lambda: put(events) == ["'old'", "'new'"], detail=worker.tail)
    # It kept the partitions that it had before.
    assert not events_of(events, "close")
    admin = AdminClient({"bootstrap.servers": broker.bootstrap})
    admin.delete_topics([f"{topic}-new"])[f"{topic}-new"].result(60)
    wait_until(
        lambda: [event["partitions"] for event in events_of(events, "close")] == [[f"{topic}-new-0"]],
        detail=worker.tail,
    )
    produce(broker.bootstrap, topic, ["on"], partition=0)
    wait_until(lambda: put(events)[-1] == "'on'", detail=worker.tail)
    assert worker.rest.states(topic) == ["RUNNING", "RUNNING"]
    worker.rest.delete(topic)


def test_a_batch_with_a_retriable_error_is_put_again_before_any_other(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    events = folder / "events"
    worker.rest.create(topic, sink_props(topic, topic, events))
    worker.rest.await_running(topic, 1)
    produce(broker.bootstrap, topic, ["before", "retry this", "after"], partition=0)
    produce(broker.bootstrap, topic, [f"other {n}" for n in range(20)], partition=1)
    wait_until(lambda: len(put(events)) == 23, detail=worker.tail)
    refused = events_of(events, "refused")
    assert len(refused) == 3
    assert len({event["records"] for event in refused}) == 1  # the same batch each time
    assert refused[2]["at"] - refused[0]["at"] >= 0.15  # twice the 100 ms that the task asked for
    assert Counter(put(events)).most_common(1)[0][1] == 1
    wait_until(lambda: committed(broker.bootstrap, f"connect-{topic}") == {f"{topic}-0": 3, f"{topic}-1": 20})
    worker.rest.delete(topic)


def test_a_task_may_rewind_pause_resume_and_request_a_commit(broker: LocalKafka, topic: str, folder: Path) -> None:
    events, commands = folder / "events", folder / "commands"
    obeyed: dict[str, object] = {}

    def order(name: str, do: str, *partitions: int, **more: int) -> None:
        obeyed[name] = {"do": do, "partitions": [[topic, p] for p in partitions], **more}
        fresh = commands.with_suffix(".new")
        fresh.write_text(json.dumps(obeyed))
        fresh.replace(commands)
        produce(broker.bootstrap, topic, [f"for {name}"], partition=3)  # so that put is called
        wait_until(lambda: name in [event["command"] for event in events_of(events, "obeyed")], detail=worker.tail)

    props = {**distributed_props(broker.bootstrap, f"{topic}-workers"), "offset.flush.interval.ms": "600000"}
    with DistributedWorker(folder, props) as worker:
        worker.rest.create(topic, sink_props(topic, topic, events, commands=str(commands)))
        worker.rest.await_running(topic, 1)
        produce(broker.bootstrap, topic, [f"n{n}" for n in range(10)], partition=0)
        wait_until(lambda: len(put(events)) == 10, detail=worker.tail)
        order("back", "rewind", 0, to=7)
        wait_until(lambda: Counter(put(events))["'n9'"] == 2, detail=worker.tail)
        assert Counter(put(events))["'n6'"] == 1
        order("hold", "pause", 0)
        produce(broker.bootstrap, topic, ["held back"], partition=0)
        produce(broker.bootstrap, topic, ["continued"], partition=1)
        wait_until(lambda: "'continued'" in put(events), detail=worker.tail)
        assert "'held back'" not in put(events)
        order("free", "resume", 0)
        wait_until(lambda: "'held back'" in put(events), detail=worker.tail)
        assert committed(broker.bootstrap, f"connect-{topic}") == {}
        order("now", "commit")
        wait_until(lambda: committed(broker.bootstrap, f"connect-{topic}").get(f"{topic}-0") == 11, detail=worker.tail)


def test_a_paused_sink_keeps_its_partitions_commits_and_reads_nothing(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    events = folder / "events"
    worker.rest.create(topic, sink_props(topic, topic, events))
    worker.rest.await_running(topic, 1)
    produce(broker.bootstrap, topic, ["one"], partition=0)
    wait_until(lambda: put(events) == ["'one'"], detail=worker.tail)
    worker.rest.pause(topic)
    wait_until(lambda: worker.rest.states(topic) == ["PAUSED", "PAUSED"])
    wait_until(lambda: committed(broker.bootstrap, f"connect-{topic}") == {f"{topic}-0": 1})
    produce(broker.bootstrap, topic, ["two"], partition=0)
    flushes = len(events_of(events, "flush"))
    wait_until(lambda: len(events_of(events, "flush")) >= flushes + 3, detail=worker.tail)  # it is running
    assert put(events) == ["'one'"]
    assert not events_of(events, "close")
    worker.rest.resume(topic)
    wait_until(lambda: put(events) == ["'one'", "'two'"], detail=worker.tail)
    worker.rest.await_running(topic, 1)  # records do not wait for the status topic
    assert len(events_of(events, "start")) == 1
    worker.rest.delete(topic)


@pytest.mark.timeout(240)
@pytest.mark.parametrize("overrides", [{}, BY_COORDINATOR], ids=["classic", "by the coordinator"])
def test_a_worker_killed_between_put_and_commit_has_its_records_delivered_again(
    broker: LocalKafka, topic: str, folder: Path, overrides: dict[str, str]
) -> None:
    events = folder / "events"
    by_coordinator = overrides is BY_COORDINATOR
    props = distributed_props(broker.bootstrap, f"{topic}-workers", by_coordinator=by_coordinator)
    props["offset.flush.interval.ms"] = "600000"
    config = sink_props(topic, topic, events) | overrides
    if by_coordinator:
        shorten_session(broker.bootstrap, f"connect-{topic}")
    with DistributedWorker(folder / "one", props) as one:
        one.rest.create(topic, config)
        one.rest.await_running(topic, 1)
        produce(broker.bootstrap, topic, [f"n{n}" for n in range(10)], partition=0)
        wait_until(lambda: len(put(events)) == 10, detail=one.tail)
        one.kill9()
    with DistributedWorker(folder / "two", props) as two:
        wait_until(lambda: len(put(events)) == 20, 90, detail=two.tail)
    assert put(events)[10:] == put(events)[:10]


@pytest.mark.timeout(400)
def test_the_coordinator_moves_the_partitions_of_a_killed_task(broker: LocalKafka, topic: str, folder: Path) -> None:
    """Two workers with a task each. No record is lost, and a recreated connector continues at the offsets."""
    events, b = folder / "events", broker.bootstrap
    props = {**distributed_props(b, f"{topic}-workers", by_coordinator=True), "offset.flush.interval.ms": "500"}
    wanted: list[str] = []
    shorten_session(b, f"connect-{topic}")

    def more(text: str) -> None:
        for number in range(20):
            produce(b, topic, [f"{text}{number}"], partition=number % 4)
            wanted.append(repr(f"{text}{number}"))

    def all_committed() -> bool:
        return committed(b, f"connect-{topic}") == {f"{topic}-{p}": len(wanted) // 4 for p in range(4)}

    with DistributedWorker(folder / "one", props) as one:
        one.rest.create(topic, sink_props(topic, topic, events, tasks__max="2") | BY_COORDINATOR)
        with DistributedWorker(folder / "two", props) as two:
            wait_until(
                lambda: (
                    {task["worker_id"] for task in one.rest.status(topic)["tasks"]} == {one.worker_id, two.worker_id}
                ),
                90,
            )
            one.rest.await_running(topic, 2)
            wait_until(lambda: [len(held(events).get(task, ())) for task in (0, 1)] == [2, 2], 90, detail=one.tail)
            more("both")
            wait_until(all_committed, 60, detail=one.tail)
            two.kill9()
            more("killed")
            # The coordinator waits for the session timeout of the dead member before it moves its partitions.
            wait_until(lambda: set(put(events)) == set(wanted), 120, detail=one.tail)
            wait_until(all_committed, 60, detail=one.tail)
        one.rest.await_running(topic, 2)
        one.rest.delete(topic)
        more("deleted")
        one.rest.create(topic, sink_props(topic, topic, events, tasks__max="2") | BY_COORDINATOR)
        wait_until(lambda: set(put(events)) == set(wanted), 60, detail=one.tail)
        wait_until(all_committed, 60, detail=one.tail)
    # Everything was committed before the kill: nothing is delivered twice.
    assert Counter(put(events)) == Counter(wanted)


def test_bad_records_go_to_the_dead_letters_with_their_error_and_the_others_arrive(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    events, letters = folder / "events", f"{topic}-dlq"
    config = sink_props(topic, topic, events, value__converter=INTEGER, errors__tolerance="all")
    config |= {
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
    }
    worker.rest.create(topic, config)
    worker.rest.await_running(topic, 1)
    good = (7).to_bytes(4, "big")
    produce(broker.bootstrap, topic, [good, b"not four", good], partition=2, key=b"k", headers=[("h", b"1")])
    wait_until(lambda: put(events) == ["7", "7"], detail=worker.tail)
    wait_until(lambda: len(read_all(broker.bootstrap, letters)) == 1, detail=worker.tail)
    (letter,) = read_all(broker.bootstrap, letters)
    assert (letter.key(), letter.value()) == (b"k", b"not four")
    headers = dict(letter.headers())
    assert letter.headers()[0] == ("h", b"1")
    assert headers[f"{ERRORS}topic"] == topic.encode()
    assert headers[f"{ERRORS}partition"] == b"2"
    assert headers[f"{ERRORS}offset"] == b"1"
    assert headers[f"{ERRORS}connector.name"] == topic.encode()
    assert headers[f"{ERRORS}task.id"] == b"0"
    assert headers[f"{ERRORS}stage"] == b"VALUE_CONVERTER"
    assert headers[f"{ERRORS}class.name"] == INTEGER.encode()
    assert headers[f"{ERRORS}exception.class.name"] == b"org.apache.kafka.connect.errors.DataException"
    assert b"Traceback" in headers[f"{ERRORS}exception.stacktrace"]
    wait_until(lambda: committed(broker.bootstrap, f"connect-{topic}") == {f"{topic}-2": 3})
    worker.rest.delete(topic)


def test_records_that_a_task_reports_are_in_the_dead_letters_before_their_offsets_are_committed(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    events, letters = folder / "events", f"{topic}-dlq"
    config = sink_props(topic, topic, events, errors__tolerance="all") | {
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        # The dead letter contains the original record, not the transformed one.
        "transforms": "route",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.route.regex": ".*",
        "transforms.route.replacement": "elsewhere",
        "value.converter": "org.apache.kafka.connect.storage.StringConverter",
    }
    worker.rest.create(topic, config)
    worker.rest.await_running(topic, 1)
    produce(broker.bootstrap, topic, ["fine", "bad one", "fine too"], partition=1)
    wait_until(lambda: put(events) == ["'fine'", "'fine too'"], detail=worker.tail)
    assert {(e["topic"], *e["original"][:2]) for e in events_of(events, "put")} == {("elsewhere", topic, 1)}
    wait_until(lambda: committed(broker.bootstrap, f"connect-{topic}") == {f"{topic}-1": 3}, detail=worker.tail)
    (letter,) = read_all(broker.bootstrap, letters)
    headers = dict(letter.headers())
    assert letter.value() == b"bad one"
    assert headers[f"{ERRORS}topic"] == topic.encode()
    assert headers[f"{ERRORS}stage"] == b"TASK_PUT"
    assert headers[f"{ERRORS}class.name"] == b"org.apache.kafka.connect.sink.SinkTask"
    assert headers[f"{ERRORS}exception.message"] == b"this is bad one"
    worker.rest.delete(topic)


def test_a_reported_record_fails_the_task_when_no_error_is_tolerated(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    config = sink_props(topic, topic, folder / "events") | {"errors.log.enable": "true"}
    worker.rest.create(topic, config)
    worker.rest.await_running(topic, 1)
    produce(broker.bootstrap, topic, ["bad"], partition=0)
    wait_until(lambda: worker.rest.states(topic) == ["RUNNING", "FAILED"], detail=worker.tail)
    assert "Tolerance exceeded in error handler" in worker.rest.status(topic)["tasks"][0]["trace"]
    assert committed(broker.bootstrap, f"connect-{topic}").get(f"{topic}-0", 0) == 0
    worker.rest.delete(topic)
