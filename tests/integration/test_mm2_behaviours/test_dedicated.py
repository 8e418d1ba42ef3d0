"""Behaviours 33 to 36: dedicated mode, and an extension over Java: configuration changes are applied while it runs."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mm2.sandbox.kafka import LocalKafka
from mm2.sandbox.ports import free_ports
from tests.integration.copy_flow import create, producer_of
from tests.integration.mirror_process import (
    MirrorProcess,
    has_all,
    heartbeats,
    statuses,
    table,
    topics_of,
    write_config,
)
from tests.support.waiting import PATIENCE

pytestmark = pytest.mark.timeout(int(300 * PATIENCE))

CONNECTORS = ("MirrorSourceConnector", "MirrorHeartbeatConnector", "MirrorCheckpointConnector")
IN_EFFECT = "The new configuration is in effect."


def fill(broker: LocalKafka, topic: str, partitions: int = 1, records: int = 20) -> None:
    create(broker, topic, partitions)
    producer = producer_of(broker)
    for number in range(records):
        producer.produce(topic, b"%d" % number, partition=number % partitions)
    assert producer.flush(30) == 0


def states(broker: LocalKafka, source: str) -> dict[str, str]:
    rows = statuses(broker, source) if f"mm2-status.{source}.internal" in topics_of(broker) else {}
    return {name: row["state"] for name, row in rows.items()}


def are_running(broker: LocalKafka, source: str, *names: str) -> bool:
    found = states(broker, source)
    return all(found.get(name) == "RUNNING" for name in names)


def beats(broker: LocalKafka) -> set[tuple[str, str]]:
    return set(heartbeats(broker, "heartbeats")) if "heartbeats" in topics_of(broker) else set()


@dataclass
class Dedicated:
    """Processes of one deployment on one file each; aliases are ``near`` and ``far``."""

    broker_a: LocalKafka
    broker_b: LocalKafka
    near: str
    far: str
    folder: Path
    props: dict[str, str] = field(default_factory=dict)
    started: list[MirrorProcess] = field(default_factory=list)

    @property
    def flow(self) -> str:
        return f"{self.near}->{self.far}"

    @property
    def back(self) -> str:
        return f"{self.far}->{self.near}"

    def write(self, name: str = "mm2.properties", **changes: str) -> Path:
        """Write the file with these settings; `__` in a key stands for `.`."""
        self.props.update({key.replace("__", "."): value for key, value in changes.items()})
        # Replaced atomically like by an editor, so that no partial file is read.
        return write_config(self.folder / f"{name}.new", self.props).replace(self.folder / name)

    def start(self, name: str = "mm2.properties", *clusters: str) -> MirrorProcess:
        log = self.folder / f"process-{len(self.started) + 1}.log"
        process = MirrorProcess(self.folder / name, log, *clusters)
        self.started.append(process)
        return process

    def copies(self, topic: str, *, back: bool = False) -> bool:
        here, there, alias = (
            (self.broker_b, self.broker_a, self.far) if back else (self.broker_a, self.broker_b, self.near)
        )
        return has_all(here, topic, there, f"{alias}.{topic}")

    def stored(self, connector: str) -> Any:
        """The value of a key in the flow's config topic, as text; None without one."""
        value, _ = table(self.broker_b, f"mm2-configs.{self.near}.internal").get(connector.encode(), (None, 0))
        return None if value is None else value.decode()


def deployment(pair: tuple[LocalKafka, LocalKafka], folder: Path, near: str, far: str, **props: str) -> Dedicated:
    made = Dedicated(*pair, near, far, folder)
    made.write(
        **{
            "clusters": f"{near}, {far}",
            f"{near}.bootstrap.servers": pair[0].bootstrap,
            f"{far}.bootstrap.servers": pair[1].bootstrap,
            f"{near}->{far}.enabled": "true",
            f"{far}->{near}.enabled": "false",
            f"{far}->{near}.emit.heartbeats.enabled": "false",
            "listeners": "",
            **{f"{alias}.session.timeout.ms": "6000" for alias in (near, far)},
            **{f"{alias}.heartbeat.interval.ms": "1500" for alias in (near, far)},
        }
    )
    made.write(**props)
    return made


# -- one process, no REST (33), its file changed while it runs


@pytest.fixture(scope="module")
def single(
    kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Dedicated, MirrorProcess]]:
    made = deployment(kafka_pair, tmp_path_factory.mktemp("single"), "dna", "dfa")
    made.write(**{f"{made.flow}.topics": "^dedicated-test-.*", f"{made.flow}.topics.exclude": "nothing"})
    fill(made.broker_a, "dedicated-test-1", 2)
    process = made.start()
    try:
        process.eventually(lambda: made.copies("dedicated-test-1"), 120)
        yield made, process
    finally:
        for one in made.started:
            one.clean_up()


