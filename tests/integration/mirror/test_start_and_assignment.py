"""Start positions of flows and the assignment of partitions to tasks, with the whole program.

One process runs five flows from the same broker, each with its own alias and start position.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import create, producer_of
from tests.integration.mirror_process import MirrorProcess, ends, is_running, records, table, write_config
from tests.support.proxy import Proxy
from tests.support.waiting import wait_until

pytestmark = pytest.mark.timeout(240)

HOUR_MS = 3_600_000
#: Age of the records of each partition in hours; partition 1 has no new ones.
AGES = {0: (3, 2, 1), 1: (3, 2)}
PER_AGE = 10
TOPIC = "start-t"
SOURCES = ("time", "file", "behind", "latest", "recent")
CONNECTOR = "MirrorSourceConnector"


@dataclass
class Environment:
    """Two brokers, a file for the flows between them, and their start settings."""

    source: LocalKafka
    target: LocalKafka
    folder: Path
    now_ms: int
    starts: int = 0

    def start(self, *others: str, **start_from: str) -> MirrorProcess:
        """A process with these flows, by alias of their source."""
        aliases = (*start_from, *others)
        props = {
            "clusters": ", ".join((*aliases, "B")),
            **{f"{alias}.bootstrap.servers": self.source.bootstrap for alias in aliases},
            "B.bootstrap.servers": self.target.bootstrap,
            **{f"{alias}->B.enabled": "true" for alias in aliases},
            **{f"{alias}->B.start.from": value for alias, value in start_from.items()},
            "tasks.max": "1",
            "topics": "start-.*",
            "heartbeats.replication.enabled": "false",
        }
        own = {
            "latest->B.consumer.auto.offset.reset": "latest",
            "recent->B.consumer.auto.offset.reset": "by_duration:PT90M",
            "recent->B.tasks.max": "2",
        }
        props.update({key: value for key, value in own.items() if key.startswith(others)})
        self.starts += 1
        file = write_config(self.folder / "mm2.properties", props)
        return MirrorProcess(file, self.folder / f"process-{self.starts}.log", "B")

    def at(self, hours: float) -> int:
        """That many hours ago, in ms."""
        return self.now_ms - int(hours * HOUR_MS)

    def write(self, topic: str, partition: int, value: bytes, *, age_h: float = 0, count: int = PER_AGE) -> None:
        producer = producer_of(self.source)
        for index in range(count):
            producer.produce(topic, b"%s %d" % (value, index), partition=partition, timestamp=self.at(age_h))
        assert producer.flush(30) == 0

    def copied(self, alias: str) -> list[list[bytes | None]]:
        return [[record.value for record in rows] for rows in records(self.target, f"{alias}.{TOPIC}")]

    def shares(self, alias: str) -> list[str]:
        """The partitions of each task of a flow, from the config topic."""
        rows = table(self.target, f"mm2-configs.{alias}.internal")
        found = []
        for index in range(2):
            value, _ = rows.get(b"task-%s-%d" % (CONNECTOR.encode(), index), (None, 0))
            found.append("" if value is None else json.loads(value)["properties"]["task.assigned.partitions"])
        return found


@pytest.fixture(scope="module")
def env(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    made = Environment(*kafka_pair, tmp_path_factory.mktemp("start"), int(time.time() * 1000))
    create(made.source, TOPIC, 2)
    for partition, ages in AGES.items():
        for age in ages:
            made.write(TOPIC, partition, b"%d h" % age, age_h=age)
    return made


@pytest.fixture(scope="module")
def running(env: Environment) -> Iterator[MirrorProcess]:
    offsets = env.folder / "offsets.csv"
    offsets.write_text(f"# of the old cluster\n{TOPIC},0,17\n")
    an_hour_and_a_half_ago = datetime.fromtimestamp(env.at(1.5) / 1000, UTC).isoformat()
    behind = env.folder / "behind.csv"
    behind.write_text(f"{TOPIC},0,1000\n{TOPIC},1,5\n")
    process = env.start(
        "latest", "recent", time=an_hour_and_a_half_ago, file=f"file:{offsets}", behind=f"file:{behind}"
    )
    yield process
    process.clean_up()


def values(*ages: int) -> list[bytes]:
    return [b"%d h %d" % (age, index) for age in ages for index in range(PER_AGE)]


EVERYTHING = [values(*ages) for ages in AGES.values()]


def test_a_flow_starts_where_it_is_configured_to(env: Environment, running: MirrorProcess) -> None:
    # From a time: at the first record that is not older; a partition without one starts at its end.
    running.eventually(lambda: ends(env.target, f"time.{TOPIC}") == [10, 0], 90)
    running.eventually(lambda: ends(env.target, f"recent.{TOPIC}") == [10, 0])
    # From a file: at these offsets; partitions that it does not list start by auto.offset.reset.
    running.eventually(lambda: ends(env.target, f"file.{TOPIC}") == [13, 20])
    assert env.copied("time") == env.copied("recent") == [values(1), []]
    assert env.copied("file") == [EVERYTHING[0][17:], EVERYTHING[1]]
    # An offset after the log end means the end: no record is missing, and none is reported as missing.
    running.eventually(lambda: ends(env.target, f"behind.{TOPIC}") == [0, 15])
    assert running.lines(event="log ends before the requested start offset", offset=1000, end=30)
    assert not running.lines(event="source log truncated")
    running.eventually(lambda: ends(env.target, f"latest.{TOPIC}") == [0, 0])
    running.eventually(lambda: all(is_running(env.target, alias) for alias in SOURCES))

    # The start of the flow that starts at the end offset cannot be observed.
    deadline = time.monotonic() + 90
    while 0 in ends(env.target, f"latest.{TOPIC}"):
        assert time.monotonic() < deadline, running.tail()
        for partition in range(2):
            env.write(TOPIC, partition, b"new", count=1)
        time.sleep(0.5)
    assert all(set(rows) == {b"new 0"} for rows in env.copied("latest"))
    now = ends(env.source, TOPIC)
    running.eventually(lambda: ends(env.target, f"time.{TOPIC}") == [now[0] - 20, now[1] - 20])
    assert env.copied("time")[1][0] == b"new 0"
    running.eventually(lambda: ends(env.target, f"behind.{TOPIC}") == [now[0] - 30, now[1] - 5])


def test_partitions_keep_their_task_when_a_topic_is_added(env: Environment, running: MirrorProcess) -> None:
    assert env.shares("recent") == [f"{TOPIC}-0", f"{TOPIC}-1"], "Java's assignment"
    create(env.source, "start-a", 2)  # assigned round-robin from the first one, all would move
    running.eventually(lambda: "start-a-1" in "".join(env.shares("recent")))
    assert env.shares("recent") == [f"{TOPIC}-0,start-a-0", f"{TOPIC}-1,start-a-1"]
    env.write("start-a", 1, b"of a new topic")
    running.eventually(lambda: ends(env.target, "recent.start-a") == [0, PER_AGE])


def test_the_ledger_shows_the_progress_of_a_running_process(
    env: Environment, running: MirrorProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    def answer(verb: str) -> tuple[int, dict[tuple[str, int], dict[str, Any]]]:
        code, out, _ = asked(capsys, verb, env.folder / "mm2.properties", "file->B", "--json")
        document = json.loads(out)
        rows = document["flows"][0]["partitions"] if verb == "status" else document["partitions"]
        return code, {(row["topic"], row["partition"]): row for row in rows}

    running.eventually(lambda: answer("status")[1][TOPIC, 0]["lag_records"] == 0)
    code, partitions = answer("status")
    assert code == 0
    copied = [partitions[TOPIC, index]["target_offset"] for index in range(2)]
    assert copied == ends(env.target, f"file.{TOPIC}")
    code, partitions = answer("gaps")
    assert (code, partitions[TOPIC, 0]["gaps"], partitions[TOPIC, 1]["gaps"]) == (0, {}, {})


@pytest.mark.slow
def test_a_partition_with_a_position_continues_there(env: Environment, running: MirrorProcess) -> None:
    before = {alias: ends(env.target, f"{alias}.{TOPIC}") for alias in ("time", "file")}
    assert running.stop()[0] == 0
    offsets = env.folder / "offsets.csv"
    offsets.write_text(f"{TOPIC},0,0\n{TOPIC},1,0\n")
    again = env.start(time="0", file=f"file:{offsets}")
    try:
        for partition in range(2):
            env.write(TOPIC, partition, b"after the restart", count=5)
        for alias, was in before.items():
            wanted = [end + 5 for end in was]
            again.eventually(lambda alias=alias, wanted=wanted: ends(env.target, f"{alias}.{TOPIC}") == wanted, 90)  # type: ignore[misc]
            assert all(rows[-1] == b"after the restart 4" for rows in env.copied(alias))
    finally:
        again.clean_up()


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("yesterday", "neither milliseconds since 1970 nor a time"),
        ("file:{folder}/nowhere.csv", "nowhere.csv cannot be read: No such file or directory"),
        ("file:{folder}/bad.csv", "line 2 of {folder}/bad.csv: 'seven' is not an offset"),
    ],
)
def test_an_invalid_start_position_ends_the_process_with_one_sentence(
    env: Environment, value: str, reason: str
) -> None:
    (env.folder / "bad.csv").write_text(f"{TOPIC},0,7\n{TOPIC},1,seven\n")
    process = env.start(time=value.format(folder=env.folder))
    wait_until(lambda: not process.is_running, 30, what="the end of the process", detail=process.tail)
    assert process.exit_code == 2
    (line,) = process.lines(level="error")
    assert line["event"].startswith("Flow time->B: Invalid value")
    assert reason.format(folder=env.folder) in line["event"]


def test_a_flow_starts_when_its_target_is_back_and_answers_slowly(env: Environment) -> None:
    """A check of the target takes two round trips of 0.7 s."""
    create(env.source, "slow", 1)
    with Proxy(env.target.bootstrap, env.folder / "proxy.log") as proxy:
        proxy.refuse()
        props = {
            "clusters": "A, B",
            "A.bootstrap.servers": env.source.bootstrap,
            "B.bootstrap.servers": proxy.address,
            "A->B.enabled": "true",
            "B->A.enabled": "false",
            "topics": "slow",
        }
        process = MirrorProcess(write_config(env.folder / "slow.properties", props), env.folder / "slow.log")
        try:
            process.await_log("Waiting flows: A->B.", timeout_s=60)
            proxy.change(refuse=False, delay_up_ms=350, delay_down_ms=350)
            process.await_log("Target cluster reachable; starting flows.", cluster="B", timeout_s=60)
        finally:
            process.clean_up()
