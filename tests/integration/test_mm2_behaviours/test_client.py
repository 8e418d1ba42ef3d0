"""Behaviours 8 to 12 from a client: heartbeats, hops, checkpoints, translated offsets.

Java's MirrorMaker writes one flow and ours another; the results of Java's client and formatters and of ours must be equal.
"""

from __future__ import annotations

import csv
import functools
import io
import json
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from mm2.mirror.client import (
    Checkpoint,
    FreshnessWatch,
    Heartbeat,
    MirrorClient,
    OffsetAndMetadata,
    OffsetSync,
    RemoteClusterUtils,
    TopicPartition,
)
from mm2.sandbox.kafka import LocalKafka
from tests.integration.asking import asked
from tests.integration.copy_flow import create, producer_of
from tests.integration.java_mirror import JavaMirrorProcess, java_says
from tests.integration.mirror_flow import commit
from tests.integration.mirror_process import MirrorProcess, checkpoints, heartbeats, topics_of, write_config

pytestmark = pytest.mark.timeout(300)

TOPIC = "client-orders"
RECORDS = 200
LAG_MAX = 10
#: Committed offset of each group in both partitions.
GROUPS = {"client-one": (200, 120), "client-two": (200, 0)}
#: The flow of each implementation: alias of the source, of the target.
FLOWS = {"java": ("jeast", "jwest"), "ours": ("oeast", "owest")}


@dataclass(frozen=True)
class Environment:
    """Both flows copy from ``east`` to ``west``; ``files`` are their properties."""

    east: LocalKafka
    west: LocalKafka
    files: dict[str, Path]

    @property
    def props(self) -> dict[str, str]:
        return {"bootstrap.servers": self.west.bootstrap}


def has_all_parts(west: LocalKafka, source: str, target: str) -> bool:
    """Whether the flow has written all records that the tests read."""
    beats, points = f"{source}.heartbeats", f"{source}.checkpoints.internal"
    wanted = {(group, f"{source}.{TOPIC}", 0) for group in GROUPS}
    if not ({beats, points} <= topics_of(west) and (target, source) in heartbeats(west, beats)):
        return False
    # Java has at most ten offset syncs in flight and delays the newest until its next commit: its first checkpoints
    # may be far behind the group.
    found = checkpoints(west, points)
    return all(one in found and found[one][1] >= RECORDS - LAG_MAX for one in wanted)


@pytest.fixture(scope="module")
def env(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory) -> Environment:
    east, west = kafka_pair
    create(east, TOPIC, 2)
    producer = producer_of(east)
    for number in range(2 * RECORDS):
        producer.produce(TOPIC, b"%d" % number, partition=number % 2)
    assert producer.flush(30) == 0
    for group, offsets in GROUPS.items():
        commit(east, group, {(TOPIC, partition): offset for partition, offset in enumerate(offsets)})
    files, started = {}, []
    try:
        for who, (source, target) in FLOWS.items():
            props = {
                "clusters": f"{source}, {target}",
                f"{source}.bootstrap.servers": east.bootstrap,
                f"{target}.bootstrap.servers": west.bootstrap,
                f"{source}->{target}.enabled": "true",
                "topics": TOPIC,
                "groups": "client-.*",
                "offset.lag.max": str(LAG_MAX),
                f"{target}.offset.flush.interval.ms": "1000",
            }
            folder = tmp_path_factory.mktemp(who)
            files[who] = write_config(folder / "mm2.properties", props)
            kind = JavaMirrorProcess if who == "java" else MirrorProcess
            started.append(kind(files[who], folder / "log"))
        for process, (source, target) in zip(started, FLOWS.values(), strict=True):
            process.eventually(functools.partial(has_all_parts, west, source, target), 150)
        time.sleep(2)  # some more intervals
    finally:
        for process in started:
            process.clean_up()
    # No process writes anymore, so all readers read the same records.
    return Environment(east, west, files)


