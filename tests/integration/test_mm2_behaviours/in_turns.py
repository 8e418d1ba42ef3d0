"""One flow that Java's MirrorMaker 2 and ours run with one file, in turns or together, while producers write and groups commit.

Also checks the records that both have written.
"""

from __future__ import annotations

import json
import re
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import Read, read_all
from tests.integration.java_mirror import JavaMirrorProcess
from tests.integration.mirror_flow import committed
from tests.integration.mirror_process import (
    MirrorProcess,
    checkpoint_of,
    checkpoints,
    doubled,
    ends,
    records,
    statuses,
    syncs,
    table,
    topics_of,
    write_config,
)
from tests.support.waiting import PATIENCE, wait_until

PARTITIONS = 4
PER_SECOND = 400
SOURCE_TASKS = "task-MirrorSourceConnector-"
CONNECTORS = ("MirrorSourceConnector", "MirrorCheckpointConnector", "MirrorHeartbeatConnector")
#: Committed offset of each group for a number of records in a partition.
GROUPS: Mapping[str, Callable[[int], int]] = {
    "close": lambda end: end,
    "behind": lambda end: end // 2,
    "rests": lambda _end: 40,
}
_LOOK_BACK = 5_000
_JAVA_LOST_GROUPS = re.compile(r"MirrorCheckpointConnector: Found \d+ consumer groups .* [1-9]\d* were removed")


