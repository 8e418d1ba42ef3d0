"""File → FileStreamSource → topic → FileStreamSink → file, with the properties files of conf/, and kill -9 in between."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.config.files.properties import load_properties
from mm2.sandbox.kafka import LocalKafka
from tests.integration.copy_flow import create
from tests.support.waiting import wait_until
from tests.systems.workers import (
    ROOT,
    SHORT_SESSIONS,
    DistributedWorker,
    StandaloneWorker,
    WorkerProcess,
    distributed_props,
)

FIRST = "".join(f"line {number} of the first half, with ünïcode and {{json: 'no'}}\n" for number in range(500))
SECOND = "".join(f"line {number} of the second half\n" for number in range(500))


class Trip:
    """Two files and the connectors between them, as in conf/ except for the names of files and topic."""

    def __init__(self, broker: LocalKafka, folder: Path, topic: str) -> None:
        self.source, self.sink = folder / "test.txt", folder / "test.sink.txt"
        create(broker, topic)
        self.connectors = {
            "source": {
                **load_properties(ROOT / "conf" / "connect-file-source.properties"),
                "file": str(self.source),
                "topic": topic,
            },
            "sink": {
                **load_properties(ROOT / "conf" / "connect-file-sink.properties"),
                "file": str(self.sink),
                "topics": topic,
                "name": f"{topic}-sink",
            },
        }

    def name(self, kind: str) -> str:
        return self.connectors[kind]["name"]

    def is_settled(self, worker: WorkerProcess, lines: int) -> bool:
        """Whether all lines are in the sink's file and both connectors have committed their offsets."""
        position = {"position": self.source.stat().st_size}
        source, sink = worker.rest.offsets(self.name("source")), worker.rest.offsets(self.name("sink"))
        return (
            self.sink.exists()
            and self.sink.read_text() == self.source.read_text()
            and [entry["offset"] for entry in source] == [position]
            and [entry["offset"] for entry in sink] == [{"kafka_offset": lines}]
        )


def conf(name: str) -> dict[str, str]:
    """A file of conf/ with a commit interval of one second instead of ten."""
    return {**load_properties(ROOT / "conf" / name), "offset.flush.interval.ms": "1000"}


@pytest.mark.timeout(300)
def test_files_arrive_through_distributed_workers_that_are_killed(
    broker: LocalKafka, unique: str, folder: Path
) -> None:
    trip = Trip(broker, folder, unique)
    trip.source.write_text(FIRST)
    ours = distributed_props(broker.bootstrap, unique)
    here = {key: ours[key] for key in ours if key.endswith(".topic") or key in {"bootstrap.servers", "group.id"}}
    with DistributedWorker(
        folder / "worker", {**conf("connect-distributed.properties"), **SHORT_SESSIONS, **here}
    ) as worker:
        for config in trip.connectors.values():
            worker.rest.create(config["name"], config)
        wait_until(lambda: trip.is_settled(worker, 500), 90, detail=worker.tail)
        worker.kill9()
        with trip.source.open("a") as growing:
            growing.write(SECOND)
        worker.start()
        wait_until(lambda: trip.is_settled(worker, 1000), 90, detail=worker.tail)
        assert trip.sink.read_text() == FIRST + SECOND
        for config in trip.connectors.values():
            worker.rest.delete(config["name"])


@pytest.mark.timeout(300)
def test_files_arrive_through_standalone_workers_that_are_killed(broker: LocalKafka, unique: str, folder: Path) -> None:
    trip = Trip(broker, folder, unique)
    trip.source.write_text(FIRST)
    files = []
    for kind, config in trip.connectors.items():
        files.append(folder / f"{kind}.properties")
        files[-1].write_text("".join(f"{key}={value}\n" for key, value in config.items()))
    props = {
        **conf("connect-standalone.properties"),
        **{key: value for key, value in SHORT_SESSIONS.items() if key.startswith("consumer.")},
        "bootstrap.servers": broker.bootstrap,
        "offset.storage.file.filename": str(folder / "connect.offsets"),
    }
    with StandaloneWorker(folder / "worker", props, files) as worker:
        wait_until(lambda: trip.is_settled(worker, 500), 90, detail=worker.tail)
        worker.kill9()
        with trip.source.open("a") as growing:
            growing.write(SECOND)
        worker.start()
        wait_until(lambda: trip.is_settled(worker, 1000), 90, detail=worker.tail)
        assert trip.sink.read_text() == FIRST + SECOND
    assert (folder / "connect.offsets").exists()