@pytest.fixture(scope="module")
def java(env: Environment) -> dict[tuple[str, ...], Any]:
    """Java's results for all requests of the tests."""
    west, questions = env.west.bootstrap, [("upstream",), ("heartbeats",), ("checkpoints",), ("hops", "nowhere")]
    for source, target in FLOWS.values():
        questions += [("hops", source), ("remote", source), ("translate-all", source, "client-.*")]
        questions += [("translate", source, group) for group in (*GROUPS, "client-nobody")]
        questions += [
            ("format", f"{source}.checkpoints.internal", "Checkpoint"),
            ("format", f"{source}.heartbeats", "Heartbeat"),
        ]
        del target
    asked_west = [(question[0], west, *question[1:]) for question in questions]
    east = [
        ("format", env.east.bootstrap, f"mm2-offset-syncs.{target}.internal", "OffsetSync")
        for _, target in FLOWS.values()
    ]
    answers = java_says(*asked_west, *east)
    keys = [*questions, *((one[0], *one[2:]) for one in east)]
    return dict(zip(keys, answers, strict=True))


def plain(found: dict[TopicPartition, OffsetAndMetadata]) -> dict[str, list[Any]]:
    return {f"{topic}-{partition}": [at.offset, at.metadata] for (topic, partition), at in found.items()}


@pytest.mark.parametrize("who", FLOWS)
@pytest.mark.slow
def test_java_and_python_clients_return_the_same_results(
    env: Environment, java: dict[tuple[str, ...], Any], who: str
) -> None:
    source, target = FLOWS[who]
    with MirrorClient(env.props) as client:
        assert sorted(client.heartbeat_topics()) == java["heartbeats",]
        assert sorted(client.checkpoint_topics()) == java["checkpoints",]
        assert sorted(client.upstream_clusters()) == java["upstream",]
        assert {f"{source}.heartbeats", "heartbeats"} <= client.heartbeat_topics()
        assert source in client.upstream_clusters()
        assert (client.replication_hops(source), client.replication_hops("nowhere")) == (1, -1)
        assert (java["hops", source], java["hops", "nowhere"]) == (1, -1)
        assert sorted(client.remote_topics(source)) == java["remote", source]
        assert f"{source}.{TOPIC}" in client.remote_topics() & client.remote_topics(source)
        assert not client.remote_topics(target)


@pytest.mark.parametrize("who", FLOWS)
@pytest.mark.slow
def test_offsets_are_translated_like_java(env: Environment, java: dict[tuple[str, ...], Any], who: str) -> None:
    source, _ = FLOWS[who]
    for group, (first, _second) in GROUPS.items():
        found = RemoteClusterUtils.translate_offsets(env.props, source, group)
        assert plain(found) == java["translate", source, group]
        position = found[TopicPartition(f"{source}.{TOPIC}", 0)]
        assert RECORDS - LAG_MAX <= position.offset <= first, "never ahead of the group, and close behind it"
    assert RemoteClusterUtils.translate_offsets(env.props, source, "client-nobody") == {}
    assert java["translate", source, "client-nobody"] == {}
    by_group = RemoteClusterUtils.translate_offsets(env.props, source, re.compile("client-.*"))
    assert {group: plain(found) for group, found in by_group.items()} == java["translate-all", source, "client-.*"]
    assert set(by_group) == set(GROUPS)


@pytest.mark.parametrize("who", FLOWS)
@pytest.mark.slow
def test_javas_formatters_print_all_three_topics_like_ours(
    env: Environment, java: dict[tuple[str, ...], Any], who: str
) -> None:
    source, target = FLOWS[who]
    kinds: dict[type[Checkpoint | Heartbeat | OffsetSync], tuple[LocalKafka, str]] = {
        Checkpoint: (env.west, f"{source}.checkpoints.internal"),
        Heartbeat: (env.west, f"{source}.heartbeats"),
        OffsetSync: (env.east, f"mm2-offset-syncs.{target}.internal"),
    }
    for kind, (broker, topic) in kinds.items():
        with MirrorClient({"bootstrap.servers": broker.bootstrap}) as client:
            ours = [str(kind.decode(record.key, record.value)) for record in client.read(topic)]
        assert ours
        assert ours == java["format", topic, kind.__name__]


@pytest.mark.parametrize("who", FLOWS)
@pytest.mark.slow
def test_freshness_is_measured_per_flow_and_hop(env: Environment, who: str) -> None:
    source, target = FLOWS[who]
    with MirrorClient(env.props) as client:
        watch = FreshnessWatch(client)
        now_ms = time.time() * 1000
        by_place = {(one.topic, one.flow): one for one in watch.look()}
        again = {(one.topic, one.flow): one for one in watch.look()}
    here = by_place["heartbeats", f"{source}->{target}"]
    there = by_place[f"{source}.heartbeats", f"{target}->{source}"]
    assert (here.hops, here.route, there.hops, there.route) == (0, (), 1, (source,))
    for (topic, flow), stamp in (
        (("heartbeats", (source, target)), here),
        ((f"{source}.heartbeats", (target, source)), there),
    ):
        newest_ms = heartbeats(env.west, topic)[flow]
        assert stamp.heartbeat.timestamp_ms == newest_ms
        assert stamp.age_ms == pytest.approx(now_ms - newest_ms, abs=5_000)
    assert again.keys() == by_place.keys()
    assert again[there.topic, there.flow].heartbeat == there.heartbeat