@dataclass
class SharedFlow:
    """The flow of one topic, ``source->target``. ``file`` is used by all processes."""

    east: LocalKafka
    west: LocalKafka
    source: str
    target: str
    topic: str
    file: Path
    exactly_once: bool
    started: list[MirrorProcess] = field(default_factory=list)
    known: set[str] = field(default_factory=set)  # worker ids that have been seen

    @property
    def remote(self) -> str:
        return f"{self.source}.{self.topic}"

    def internal(self, kind: str) -> str:
        return f"mm2-{kind}.{self.source}.internal"

    def group(self, name: str) -> str:
        return f"{self.topic}-{name}"

    def start(self, kind: type[MirrorProcess]) -> MirrorProcess:
        log = self.file.with_name(f"{len(self.started)}-{kind.__name__}.log")
        process = kind(self.file, log, self.target)
        self.started.append(process)
        return process

    def rows(self) -> dict[str, dict[str, Any]]:
        """The statuses; empty while the status topic does not exist."""
        return statuses(self.west, self.source) if self.internal("status") in topics_of(self.west) else {}

    def workers(self) -> set[str]:
        """The workers that run the connectors and tasks; empty while any of them is missing or not running."""
        rows = self.rows()
        wanted = {*(f"connector-{name}" for name in CONNECTORS), *(f"task-{name}-0" for name in CONNECTORS)}
        if not wanted <= rows.keys() or any(row["state"] != "RUNNING" for row in rows.values()):
            return set()
        return {row["worker_id"] for row in rows.values()}

    def await_new_worker(self, process: MirrorProcess, beside: set[str] | None = None, timeout_s: float = 240) -> str:
        """Wait until all tasks run on one new worker and those ``beside`` it; returns its id."""
        new: set[str] = set()

        def has_come() -> bool:
            found = self.workers()
            new.clear()
            new.update(found - self.known)
            return len(new) == 1 and found - new == (beside or set())

        process.eventually(has_come, timeout_s)
        (worker,) = new
        self.known.add(worker)
        return worker

    def await_growth(self, process: MirrorProcess, records_more: int = 50, timeout_s: float = 60) -> None:
        """Wait until every remote partition has new records and its position has advanced."""
        before, positions = all_ends(self.west, self.remote), self.positions()
        process.eventually(
            lambda: all(
                now >= then + records_more for now, then in zip(all_ends(self.west, self.remote), before, strict=True)
            ),
            timeout_s,
        )
        process.eventually(lambda: all(now > positions[partition] for partition, now in self.positions().items()))

    def positions(self) -> dict[int, int]:
        """Next source offset of each partition from the offsets topic, looked up by Java's key bytes; 0 without one."""
        rows = table(self.west, self.internal("offsets"))
        found = {}
        for partition in range(PARTITIONS):
            value, _ = rows.get(self._key(partition), (None, 0))
            found[partition] = 0 if value is None else int(json.loads(value)["offset"]) + 1
        return found

    def _key(self, partition: int) -> bytes:
        source_partition = f'{{"cluster":"{self.source}","partition":{partition},"topic":"{self.topic}"}}'
        return f'["MirrorSourceConnector",{source_partition}]'.encode()

    def uncommitted(self) -> dict[int, int]:
        """The number of records of each partition after the committed position, which a successor copies again.

        Only while no process copies.
        """
        copied = {
            partition: 0 if value is None else int(value) // PARTITIONS + 1
            for partition, value in newest(self.west, self.remote).items()
        }
        positions = self.positions()
        return {partition: copied[partition] - positions[partition] for partition in copied}

    # -- final checks

    def check(self, repeated: int | range) -> None:
        """Run all checks; ``repeated``: the allowed number of duplicates."""
        wanted, got = records(self.east, self.topic), records(self.west, self.remote)
        twice = doubled(wanted, got)
        assert twice in ([repeated] if isinstance(repeated, int) else repeated), f"{twice} records came twice"
        self._check_positions()
        self._check_configs()
        self._check_statuses()
        self._check_places(wanted, got)
        assert {(self.topic, partition) for partition in range(PARTITIONS)} <= syncs(
            self.east, f"mm2-offset-syncs.{self.target}.internal"
        ).keys()

    def _check_positions(self) -> None:
        """Assert that each key has one spelling and one partition."""
        seen = Counter(
            (record.key, partition)
            for partition, rows in enumerate(records(self.west, self.internal("offsets")))
            for record in {record.key: record for record in rows}.values()
            if record.key and b"MirrorSourceConnector" in record.key
        )
        assert {key for key, _ in seen} == {self._key(partition) for partition in range(PARTITIONS)}
        assert len(seen) == PARTITIONS

    def _check_configs(self) -> None:
        """Assert that no process rewrote the configurations. Allowed: Java's new session key at each start, and Java's new
        assignment of all groups when an overloaded broker did not list one, which is in its log."""
        (rows,) = records(self.west, self.internal("configs"))
        writes = Counter((record.key or b"").decode() for record in rows)
        assert {f"connector-{name}" for name in CONNECTORS} <= writes.keys()
        again = {key: count for key, count in writes.items() if count > 1 and key != "session-key"}
        if self._has_java_lost_groups():
            print("Java treated groups as removed and assigned them again")  # noqa: T201
            prefixes = ("task-MirrorCheckpointConnector", "commit-MirrorCheckpoint", "tasks-fencing-MirrorCheckpoint")
            again = {key: count for key, count in again.items() if not key.startswith(prefixes)}
        assert not again, [(row.key, row.value) for row in rows if (row.key or b"").decode() in again]

    def _has_java_lost_groups(self) -> bool:
        logs = self.file.parent.glob(f"*{JavaMirrorProcess.__name__}.log")
        return any(_JAVA_LOST_GROUPS.search(log.read_text(errors="replace")) for log in logs)

    def _check_statuses(self) -> None:
        for rows in records(self.west, self.internal("status")):
            for record in rows:
                key, value = record.key or b"", json.loads(record.value or b"{}")
                if value and not key.startswith(b"status-topic-"):
                    assert {"state", "trace", "worker_id", "generation"} == value.keys() - {"version"}
                    assert value["state"] != "FAILED", value

    def _check_places(self, wanted: list[list[Read]], got: list[list[Read]]) -> None:
        """Assert that no checkpoint skips records or moves backwards, and that committed offsets are checkpoints. Checkpoints of
        aborted transactions count as well: Java reads them at its start and commits them for the group.
        """
        first_left = [_first_left(here, there) for here, there in zip(wanted, got, strict=True)]
        history: dict[tuple[str, int], list[int]] = {}
        for record in read_all(self.west, f"{self.source}.checkpoints.internal", [0], isolation="read_uncommitted")[0]:
            assert record.key is not None
            assert record.value is not None
            (group, topic, partition), (upstream, downstream, _) = checkpoint_of(record.key, record.value)
            if topic == self.remote:
                latest = first_left[partition][upstream]
                assert downstream <= latest, (
                    f"{group} at {upstream} of {partition} skips records: {downstream} > {latest}"
                )
                history.setdefault((group, partition), []).append(downstream)
        assert {(self.group(name), partition) for name in GROUPS for partition in range(PARTITIONS)} <= history.keys()
        for (group, partition), group_offsets in history.items():
            assert group_offsets == sorted(group_offsets), f"{group} goes back on {partition}"
            group_offset = committed(self.west, group, self.remote, partition)
            assert group_offset in group_offsets, (
                f"{group} is at {group_offset} of {partition}, which is none of {group_offsets[-10:]}"
            )

    def await_copied(self, process: MirrorProcess) -> None:
        """Wait until the last record of each partition is on the target; the traffic must have ended."""
        last = newest(self.east, self.topic)
        process.eventually(lambda: newest(self.west, self.remote) == last, 90)

    def await_checkpoints(self, process: MirrorProcess) -> None:
        """Wait for the checkpoint and the target offsets of the group that is at the log end offset."""
        last = dict(enumerate(all_ends(self.east, self.topic)))
        group = self.group("close")

        def are_there() -> bool:
            found = checkpoints(self.west, f"{self.source}.checkpoints.internal")
            group_offsets = {partition: found.get((group, self.remote, partition), (0, 0, "")) for partition in last}
            return all(group_offsets[partition][0] == end for partition, end in last.items()) and all(
                committed(self.west, group, self.remote, partition) == group_offsets[partition][1] for partition in last
            )

        process.eventually(are_there, 60)


