"""The same sink with the same bad records on Java's standalone worker and on ours writes the same dead letters."""

from __future__ import annotations

from pathlib import Path

import pytest

from mm2.sandbox.kafka import LocalKafka
from tests.integration.connect_reading import create_topic, read_all
from tests.support.waiting import wait_until
from tests.systems.sink_events import produce
from tests.systems.workers import JavaStandaloneWorker, StandaloneWorker, WorkerProcess

PREFIX = "__connect.errors."
#: Headers whose text differs: messages and stack traces of Java's code and ours.
OWN_TEXTS = {f"{PREFIX}exception.message", f"{PREFIX}exception.stacktrace"}
INTEGER = "org.apache.kafka.connect.converters.IntegerConverter"
HOIST = "org.apache.kafka.connect.transforms.ExtractField$Value"


def letters_of(
    kind: type[JavaStandaloneWorker | StandaloneWorker],
    broker: LocalKafka,
    topic: str,
    folder: Path,
    **more: str,
) -> list[tuple[bytes | None, bytes | None, list[tuple[str, bytes]], int]]:
    """Key, value, headers and timestamp of the dead letters that a worker of that kind writes for the topic."""
    name, letters = "sink", f"{topic}-{kind.__name__}"
    folder.mkdir()
    connector = folder / "sink.properties"
    settings = {
        "name": name,
        "connector.class": "FileStreamSink",
        "topics": topic,
        "file": str(folder / "out"),
        "consumer.override.group.id": letters,
        "errors.tolerance": "all",
        "errors.deadletterqueue.topic.name": letters,
        "errors.deadletterqueue.topic.replication.factor": "1",
        "errors.deadletterqueue.context.headers.enable": "true",
        **more,
    }
    connector.write_text("".join(f"{key}={value}\n" for key, value in settings.items()))
    worker: WorkerProcess = kind(folder, {"bootstrap.servers": broker.bootstrap}, [connector])
    with worker:
        wait_until(lambda: (folder / "out").exists() and "7" in (folder / "out").read_text(), 60, detail=worker.tail)
        worker.stop()
    found = read_all(broker.bootstrap, letters)
    return [(m.key(), m.value(), m.headers(), m.timestamp()[1]) for m in found]


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_failed_conversions_are_like_java_s(broker: LocalKafka, unique: str, folder: Path) -> None:
    create_topic(broker.bootstrap, unique)
    bad: list[str | bytes] = [b"\x00\x00", b"too long for an int"]
    produce(broker.bootstrap, unique, bad, key=b"k", headers=[("a", b"1"), ("a", b"2")])
    produce(broker.bootstrap, unique, [(7).to_bytes(4, "big")])
    compare(broker, unique, folder, **{"value.converter": INTEGER})


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_failed_transformations_are_like_java_s(broker: LocalKafka, unique: str, folder: Path) -> None:
    create_topic(broker.bootstrap, unique)
    produce(broker.bootstrap, unique, ["no struct", '{"f":7}'])
    json = {"value.converter": "org.apache.kafka.connect.json.JsonConverter", "value.converter.schemas.enable": "false"}
    transform = {"transforms": "x", "transforms.x.type": HOIST, "transforms.x.field": "f"}
    produce(broker.bootstrap, unique, ['"text"', '{"f":7}'])
    compare(broker, unique, folder, **json, **transform)


def compare(broker: LocalKafka, topic: str, folder: Path, **more: str) -> None:
    ours = letters_of(StandaloneWorker, broker, topic, folder / "ours", **more)
    theirs = letters_of(JavaStandaloneWorker, broker, topic, folder / "java", **more)
    assert len(ours) == len(theirs) >= 1
    for mine, other in zip(ours, theirs, strict=True):
        assert (mine[0], mine[1], mine[3]) == (other[0], other[1], other[3])
        assert [name for name, _ in mine[2]] == [name for name, _ in other[2]]
        same = [pair for pair in mine[2] if pair[0] not in OWN_TEXTS]
        assert same == [pair for pair in other[2] if pair[0] not in OWN_TEXTS]
        texts = [(name, value) for name, value in mine[2] if name in OWN_TEXTS]
        assert all(value for _, value in texts)
