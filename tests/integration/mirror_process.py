"""Runs connect-mirror-maker as a process and reads its JSON log; reads its records on the clusters.

Records are read with confluent-kafka and decoded independently of the tested code.
"""

from __future__ import annotations

import functools
import json
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import Popen
from typing import Any

import psutil
from confluent_kafka import Consumer, IsolationLevel, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, NewPartitions, OffsetSpec, ResourceType

from bench.proctree import Session
from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.process import end, spawn
from tests.integration.copy_flow import EARLIEST, Read, admin_of
from tests.support import programs
from tests.support.access import OPEN
from tests.support.waiting import PATIENCE, wait_until

ROOT = Path(__file__).parents[2]
Table = dict[bytes, tuple[bytes | None, int]]


class MirrorProcess:
    """One start of connect-mirror-maker. `log` gets its output, `variables` are added to its environment.

    `executed` is for tests of the command line or environment that the kernel reports.
    """

    def __init__(
        self,
        file: Path,
        log: Path,
        *clusters: str,
        variables: Mapping[str, str] | None = None,
        executed: bool = False,
    ) -> None:
        self.log = log
        command = [sys.executable, "-P", "-m", "mm2.cli.connect_mirror_maker", str(file), "--log-format", "json"]
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **(variables or {})}
        chosen = ["--clusters", *clusters] if clusters else []
        start = spawn if executed else programs.start
        self._process: Popen[bytes] = start(
            [*command, *chosen], output=log, folder=file.parent, environment=environment
        )
        self._session = Session(self._process.pid)

    @property
    def pid(self) -> int:
        """Id of the main process, which is also the session id of its child processes."""
        return self._process.pid

    @property
    def is_running(self) -> bool:
        return self._process.poll() is None

    @property
    def exit_code(self) -> int | None:
        return self._process.poll()

    def lines(self, **wanted: object) -> list[dict[str, Any]]:
        """Its JSON log lines so far that have these fields; texts need only contain the given one."""
        found = []
        for text in self.log.read_text(errors="replace").splitlines():
            with suppress(ValueError):
                row = json.loads(text)
                if isinstance(row, dict) and all(_fits(row.get(name), value) for name, value in wanted.items()):
                    found.append(row)
        return found

    def await_log(self, event: str, *, timeout_s: float = 60, **wanted: object) -> dict[str, Any]:
        """Wait for a log line with these fields; returns the first."""
        self.eventually(lambda: bool(self.lines(event=event, **wanted)), timeout_s)
        return self.lines(event=event, **wanted)[0]

    def eventually(self, condition: Callable[[], object], timeout_s: float = 60) -> None:
        """Wait for a condition; fails when the process ends."""

        def met() -> bool:
            if condition():
                return True
            assert self.is_running, f"ended by itself with {self.exit_code}: {self.tail()}"
            return False

        wait_until(met, timeout_s, detail=self.tail)

    def tail(self, count: int = 15) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def family(self) -> list[psutil.Process]:
        """All running processes that it has started, and itself."""
        return self._session.members()

    def stop(self) -> tuple[int, float]:
        """Stop it with SIGTERM; returns its exit code and the seconds it took."""
        started = time.monotonic()
        self._process.terminate()
        code = self._process.wait(30 * PATIENCE)
        return code, time.monotonic() - started

    def kill9(self, *, whole_family: bool = False) -> None:
        """SIGKILL the main process only, as `kill -9` does, or also its children, as in a power failure: none of them acts on the end of
        another one.
        """
        orphans = self.family() if whole_family else []
        for orphan in orphans:
            with suppress(psutil.Error):
                orphan.suspend()
        self._process.kill()
        for orphan in orphans:
            with suppress(psutil.Error):
                orphan.kill()
        self._process.wait()

    def clean_up(self) -> None:
        """Kill its remaining processes."""
        end(self._process, patience_s=20)
        for orphan in self.family():
            with suppress(psutil.Error):
                orphan.kill()


# All cases in one process: starting Python for each of them takes too long.
_MANY = """
import contextlib, io, json, sys
from mm2.cli.connect_mirror_maker import main
for arguments in json.load(sys.stdin):
    with contextlib.redirect_stderr(io.StringIO()) as output:
        code = main(arguments)
    print(json.dumps([code, output.getvalue()]))
"""