def _first_left(wanted: list[Read], got: list[Read]) -> list[int]:
    """For a group whose next source record is the n-th: the highest target offset at which it skips no record. If a record has
    duplicates, its last copy counts."""
    last = {record.content: record.offset for record in got}
    least = [1 << 62] * (len(wanted) + 1)
    for index in range(len(wanted) - 1, -1, -1):
        least[index] = min(least[index + 1], last[wanted[index].content])
    return least


def all_ends(broker: LocalKafka, topic: str) -> list[int]:
    """End offsets of all partitions; retries, because a busy broker may not know a new topic yet."""
    found: list[int] = []

    def are_told() -> bool:
        found[:] = ends(broker, topic)
        return len(found) == PARTITIONS and min(found) >= 0

    wait_until(are_told, 60)
    return found


def newest(broker: LocalKafka, topic: str) -> dict[int, bytes | None]:
    """The value of the last read_committed record of each partition; while producers write, that of any record that is not
    older than the call."""
    found: dict[int, bytes | None] = dict.fromkeys(range(PARTITIONS))
    last = dict(enumerate(all_ends(broker, topic)))
    consumer = Consumer({"bootstrap.servers": broker.bootstrap, "group.id": "newest", "enable.partition.eof": True})
    try:
        consumer.assign([TopicPartition(topic, at, max(0, end - _LOOK_BACK)) for at, end in last.items()])
        left = set(last)
        deadline = time.monotonic() + 60 * PATIENCE
        while left:
            assert time.monotonic() < deadline, f"{topic} could not be read to its end: {sorted(left)} of {last}"
            for message in consumer.consume(500, 0.2):
                error, at = message.error(), message.partition() or 0
                if error is None:
                    value: Any = message.value()
                    found[at] = value
                    if (message.offset() or 0) + 1 >= last[at]:
                        left.discard(at)  # with continuous writes the end is never reached
                else:
                    assert error.code() == KafkaError._PARTITION_EOF, error
                    left.discard(at)  # a transaction marker may follow the last record
    finally:
        consumer.close()
    return found


