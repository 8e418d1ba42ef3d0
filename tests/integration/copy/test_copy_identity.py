"""Copies that share an alias: several connectors, several source clusters, and several deployments write to one target.

Each of them has state of its own. Every record has a number, so what is missing or doubled in a remote topic is known exactly.
"""

from __future__ import annotations

import functools
import secrets
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import create, end_offset, producer_of, read
from tests.integration.mirror_process import MirrorProcess, topics_of, write_config
from tests.support.waiting import PATIENCE, wait_until
from tests.systems.workers import DistributedWorker, distributed_props

pytestmark = pytest.mark.timeout(int(400 * PATIENCE))

FIRST, MORE = 40_000, 3_000
BYTES = "org.apache.kafka.connect.converters.ByteArrayConverter"
IDENTITY = {"replication.policy.class": "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"}
_PATIENCE_S = 150


def routed_to(topic: str) -> dict[str, str]:
    """A router that gives all remote topics one name."""
    return {
        "transforms": "route",
        "transforms.route.type": "org.apache.kafka.connect.transforms.RegexRouter",
        "transforms.route.regex": ".*",
        "transforms.route.replacement": topic,
    }


def write(broker: LocalKafka, topic: str, first: int, after: int) -> None:
    producer = producer_of(broker)
    for number in range(first, after):
        producer.produce(topic, b"%d" % number, partition=0)
        if not number % 10_000:
            producer.poll(0)
    assert producer.flush(60) == 0


def missing_and_doubled(broker: LocalKafka, topic: str, count: int) -> tuple[int, int]:
    """How many of the records 0 to ``count`` - 1 a topic lacks, and how many it has more than once."""
    found = Counter(int(record.value or b"-1") for record in read(broker, topic))
    assert found.keys() <= set(range(count))
    return count - len(found), sum(times - 1 for times in found.values())


@dataclass
class OneWorker:
    """A Connect worker with several source connectors that have one alias."""

    folder: Path
    target: LocalKafka
    alias: str
    group: str
    worker: DistributedWorker = field(init=False)

    def __post_init__(self) -> None:
        self.worker = DistributedWorker(self.folder, distributed_props(self.target.bootstrap, self.group))

    def config(self, name: str, source: LocalKafka, topic: str, more: Mapping[str, str]) -> dict[str, str]:
        return {
            "name": name,
            "connector.class": "org.apache.kafka.connect.mirror.MirrorSourceConnector",
            "tasks.max": "1",
            "key.converter": BYTES,
            "value.converter": BYTES,
            "header.converter": BYTES,
            "source.cluster.alias": self.alias,
            "target.cluster.alias": "B",
            "source.cluster.bootstrap.servers": source.bootstrap,
            "target.cluster.bootstrap.servers": self.target.bootstrap,
            "topics": topic,
            "heartbeats.replication.enabled": "false",
            "replication.factor": "1",
            "offset-syncs.topic.replication.factor": "1",
            "refresh.topics.interval.seconds": "2",
            "sync.topic.acls.enabled": "false",
            **more,
        }

    def await_end(self, topic: str, end: int) -> None:
        wait_until(lambda: end_offset(self.target, topic) >= end, _PATIENCE_S, detail=self.worker.tail)


@pytest.fixture
def one_worker(kafka_b: LocalKafka, tmp_path: Path, unique: str) -> Iterator[OneWorker]:
    made = OneWorker(tmp_path, kafka_b, f"s{secrets.token_hex(3)}", unique)
    try:
        made.worker.start(_PATIENCE_S)
        yield made
    finally:
        made.worker.__exit__()