def changed(made: Dedicated, process: MirrorProcess, **changes: str) -> Mapping[str, Any]:
    """Change the file and wait until it is applied; returns the log line."""
    before = len(process.lines(event=IN_EFFECT))
    made.write(**changes)
    process.eventually(lambda: len(process.lines(event=IN_EFFECT)) > before, 60)
    return process.lines(event=IN_EFFECT)[-1]


def test_a_single_node_without_rest_runs_everything_and_copies(single: tuple[Dedicated, MirrorProcess]) -> None:
    """Behaviour 33."""
    made, process = single
    tasks = ("task-MirrorSourceConnector-0", "task-MirrorHeartbeatConnector-0")
    names = [f"connector-{name}" for name in CONNECTORS]
    process.eventually(lambda: are_running(made.broker_b, made.near, *names, *tasks), 60)
    process.eventually(lambda: (made.near, made.far) in beats(made.broker_b), 60)
    assert (made.far, made.near) not in beats(made.broker_a)


def test_connectors_follow_the_file_without_a_restart(single: tuple[Dedicated, MirrorProcess]) -> None:
    made, process = single
    fill(made.broker_a, "other-test-1")
    output = changed(made, process, **{f"{made.flow}.topics": "^dedicated-test-.*, other-test-.*"})
    assert output["difference"] == [f"{made.flow}.topics: ^dedicated-test-.* -> ^dedicated-test-.*, other-test-.*"]
    assert (output["started"], output["stopped"], output["restarted"]) == ([], [], [])
    assert set(output["reconfigured"][made.flow]) == set(CONNECTORS)
    process.eventually(lambda: made.copies("other-test-1"), 60)
    assert "other-test-" in made.stored("connector-MirrorSourceConnector")


def test_an_invalid_file_is_rejected_and_the_old_one_stays_in_use(single: tuple[Dedicated, MirrorProcess]) -> None:
    made, process = single
    good, effects = dict(made.props), len(process.lines(event=IN_EFFECT))
    made.write(
        **{
            f"{made.flow}.topics": "(",
            f"{made.far}.sasl.jaas.config": "the-secret-itself",
            "my.token": "another-secret",
        }
    )
    logged = process.await_log("is rejected, the previous version stays in effect")
    assert f"Flow {made.flow}: Invalid value ( for configuration topics" in logged["event"]
    assert f"{made.far}.sasl.jaas.config: (none) -> [hidden]" in logged["difference"]
    assert any(line.startswith(f"{made.flow}.topics: ") and line.endswith(" -> (") for line in logged["difference"])
    made.props.clear()
    made.write(
        **good,
        **{
            "config.providers": "f",
            "config.providers.f.class": "org.apache.kafka.common.config.provider.FileConfigProvider",
            "spark.ui.retainedStages": "${f:/nowhere:key}",
        },
    )
    process.await_log("Config provider f, path /nowhere, key key: ")
    fill(made.broker_a, "dedicated-test-2")
    process.eventually(lambda: made.copies("dedicated-test-2"), 60)
    assert len(process.lines(event=IN_EFFECT)) == effects
    made.props.clear()
    changed(made, process, **good)
    assert "secret" not in process.log.read_text()


def test_flows_start_and_stop_with_the_file(single: tuple[Dedicated, MirrorProcess]) -> None:
    made, process = single
    fill(made.broker_b, "back-test-1")
    output = changed(made, process, **{f"{made.back}.enabled": "true", f"{made.back}.topics": "back-test-.*"})
    assert (output["started"], output["stopped"]) == ([made.back], [])
    process.eventually(lambda: made.copies("back-test-1", back=True), 90)
    output = changed(made, process, **{f"{made.back}.enabled": "false"})
    assert (output["started"], output["stopped"]) == ([], [made.back])
    process.eventually(lambda: set(states(made.broker_a, made.far).values()) == {"UNASSIGNED"}, 60)
    fill(made.broker_a, "dedicated-test-3")
    process.eventually(lambda: made.copies("dedicated-test-3"), 60)


def test_worker_keys_restart_their_flow_and_startup_keys_are_reported(
    single: tuple[Dedicated, MirrorProcess],
) -> None:
    made, process = single
    output = changed(made, process, **{f"{made.far}.offset.flush.interval.ms": "2000", "spark.ui.retainedJobs": "66"})
    assert output["restarted"] == [made.flow]
    process.await_log("spark.ui.retainedJobs has changed")
    fill(made.broker_a, "dedicated-test-4")
    process.eventually(lambda: made.copies("dedicated-test-4"), 90)


