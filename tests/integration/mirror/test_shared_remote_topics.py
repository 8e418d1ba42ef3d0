"""Two flows that copy to one remote topic: no group is placed after a record of either flow that it has not read."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from mm2.reasons import OffsetReasonCode
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import create, producer_of, read
from tests.integration.mirror_flow import commit, committed
from tests.integration.mirror_process import MirrorProcess, write_config

RECORDS = 100
#: Offsets on the two sources; None: the group does not exist there.
GROUPS: dict[str, tuple[int, int | None]] = {
    "g-behind-on-b": (90, 20),
    "g-behind-on-a": (20, 90),
    "g-at-the-end": (RECORDS, RECORDS),
    "g-on-a-only": (50, None),
}
IDENTITY = "org.apache.kafka.connect.mirror.IdentityReplicationPolicy"


@pytest.fixture(scope="module")
def third(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalKafka]:
    broker = LocalKafka("C", tmp_path_factory.mktemp("third"), heap="384m")
    broker.start()
    yield broker
    broker.stop()


class Scene:
    """Two flows, each of a process's own file, that copy ``topic`` of two clusters to the same topic of a third one."""

    def __init__(
        self,
        folder: Path,
        sources: tuple[LocalKafka, LocalKafka],
        target: LocalKafka,
        name: str,
        mode: str = "disabled",
    ) -> None:
        self.topic = f"shared-{name}"
        self.brokers = dict(zip((f"a{name}", f"b{name}"), sources, strict=True))
        self.target, self.alias, self.mode, self._folder = target, f"c{name}", mode, folder
        self.flows = [f"{source}->{self.alias}" for source in self.brokers]
        for source in self.brokers.values():
            create(source, self.topic)
            self.produce(source, 0, RECORDS)

    def file(self, *flows: str) -> Path:
        clusters = {**self.brokers, self.alias: self.target}
        named = {alias: clusters[alias] for flow in flows for alias in flow.split("->")}
        props = {
            "clusters": ", ".join(named),
            **{f"{alias}.bootstrap.servers": broker.bootstrap for alias, broker in named.items()},
            **{f"{flow}.enabled": "true" for flow in flows},
            "replication.policy.class": IDENTITY,
            "topics": self.topic,
            "groups": "g-.*",
            "emit.heartbeats.enabled": "false",
            "sync.group.offsets.enabled": "true",
            "sync.group.offsets.interval.seconds": "1",
            f"{self.alias}.exactly.once.source.support": self.mode,
        }
        return write_config(self._folder / f"{'-'.join(flows).replace('->', '_')}.properties", props)

    def produce(self, broker: LocalKafka, first: int, count: int) -> None:
        alias = next(alias for alias, one in self.brokers.items() if one is broker)
        producer = producer_of(broker)
        for number in range(first, first + count):
            producer.produce(self.topic, f"{alias} {number}".encode(), partition=0)
        assert producer.flush(30) == 0

    def commit(self, group: str, offsets: Mapping[LocalKafka, int | None]) -> None:
        for broker, offset in offsets.items():
            if offset is not None:
                commit(broker, group, {(self.topic, 0): offset})

    def left(self, group: str) -> list[bytes] | None:
        """What the group reads on the target from its offset on; None: it has none."""
        offset = committed(self.target, group, self.topic)
        records = read(self.target, self.topic, isolation="read_committed")
        return None if offset < 0 else [one.value or b"" for one in records if one.offset >= offset]

    def skipped(self, group: str) -> list[bytes]:
        """The records that the group has not read on a source and would not read on the target."""
        left = set(self.left(group) or ())
        unread = []
        for source in self.brokers.values():
            first = max(0, committed(source, group, self.topic))
            unread += [one.value or b"" for one in read(source, self.topic) if one.offset >= first]
        return [one for one in unread if one not in left]