@pytest.mark.parametrize(
    "crash", [pytest.param(False, marks=pytest.mark.slow, id="SIGTERM"), pytest.param(True, id="SIGKILL")]
)
def test_two_connectors_with_one_alias_continue_at_their_own_positions(
    one_worker: OneWorker, kafka_a: LocalKafka, unique: str, *, crash: bool
) -> None:
    topic, worker = f"t-{unique}", one_worker.worker
    create(kafka_a, topic)
    write(kafka_a, topic, 0, FIRST)
    remotes = {"c1": f"{one_worker.alias}.{topic}", "c2": topic}
    for name, policy in (("c1", {}), ("c2", IDENTITY)):
        worker.rest.create(f"{name}-{unique}", one_worker.config(f"{name}-{unique}", kafka_a, topic, policy))
    if crash:
        one_worker.await_end(remotes["c1"], FIRST // 4)
        worker.kill9()
    else:
        for remote in remotes.values():
            one_worker.await_end(remote, FIRST)
        assert worker.stop(90) == 0
    write(kafka_a, topic, FIRST, FIRST + MORE)
    worker.start(_PATIENCE_S)
    for remote in remotes.values():
        wait_until(
            lambda remote=remote: missing_and_doubled(one_worker.target, remote, FIRST + MORE) == (0, 0),  # type: ignore[misc]
            _PATIENCE_S,
            detail=lambda remote=remote: (  # type: ignore[misc]
                f"{remote}: {missing_and_doubled(one_worker.target, remote, FIRST + MORE)} {worker.tail()}"
            ),
        )


def test_two_source_clusters_with_one_alias_continue_at_their_own_positions(
    one_worker: OneWorker, kafka_a: LocalKafka, tmp_path: Path, unique: str
) -> None:
    topic, worker = f"t-{unique}", one_worker.worker
    with LocalKafka("A2", tmp_path / "a2") as other:
        remotes = {f"r1-{unique}": kafka_a, f"r2-{unique}": other}
        for remote, source in remotes.items():
            create(source, topic)
            write(source, topic, 0, FIRST)
            config = one_worker.config(f"c-{remote}", source, topic, routed_to(remote))
            worker.rest.create(f"c-{remote}", config)
        one_worker.await_end(f"r1-{unique}", FIRST // 4)
        worker.kill9()
        for source in remotes.values():
            write(source, topic, FIRST, FIRST + MORE)
        worker.start(_PATIENCE_S)
        for remote in remotes:
            one_worker.await_end(remote, FIRST + MORE)
            assert missing_and_doubled(one_worker.target, remote, FIRST + MORE) == (0, 0)


def has_end(broker: LocalKafka, topic: str, end: int) -> bool:
    return topic in topics_of(broker) and end_offset(broker, topic) >= end


def flow_file(folder: Path, source: LocalKafka, target: LocalKafka, alias: str, **more: str) -> Path:
    """The file of a dedicated process with one flow; ``__`` in a key stands for ``.``, ``flow`` and ``target`` for their prefixes."""
    props = {
        "clusters": f"{alias}, B",
        f"{alias}.bootstrap.servers": source.bootstrap,
        "B.bootstrap.servers": target.bootstrap,
        f"{alias}->B.enabled": "true",
        f"B->{alias}.enabled": "false",
        f"{alias}->B.heartbeats.replication.enabled": "false",
        f"{alias}->B.refresh.topics.interval.seconds": "2",
        "emit.heartbeats.enabled": "false",
        "emit.checkpoints.enabled": "false",
    }
    props |= {
        key.replace("__", ".").replace("flow.", f"{alias}->B.").replace("target.", "B."): value
        for key, value in more.items()
    }
    return write_config(folder / f"{secrets.token_hex(3)}.properties", props)


def test_two_deployments_of_a_flow_in_two_groups_lose_nothing(
    kafka_a: LocalKafka, kafka_b: LocalKafka, tmp_path: Path, unique: str
) -> None:
    """They use one offsets topic under the same keys, as Java's would, and copy to two topics."""
    topic, alias = f"t-{unique}", f"s{secrets.token_hex(3)}"
    create(kafka_a, topic)
    write(kafka_a, topic, 0, FIRST)
    identity = next(iter(IDENTITY.items()))
    files = {
        f"{alias}.{topic}": flow_file(tmp_path, kafka_a, kafka_b, alias, flow__topics=topic),
        topic: flow_file(
            tmp_path,
            kafka_a,
            kafka_b,
            alias,
            flow__topics=topic,
            target__group__id=f"g-{unique}",
            target__config__storage__topic=f"configs-{unique}",
            target__status__storage__topic=f"status-{unique}",
            **{f"flow__{identity[0].replace('.', '__')}": identity[1]},
        ),
    }
    processes: dict[str, MirrorProcess] = {}
    try:
        for part, (remote, file) in zip((1, 4), files.items(), strict=True):
            # The first has copied everything when the second begins, which has no position yet.
            process = processes[remote] = MirrorProcess(file, tmp_path / f"{remote}.log")
            process.eventually(functools.partial(has_end, kafka_b, remote, FIRST // part), _PATIENCE_S)
        for process in processes.values():
            process.kill9(whole_family=True)
        write(kafka_a, topic, FIRST, FIRST + MORE)
        for remote, file in files.items():
            processes[remote] = MirrorProcess(file, tmp_path / f"{remote}-2.log")
        for remote, process in processes.items():
            process.eventually(
                lambda remote=remote: missing_and_doubled(kafka_b, remote, FIRST + MORE) == (0, 0),  # type: ignore[misc]
                _PATIENCE_S,
            )
    finally:
        for process in processes.values():
            process.clean_up()
    ledgers = [
        name for name in topics_of(kafka_b) if name.startswith("mm2-ledger") and name.endswith(f".{alias}.internal")
    ]
    assert len(ledgers) == 2


@pytest.mark.parametrize("how", [pytest.param("--from-start", marks=pytest.mark.slow), "--keep-positions"])
def test_a_source_that_was_rebuilt_under_its_alias_stops_the_flow_until_a_user_decides(
    kafka_b: LocalKafka, tmp_path: Path, unique: str, how: str, capsys: pytest.CaptureFixture[str]
) -> None:
    topic, alias = f"t-{unique}", f"s{secrets.token_hex(3)}"
    old, new = LocalKafka("A", tmp_path / "a"), LocalKafka("A", tmp_path / "a2")
    with old:
        create(old, topic)
        write(old, topic, 0, MORE)
        file = flow_file(tmp_path, old, kafka_b, alias, flow__topics=topic)
        process = MirrorProcess(file, tmp_path / "mm2.log")
        remote = f"{alias}.{topic}"
        process.eventually(lambda: end_offset(kafka_b, remote) == MORE, _PATIENCE_S)
        assert process.stop()[0] == 0
    with new:
        create(new, topic)
        write(new, topic, 0, MORE + 10)
        file.write_text(file.read_text().replace(old.bootstrap, new.bootstrap))
        process = MirrorProcess(file, tmp_path / "mm2-2.log")
        try:
            stopped = process.await_log("partition stopped", timeout_s=_PATIENCE_S)
            assert stopped["state"] == "SOURCE_REPLACED"
            assert old.cluster_id in stopped["reason"]
            assert new.cluster_id in stopped["reason"]
            wait_until(
                lambda: "SOURCE_REPLACED" in asked(capsys, "status", file, f"{alias}->B")[1], 60, detail=process.tail
            )
            assert end_offset(kafka_b, remote) == MORE, "nothing is copied before"
            code, out, _ = asked(capsys, "accept-source", file, f"{alias}->B", how)
            assert (code, "for 1 partitions" in out) == (0, True)
            wanted = 10 if how == "--keep-positions" else MORE + 10
            process.eventually(lambda: end_offset(kafka_b, remote) == MORE + wanted, _PATIENCE_S)
            again = [int(one.value or b"-1") for one in read(kafka_b, remote)][MORE:]
            assert again == list(range(MORE + 10))[-wanted:]
            assert "nothing to accept" in asked(capsys, "accept-source", file, f"{alias}->B", how)[1]
            assert process.stop()[0] == 0
        finally:
            process.clean_up()
