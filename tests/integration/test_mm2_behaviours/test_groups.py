"""Behaviours 10 to 13, 16, 20 to 22 and extensions: where groups continue after failover and failback.

One process runs both flows between `geast` and `gwest`. Checkpoints are compared with the records themselves: their values are
numbers, so a consumer that continues at an offset shows which records are skipped and which are read again.
"""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mm2.copy.progress.ledger import Ledger
from mm2.reasons import OffsetReasonCode
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import Read, admin_of, create, end_offset, producer_of, read
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import MirrorProcess, checkpoints, is_running, table, write_config
from tests.support.waiting import PATIENCE, wait_until

pytestmark = pytest.mark.timeout(int(300 * PATIENCE))

EAST, WEST = "geast", "gwest"
PLAIN, HOLES, QUIET = "groups-plain", "groups-holes", "groups-quiet"
RECORDS = 3_000


@dataclass
class Environment:
    """One pair of flows; each test has its own topics and groups."""

    east: LocalKafka
    west: LocalKafka
    file: Path
    started: list[MirrorProcess] = field(default_factory=list)

    def start(self) -> MirrorProcess:
        process = MirrorProcess(self.file, self.file.with_name(f"process-{len(self.started)}.log"))
        self.started.append(process)
        process.eventually(lambda: is_running(self.west, EAST) and is_running(self.east, WEST), 120)
        return process

    @property
    def process(self) -> MirrorProcess:
        return self.started[-1]

    def checkpoint(self, group: str, topic: str = PLAIN, partition: int = 0) -> tuple[int, int]:
        """Source and target offset of the checkpoint; -1 without one."""
        found = checkpoints(self.west, f"{EAST}.checkpoints.internal").get((group, f"{EAST}.{topic}", partition))
        return (-1, -1) if found is None else found[:2]

    def reasons(self) -> dict[str, dict[str, OffsetReasonCode]]:
        """The reasons of missing checkpoints, from the ledger."""
        ledger = Ledger()
        for record in read(self.west, f"mm2-ledger.{EAST}.internal"):
            ledger.apply(record.key, record.value)
        return {
            group: {str(tp): why.code for tp, why in found.items()} for group, found in ledger.group_reasons().items()
        }


@pytest.fixture(scope="module")
def env(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Environment]:
    east, west = kafka_pair
    file = write_config(
        tmp_path_factory.mktemp("groups") / "mm2.properties",
        {
            "clusters": f"{EAST},{WEST}",
            f"{EAST}.bootstrap.servers": east.bootstrap,
            f"{WEST}.bootstrap.servers": west.bootstrap,
            f"{EAST}->{WEST}.enabled": "true",
            f"{WEST}->{EAST}.enabled": "true",
            f"{EAST}.consumer.isolation.level": "read_committed",
            "topics": "groups-.*",
            "groups": "groups-.*",
            # One after the other: new groups are found in between.
            "refresh.groups.interval.seconds": "600",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            "offset.lag.max": "1000000",
            "tombstone.dead.groups.enabled": "true",
            "listeners": "",
        },
    )
    create(east, PLAIN, 2)
    create(east, HOLES)
    create(east, QUIET, 2)
    found = Environment(east, west, file)
    produce(east, PLAIN, 0, RECORDS)
    produce_transactions(east, HOLES, 60)
    produce(east, QUIET, 0, 1, partition=0)
    commit(east, "groups-first", {(PLAIN, 0): 1})
    try:
        found.start()
        yield found
    finally:
        for process in found.started:
            process.clean_up()


def produce(broker: LocalKafka, topic: str, first: int, count: int, partition: int = 0) -> None:
    producer = producer_of(broker)
    for number in range(first, first + count):
        producer.produce(topic, struct.pack(">q", number), partition=partition)
    assert producer.flush(30) == 0


def produce_transactions(broker: LocalKafka, topic: str, count: int, first: int = 0) -> None:
    """Transactions of ten records each, every third one aborted."""
    producer = producer_of(broker, transactional__id=topic)
    producer.init_transactions(30)
    for turn in range(count):
        producer.begin_transaction()
        for number in range(10):
            producer.produce(topic, struct.pack(">q", first + turn * 10 + number), partition=0)
        if turn % 3 == 2:
            assert producer.flush(30) == 0
            producer.abort_transaction(30)
        else:
            producer.commit_transaction(30)