@pytest.mark.parametrize("mode", ["disabled", "enabled"])
def test_no_group_is_placed_after_a_record_of_another_flow_that_it_has_not_read(
    kafka_a: LocalKafka,
    kafka_b: LocalKafka,
    third: LocalKafka,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    mode: str,
) -> None:
    scene = Scene(tmp_path, (kafka_a, kafka_b), third, mode, mode)
    for group, (on_a, on_b) in GROUPS.items():
        scene.commit(group, {kafka_a: on_a, kafka_b: on_b})
    one, other = (scene.file(flow) for flow in scene.flows)
    # The first flow ends before the other one begins: its translations know nothing of the records that follow.
    with running(other, tmp_path / "log-0") as process:
        alone = {group: on_b for group, (_, on_b) in GROUPS.items() if on_b is not None}
        process.eventually(lambda: {group: committed(third, group, scene.topic) for group in alone} == alone)
    with running(one, tmp_path / "log-1") as process:
        process.eventually(lambda: has(scene, 2))
        process.eventually(lambda: all(scene.left(group) is not None for group in GROUPS))
        assert {group: scene.skipped(group) for group in GROUPS} == {group: [] for group in GROUPS}
        if mode == "disabled":  # a transaction's marker is a hole, too: what follows it is read again
            process.eventually(lambda: scene.left("g-at-the-end") == [])
            # The other flow rests, and the group follows the records of this one.
            scene.produce(kafka_a, RECORDS, 10)
            scene.commit("g-at-the-end", {kafka_a: RECORDS + 10})
            process.eventually(lambda: has(scene, 2, 10) and scene.left("g-at-the-end") == [])
        expected = {"g-on-a-only": OffsetReasonCode.OTHER_FLOW}
        process.eventually(lambda: reasons(scene, one, capsys) == expected)
        assert_reported(scene, one, capsys)
    assert {group: scene.skipped(group) for group in GROUPS} == {group: [] for group in GROUPS}


@contextmanager
def running(file: Path, log: Path) -> Iterator[MirrorProcess]:
    process = MirrorProcess(file, log)
    try:
        yield process
    finally:
        process.clean_up()


def has(scene: Scene, flows: int, more: int = 0) -> bool:
    """Whether the target has the records of so many flows."""
    return len(read(scene.target, scene.topic, isolation="read_committed")) == flows * RECORDS + more


def reasons(scene: Scene, file: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
    """The reason codes of `mm2 groups` by group."""
    _, out, _ = asked(capsys, "groups", file, scene.flows[0], "--json")
    return {row["group"]: row["code"] for row in json.loads(out)["offsets"]}


def assert_reported(scene: Scene, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`mm2 plan` names the other flow, and `mm2 failover` places the groups as the running flow does."""
    flow = scene.flows[0]
    _, out, _ = asked(capsys, "plan", file, flow, "--json")
    (note,) = [note for note in json.loads(out)["flows"][0]["notes"] if note.startswith("Other flows (")]
    assert scene.flows[1] in note
    assert scene.topic in note
    _, out, _ = asked(capsys, "failover", file, flow, "--dry-run", "--json")
    rows = {row["group"]: row for row in json.loads(out)["groups"]}
    behind, ahead = rows["g-behind-on-b"], rows["g-behind-on-a"]
    assert behind["translated"] == behind["offset_before"] == 20, (
        "before the first record of the other flow that it has not read"
    )
    assert scene.flows[1] in behind["reason"]
    assert ahead["translated"] == ahead["offset_before"]


def test_one_process_reports_two_of_its_flows_that_copy_to_one_topic_before_they_run(
    kafka_a: LocalKafka, kafka_b: LocalKafka, third: LocalKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    scene = Scene(tmp_path, (kafka_a, kafka_b), third, "planned")
    file = scene.file(*scene.flows)
    for flow, other in (scene.flows, scene.flows[::-1]):
        _, out, _ = asked(capsys, "plan", file, flow)
        assert f"Other flows ({other}) copy to the same topics on {scene.alias}: {scene.topic}." in out