class Committing:
    """Commits offsets for the groups of a flow, like consumers of its topic."""

    def __init__(self, flow: SharedFlow) -> None:
        self._flow = flow
        self._consumers = {
            name: Consumer(
                {
                    "bootstrap.servers": flow.east.bootstrap,
                    "group.id": flow.group(name),
                    "enable.auto.commit": False,
                    "log_level": 0,
                }
            )
            for name in GROUPS
        }
        self._stop = threading.Event()
        self._failed: list[BaseException] = []
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> Self:
        self._once()  # so that the groups exist before the first start
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.finish()
        finally:
            for consumer in self._consumers.values():
                consumer.close()

    def finish(self) -> None:
        """Commit at most the current end offsets of the topic."""
        if self._thread.is_alive():
            self._stop.set()
            # Wait for its last commits, which would otherwise reset the groups after ours.
            self._thread.join()
            self._once()
        assert not self._failed, self._failed

    def _run(self) -> None:
        try:
            while not self._stop.wait(0.4):
                self._once()
        except BaseException as error:  # noqa: BLE001 - raised in the waiting thread
            self._failed.append(error)

    def _once(self) -> None:
        last = all_ends(self._flow.east, self._flow.topic)
        for name, group_offset in GROUPS.items():
            wanted = [
                TopicPartition(self._flow.topic, partition, group_offset(end)) for partition, end in enumerate(last)
            ]
            wait_until(lambda: self._is_committed(name, wanted), 30)  # noqa: B023

    def _is_committed(self, name: str, wanted: list[TopicPartition]) -> bool:
        try:
            answers = self._consumers[name].commit(offsets=wanted, asynchronous=False) or []
        except KafkaException as refused:
            # The coordinator of the first group of a broker may still be loading.
            if refused.args[0].code() == KafkaError.COORDINATOR_LOAD_IN_PROGRESS:
                return False
            raise
        assert [answer.error for answer in answers] == [None] * len(wanted)
        return True


@contextmanager
def shared_flow(
    pair: tuple[LocalKafka, LocalKafka], folder: Path, name: str, *, exactly_once: bool, more: Mapping[str, str]
) -> Iterator[SharedFlow]:
    """A flow between clusters with unique aliases; ``more`` is added to its file. Remaining processes are killed at the end."""
    east, west = pair
    source, target = f"{name}east", f"{name}west"
    props = {
        "clusters": f"{source}, {target}",
        f"{source}.bootstrap.servers": east.bootstrap,
        f"{target}.bootstrap.servers": west.bootstrap,
        f"{source}->{target}.enabled": "true",
        "topics": name,
        "groups": f"{name}-.*",
        "tasks.max": str(PARTITIONS),
        # Heartbeats on the shared source are ignored here.
        "heartbeats.replication.enabled": "false",
        "sync.group.offsets.enabled": "true",
        "sync.group.offsets.interval.seconds": "1",
        f"{target}.offset.flush.interval.ms": "1000",
        # The tasks of a killed worker are reassigned after this timeout.
        f"{target}.session.timeout.ms": "6000",
        f"{target}.heartbeat.interval.ms": "1500",
        # Java opens no port without internal REST, and two processes need different ports.
        "listeners": "http://127.0.0.1:0",
        # Java passes unknown keys of the flow to the connectors, so both processes write the same configurations.
        f"{source}->{target}.copy.batch.duration.ms": "8000",
    }
    if exactly_once:
        props |= {
            f"{target}.exactly.once.source.support": "enabled",
            f"{source}.consumer.isolation.level": "read_committed",
            "dedicated.mode.enable.internal.rest": "true",
        }
    file = write_config(folder / "mm2.properties", {**props, **more})
    flow = SharedFlow(east, west, source, target, name, file, exactly_once)
    try:
        yield flow
    finally:
        for process in flow.started:
            process.clean_up()


def await_records(flow: SharedFlow, count: int) -> None:
    """Wait until each partition of the source has that many records."""
    wait_until(lambda: min(all_ends(flow.east, flow.topic)) >= count, 30)


def name_of(process: MirrorProcess) -> str:
    return "Java" if isinstance(process, JavaMirrorProcess) else "ours"