def values(records: list[Read], offset: int) -> list[bytes | None]:
    """The values that a consumer reads from an offset on."""
    return [record.value for record in records if record.offset >= offset]


def test_10_13_each_group_continues_at_its_next_record(env: Environment) -> None:
    group_offsets = [0, 1, 7, RECORDS // 3, RECORDS // 2, RECORDS - 1, RECORDS]
    for group_offset in group_offsets:
        commit(env.east, f"groups-at-{group_offset}", {(PLAIN, 0): group_offset})
    env.process.eventually(
        lambda: all(
            env.checkpoint(f"groups-at-{group_offset}") == (group_offset, group_offset)
            for group_offset in group_offsets
        ),
        60,
    )
    # 16: also as committed offsets of the group.
    wait_until(lambda: committed(env.west, f"groups-at-{group_offsets[3]}", f"{EAST}.{PLAIN}") == group_offsets[3], 30)


def test_12_with_aborted_transactions_no_record_is_skipped_or_read_again(env: Environment) -> None:
    source = read(env.east, HOLES, isolation="read_committed")
    env.process.eventually(lambda: len(read(env.west, f"{EAST}.{HOLES}")) == len(source), 60)
    target = read(env.west, f"{EAST}.{HOLES}")
    end = source[-1].offset + 2
    dice = random.Random(6)
    group_offsets = sorted({dice.randrange(end) for _ in range(12)} | {0, end})
    for group_offset in group_offsets:
        commit(env.east, f"groups-hole-{group_offset}", {(HOLES, 0): group_offset})
    env.process.eventually(
        lambda: all(
            env.checkpoint(f"groups-hole-{group_offset}", HOLES)[0] == group_offset for group_offset in group_offsets
        ),
        60,
    )
    for group_offset in group_offsets:
        _, found = env.checkpoint(f"groups-hole-{group_offset}", HOLES)
        assert values(target, found) == values(source, group_offset), f"a group at {group_offset} continues at {found}"


def test_20_before_a_record_is_copied_there_is_a_reason_instead_of_a_checkpoint(
    env: Environment, capsys: pytest.CaptureFixture[str]
) -> None:
    commit(env.east, "groups-early", {(QUIET, 1): 0, (QUIET, 0): 1})
    env.process.eventually(lambda: env.checkpoint("groups-early", QUIET) == (1, 1), 60)
    assert env.checkpoint("groups-early", QUIET, 1) == (-1, -1)
    env.process.eventually(
        # Either of the two, depending on whether the ledger has an entry of the empty partition yet.
        lambda: (
            env.reasons().get("groups-early", {}).get(f"{QUIET}-1")
            in {OffsetReasonCode.NO_SYNC, OffsetReasonCode.NOT_COPIED}
        ),
        20,
    )
    code, out, _ = asked(capsys, "groups", env.file, f"{EAST}->{WEST}", "--json", "--group", "groups-early")
    (row,) = json.loads(out)["offsets"]
    assert row["code"] in {OffsetReasonCode.NO_SYNC, OffsetReasonCode.NOT_COPIED}
    assert (code, row["topic"], row["partition"]) == (1, QUIET, 1)
    produce(env.east, QUIET, 0, 5, partition=1)
    commit(env.east, "groups-early", {(QUIET, 1): 3})
    env.process.eventually(lambda: env.checkpoint("groups-early", QUIET, 1) == (3, 3), 30)
    env.process.eventually(lambda: "groups-early" not in env.reasons(), 20)


def test_22_a_group_reset_moves_its_checkpoint_but_not_its_target_offset(env: Environment) -> None:
    group = "groups-rewound"
    commit(env.east, group, {(PLAIN, 0): 2_700})
    env.process.eventually(lambda: env.checkpoint(group) == (2_700, 2_700), 60)
    wait_until(lambda: committed(env.west, group, f"{EAST}.{PLAIN}") == 2_700, 30)
    commit(env.east, group, {(PLAIN, 0): 300})
    env.process.eventually(lambda: env.checkpoint(group) == (300, 300), 30)
    ahead = f"{EAST}.{PLAIN}-0"
    env.process.eventually(lambda: env.reasons().get(group, {}).get(ahead) is OffsetReasonCode.AHEAD, 20)
    assert committed(env.west, group, f"{EAST}.{PLAIN}") == 2_700


def test_a_group_with_commas_in_its_name_is_replicated(env: Environment) -> None:
    group = "groups-a, b\\,c"
    commit(env.east, group, {(PLAIN, 0): 12})
    env.process.eventually(lambda: env.checkpoint(group) == (12, 12), 60)


def test_a_group_that_consumed_the_remote_topic_fails_back(env: Environment) -> None:
    # It never consumed on the east side; another one failed over and continued.
    commit(env.east, "groups-home", {(PLAIN, 0): 1_000})
    env.process.eventually(lambda: env.checkpoint("groups-home") == (1_000, 1_000), 60)
    commit(env.west, "groups-home", {(f"{EAST}.{PLAIN}", 0): 1_777})
    target = read(env.west, f"{EAST}.{HOLES}")
    group_offset = target[len(target) // 2].offset
    commit(env.west, "groups-only-west", {(f"{EAST}.{HOLES}", 0): group_offset})

    def home(group: str, topic: str) -> int:
        found = checkpoints(env.east, f"{WEST}.checkpoints.internal").get((group, topic, 0))
        return -1 if found is None else found[1]

    env.process.eventually(lambda: home("groups-home", PLAIN) == 1_777, 60)
    env.process.eventually(lambda: home("groups-only-west", HOLES) >= 0, 60)
    source = read(env.east, HOLES, isolation="read_committed")
    assert values(source, home("groups-only-west", HOLES)) == values(target, group_offset)
    assert committed(env.east, "groups-home", PLAIN) == 1_000, "that is for its owner to decide"


def test_checkpoints_and_offsets_of_a_deleted_group_are_deleted(env: Environment) -> None:
    group = "groups-dead"
    commit(env.east, group, {(PLAIN, 0): 5})
    env.process.eventually(lambda: env.checkpoint(group) == (5, 5), 60)
    for done in admin_of(env.east).delete_consumer_groups([group]).values():
        done.result(30)

    def left() -> list[bytes | None]:
        name = struct.pack(">h", len(group)) + group.encode()
        return [value for key, (value, _) in table(env.west, f"{EAST}.checkpoints.internal").items() if name in key]

    env.process.eventually(lambda: left() == [None], 60)


def test_21_after_a_kill_and_a_restart_old_and_new_offsets_are_exact(env: Environment) -> None:
    env.process.kill9(whole_family=True)
    produce(env.east, PLAIN, RECORDS, 500)
    env.start()
    group_offsets = [11, RECORDS - 2, RECORDS, RECORDS + 250, RECORDS + 500]
    for group_offset in group_offsets:
        commit(env.east, f"groups-again-{group_offset}", {(PLAIN, 0): group_offset})
    env.process.eventually(
        lambda: all(
            env.checkpoint(f"groups-again-{group_offset}") == (group_offset, group_offset)
            for group_offset in group_offsets
        ),
        90,
    )
    history = [
        struct.unpack_from(">hqq", record.value)[2]
        for record in read(env.west, f"{EAST}.checkpoints.internal")
        if record.value and record.key and b"groups-first" in record.key
    ]
    assert history == sorted(history), "a group that did not go back never goes back"


@pytest.mark.slow
@pytest.mark.timeout(int(900 * PATIENCE))
def test_groups_in_the_last_million_records_read_no_record_again(env: Environment) -> None:
    million = "groups-million"
    create(env.east, million)
    if not env.process.is_running:
        env.start()
    for first in range(0, 1_000_000, 50_000):
        produce(env.east, million, first, 50_000)
    env.process.eventually(lambda: end_offset(env.west, f"{EAST}.{million}") == 1_000_000, 300)
    dice = random.Random(7)
    group_offsets = sorted({dice.randrange(1_000_001) for _ in range(60)} | {0, 1_000_000})
    for group_offset in group_offsets:
        commit(env.east, f"groups-million-{group_offset}", {(million, 0): group_offset})
    env.process.eventually(
        lambda: all(
            env.checkpoint(f"groups-million-{group_offset}", million) == (group_offset, group_offset)
            for group_offset in group_offsets
        ),
        120,
    )