def refused(cases: Sequence[Sequence[str]]) -> list[tuple[int, str]]:
    """Exit code and error output of connect-mirror-maker with each of these invalid arguments."""
    done = subprocess.run(
        [sys.executable, "-P", "-c", _MANY],
        input=json.dumps(cases),
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    return [(code, output) for code, output in map(json.loads, done.stdout.splitlines())]


def _fits(value: object, wanted: object) -> bool:
    return value == wanted or (isinstance(value, str) and isinstance(wanted, str) and wanted in value)


def write_config(file: Path, props: Mapping[str, str | None]) -> Path:
    """Write a properties file for one broker per cluster, with intervals of one or two seconds and small internal topics.

    None in `props` stands for the default of MirrorMaker.
    """
    made_topics = ("offset-syncs.topic", "checkpoints.topic", "heartbeats.topic")
    made_stores = ("offset.storage", "status.storage", "config.storage")
    base = {
        **{f"{name}.replication.factor": "1" for name in (*made_topics, *made_stores)},
        "replication.factor": "1",
        # By default 25 and 5: their creation takes a broker more processor time than all other work of a short test.
        "offset.storage.partitions": "3",
        "status.storage.partitions": "2",
        "refresh.topics.interval.seconds": "2",
        "refresh.groups.interval.seconds": "1",
        "emit.checkpoints.interval.seconds": "1",
        "emit.heartbeats.interval.seconds": "1",
        "sync.topic.acls.enabled": "false",
        "tasks.max": "2",
        "listeners": "http://127.0.0.1:0",
        **OPEN,
    }
    lines = [f"{key} = {value}\n" for key, value in {**base, **props}.items() if value is not None]
    file.write_text("".join(lines), encoding="latin-1")
    return file


# -- clusters


def contents(broker: LocalKafka, topic: str) -> list[list[tuple[Any, ...]]]:
    """Timestamp, key, value, headers of every record, in order, by partition."""
    return [[record.content for record in rows] for rows in records(broker, topic)]


def partitions_of(broker: LocalKafka, topic: str) -> int:
    """The number of partitions; 0 when the topic does not exist."""
    found = admin_of(broker).list_topics(timeout=30).topics.get(topic)
    return 0 if found is None or found.error else len(found.partitions)


def topics_of(broker: LocalKafka) -> set[str]:
    return set(admin_of(broker).list_topics(timeout=30).topics)


def grow(broker: LocalKafka, topic: str, partitions: int) -> None:
    """Add partitions; return when metadata lists them."""
    for done in admin_of(broker).create_partitions([NewPartitions(topic, partitions)]).values():
        done.result(30 * PATIENCE)
    wait_until(lambda: partitions_of(broker, topic) == partitions)


def delete(broker: LocalKafka, topic: str) -> None:
    """Delete a topic; return when metadata does not list it any more."""
    for done in admin_of(broker).delete_topics([topic]).values():
        done.result(30 * PATIENCE)
    wait_until(lambda: topic not in topics_of(broker))


def config_of(broker: LocalKafka, topic: str, name: str) -> str:
    (answer,) = admin_of(broker).describe_configs([ConfigResource(ResourceType.TOPIC, topic)]).values()
    return str(answer.result(30 * PATIENCE)[name].value)


def ends(broker: LocalKafka, topic: str, *, stable: bool = False) -> list[int]:
    """End offsets of all partitions; empty when the topic does not exist, -1 for a partition without a leader. ``stable``: the
    last stable offsets, before open transactions.
    """
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]
    wanted = {TopicPartition(topic, index): latest for index in range(partitions_of(broker, topic))}
    found = []
    # Not a consumer's watermarks: a cached consumer does not notice new partitions.
    isolation = IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED
    for answer in admin_of(broker).list_offsets(wanted, isolation_level=isolation).values() if wanted else ():
        try:
            found.append(int(answer.result(30 * PATIENCE).offset))
        except KafkaException:
            found.append(-1)
    return found


def has_all(source: LocalKafka, topic: str, target: LocalKafka, remote: str) -> bool:
    """Whether the remote topic has as many partitions as the topic, each with at least as many records."""
    wanted, got = ends(source, topic), ends(target, remote)
    return len(wanted) == len(got) and all(there >= here >= 0 for here, there in zip(wanted, got, strict=True))


def doubled(wanted: list[list[Read]], got: list[list[Read]]) -> int:
    """The number of duplicates. Fails unless all records were copied and their first copies are in order."""
    count = 0
    for here, there in zip(wanted, got, strict=True):
        firsts = list(dict.fromkeys(record.content for record in there))
        assert firsts == [record.content for record in here]
        count += len(there) - len(firsts)
    return count


