"""The worker as container of connectors and tasks (A25, A26, A27), and single tasks: sinks (A28), sources (A29, A30),
converters (A43), offset readers (A50)."""

from __future__ import annotations

import time
from pathlib import Path

import httpx
import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.integration.connect_toy import CONNECTOR as COUNTING
from tests.support.waiting import PATIENCE, wait_until
from tests.systems.sink_events import BYTES, SINK, committed, events_of, produce, put, sink_props
from tests.systems.workers import DistributedWorker, distributed_props

INTEGER = "org.apache.kafka.connect.converters.IntegerConverter"
IN_BYTES = {"key.converter": BYTES, "value.converter": BYTES, "header.converter": BYTES}


@pytest.fixture
def topic(broker: LocalKafka, unique: str) -> str:
    create_topic(broker.bootstrap, unique, 2)
    return unique


def counting(topic: str, **more: str) -> dict[str, str]:
    return {"connector.class": COUNTING, "topic": topic, **IN_BYTES, **more}


def counts(bootstrap: str, topic: str, task: int = 0) -> list[int]:
    return [int(m.value()) for m in read_all(bootstrap, topic) if m.key() == f"task-{task}".encode()]


def test_a25_each_task_has_a_thread_with_its_name(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    events = folder / "events"
    worker.rest.create(topic, sink_props(topic, topic, events, tasks__max="3"))
    worker.rest.await_running(topic, 3)
    starts = {event["task"]: event["thread"] for event in events_of(events, "start")}
    assert starts == {number: f"task-thread-{topic}-{number}" for number in range(3)}
    produce(broker.bootstrap, topic, ["a", "b", "c"])
    wait_until(lambda: len(put(events)) == 3)
    # Rebalance callbacks run in the task's own thread, too.
    assert {event["thread"] for event in events_of(events, "open")} <= set(starts.values())
    worker.rest.delete(topic)


def test_a25_a_bad_converter_fails_its_own_task_only(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    produce(broker.bootstrap, topic, ["four bytes these are not"])
    worker.rest.create(f"{topic}-bad", sink_props(f"{topic}-bad", topic, folder / "bad", value__converter=INTEGER))
    worker.rest.create(f"{topic}-good", sink_props(f"{topic}-good", topic, folder / "good"))
    wait_until(lambda: worker.rest.states(f"{topic}-bad") == ["RUNNING", "FAILED"])
    trace = worker.rest.status(f"{topic}-bad")["tasks"][0]["trace"]
    assert "Tolerance exceeded in error handler" in trace
    wait_until(lambda: put(folder / "good") == ["'four bytes these are not'"])
    worker.rest.await_running(f"{topic}-good", 1)
    for name in (f"{topic}-bad", f"{topic}-good"):
        worker.rest.delete(name)


def test_a26_a_connector_whose_start_blocks_blocks_no_other(
    worker: DistributedWorker, topic: str, folder: Path
) -> None:
    blocked = sink_props(f"{topic}-blocked", topic, folder / "blocked", block__start="45")
    worker.rest.create(f"{topic}-blocked", blocked)
    began = time.monotonic()
    worker.rest.create(topic, sink_props(topic, topic, folder / "events"))
    worker.rest.await_running(topic, 1)
    assert worker.rest.http.get("/health").status_code == 200
    assert time.monotonic() - began < 20 * PATIENCE
    assert worker.rest.states(f"{topic}-blocked") in ([""], ["UNASSIGNED"])
    for name in (f"{topic}-blocked", topic):
        worker.rest.delete(name)


def test_a27_a_task_that_throws_is_failed_with_its_stack_trace_and_the_others_run(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    events = folder / "events"
    worker.rest.create(topic, sink_props(topic, topic, events, tasks__max="2"))
    worker.rest.await_running(topic, 2)
    wait_until(lambda: len({p for event in events_of(events, "open") for p in event["partitions"]}) == 2)
    (first,) = [event["task"] for event in events_of(events, "open") if f"{topic}-0" in event["partitions"]]
    produce(broker.bootstrap, topic, [f"fail not {1 - first}"], partition=0)
    wait_until(lambda: sorted(worker.rest.states(topic)[1:]) == ["FAILED", "RUNNING"], detail=worker.tail)
    (failed,) = [task for task in worker.rest.status(topic)["tasks"] if task["state"] == "FAILED"]
    assert f"ValueError: configured to fail by fail not {1 - first}" in failed["trace"]
    assert "Exiting WorkerSinkTask due to unrecoverable exception." in failed["trace"]
    # The other one continues and takes over the tasks of the failed one.
    wait_until(lambda: repr(f"fail not {1 - first}") in put(events), detail=worker.tail)
    produce(broker.bootstrap, topic, ["fine"], partition=1)
    wait_until(lambda: "'fine'" in put(events), detail=worker.tail)
    assert worker.rest.states(topic)[0] == "RUNNING"
    worker.rest.delete(topic)


def test_a28_group_offsets_follow_put_and_a_clean_stop_causes_no_duplicate(
    broker: LocalKafka, topic: str, folder: Path
) -> None:
    events, group = folder / "events", f"connect-{topic}"
    props = distributed_props(broker.bootstrap, f"{topic}-workers")
    with DistributedWorker(folder / "one", {**props, "offset.flush.interval.ms": "600000"}) as worker:
        worker.rest.create(topic, sink_props(topic, topic, events))
        worker.rest.await_running(topic, 1)
        produce(broker.bootstrap, topic, [f"one {n}" for n in range(20)], partition=0)
        wait_until(lambda: len(put(events)) == 20)
        assert f"{topic}-0" not in committed(broker.bootstrap, group)  # the interval is not over
        worker.stop()
    assert committed(broker.bootstrap, group) == {f"{topic}-0": 20}
    kinds = [event["event"] for event in events_of(events) if event["event"] != "put"]
    assert kinds[-3:] == ["flush", "close", "stop"]
    produce(broker.bootstrap, topic, [f"two {n}" for n in range(5)], partition=0)
    with DistributedWorker(folder / "two", {**props, "offset.flush.interval.ms": "300"}) as worker:
        wait_until(lambda: len(put(events)) >= 25, detail=worker.tail)
        wait_until(lambda: committed(broker.bootstrap, group) == {f"{topic}-0": 25}, detail=worker.tail)
    assert put(events) == [repr(f"one {n}") for n in range(20)] + [repr(f"two {n}") for n in range(5)]


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a29_a_broker_outage_loses_no_record_and_offsets_are_never_ahead(
    tmp_path_factory: pytest.TempPathFactory, unique: str, folder: Path
) -> None:
    # The first record creates the topic; the toy's records are years old, and retention would delete them after half a minute.
    by_itself = {"auto.create.topics.enable": "true", "log.retention.ms": "-1"}
    with LocalKafka("C", tmp_path_factory.mktemp("broker"), overrides=by_itself) as broker:
        with DistributedWorker(folder, distributed_props(broker.bootstrap, unique)) as worker:
            worker.rest.create(unique, counting(unique, **{"pause.s": "0.005"}))
            worker.rest.await_running(unique, 1)
            worker.rest.create(f"{unique}-sink", sink_props(f"{unique}-sink", unique, folder / "events"))
            # The first records prove that the topic exists.
            wait_until(lambda: len(put(folder / "events")) > 50 and len(counts(broker.bootstrap, unique)) > 100)
            broker.kill9()
            time.sleep(2)
            broker.start()
            before = len(counts(broker.bootstrap, unique))
            wait_until(lambda: len(counts(broker.bootstrap, unique)) > before + 200, 60, detail=worker.tail)
            worker.rest.await_running(unique, 1)
            worker.rest.await_running(f"{unique}-sink", 1)
            wait_until(lambda: len(set(put(folder / "events"))) > before + 100, 60, detail=worker.tail)
            for _ in range(3):
                offset = worker.rest.offsets(unique)[0]["offset"]["count"]
                assert offset <= max(counts(broker.bootstrap, unique))
            # Between send and commit: committed records exist, and the successor continues after them.
            worker.kill9()
            there = counts(broker.bootstrap, unique)
        with DistributedWorker(folder / "next", distributed_props(broker.bootstrap, unique)) as worker:
            worker.rest.await_running(unique, 1)
            wait_until(lambda: max(counts(broker.bootstrap, unique)) > max(there) + 50, 60, detail=worker.tail)
        written = counts(broker.bootstrap, unique)
        assert sorted(set(written)) == list(range(1, max(written) + 1)), "a record is missing"
        read = {int(value.strip("'")) for value in put(folder / "events")}
        assert read == set(range(1, max(read) + 1)), "the sink has missed a record"


def test_a30_offsets_are_written_once_an_interval_while_data_flow_and_not_when_idle(
    broker: LocalKafka, topic: str, folder: Path
) -> None:
    source, offsets = folder / "source.txt", f"{topic}-workers-offsets"
    source.write_text("")
    props = {**distributed_props(broker.bootstrap, f"{topic}-workers"), "offset.flush.interval.ms": "1000"}

    def written() -> int:
        return len(read_all(broker.bootstrap, offsets))

    with DistributedWorker(folder, props) as worker, source.open("a") as growing:
        config = {"connector.class": "FileStreamSource", "file": str(source), "topic": topic}
        worker.rest.create(topic, config)
        worker.rest.await_running(topic, 1)
        began = time.monotonic()
        while time.monotonic() - began < 6:
            growing.write("a line\n")
            growing.flush()
            time.sleep(0.1)
        wait_until(lambda: worker.rest.offsets(topic)[0]["offset"] == {"position": source.stat().st_size})
        flowing = written()
        assert 2 <= flowing <= (time.monotonic() - began) / 1.0 + 2
        time.sleep(3)
        assert written() == flowing


def test_a43_a_sink_gets_the_values_that_its_converters_return(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    produce(broker.bootstrap, topic, ["ä text"], key=b"k", headers=[("n", b"42"), ("t", "ü".encode())])
    strings = sink_props(f"{topic}-s", topic, folder / "strings")
    raw = sink_props(f"{topic}-b", topic, folder / "bytes", value__converter=BYTES, header__converter=BYTES)
    for props in (strings, raw):
        worker.rest.create(props["name"], props)
    wait_until(lambda: len(put(folder / "strings")) == len(put(folder / "bytes")) == 1)
    (text,), (data,) = events_of(folder / "strings", "put"), events_of(folder / "bytes", "put")
    assert (text["value"], text["schema"]) == ("'ä text'", "STRING")
    assert text["headers"] == [["n", "42"], ["t", "'ü'"]]
    assert (data["value"], data["schema"]) == (repr("ä text".encode()), "BYTES")
    assert data["headers"] == [["n", "b'42'"], ["t", repr("ü".encode())]]
    assert data["key"] == "'k'"
    for props in (strings, raw):
        worker.rest.delete(props["name"])


def test_a50_a_restarted_task_reads_the_offset_that_rest_shows(
    worker: DistributedWorker, broker: LocalKafka, topic: str
) -> None:
    worker.rest.create(topic, counting(topic))
    worker.rest.await_running(topic, 1)
    wait_until(lambda: len(counts(broker.bootstrap, topic)) > 20)
    worker.rest.stop(topic)
    (shown,) = worker.rest.offsets(topic)
    assert shown["partition"] == {"number": 0, "toy": "é"}
    assert counts(broker.bootstrap, topic)[-1] == shown["offset"]["count"]
    changed = {"offsets": [{"partition": shown["partition"], "offset": {"count": 1_000_000}}]}
    worker.rest.ask("PATCH", f"/connectors/{topic}/offsets", json=changed)
    worker.rest.resume(topic)
    wait_until(lambda: counts(broker.bootstrap, topic)[-1] > 1_000_000, detail=worker.tail)
    assert 1_000_001 in counts(broker.bootstrap, topic)
    worker.rest.delete(topic)


def test_a27_unknown_task_state_is_404_and_a_restarted_task_runs_again(
    worker: DistributedWorker, broker: LocalKafka, topic: str, folder: Path
) -> None:
    events = folder / "events"
    worker.rest.create(topic, sink_props(topic, topic, events, errors__tolerance="all"))
    worker.rest.await_running(topic, 1)
    assert worker.rest.http.get(f"/connectors/{topic}/tasks/7/status").status_code == httpx.codes.NOT_FOUND
    produce(broker.bootstrap, topic, ["fail once"], partition=0)
    wait_until(lambda: worker.rest.states(topic) == ["RUNNING", "FAILED"])
    # Final until it is restarted; then it fails again at the same record, which was not committed.
    time.sleep(1)
    assert worker.rest.states(topic) == ["RUNNING", "FAILED"]
    starts = len(events_of(events, "start"))
    worker.rest.ask("POST", f"/connectors/{topic}/tasks/0/restart", expect=204)
    wait_until(lambda: len(events_of(events, "start")) == starts + 1 and worker.rest.states(topic)[1] == "FAILED")
    assert committed(broker.bootstrap, f"connect-{topic}").get(f"{topic}-0", 0) == 0
    assert SINK in str(worker.rest.get(f"/connectors/{topic}"))
    worker.rest.delete(topic)