def test_sighup_reloads_the_file_and_a_stop_ends_cleanly(single: tuple[Dedicated, MirrorProcess]) -> None:
    _, process = single
    before = len(process.lines(event=IN_EFFECT))
    os.kill(process.pid, signal.SIGHUP)
    process.eventually(lambda: len(process.lines(event=IN_EFFECT)) > before, 30)
    output = process.lines(event=IN_EFFECT)[-1]
    assert (output["difference"], output["restarted"], output["reconfigured"]) == ([], [], {})
    assert process.is_running
    assert process.stop()[0] == 0


# -- no offset syncs (34)


@pytest.mark.slow
def test_without_offset_syncs_data_are_copied_without_a_checkpoint_connector(
    kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path: Path
) -> None:
    made = deployment(kafka_pair, tmp_path, "nosyn", "nosyf")
    made.write(**{f"{made.flow}.topics": "nosync-test-.*", f"{made.flow}.emit.offset-syncs.enabled": "false"})
    fill(made.broker_a, "nosync-test-1")
    # With a key about emitting them, the source connector's configuration is rejected, too.
    file = made.folder / "mm2.properties"
    file.write_text("".join(line for line in file.open() if not line.startswith("offset-syncs.")))
    process = made.start()
    try:
        process.eventually(lambda: made.copies("nosync-test-1"), 120)
        wanted = [
            f"{kind}-Mirror{name}Connector{end}"
            for kind, end in (("connector", ""), ("task", "-0"))
            for name in ("Source", "Heartbeat")
        ]
        process.eventually(lambda: are_running(made.broker_b, made.near, *wanted), 60)
        process.await_log("Failed to configure the connector MirrorCheckpointConnector")
        assert made.stored("connector-MirrorCheckpointConnector") is None
        assert f"mm2-offset-syncs.{made.far}.internal" not in topics_of(made.broker_a)
    finally:
        process.clean_up()


# -- three processes with internal REST, exactly once, special characters (35), rolling restart (36)


@pytest.mark.slow
def test_three_nodes_converge_on_a_changed_file(kafka_pair: tuple[LocalKafka, LocalKafka], tmp_path: Path) -> None:
    """Behaviour 35, and behaviour 36."""
    far = r"r\ \!@\#f"  # escaped for a properties key
    made = deployment(kafka_pair, tmp_path, "rn", far)
    made.write(
        **{
            f"{made.flow}.topics": "rolling-test-.*",
            f"{made.flow}.offset-syncs.topic.location": "target",
            "dedicated.mode.enable.internal.rest": "true",
            f"{far}.exactly.once.source.support": "enabled",
            "rn.consumer.isolation.level": "read_committed",
        }
    )
    names = [f"node-{number}" for number in range(3)]
    ports = dict(zip(names, free_ports(3), strict=True))

    def write(name: str, interval: str) -> None:
        made.write(
            name,
            **{
                "listeners": f"http://127.0.0.1:{ports[name]}",
                f"{made.flow}.refresh.topics.interval.seconds": interval,
            },
        )

    fill(made.broker_a, "rolling-test-1", 2)
    for name in names:
        write(name, "1")
    nodes = {name: made.start(name) for name in names}
    try:
        nodes[names[0]].eventually(lambda: made.copies("rolling-test-1"), 150)
        fill(made.broker_a, "rolling-test-2", 2)
        nodes[names[0]].eventually(lambda: made.copies("rolling-test-2"), 60)
        # Each is restarted with the new file while the others continue.
        for name in names:
            write(name, "2")
            assert nodes[name].stop()[0] == 0
            nodes[name] = made.start(name)
            nodes[name].await_log("assigned", timeout_s=120)  # so it has read its file
        nodes[names[0]].eventually(
            lambda: '"refresh.topics.interval.seconds":"2"' in (made.stored("task-MirrorSourceConnector-0") or ""), 90
        )
        # Again without a restart: the leader has read the file, too.
        for name in names:
            write(name, "3")
        for name in names:
            nodes[name].await_log(IN_EFFECT, timeout_s=120)
        nodes[names[0]].eventually(
            lambda: '"refresh.topics.interval.seconds":"3"' in (made.stored("task-MirrorSourceConnector-0") or ""), 60
        )
        fill(made.broker_a, "rolling-test-3", 2)
        nodes[names[0]].eventually(lambda: made.copies("rolling-test-3"), 60)
    finally:
        for process in made.started:
            process.clean_up()