def records(broker: LocalKafka, topic: str) -> list[list[Read]]:
    """All records by partition; empty when the topic does not exist."""
    count = partitions_of(broker, topic)
    found: list[list[Read]] = [[] for _ in range(count)]
    consumer = _reader(broker.bootstrap)
    ended = 0
    try:
        consumer.assign([TopicPartition(topic, index, EARLIEST) for index in range(count)])
        deadline = time.monotonic() + 60
        while ended < count:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end"
            for message in consumer.consume(500, 0.02):
                error = message.error()
                if error is None:
                    headers: Any = message.headers() or []
                    key: Any = message.key()
                    value: Any = message.value()
                    kind, stamp = message.timestamp()
                    row = Read(message.offset() or 0, stamp if kind else -1, key, value, tuple(headers))
                    found[message.partition() or 0].append(row)
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    ended += 1
        return found
    finally:
        consumer.unassign()


@functools.lru_cache(maxsize=4)  # creating a consumer takes longer than reading a table
def _reader(bootstrap: str) -> Consumer:
    return Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "reader",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,
            "log_level": 0,
        }
    )


def table(broker: LocalKafka, topic: str) -> Table:
    """The latest value of each key of a compacted topic, and its partition."""
    return {
        _bytes(record.key): (record.value, partition)
        for partition, rows in enumerate(records(broker, topic))
        for record in rows
    }


def statuses(broker: LocalKafka, source: str) -> dict[str, dict[str, Any]]:
    """The records of mm2-status, by key without its prefix `status-`."""
    rows = {}
    for key, (value, _) in table(broker, f"mm2-status.{source}.internal").items():
        if value is not None and not key.startswith(b"status-topic-"):
            rows[key.decode().removeprefix("status-")] = json.loads(value)
    return rows


def is_running(broker: LocalKafka, source: str) -> bool:
    """Whether all three connectors of the flow and all tasks are running, including a source and a heartbeat task."""
    rows = statuses(broker, source)
    connectors = {f"connector-Mirror{name}Connector" for name in ("Source", "Checkpoint", "Heartbeat")}
    tasks = {f"task-Mirror{name}Connector-0" for name in ("Source", "Heartbeat")}
    return connectors | tasks <= set(rows) and {row["state"] for row in rows.values()} == {"RUNNING"}


# -- MirrorMaker's own records (Checkpoint, Heartbeat and OffsetSync of org.apache.kafka.connect.mirror)


def strings(data: bytes, count: int) -> tuple[list[str], bytes]:
    """Decode `count` strings from the front; returns them and the remaining bytes."""
    found = []
    for _ in range(count):
        (length,) = struct.unpack_from(">h", data)
        found.append(data[2 : 2 + length].decode())
        data = data[2 + length :]
    return found, data


def heartbeats(broker: LocalKafka, topic: str) -> dict[tuple[str, str], int]:
    """Latest timestamp in ms by (source, target)."""
    found = {}
    for key, (value, partition) in table(broker, topic).items():
        (source, target), rest = strings(key, 2)
        version, stamp = struct.unpack(">hq", _bytes(value))
        assert (rest, version, partition) == (b"", 0, 0)
        found[source, target] = int(stamp)
    return found


def checkpoints(broker: LocalKafka, topic: str) -> dict[tuple[str, str, int], tuple[int, int, str]]:
    """Latest (upstream offset, downstream offset, metadata) by (group, remote topic, partition); no tombstones."""
    found = {}
    for key, (value, _) in table(broker, topic).items():
        if value is not None:
            position, checkpoint = checkpoint_of(key, value)
            found[position] = checkpoint
    return found


def checkpoint_of(key: bytes, value: bytes) -> tuple[tuple[str, str, int], tuple[int, int, str]]:
    """(group, remote topic, partition), and (upstream offset, downstream offset, metadata)."""
    (group, remote), rest = strings(key, 2)
    (partition,) = struct.unpack(">i", rest)
    version, upstream, downstream = struct.unpack_from(">hqq", value)
    (metadata,), rest = strings(value[18:], 1)
    assert (rest, version) == (b"", 0)
    return (group, remote, int(partition)), (int(upstream), int(downstream), metadata)


def syncs(broker: LocalKafka, topic: str) -> dict[tuple[str, int], tuple[int, int]]:
    """Latest (upstream offset, downstream offset) by (topic, partition)."""
    found = {}
    for key, (value, where) in table(broker, topic).items():
        (name,), rest = strings(key, 1)
        (partition,) = struct.unpack(">i", rest)
        upstream, downstream = struct.unpack(">qq", _bytes(value))
        assert where == 0
        found[name, int(partition)] = (int(upstream), int(downstream))
    return found


def _bytes(value: object) -> bytes:
    assert isinstance(value, bytes)
    return value