# -- the command line


@pytest.mark.slow
def test_the_command_prints_what_the_library_returns(env: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = FLOWS["ours"]
    at = ("--cluster", target)
    file = env.files["ours"]
    code, out, _ = asked(capsys, "client", "upstream-clusters", file, *at, "--json")
    assert (code, source in json.loads(out)) == (0, True)
    assert asked(capsys, "client", "hops", file, source, *at)[:2] == (0, "1\n")
    assert asked(capsys, "client", "hops", file, "nowhere", *at)[:2] == (1, "-1\n")
    code, out, _ = asked(capsys, "client", "remote-topics", file, *at, "--source", source)
    assert (code, f"{source}.{TOPIC}" in out.splitlines()) == (0, True)
    code, out, _ = asked(capsys, "client", "remote-topics", file, *at, "--source", "nowhere")
    assert (code, out) == (1, "")

    found = RemoteClusterUtils.translate_offsets(env.props, source, "client-one")
    code, out, _ = asked(capsys, "client", "translate-offsets", file, source, "client-one", *at, "--json")
    assert code == 0
    assert {(row["topic"], row["partition"]): row["offset"] for row in json.loads(out)} == {
        tuple(partition): position.offset for partition, position in found.items()
    }
    code, out, _ = asked(capsys, "client", "translate-offsets", file, source, "--groups", "client-.*", *at, "--csv")
    assert code == 0
    rows = list(csv.reader(io.StringIO(out)))
    assert {row[0] for row in rows} == set(GROUPS)
    code, _, error = asked(capsys, "client", "translate-offsets", file, source, "client-nobody", *at)
    assert (code, error) == (1, f"There is no checkpoint of client-nobody from {source}.\n")


@pytest.mark.slow
def test_unanswerable_requests_exit_with_2(
    env: Environment, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = env.files["ours"]
    code, _, error = asked(capsys, "client", "heartbeat-topics", file)
    assert (code, "set --cluster" in error) == (2, True)
    code, _, error = asked(capsys, "client", "heartbeat-topics", file, "--cluster", "mars")
    assert (code, "its clusters are oeast, owest" in error) == (2, True)
    code, _, error = asked(capsys, "client", "translate-offsets", file, "mars", "g", "--cluster", "owest")
    assert (code, "UNKNOWN_TOPIC_OR_PARTITION" in error) == (2, True)
    code, _, error = asked(capsys, "client", "translate-offsets", file, "oeast", "--cluster", "owest")
    assert (code, "Name a group" in error) == (2, True)
    client = tmp_path / "client.properties"
    client.write_text("security.protocol = PLAINTEXT\n")
    code, _, error = asked(capsys, "client", "heartbeat-topics", client)
    assert (code, "bootstrap.servers" in error) == (2, True)
    client.write_text(f"bootstrap.servers = {env.west.bootstrap}\nrequest.timeout.ms = 7000\n")
    assert asked(capsys, "client", "heartbeat-topics", client)[0] == 0


@pytest.mark.slow
def test_old_or_missing_heartbeats_are_not_healthy(env: Environment, capsys: pytest.CaptureFixture[str]) -> None:
    source, target = FLOWS["ours"]
    code, out, _ = asked(capsys, "heartbeats", env.files["ours"], target, "--max-age", "3600", "--json")
    rows = {(row["topic"], row["source"]): row for row in json.loads(out)["clusters"][target]}
    assert code == 0, out
    assert rows["heartbeats", source]["verdict"] == "fresh"
    assert (rows[f"{source}.heartbeats", target]["verdict"], rows[f"{source}.heartbeats", target]["hops"]) == (
        "fresh",
        1,
    )
    assert rows["heartbeats", FLOWS["java"][0]]["verdict"] == "not in the file"
    code, out, _ = asked(capsys, "heartbeats", env.files["ours"], target, "--max-age", "0.001")
    assert (code, " old" in out) == (1, True)
